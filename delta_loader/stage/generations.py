"""Markers from before a chain's newest origin: of a topic that no longer exists, or from before a rewind.

Rules (common/stage/chain_origins.py has the others):

1. A marker of a generation lower than the one the stage has started is neither loadable nor covered: its positions are
   another topic's. It is a stray at any position, and is moved as soon as it is seen. If only the table is ahead of a
   marker, the marker stays: it belongs to another stage (delta_loader/stage/identity.py). Markers that a rewind puts
   aside (chain_origins.py, rule 7) are moved too. All stay while a repair of their partition is unfinished, and hold
   it: the repair moves them itself, and a writer may claim a moved marker's name before both have deleted it. Nothing
   of such a chain is settled meanwhile.
2. Writers continue from a partition's highest marker, which is never settled. It must therefore belong to the chain:
   older markers above the chain are moved first. So are older markers at the low end, where they would keep all above
   them.
3. A marker of a higher generation counts as unreadable for now: the topic got a new chain since the pass started, and
   its markers may have the very names that were listed. The next pass reads it.
"""

from collections.abc import Collection, Iterable, Mapping

from common.ports import ObjectStore
from common.spans import TopicPartition
from common.stage.chain_origins import ChainOrigin, is_superseded
from common.stage.markers import Marker
from common.stage.repair_lock import last_repair
from delta_loader.plan.held import Held, under_repair
from delta_loader.plan.plan import AnyMarker
from delta_loader.stage.listed import Listing
from delta_loader.stage.reading import Stage


def put_older_aside(
    stage: Stage,
    listing: Listing,
    origins: Mapping[TopicPartition, ChainOrigin],
    markers: Collection[AnyMarker],
    tables: Mapping[str, str],
) -> tuple[Listing, tuple[Marker, ...], dict[TopicPartition, Held]]:
    """The listing without the markers from before their chains' origins, these markers, and the chains that keep some.

    Only ``markers`` are checked, and, where a chain's origin was moved, those at the ends of the listing.

    Raises StoreError.
    """
    held: dict[TopicPartition, Held] = {}
    gone = _to_move(stage, markers, origins, held)
    listing = stage.put_aside(listing, [marker.name for marker in gone])
    checked = {marker.name for marker in markers}
    for partition in [partition for partition, origin in origins.items() if origin.generation or origin.number]:
        while partition in listing:
            ends = {listing[partition].names[0], listing[partition].names[-1]} - checked
            read = stage.read(listing, ends, tables)
            strays = _to_move(stage, [marker for markers in read.values() for marker in markers], origins, held)
            if not strays:
                break
            listing = stage.put_aside(listing, [marker.name for marker in strays])
            gone += strays
    return listing, tuple(gone), held


def _to_move(
    stage: Stage,
    markers: Iterable[AnyMarker],
    origins: Mapping[TopicPartition, ChainOrigin],
    held: dict[TopicPartition, Held],
) -> list[Marker]:
    """The markers from before their chains' origins, highest first, but for those of ``held`` chains (rule 1)."""
    strays = [
        marker
        for marker in markers
        if isinstance(marker, Marker) and is_superseded(marker, origins.get(marker.name.topic_partition))
    ]
    for partition in {marker.name.topic_partition for marker in strays} - held.keys():
        reason = unfinished_repair(stage.store, partition)
        if reason is not None:
            held[partition] = reason
    moved = (marker for marker in strays if marker.name.topic_partition not in held)
    return sorted(moved, key=lambda marker: marker.name, reverse=True)


def unfinished_repair(store: ObjectStore, partition: TopicPartition) -> Held | None:
    """Why a chain waits for an operator's repair; None when its last one has ended. Raises StoreError."""
    repair = last_repair(store, partition)
    return None if repair.ended else under_repair(partition, repair)
