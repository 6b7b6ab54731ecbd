"""The chains of done markers in the stage: their ends, and claims at them.

Rules:

1. A claim creates the marker exclusively. A writer continues from its claim only if the marker before it was still
   there *after* the claim, with the bytes that the flush continued from. Markers are settled from the low end. A late
   writer that takes a freed position therefore finds its predecessor gone, or another late writer's in its place, and
   stops there. The first claim of a chain has nothing before it, and a settled marker may reappear through a duplicated
   request. So nothing may be above a claim either, because the last marker is never settled. No stray is therefore ever
   continued, and the marker with the highest start is always the chain's end. (model/ shows that anything weaker
   fails.)
2. A claim behind a marker that an operator has put aside is withdrawn: the chain was rewound, and reading restarts at
   its new end. A byte-identical copy below ``stray/`` distinguishes such a marker from a settled one; copies that the
   loader makes of late claims have other names. A partition's only marker is never withdrawn where the partition has no
   origin, even if there is a copy: the marker may be the only record of where reading continues.
3. Markers from before the chain's newest origin are ignored (common/stage/chain_origins.py, rules 3 and 7): they are of
   a topic that no longer exists, or from before a rewind. A flush names the origin by which its chain was read, so the
   origin is read before and after the markers, until it stays the same.
4. The first claim of a chain has no marker before it that could show a rewind. The chain's origin is therefore read
   before and after this claim. If an operator has moved the origin, or made a marker, the partition is started again. A
   claim that comes in between is not loaded (delta_loader/plan/plan.py, rule 3).
5. No claim can succeed where a marker from before the origin still has its name. Such a chain is not read from Kafka:
   a repair moves that marker as its last step, or the loader does.
"""

from collections.abc import Iterable
from dataclasses import replace

from common.errors import MarkerError, StoreError, UnderRepairError
from common.ports import AlreadyExists, ObjectStore
from common.remedies import CONFIG, repair
from common.spans import Position, Topic, TopicPartition
from common.stage.chain import emptied
from common.stage.chain_origins import (
    ChainOrigin,
    is_superseded,
    newest_numbers,
    newest_origin,
    origin_path,
    origin_to_bytes,
    origins_of_topic,
)
from common.stage.marker_contents import listed_markers
from common.stage.markers import Marker, MarkerName, digest_of, folder_of, marker_from_bytes, stray_path
from common.stage.repair_lock import ending, last_repair
from stage_writer.chain_end import Lineage, Tail

_READ_AGAIN = 5
_WAIT = "wait for the repair in progress"


