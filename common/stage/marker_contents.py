"""The contents of the markers that a stage lists, without unreadable ones."""

from collections.abc import Iterator
from contextlib import suppress

from common.errors import MarkerError
from common.ports import ObjectStore
from common.settings import Stream
from common.spans import Partition, TopicPartition
from common.stage.markers import DONE, Manifest, MarkerName, marker_from_bytes


def listed_markers(store: ObjectStore, folder: str) -> Iterator[tuple[MarkerName, str]]:
    """The markers below a folder, with their paths. Raises StoreError."""
    return ((name, item.path) for item in store.list(folder) if (name := MarkerName.parse(item.path)) is not None)


def manifest_of(name: MarkerName, data: bytes | None) -> Manifest | None:
    """A marker's content, or None; an unreadable marker is reported where its chain is read."""
    with suppress(MarkerError):
        return None if data is None else marker_from_bytes(name, data).manifest
    return None


def chains_of_other_topics(store: ObjectStore, stream: Stream) -> dict[TopicPartition, int]:
    """The chains of topics that the stream does not take, whose newest markers have its app_id; with their generations.

    Markers that are empty or cannot be read are left out. Raises StoreError.
    """
    newest: dict[TopicPartition, tuple[MarkerName, str]] = {}
    for name, path in listed_markers(store, f"{DONE}/"):
        partition = name.topic_partition
        if not stream.takes(partition.topic):
            newest[partition] = max(newest.get(partition, (name, path)), (name, path))
    manifests = {partition: manifest_of(name, store.read(path)) for partition, (name, path) in newest.items()}
    return {
        partition: manifest.generation
        for partition, manifest in manifests.items()
        if manifest is not None and manifest.app_id == stream.app_id
    }


def partitions_of_other_topics(store: ObjectStore, stream: Stream) -> frozenset[Partition]:
    """The Kafka partitions of `chains_of_other_topics`. Raises StoreError."""
    return frozenset(partition.partition for partition in chains_of_other_topics(store, stream))
