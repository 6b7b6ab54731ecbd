"""Output for people on a terminal, not for programs: colors, progress bars, prompts; and plain-text tables.

Rules:

1. Colors and bars are for terminals. There are no colors where the output is a file or a pipe, where ``NO_COLOR`` is
   set or ``TERM`` is ``dumb``. A bar goes to standard error: standard output has only the result.
2. A table is aligned with spaces and never cut to a width: it is read by ``grep`` and ``awk`` too.
"""

import os
import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import TextIO

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from common.printable import one_line

_COLOR = re.compile("\x1b\\[[0-9;]*m")


class Tone(StrEnum):
    """The meaning of a word, shown as a color."""

    GOOD = "green"
    WARNING = "yellow"
    BAD = "red"


def has_colors(stream: TextIO) -> bool:
    """Whether colors may be written there (rule 1)."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def colored(text: str, tone: Tone) -> str:
    """The text in a color, where standard output has colors."""
    return typer.style(text, fg=tone.value) if has_colors(sys.stdout) else text


def aligned(head: Sequence[str], rows: Iterable[Sequence[str]], right: Collection[int] = ()) -> str:
    """A table; the columns whose indexes are in ``right`` are right-aligned."""
    lines = [tuple(map(one_line, row)) for row in (head, *rows)]
    widths = [max(len(_plain(line[index])) for line in lines) for index in range(len(head))]

    def cell(index: int, text: str) -> str:
        space = " " * (widths[index] - len(_plain(text)))
        return space + text if index in right else text + space

    return "\n".join("  ".join(cell(index, text) for index, text in enumerate(line)).rstrip() for line in lines)


def _plain(text: str) -> str:
    return _COLOR.sub("", text)


def age_text(seconds: float) -> str:
    """An age for people: its largest unit."""
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


@contextmanager
def progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """A bar on standard error for long work, on a terminal only; the yielded function reports how much was done."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console = Console(stderr=True, no_color=not has_colors(sys.stderr))
    with Progress(*columns, TimeRemainingColumn(), console=console, transient=True) as bar:
        task = bar.add_task(what, total=total)
        yield lambda count: bar.advance(task, count)


def is_interactive() -> bool:
    """Whether the user can be prompted: both ends are a terminal."""
    return sys.stdin.isatty() and sys.stdout.isatty()