class StagedChains:
    """Raises StoreError, and MarkerError for an unreadable marker. Any thread may call it: it has no state."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def tail(self, partition: TopicPartition) -> Tail | None:
        """The end of a partition's chain, or None if there is no marker (rules 1 and 3)."""
        origin = self.origin(partition)
        for _ in range(_READ_AGAIN):
            tail = self._tail(partition, origin)
            newest = self.origin(partition)
            if newest == origin:
                return tail
            origin = newest
        raise StoreError(f"the origin of {partition} moves while its markers are read", _WAIT)

    def _tail(self, partition: TopicPartition, origin: ChainOrigin | None) -> Tail | None:
        for _ in range(_READ_AGAIN):
            listed = [
                (name, item.size_bytes > 0, item.path)
                for item in self._store.list(folder_of(partition))
                if (name := MarkerName.parse(item.path))
            ]
            # Of two objects for one position (a hand-typed name without padding), the one with content counts.
            listed.sort(reverse=True)
            for number, (name, _, path) in enumerate(listed, 1):
                data = self._store.read(path)
                if data is None:
                    break  # an operator has just put it aside: list again
                marker = marker_from_bytes(name, data, path)
                if not is_superseded(marker, origin):
                    tail = Tail.from_marker(marker, path, digest_of(data), origin)
                    return (
                        self._tail_of_empty(tail, marker, self._below(listed[number:]), origin)
                        if tail.is_bare
                        else tail
                    )
            else:
                return None
        raise StoreError(f"the markers of {partition} disappear while they are read", _WAIT)

    def require_free(self, partition: TopicPartition, end: Position) -> None:
        """Raises UnderRepairError where a marker from before the origin is at a chain's end (rule 5)."""
        name, origin = MarkerName(partition, end), self.origin(partition)
        data = None if origin is None else self._store.read(name.path)
        if data is None or not is_superseded(marker_from_bytes(name, data), origin):
            return
        msg = f"the marker {name.path} is from before the last repair of {partition}, which has not moved it yet"
        last = last_repair(self._store, partition)
        if last.ended:
            raise UnderRepairError(msg, f"the loader moves it when it loads: `delta-loader run {CONFIG} --once`")
        goes_on = "reading continues when the repair completes; if its process is gone"
        raise UnderRepairError(msg, f"{goes_on}, {ending(partition, last)}")

    def _tail_of_empty(self, tail: Tail, marker: Marker, below: Marker | None, origin: ChainOrigin | None) -> Tail:
        """The tail of a marker that is empty, with the undelivered outboxes that the last one ``below`` it lists.

        Raises MarkerError for one that was emptied (common/stage/chain.py, rule 5).
        """
        name, start = marker.name, None if origin is None else origin.position
        others = [] if below is None or is_superseded(below, origin) else [below]
        if why := emptied([*others, marker], start).get(name):
            msg = f"the marker {name.path} cannot be used: {why}"
            again = repair("rewind", name.topic_partition, name.start, "--yes")
            raise MarkerError(msg, f"stage its records again with `{again}`")
        return tail if below is None or below.manifest is None else replace(tail, outboxes=below.manifest.outboxes)

    def _below(self, listed: Iterable[tuple[MarkerName, bool, str]]) -> Marker | None:
        """The last one of these markers that was not made by hand; there may be thousands that were."""
        for name, has_content, path in listed:
            if has_content:
                marker = marker_from_bytes(name, self._store.read(path) or b"")
                if marker.manifest is not None:  # it may have vanished
                    return marker
        return None

    def origin(self, partition: TopicPartition) -> ChainOrigin | None:
        """Where a partition's chain starts while it has no marker; None if that is not recorded."""
        return newest_origin(self._store, partition)

    def newest_origins(self, topic: Topic) -> dict[TopicPartition, int]:
        """The number of the origin that counts, for each chain of a topic that has one."""
        return newest_numbers(item.path for item in self._store.list(origins_of_topic(topic)))

    def begin(self, partition: TopicPartition, chain_origin: ChainOrigin) -> None:
        """Record where a new chain starts; an existing record wins."""
        self._store.create(origin_path(partition), origin_to_bytes(chain_origin))

    def claim(self, name: MarkerName, data: bytes) -> bool:
        """Create the marker; whether it is ours."""
        return not isinstance(self._store.create(name.path, data), AlreadyExists)

    def is_there(self, tail: Tail) -> bool:
        """Whether a chain's last marker still exists with the same bytes."""
        data = self._store.read(tail.path)
        return data is not None and digest_of(data) == tail.digest

    def has_origin_at(
        self, partition: TopicPartition, start: Position, lineage: Lineage, own: str | None = None
    ) -> bool:
        """Whether a chain without a marker, but for ``own``, still has its origin there (rule 4)."""
        try:
            origin = self.origin(partition)
            tail = self._tail(partition, origin)
        except MarkerError:
            return False  # the partition's next start reports it
        is_moved = origin is not None and (
            (origin.position, origin.generation, origin.number) != (start, lineage.generation, lineage.origin)
        )
        return not is_moved and (tail is None or tail.path == own)

    def is_last(self, name: MarkerName, lineage: Lineage) -> bool:
        """Whether no marker above a claim belongs to its chain (rule 3)."""
        above = [other for other, _ in listed_markers(self._store, folder_of(name.topic_partition)) if other > name]
        is_first = lineage.generation == lineage.origin == 0
        return not above or (not is_first and all(self._is_older(other, lineage) for other in above))

    def _is_older(self, name: MarkerName, lineage: Lineage) -> bool:
        data = self._store.read(name.path)
        if data is None:
            return True
        marker = marker_from_bytes(name, data)
        return marker.is_older_than(lineage.generation) or marker.was_before(lineage.origin)

    def is_alone(self, name: MarkerName) -> bool:
        """Whether a marker's partition has no other marker."""
        return all(other == name for other, _ in listed_markers(self._store, folder_of(name.topic_partition)))

    def withdraw_if_rewound(self, name: MarkerName, data: bytes, tail: Tail) -> bool:
        """Delete our claim if ``tail``, now gone, was put aside (rule 2); returns whether it was."""
        if not self._was_put_aside(tail):
            return False
        if self.is_alone(name) and self.origin(name.topic_partition) is None:
            return False
        if self._store.read(name.path) == data:  # otherwise it is already gone, and the name may be another's
            self._store.delete([name.path])
        return True

    def _was_put_aside(self, tail: Tail) -> bool:
        number = 1
        while (copy := self._store.read(stray_path(tail.path, number))) is not None:
            if digest_of(copy) == tail.digest:
                return True
            number += 1
        return False
