"""Moves strays aside: reads the markers that the recognition needs (stray_rules.py), and moves those that it names.

Rules:

1. A stray is copied below ``stray/``, then deleted, the highest of a branch first. A crash between the two is fixed by
   the next pass: the copy's name is derived from its bytes.
2. The copies' names differ from those of a rewind's copies, which are a signal for writers
   (stage_writer/chains.py, rule 2).
3. At most `_MOST` branches of a partition are moved in one pass; the rest in the next.
"""

from collections.abc import Iterable, Mapping

from common.spans import Position, TopicPartition
from common.stage.markers import Marker, MarkerName
from delta_loader.plan.plan import AnyMarker, Run, is_by_hand, next_run
from delta_loader.stage.identity import StreamIdentity
from delta_loader.stage.listed import Listing
from delta_loader.stage.reading import Stage
from delta_loader.stage.stray_rules import LowEnd, MarkersToRead, StrayBranch, lowest_branch, may_be_late

_MOST = 16


class StrayMover:
    def __init__(self, stage: Stage, tables: Mapping[str, str], identity: StreamIdentity) -> None:
        """``tables`` spells the tables' URLs, as `Stage.read` expects them."""
        self._stage = stage
        self._tables = tables
        self._identity = identity

    def put_aside(
        self, listing: Listing, positions: Mapping[TopicPartition, Position | None], markers: Iterable[AnyMarker]
    ) -> tuple[Listing, tuple[Marker, ...]]:
        """The listing without the strays, and the strays. ``markers`` are the markers around the positions.

        Raises StoreError.
        """
        markers_by_partition: dict[TopicPartition, list[AnyMarker]] = {}
        for marker in markers:
            markers_by_partition.setdefault(marker.name.topic_partition, []).append(marker)
        gone: list[Marker] = []
        known = self._lowest(listing, positions)
        for _ in range(_MOST):
            strays = self._strays(listing, positions, known, markers_by_partition)
            if not strays:
                break
            listing = self._stage.put_aside(listing, [marker.name for marker in strays])
            gone += strays
        return listing, tuple(gone)

    def _lowest(
        self, listing: Listing, positions: Mapping[TopicPartition, Position | None]
    ) -> dict[MarkerName, AnyMarker]:
        """The two lowest markers of each partition that may have strays, read together: mostly they suffice."""
        names = [
            name
            for partition, listed in listing.items()
            if (position := positions[partition]) is not None
            and may_be_late(listed.names, listed.modified_ms, position)
            for name in listed.names[:2]
        ]
        return self._read(listing, names)

    def _strays(
        self,
        listing: Listing,
        positions: Mapping[TopicPartition, Position | None],
        known: dict[MarkerName, AnyMarker],
        markers: Mapping[TopicPartition, list[AnyMarker]],
    ) -> list[Marker]:
        low_ends = {
            partition: LowEnd(listed.names, listed.modified_ms, position, known)
            for partition, listed in listing.items()
            if (position := positions[partition]) is not None
        }
        return [
            marker
            for partition, branch in self._branches(listing, low_ends, known).items()
            if branch.end <= _reach(low_ends[partition].position, branch, markers.get(partition, []))
            for marker in branch.markers
        ]

    def _branches(
        self, listing: Listing, low_ends: Mapping[TopicPartition, LowEnd], known: dict[MarkerName, AnyMarker]
    ) -> dict[TopicPartition, StrayBranch]:
        """The recognized branches; markers needed for it are read into ``known``, for all partitions together."""
        stray_branches: dict[TopicPartition, StrayBranch] = {}
        looking = dict(low_ends)
        while looking:
            outcomes = {partition: lowest_branch(low) for partition, low in looking.items()}
            stray_branches |= {
                partition: outcome for partition, outcome in outcomes.items() if isinstance(outcome, StrayBranch)
            }
            to_read = {
                partition: outcome.names
                for partition, outcome in outcomes.items()
                if isinstance(outcome, MarkersToRead)
            }
            read = self._read(listing, (name for names in to_read.values() for name in names))
            known |= read
            # A marker that disappeared since it was listed ends its partition's check.
            looking = {
                partition: low_ends[partition] for partition, names in to_read.items() if read.keys() >= {*names}
            }
        return stray_branches

    def _read(self, listing: Listing, names: Iterable[MarkerName]) -> dict[MarkerName, AnyMarker]:
        read = self._stage.read(listing, names, self._tables)
        # Of two objects for one position, the one with content counts, as in a plan.
        counting = {name: min(markers, key=is_by_hand) for name, markers in read.items()}
        return {
            name: judged
            for name, marker in counting.items()
            for judged in self._identity.judged(name.topic_partition, [marker])
        }


def _reach(position: Position, branch: StrayBranch, markers: Iterable[AnyMarker]) -> Position:
    """How far the table, and the markers outside the branch, go without a gap."""
    inside = {marker.name for marker in branch.markers}
    outcome = next_run(position, [marker for marker in markers if marker.name not in inside])
    return outcome.end if isinstance(outcome, Run) else position
