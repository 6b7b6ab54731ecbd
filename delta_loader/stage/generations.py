"""Markers of a topic that no longer exists: recognized by their generation, and moved aside.

Rules (common/stage/chain_origins.py has the others):

1. A marker of a generation lower than the one the stage has started is neither loadable nor covered: its positions are
   another topic's. It is a stray at any position, and is moved as soon as it is seen. A marker that only the table is
   ahead of stays: it belongs to another stage (delta_loader/stage/identity.py).
2. Writers continue from a partition's highest marker, which is never settled. It must therefore belong to the chain:
   older markers above the chain are moved first. So are older markers at the low end, where they would keep all above
   them.
3. A marker of a higher generation is one that cannot be read yet: the topic got a new chain since the pass started, and
   its markers may have the very names that were listed. The next pass reads it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.stage.markers import Marker

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from common.spans import TopicPartition
    from delta_loader.plan.plan import AnyMarker
    from delta_loader.stage.listed import Listing
    from delta_loader.stage.reading import Stage


def put_older_aside(
    stage: Stage,
    listing: Listing,
    generations: Mapping[TopicPartition, int],
    markers: Iterable[AnyMarker],
    tables: Mapping[str, str],
) -> tuple[Listing, tuple[Marker, ...]]:
    """The listing without the markers of older generations that are in ``markers`` or at its ends, and these markers.

    Raises StoreError.
    """
    gone = list(older(markers, generations))
    listing = stage.put_aside(listing, [marker.name for marker in gone])
    for partition in [partition for partition, generation in generations.items() if generation]:
        while partition in listing:
            ends = {listing[partition].names[0], listing[partition].names[-1]}
            read = stage.read(listing, ends, tables)
            strays = older([marker for markers in read.values() for marker in markers], generations)
            if not strays:
                break
            listing = stage.put_aside(listing, [marker.name for marker in strays])
            gone += strays
    return listing, tuple(gone)


def older(markers: Iterable[AnyMarker], generations: Mapping[TopicPartition, int]) -> tuple[Marker, ...]:
    """The markers of lower generations than their partitions', highest first."""
    strays = (marker for marker in markers if isinstance(marker, Marker) and _is_older(marker, generations))
    return tuple(sorted(strays, key=lambda marker: marker.name, reverse=True))


def _is_older(marker: Marker, generations: Mapping[TopicPartition, int]) -> bool:
    return marker.is_older_than(generations.get(marker.name.topic_partition, 0))
