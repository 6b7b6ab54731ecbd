"""Text from other sources, made safe for a terminal.

Anyone with write access writes markers, table logs and topic names. A terminal executes escape sequences, which may
clear the output or set a window's title, and a line break may fake a line of ours.

Rules:

1. All terminal output goes through `printable`: output of commands (`common.cli.echo`) and logs for people. Control
   characters, bidirectional controls, and unpaired surrogates become escapes.
2. The few color codes that `common.terminal` writes are kept.
3. A value within a line, or a cell of a table, also goes through `one_line` (or `joined`), which removes line breaks.
"""

import re
from collections.abc import Iterable

_OURS = r"\x1b\[(?:0|3[1-3]|90)m"
_UNPRINTABLE = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
_TEXT = re.compile(f"{_OURS}|[{_UNPRINTABLE}]")
_LINE = re.compile(f"{_OURS}|[{_UNPRINTABLE}\t\n]")


def printable(text: str) -> str:
    """The text with everything escaped that a terminal would execute, except line breaks, tabs and our own colors."""
    return _TEXT.sub(_escaped, text)


def one_line(text: str) -> str:
    """Like `printable`, with line breaks and tabs escaped too."""
    return _LINE.sub(_escaped, text)


def joined(lines: Iterable[str]) -> str:
    """The lines joined by line breaks; each of them stays a single line."""
    return "\n".join(map(one_line, lines))


def _escaped(match: re.Match[str]) -> str:
    text = match[0]
    return text if len(text) > 1 else text.encode("unicode_escape").decode()
