"""Decides which markers can be deleted, and through what time a table is complete.

Rules:

1. A marker may be deleted if three conditions hold: the stream's main table covers it (tables/commits.py, rule 3: all
   its tables do), it has existed for the retention, and it is not the last marker of its Kafka partition. Writers
   continue from the last one. In a chain of several topics, the last covered marker stays too, no matter how many wait
   above it. Nothing else records how far each topic was at the table's position, the only position that an operator can
   rewind to (bootstrap/plans/repair.py).
2. Coverage is decided by the marker's own span, never by its neighbors' names: a stray may extend past them.
3. Markers are deleted from the low end only: a marker that has to stay keeps all markers above it. If a writer finds
   that the marker before its own still exists, no other writer had therefore claimed its position before (G2).
4. A partition's value is the highest record timestamp that is loaded, or the time at which a writer found nothing after
   what is loaded (common/stage/idle.py). A table is complete through the lowest value over all existing Kafka
   partitions. While a partition has neither, the time is unknown. The table is complete no later than the time at which
   these were all the partitions: one that was added since has no marker yet. Kafka is asked for the partitions; if it
   does not answer, a writer's record of them is used.
5. A partition that does not exist, and that only a marker made by hand names, is not counted and not loaded. A
   partition that its topic no longer has is loaded, and then not counted.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import takewhile

from common.spans import Position, TopicPartition
from common.stage.idle import MAX_PARTITION, IdleFact, StreamFact
from common.stage.markers import Marker, MarkerName
from common.stage.merged import is_merged
from delta_loader.plan.plan import AnyMarker, is_by_hand


def settle_candidates(
    names: Sequence[MarkerName], modified_ms: Mapping[MarkerName, int], position: Position | None, keep_after_ms: int
) -> tuple[MarkerName, ...]:
    """Markers of one Kafka partition that may be finished, judged by a listing alone.

    ``names`` are all markers of the partition, ordered by position; a marker last written at or after ``keep_after_ms``
    stays. Read the candidates and pass them to `settled` to decide.
    """
    if position is None:
        return ()
    return tuple(takewhile(lambda name: name.start < position and modified_ms[name] < keep_after_ms, names[:-1]))


def settled(candidates: Iterable[AnyMarker], position: Position) -> tuple[MarkerName, ...]:
    """The candidates that the table covers in full (rules 2 and 3), lowest first, without the last marker."""
    by_start = sorted(candidates, key=lambda marker: marker.name)
    covered = takewhile(lambda marker: isinstance(marker, Marker) and marker.span.end <= position, by_start)
    names = tuple(marker.name for marker in covered)
    return names[:-1] if names and is_merged(names[0].topic_partition.topic) else names


def highest_timestamp_ms(markers: Iterable[AnyMarker], position: Position | None) -> int | None:
    """The highest record timestamp among the markers of one Kafka partition that end at or before ``position``."""
    if position is None:
        return None
    return max(
        (
            marker.manifest.highest_timestamp_ms
            for marker in markers
            if isinstance(marker, Marker)
            and marker.span.end <= position
            and marker.manifest is not None
            and marker.manifest.highest_timestamp_ms is not None
        ),
        default=None,
    )


class IdleFacts:
    """The writers' records about idle Kafka partitions, grouped once per partition."""

    def __init__(self, facts: Iterable[IdleFact]) -> None:
        self._by_chain: dict[tuple[TopicPartition, int], list[IdleFact]] = {}
        for fact in facts:
            self._by_chain.setdefault((fact.partition, fact.generation), []).append(fact)

    def through_ms(self, partition: TopicPartition, position: Position | None, generation: int) -> int | None:
        """The latest time at which a partition had nothing past ``position`` (common/stage/idle.py, rule 3)."""
        if position is None:
            return None
        facts = self._by_chain.get((partition, generation), ())
        return max((fact.time_ms for fact in facts if fact.position <= position), default=None)


def valid_through_ms(highest_ms: Mapping[TopicPartition, int | None], known_ms: int) -> int | None:
    """The time through which the table is complete (rule 4); ``known_ms`` is when these were all the partitions."""
    known = [value for value in highest_ms.values() if value is not None]
    return min(*known, known_ms) if known and len(known) == len(highest_ms) else None


def newest_fact(app_id: str, facts: Iterable[StreamFact]) -> StreamFact | None:
    """The newest record of which partitions a stream's topics have; None if no writer recorded it."""
    return max((fact for fact in facts if fact.app_id == app_id), key=lambda fact: fact.time_ms, default=None)


def unknown_partitions(
    read_markers: Mapping[TopicPartition, Sequence[AnyMarker]], known: StreamFact | None
) -> frozenset[TopicPartition]:
    """The staged Kafka partitions that do not exist and that only markers made by hand name (rule 5)."""
    return frozenset(
        partition
        for partition, markers in read_markers.items()
        if markers and all(map(is_by_hand, markers))
        if partition.partition > MAX_PARTITION or (known is not None and not known.has(partition))
    )
