"""How settings are refused."""

from typing import NoReturn


def refuse(problem: str) -> NoReturn:
    """Raise ValueError, of which pydantic makes an error with the key and the value in front of this sentence."""
    raise ValueError(problem)
