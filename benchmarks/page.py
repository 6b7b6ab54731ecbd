"""Figures on the page: what stands between two lines of it is made by a benchmark."""

from pathlib import Path

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "internals" / "performance.md"


def put(begin: str, end: str, figures: str) -> None:
    """Replace what is between the two lines."""
    text = PAGE.read_text("utf-8")
    before, found, rest = text.partition(begin)
    _, closed, after = rest.partition(end)
    if not found or not closed:
        msg = f"{PAGE} has no {begin!r} with {end!r} after it"
        raise ValueError(msg)
    PAGE.write_text(f"{before}{begin}\n\n{figures}\n{end}{after}", "utf-8")
