"""How long ago a position was the end of its Kafka partition: lag in time, from ends that were seen now and then.

Rules:

1. A position that was the end at a moment had nothing beyond it then; so what lies beyond it now has come since. Its
   lag is the time since the latest such moment, and is right within the time between two looks. It needs no timestamps
   of records, which may be anything.
2. A position below every end that was seen is at least as far behind as the looks go back.
3. A partition keeps a bounded number of moments: of old ones fewer.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from common.spans import Position, TopicPartition

MOST = 64


class EndHistory:
    """The ends of Kafka partitions over time. One thread adds, any may ask."""

    def __init__(self) -> None:
        self._seen: dict[TopicPartition, tuple[tuple[float, Position], ...]] = {}

    def saw(self, ends: Mapping[TopicPartition, Position], now_s: float) -> None:
        """These were the ends just now."""
        for source, end in ends.items():
            self._seen[source] = _thinned(_added(self._seen.get(source, ()), now_s, end))

    def keep(self, sources: Collection[TopicPartition]) -> None:
        """Forget all others."""
        self._seen = {source: seen for source, seen in self._seen.items() if source in sources}

    def end(self, source: TopicPartition) -> Position | None:
        """The newest end; None while none was seen."""
        seen = self._seen.get(source)
        return seen[-1][1] if seen else None

    def first(self, source: TopicPartition) -> Position | None:
        """The oldest end that is known; None while none was seen."""
        seen = self._seen.get(source)
        return seen[0][1] if seen else None

    def at(self, source: TopicPartition, moment_s: float) -> Position | None:
        """The end as the last look before a moment saw it; None where none did."""
        seen = self._seen.get(source, ())
        before = bisect_right(seen, moment_s, key=lambda one: one[0])
        return seen[before - 1][1] if before else None

    def lag_records(self, source: TopicPartition, position: Position | None) -> int | None:
        """Positions up to the end."""
        end = self.end(source)
        return None if end is None or position is None else max(0, end - position)

    def lag_s(self, source: TopicPartition, position: Position | None, now_s: float) -> float | None:
        """Seconds for which something has waited beyond a position (rules 1 and 2)."""
        seen = self._seen.get(source)
        if not seen or position is None:
            return None
        if position >= seen[-1][1]:
            return 0.0
        before = bisect_right(seen, position, key=lambda one: one[1])
        return max(0.0, now_s - seen[max(0, before - 1)][0])


def _added(seen: tuple[tuple[float, Position], ...], now_s: float, end: Position) -> tuple[tuple[float, Position], ...]:
    # A topic that was recreated, or lost records, ends lower: what was seen before says nothing about it.
    rising = seen if not seen or end >= seen[-1][1] else ()
    same = len(rising) > 1 and rising[-1][1] == end  # the first look stays as it was (rule 2)
    return (*(rising[:-1] if same else rising), (now_s, end))


def _thinned(seen: tuple[tuple[float, Position], ...]) -> tuple[tuple[float, Position], ...]:
    return (*seen[: len(seen) // 2 : 2], *seen[len(seen) // 2 :]) if len(seen) > MOST else seen
