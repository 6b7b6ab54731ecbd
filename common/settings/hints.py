"""What a name that is not known was probably meant to be."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def did_you_mean(name: str, known: Iterable[str], otherwise: str) -> str:
    """Ask for the known name that differs in case only, or else for the most similar one; ``otherwise`` without one."""
    names = list(known)
    same = [one for one in names if one.casefold() == name.casefold()]
    near = same or difflib.get_close_matches(name, names, n=1)
    return f"did you mean {near[0]!r}?" if near else otherwise
