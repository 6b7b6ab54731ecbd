"""Puts ``benchmarks/results.json`` on the performance page, with charts: ``python -m benchmarks.report``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import results
from benchmarks.results import Result
from benchmarks.sides import CONSUME, FROM_START, LOADING, OURS, PIPELINE, SPARK, WITHOUT_C, WRITING

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DOCS = Path(__file__).parent.parent / "docs"
_PICTURE = _DOCS / "images" / "benchmark.svg"
_PAGE = _DOCS / "internals" / "performance.md"
_BEGIN, _END = "<!-- figures: made by `python -m benchmarks.report` -->", "<!-- end of the figures -->"
_SHOWN = (OURS, WRITING, FROM_START, WITHOUT_C, LOADING, PIPELINE, CONSUME, SPARK)
_MB = 1e6
_TITLES = {
    "kinds": "Four kinds of records",
    "avro": "The same records in JSON and in Avro",
    "envelopes": "The same rows in change events",
    "partitions": "Growth with Kafka partitions",
    "bad": "Bad records among good ones",
    "writers": "Growth with writers",
}


def main() -> None:
    found = results.read()
    sections = {section: [one for one in found if one.section == section] for section in _TITLES}
    figures = "\n".join(table(section, cases) for section, cases in sections.items() if cases)
    page = _PAGE.read_text("utf-8")
    before, _, rest = page.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    _PAGE.write_text(f"{before}{_BEGIN}\n\n{figures}\n{_END}{after}", "utf-8")
    _draw(sections)


def table(section: str, found: Sequence[Result]) -> str:
    """A section's results as a Markdown table, also readable on a terminal."""
    lines = [f"### {_TITLES[section]}", ""]
    heads = ("case", "side", "messages/CPU-s", "MB/CPU-s", "messages/s", "peak MiB", "× Spark", "of the floor")
    lines += [_row(heads), _row(("---", "---", *["---:"] * (len(heads) - 2)))]
    for result in found:
        lines += [_row((_case(result), side, *_figures(result, side))) for side in _SHOWN if side in result.costs]
    return "\n".join([*lines, ""])


def _case(result: Result) -> str:
    size = result.size_bytes // result.messages
    parts = [f"{result.kind}, {result.messages:,} × {size:,} bytes", f"{result.partitions} partitions"]
    if result.section == "bad":
        parts.append(f"{result.bad_percent} % bad")
    if result.section == "writers":
        parts.append(f"{result.writers} writers")
    return ", ".join(parts)


def _figures(result: Result, side: str) -> tuple[str, ...]:
    peak = result.peak_bytes(side)
    return (
        f"{result.rate(side):,.0f}",
        f"{result.size_bytes / _MB / result.cpu_s(side):,.1f}",
        f"{result.messages / result.wall_s(side):,.0f}",
        f"{peak / 2**20:,.0f}" if peak else "",
        f"{result.ratio(side, SPARK):.2f}" if SPARK in result.costs and side in (OURS, PIPELINE) else "",
        f"{result.ratio(side, PIPELINE):.2f}"
        if PIPELINE in result.costs and side in (OURS, WRITING, FROM_START, WITHOUT_C)
        else "",
    )


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _draw(sections: dict[str, list[Result]]) -> None:
    import matplotlib as mpl  # noqa: PLC0415 - only the charts need it

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "benchmark"  # the same figures produce the same file
    from matplotlib import pyplot as plt  # noqa: PLC0415

    pictures = {"kinds": _draw_kinds, "partitions": _draw_partitions}
    measured = [section for section in pictures if sections.get(section)]
    figure, axes = plt.subplots(
        1, len(measured), figsize=(5.5 * len(measured), 4.2), layout="constrained", squeeze=False
    )
    for section, place in zip(measured, axes[0], strict=True):
        pictures[section](place, sections[section])
    _PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(_PICTURE, metadata={"Date": None})


def _draw_kinds(axes: Axes, found: Sequence[Result]) -> None:
    sides = (OURS, PIPELINE, SPARK)
    for number, side in enumerate(sides):
        places = [place + (number - 1) * 0.27 for place in range(len(found))]
        heights = [result.size_bytes / _MB / result.cpu_s(side) for result in found]
        axes.bar(places, heights, 0.25, label=side)
    axes.set_xticks(range(len(found)), [result.kind for result in found])
    axes.set_ylabel("MB of JSON for each CPU-second")
    axes.set_title("Four kinds of records")
    axes.legend(loc="upper left")


def _draw_partitions(axes: Axes, found: Sequence[Result]) -> None:
    for side in (OURS, PIPELINE, SPARK):
        axes.plot(
            [result.partitions for result in found], [result.rate(side) / 1000 for result in found], "o-", label=side
        )
    axes.set_xscale("log")
    axes.set_xticks([result.partitions for result in found], [f"{result.partitions:,}" for result in found])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("Kafka partitions")
    axes.set_ylabel("thousand messages for each CPU-second")
    axes.set_title("Small records, by number of partitions")
    axes.legend()


if __name__ == "__main__":
    main()
