"""The figures of topologies compared with Kafka Streams: as a table, and on the performance page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.page import put

_BEGIN, _END = "<!-- topologies: made by `python -m benchmarks.topologies --keep` -->", "<!-- end of the topologies -->"
_MIB = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    plan: str
    messages: int
    cpu_s: Mapping[str, float]
    """Median CPU seconds of the rounds, by side."""
    peak_bytes: Mapping[str, int]


def table(found: Sequence[Measured]) -> str:
    """A Markdown table, also readable on a terminal. The last column: Kafka Streams' CPU time divided by the side's."""
    lines = [
        "| topology | side | messages/CPU-s | CPU-s | peak MiB | × Kafka Streams |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
    ]
    for one in found:
        theirs = one.cpu_s["Kafka Streams"]
        for side, cpu_s in one.cpu_s.items():
            cells = (
                f"{one.plan}, {one.messages:,}",
                side,
                f"{one.messages / cpu_s:,.0f}",
                f"{cpu_s:.2f}",
                f"{one.peak_bytes[side] / _MIB:,.0f}",
                f"{theirs / cpu_s:.2f}",
            )
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join([*lines, ""])


def keep(figures: str) -> None:
    put(_BEGIN, _END, figures)
