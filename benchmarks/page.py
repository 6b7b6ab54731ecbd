"""Benchmark figures on the performance page, between two marker lines that each benchmark owns."""

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "internals" / "performance.md"


def put(begin: str, end: str, figures: str) -> None:
    """Replace the text between the two marker lines. Raises ValueError if the page lacks them."""
    text = PAGE.read_text("utf-8")
    before, opened, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not opened or not closed:
        msg = f"{PAGE} has no line {begin!r} followed by {end!r}"
        raise ValueError(msg)
    PAGE.write_text(f"{before}{begin}\n\n{figures}\n{end}{after}", "utf-8")
