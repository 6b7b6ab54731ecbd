"""Chains in the stage that a stream staged before its config named another topic."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from common.errors import MarkerError
from common.stage.markers import DONE, MarkerName, marker_from_bytes

if TYPE_CHECKING:
    from common.ports import ObjectStore
    from common.settings import Stream
    from common.spans import Partition, TopicPartition


def partitions_of_other_topics(store: ObjectStore, stream: Stream) -> frozenset[Partition]:
    """The partitions of topics that the stream does not take, whose newest markers have its app_id.

    Markers that are empty or cannot be read are left out. Raises StoreError.
    """
    newest: dict[TopicPartition, tuple[MarkerName, str]] = {}
    for item in store.list(f"{DONE}/"):
        name = MarkerName.parse(item.path)
        if name is not None and not stream.takes(name.topic_partition.topic):
            newest[name.topic_partition] = max(newest.get(name.topic_partition, (name, item.path)), (name, item.path))
    partitions: set[Partition] = set()
    for name, path in newest.values():
        data = store.read(path)
        with suppress(MarkerError):
            manifest = None if data is None else marker_from_bytes(name, data).manifest
            if manifest is not None and manifest.app_id == stream.app_id:
                partitions.add(name.topic_partition.partition)
    return frozenset(partitions)
