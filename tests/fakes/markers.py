"""Markers for tests: flushes, hand-made ones, and whole chains in a stage."""

from common.ports import ObjectStore
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin, marker_to_bytes

ORDERS = TopicPartition(Topic("orders"), Partition(0))


def flush(
    start: int,
    end: int,
    previous: int | None = None,
    *,
    partition: TopicPartition = ORDERS,
    origin: Origin = Origin.FLUSH,
) -> Marker:
    """A marker with a manifest and without files."""
    manifest = Manifest(
        span=Span(Position(start), Position(end)),
        previous=None if previous is None else Position(previous),
        app_id="orders",
        origin=origin,
        writer="test",
        created_ms=1_000 + start,
        records=end - start,
    )
    return Marker(MarkerName(partition, Position(start)), manifest)


def by_hand(start: int, *, partition: TopicPartition = ORDERS) -> Marker:
    return Marker(MarkerName(partition, Position(start)), None)


def chain_of(*edges: int, partition: TopicPartition = ORDERS) -> list[Marker]:
    starts = [None, *edges[:-2]]
    return [
        flush(start, end, previous, partition=partition)
        for start, end, previous in zip(edges[:-1], edges[1:], starts, strict=True)
    ]


def put(store: ObjectStore, *markers: Marker) -> None:
    for marker in markers:
        store.write(marker.name.path, marker_to_bytes(marker))
