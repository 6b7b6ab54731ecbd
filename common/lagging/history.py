"""How long ago a position was the end of its Kafka partition: lag in time, from periodic samples of ends.

Rules:

1. If a position was the end at some time, no records were beyond it then, so the records that are beyond it now are
   newer. The position's lag is the time since the latest sample with this end, accurate to the sampling interval. The
   lag does not need record timestamps, which may be arbitrary.
2. A position below every sampled end is at least as far behind as the oldest sample.
3. A partition keeps a bounded number of samples, and fewer old samples than recent ones.
"""

from bisect import bisect_right
from collections.abc import Collection, Mapping

from common.spans import Position, TopicPartition

MOST = 64


class EndHistory:
    """The ends of Kafka partitions over time. One thread adds, any thread may read."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, tuple[tuple[float, Position], ...]] = {}

    def observe(self, ends: Mapping[TopicPartition, Position], now_s: float) -> None:
        for partition, end in ends.items():
            self._seen[partition] = _thinned(_added(self._seen.get(partition, ()), now_s, end))

    def retain(self, partitions: Collection[TopicPartition]) -> None:
        self._seen = {partition: seen for partition, seen in self._seen.items() if partition in partitions}

    def end(self, partition: TopicPartition) -> Position | None:
        seen = self._seen.get(partition)
        return seen[-1][1] if seen else None

    def first(self, partition: TopicPartition) -> Position | None:
        seen = self._seen.get(partition)
        return seen[0][1] if seen else None

    def end_at(self, partition: TopicPartition, moment_s: float) -> Position | None:
        """The end in the last sample before a time, or None."""
        seen = self._seen.get(partition, ())
        before = bisect_right(seen, moment_s, key=lambda end: end[0])
        return seen[before - 1][1] if before else None

    def lag_records(self, partition: TopicPartition, position: Position | None) -> int | None:
        end = self.end(partition)
        return None if end is None or position is None else max(0, end - position)

    def lag_s(self, partition: TopicPartition, position: Position | None, now_s: float) -> float | None:
        """Seconds for which records beyond a position have waited (rules 1 and 2)."""
        seen = self._seen.get(partition)
        if not seen or position is None:
            return None
        if position >= seen[-1][1]:
            return 0.0
        before = bisect_right(seen, position, key=lambda end: end[1])
        return max(0.0, now_s - seen[max(0, before - 1)][0])


def _added(seen: tuple[tuple[float, Position], ...], now_s: float, end: Position) -> tuple[tuple[float, Position], ...]:
    # A topic that was recreated, or lost records, ends lower: earlier samples are meaningless for it.
    rising = seen if not seen or end >= seen[-1][1] else ()
    same = len(rising) > 1 and rising[-1][1] == end  # the first sample is kept (rule 2)
    return (*(rising[:-1] if same else rising), (now_s, end))


def _thinned(seen: tuple[tuple[float, Position], ...]) -> tuple[tuple[float, Position], ...]:
    return (*seen[: len(seen) // 2 : 2], *seen[len(seen) // 2 :]) if len(seen) > MOST else seen
