"""Which markers are finished, and how complete a table is.

Rules:

1. A marker may go when the stream's own table covers it (core/commits.py, rule 3: then all its tables do), it is not
   the last of its Kafka partition, and it has been there for the retention. The last one is where writers go on. Of a
   chain of several topics the last one that would go stays too, whatever waits above it: nothing else says how far each
   topic was where the table stands, the only place that an operator can rewind to (bootstrap/core/repair.py).
2. Coverage is judged by the marker's own span, never by its neighbours' names: a stray may reach beyond them.
3. Markers go from the low end only: one that has to stay keeps all above it. So a writer that finds the marker before
   its own still there knows that its claim was of a position that nobody had claimed before (G2).
4. A table is complete through the lowest, over all Kafka partitions that there are, of the highest record timestamp
   that is loaded, or of the moment at which a writer found nothing beyond what is loaded (common/stage/idle.py);
   nothing can be said while one of them has neither. It is complete no further than to the moment at which these were
   all: one that was added since has no marker yet. Kafka says which there are, and else a writer.
5. A partition that there is not, and that only a marker made by hand names, is none of them, and is not loaded.
"""

from __future__ import annotations

from itertools import islice, takewhile
from typing import TYPE_CHECKING

from common.stage.idle import MAX_PARTITION
from common.stage.markers import Marker
from common.stage.merged import is_merged

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from common.spans import Position, TopicPartition
    from common.stage.idle import IdleFact, StreamFact
    from common.stage.markers import MarkerName
    from delta_loader.core.plan import Found


def settle_candidates(
    names: Sequence[MarkerName], modified_ms: Mapping[MarkerName, int], position: Position | None, keep_after_ms: int
) -> tuple[MarkerName, ...]:
    """Markers of one Kafka partition that may be finished, by what a listing tells of them.

    ``names`` are all of the partition, by position; a marker last written at or after ``keep_after_ms`` stays. Read the
    candidates, and let `settled` decide.
    """
    if position is None:
        return ()
    but_last = islice(names, max(0, len(names) - 1))
    return tuple(takewhile(lambda name: name.start < position and modified_ms[name] < keep_after_ms, but_last))


def settled(candidates: Iterable[Found], position: Position) -> tuple[MarkerName, ...]:
    """The candidates that the table covers whole (rules 2 and 3), from the lowest on, without the one that stays."""
    by_start = sorted(candidates, key=lambda found: found.name)
    covered = takewhile(lambda found: isinstance(found, Marker) and found.span.end <= position, by_start)
    names = tuple(found.name for found in covered)
    return names[:-1] if names and is_merged(names[0].topic_partition.topic) else names


def highest_timestamp_ms(markers: Iterable[Found], position: Position | None) -> int | None:
    """The highest record timestamp among the markers of one Kafka partition that end at or before ``position``."""
    if position is None:
        return None
    return max(
        (
            found.manifest.highest_timestamp_ms
            for found in markers
            if isinstance(found, Marker)
            and found.span.end <= position
            and found.manifest is not None
            and found.manifest.highest_timestamp_ms is not None
        ),
        default=None,
    )


class IdleFacts:
    """What writers say of idle Kafka partitions, grouped once: a fact is not searched for among those of all others."""

    def __init__(self, facts: Iterable[IdleFact]) -> None:
        """Facts of any writers, in any order."""
        self._by_chain: dict[tuple[TopicPartition, int], list[IdleFact]] = {}
        for fact in facts:
            self._by_chain.setdefault((fact.source, fact.generation), []).append(fact)

    def through_ms(self, source: TopicPartition, position: Position | None, generation: int) -> int | None:
        """The latest moment at which nothing was beyond ``position`` in a partition (common/stage/idle.py, rule 3)."""
        if position is None:
            return None
        facts = self._by_chain.get((source, generation), ())
        return max((fact.time_ms for fact in facts if fact.position <= position), default=None)


def valid_through_ms(highest_ms: Mapping[TopicPartition, int | None], known_ms: int) -> int | None:
    """The time up to which the table is complete (rule 4); at ``known_ms`` these were all partitions."""
    known = [value for value in highest_ms.values() if value is not None]
    return min(*known, known_ms) if known and len(known) == len(highest_ms) else None


def newest_fact(app_id: str, facts: Iterable[StreamFact]) -> StreamFact | None:
    """Which partitions a stream's topics have, as a writer said it last; None where none said it."""
    return max((fact for fact in facts if fact.app_id == app_id), key=lambda fact: fact.time_ms, default=None)


def unknown_partitions(
    found: Mapping[TopicPartition, Sequence[Found]], known: StreamFact | None
) -> frozenset[TopicPartition]:
    """Those of the staged Kafka partitions that there are not, and that only markers made by hand name (rule 5)."""
    return frozenset(
        source
        for source, markers in found.items()
        if markers and all(isinstance(marker, Marker) and marker.manifest is None for marker in markers)
        if source.partition > MAX_PARTITION or (known is not None and not known.has(source))
    )
