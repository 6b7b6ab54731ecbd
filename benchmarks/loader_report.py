"""The loader's figures: as they are kept, as a table, on the page and in a picture."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.measure import Cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.axes import Axes

FILE = Path(__file__).parent / "loader_results.json"
_DOCS = Path(__file__).parent.parent / "docs"
_PICTURE = _DOCS / "images" / "benchmark-loader.svg"
_PAGE = _DOCS / "performance.md"
_BEGIN, _END = "<!-- loader: made by `python -m benchmarks.loader --keep` -->", "<!-- end of the loader -->"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    """One case and what both sides used for it, one cost for each round."""

    section: str
    files: int
    size_bytes: int
    """Of all files."""
    costs: dict[str, list[Cost]]

    def cpu_s(self, side: str) -> float:
        """The median of the rounds."""
        return statistics.median(cost.cpu_s for cost in self.costs[side])

    def wall_s(self, side: str) -> float:
        """The median of the rounds."""
        return statistics.median(cost.wall_s for cost in self.costs[side])


def table(found: Sequence[Measured]) -> str:
    """As Markdown, which reads well on a terminal too."""
    lines = [
        "| files | MiB | add: CPU-s | add: s | Spark: CPU-s | Spark: s | Spark ÷ add |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for one in found:
        cells = (
            f"{one.files:,}",
            f"{one.size_bytes / _MIB:,.1f}",
            f"{one.cpu_s('add'):.2f}",
            f"{one.wall_s('add'):.2f}",
            f"{one.cpu_s('spark'):.2f}",
            f"{one.wall_s('spark'):.2f}",
            f"{one.cpu_s('spark') / one.cpu_s('add'):.1f}",
        )
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def keep(found: Sequence[Measured]) -> None:
    """Replace the sections that were measured anew, and write the page."""
    anew = {one.section for one in found}
    kept = [one for one in read() if one.section not in anew]
    FILE.write_text(json.dumps([asdict(one) for one in (*kept, *found)], indent=1) + "\n", "utf-8")
    write_page(read())


def read() -> list[Measured]:
    """What was kept."""
    found = json.loads(FILE.read_text("utf-8")) if FILE.exists() else []
    return [
        Measured(**{**one, "costs": {side: [Cost(**cost) for cost in costs] for side, costs in one["costs"].items()}})
        for one in found
    ]


def write_page(found: Sequence[Measured]) -> None:
    """Write the figures into the page, and draw the picture."""
    titles = {"files": "Small files, by their number", "bytes": "100 files, by their size"}
    parts = [
        f"### {title}\n\n{table(cases)}"
        for section, title in titles.items()
        if (cases := [one for one in found if one.section == section])
    ]
    page = _PAGE.read_text("utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    picture = "![What a load costs](images/benchmark-loader.svg)\n"
    _PAGE.write_text("\n".join([f"{before}{_BEGIN}\n", *parts, picture, f"{_END}{after}"]), "utf-8")
    _draw(found)


def _draw(found: Sequence[Measured]) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only the picture needs it

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "benchmark-loader"  # the same figures give the same file
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
