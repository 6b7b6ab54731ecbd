"""Text that others wrote, made fit for a terminal.

A marker, a table's log and a topic's names are written by whoever may write there. A terminal obeys escape sequences,
which may clear what was printed, or name a window, and a line break may pass for a line of ours.

Rules:

1. Whatever goes to a terminal goes through `printable`: what commands print (`common.cli.echo`) and logs for people.
   Control characters, those that turn the direction of text around, and halves of surrogate pairs become escapes.
2. The few colours that `common.terminal` writes stay.
3. A value within a line, or a cell of a table, goes through `one_line` also (or `joined`), which leaves no line break.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_OURS = r"\x1b\[(?:0|3[1-3]|90)m"
_UNFIT = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_TEXT = re.compile(f"{_OURS}|[{_UNFIT}]")
_LINE = re.compile(f"{_OURS}|[{_UNFIT}\t\n]")


def printable(text: str) -> str:
    """The text without anything that a terminal would obey, but for line breaks, tabs and our own colours."""
    return _TEXT.sub(_escaped, text)


def one_line(text: str) -> str:
    """The same without line breaks and tabs."""
    return _LINE.sub(_escaped, text)


def joined(lines: Iterable[str]) -> str:
    """Lines, each of which stays one."""
    return "\n".join(map(one_line, lines))


def _escaped(found: re.Match[str]) -> str:
    text = found[0]
    return text if len(text) > 1 else text.encode("unicode_escape").decode()
