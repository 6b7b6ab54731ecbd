"""The names that a command accepts as its arguments."""

from collections.abc import Iterable

import typer


def require_known(names: Iterable[str] | None, known: Iterable[str]) -> None:
    """Raise BadParameter, which ends a command with 2, for a name that is none of the known ones."""
    choices = list(known)
    unknown = [repr(name) for name in names or () if name not in choices]
    if unknown:
        msg = f"{', '.join(unknown)}: choose from {', '.join(choices)}"
        raise typer.BadParameter(msg)
