"""Benchmark results as stored in ``benchmarks/results.json``."""

import json
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.measure import Cost

FILE = Path(__file__).parent / "results.json"


@dataclass(frozen=True, slots=True)
class Result:
    section: str
    kind: str
    messages: int
    size_bytes: int
    """Total bytes of the values."""
    partitions: int
    writers: int
    bad_percent: int
    costs: dict[str, list[Cost]]
    """Costs by side, one per round."""

    def cpu_s(self, side: str) -> float:
        return statistics.median(cost.cpu_s for cost in self.costs[side])

    def wall_s(self, side: str) -> float:
        return statistics.median(cost.wall_s for cost in self.costs[side])

    def peak_bytes(self, side: str) -> int:
        return max(cost.peak_bytes for cost in self.costs[side])

    def rate(self, side: str) -> float:
        return self.messages / self.cpu_s(side)

    def ratio(self, side: str, other: str) -> float:
        """Messages per CPU second of a side, relative to ``other``."""
        return self.cpu_s(other) / self.cpu_s(side)


def read() -> list[Result]:
    found = json.loads(FILE.read_text("utf-8")) if FILE.exists() else []
    return [
        Result(**{**one, "costs": {side: [Cost(**cost) for cost in costs] for side, costs in one["costs"].items()}})
        for one in found
    ]


def keep(results: list[Result]) -> None:
    """Replace the sections that were measured again, and keep the others."""
    measured = {result.section for result in results}
    kept = [result for result in read() if result.section not in measured]
    FILE.write_text(json.dumps([asdict(one) for one in (*kept, *results)], indent=1) + "\n", "utf-8")
