"""The loader's figures: stored as JSON, as a Markdown table, on the performance page and as a chart."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Cost
from benchmarks.page import DOCS, put

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE = Path(__file__).parent / "loader_results.json"
_PICTURE = DOCS / "images" / "benchmark-loader.svg"
_BEGIN, _END = "<!-- loader: made by `python -m benchmarks.loader --keep` -->", "<!-- end of the loader -->"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    """A case and both sides' costs, one per round."""

    section: str
    files: int
    size_bytes: int
    """Total bytes of the files."""
    costs: dict[str, list[Cost]]

    @property
    def ours(self) -> str:
        return next(side for side in self.costs if side != "spark")

    def cpu_s(self, side: str) -> float:
        return statistics.median(cost.cpu_s for cost in self.costs[side])

    def wall_s(self, side: str) -> float:
        return statistics.median(cost.wall_s for cost in self.costs[side])


def table(found: Sequence[Measured]) -> str:
    """A Markdown table, also readable on a terminal.

    If the cases differ in their number of files, the last columns have the cost of each file beyond the previous case:
    if a side's figures there do not rise, its cost is at most linear in files.
    """
    by_number = len({one.files for one in found}) > 1
    ours = found[0].ours
    heads = ["files", "MiB", f"{ours}: CPU-s", f"{ours}: s", "Spark: CPU-s", "Spark: s", f"Spark ÷ {ours}"]
    heads += [f"{ours}: ms a file more", "Spark: ms a file more"] if by_number else []
    lines = [_row(heads), _row(["---:"] * len(heads))]
    for before, one in zip([None, *found], found, strict=False):
        cells = [
            f"{one.files:,}",
            f"{one.size_bytes / _MIB:,.1f}",
            f"{one.cpu_s(ours):.2f}",
            f"{one.wall_s(ours):.2f}",
            f"{one.cpu_s('spark'):.2f}",
            f"{one.wall_s('spark'):.2f}",
            f"{one.cpu_s('spark') / one.cpu_s(ours):.1f}",
        ]
        if by_number:
            cells += [_more(before, one, side) for side in (ours, "spark")]
        lines.append(_row(cells))
    return "\n".join([*lines, ""])


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _more(before: Measured | None, one: Measured, side: str) -> str:
    if before is None or one.files == before.files:
        return ""
    return f"{1000 * (one.cpu_s(side) - before.cpu_s(side)) / (one.files - before.files):.2f}"


def keep(found: Sequence[Measured]) -> None:
    """Replace the sections that were measured again, and update the page."""
    measured = {one.section for one in found}
    kept = [one for one in read() if one.section not in measured]
    FILE.write_text(json.dumps([asdict(one) for one in (*kept, *found)], indent=1) + "\n", "utf-8")
    write_page(read())


def read() -> list[Measured]:
    found = json.loads(FILE.read_text("utf-8")) if FILE.exists() else []
    return [
        Measured(**{**one, "costs": {side: [Cost(**cost) for cost in costs] for side, costs in one["costs"].items()}})
        for one in found
    ]


def write_page(found: Sequence[Measured]) -> None:
    """Write the figures into the page, and draw the chart."""
    titles = {"files": "Small files, by their number", "bytes": "100 files, by their size"}
    titles["merges"] = "Change events against a plain MERGE of the same four files: 1,000, and 100,000"
    titles["explodes"] = "The same with four elements in each event: 250, and 25,000"
    parts = [
        f"### {title}\n\n{table(cases)}"
        for section, title in titles.items()
        if (cases := [one for one in found if one.section == section])
    ]
    picture = "![What a load costs](../images/benchmark-loader.svg)\n"
    put(_BEGIN, _END, "\n".join([*parts, picture]))
    _draw(found)


def _draw(found: Sequence[Measured]) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only the chart needs it

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "benchmark-loader"  # the same figures produce the same file
    from matplotlib import pyplot as plt  # noqa: PLC0415

    files, sizes = ([one for one in found if one.section == section] for section in ("files", "bytes"))
    panels = [
        (cases, places, label)
        for cases, places, label in (
            (files, [one.files for one in files], "files"),
            (sizes, [one.size_bytes / _MIB for one in sizes], "MiB in 100 files"),
        )
        if cases
    ]
    figure, axes = plt.subplots(1, len(panels), figsize=(5.5 * len(panels), 4.2), layout="constrained", squeeze=False)
    for place, (cases, places, label) in zip(axes[0], panels, strict=True):
        _lines(place, cases, places, label)
    _PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(_PICTURE, metadata={"Date": None})
    plt.close(figure)


def _lines(axes: Axes, found: Sequence[Measured], places: Sequence[float], label: str) -> None:
    for side, name in (("add", "ours: add"), ("spark", "Spark: read and append")):
        axes.plot(places, [one.cpu_s(side) for one in found], "o-", label=name)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel(label)
    axes.set_ylabel("CPU-seconds")
    axes.legend()
