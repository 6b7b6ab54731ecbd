"""Where the tasks of a stream keep their state, and its metrics.

Rules:

1. A task with a persistent store keeps all its stores in a folder of its own on disk, under one mark. Other tasks keep
   them in memory.
2. The disk is a copy: without it a task is restored from the stage.
"""

from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from common import metrics as all_metrics
from common.errors import ConfigError
from common.metrics import Metrics
from common.spans import TopicPartition
from stage_writer.topologies.stores import Backend, MemoryBackend, StoreBuilder, TaskStores
from stage_writer.topologies.stores.disk import MOST_STORES, open_backend

_GAUGES = (all_metrics.WRITER_STATE_BYTES, all_metrics.WRITER_STATE_ENTRIES)
_LONGEST_NAME = 255
"""The maximum length of a folder's name in most file systems; a chain of several topics has all their names."""


class TaskStorage:
    """The state of one stream's tasks in this process. Safe to use from the threads that restore them."""

    def __init__(self, app_id: str, metrics: Metrics, folder: str | None) -> None:
        self._app_id = app_id
        self._metrics = metrics
        self._folder = folder

    def require_place(self, builders: Iterable[StoreBuilder]) -> None:
        """Raise ConfigError if a store needs a disk and has none, or its task has too many stores for it."""
        stores = tuple(builders)
        persistent = next((builder.name for builder in stores if builder.persistent), None)
        if persistent is None:
            return
        in_memory = "remove persistent=True to keep the state in memory"
        if self._folder is None:
            msg = f"the state store {persistent} is persistent, but writer.state_folder is not set"
            raise ConfigError(msg, f"set writer.state_folder, or {in_memory}")
        count = len(stores) + sum(builder.index() is not None for builder in stores)
        if count > MOST_STORES:
            msg = f"the state store {persistent} is persistent, but its task has too many stores: {len(stores)}"
            remedy = f"use at most {MOST_STORES}, where window and session stores count twice, or {in_memory}"
            raise ConfigError(msg, remedy)

    def backend(self, partition: TopicPartition, builders: Iterable[StoreBuilder]) -> Backend:
        """The backend of a task (rule 1). Raises StateError when the disk fails."""
        if self._folder is None or not any(builder.persistent for builder in builders):
            return MemoryBackend()
        return open_backend(Path(self._folder) / self._app_id / _folder_of(partition))

    def report_restored(self, read_bytes: int, seconds: float) -> None:
        self._metrics.add(all_metrics.WRITER_STATE_RESTORED, read_bytes, app_id=self._app_id)
        self._metrics.observe(all_metrics.WRITER_STATE_RESTORE_SECONDS, seconds, app_id=self._app_id)

    def report(self, partition: TopicPartition, stores: TaskStores) -> None:
        for gauge, value in zip(_GAUGES, (stores.size_bytes, stores.entries), strict=True):
            self._metrics.set(gauge, value, **self._labels(partition))

    def forget(self, partition: TopicPartition) -> None:
        for gauge in _GAUGES:
            self._metrics.forget(gauge, **self._labels(partition))

    def _labels(self, partition: TopicPartition) -> dict[str, str]:
        return {"app_id": self._app_id, "topic": str(partition.topic), "partition": str(partition.partition)}


def _folder_of(partition: TopicPartition) -> str:
    name = str(partition.topic)
    if len(f"{name}-{partition.partition}") > _LONGEST_NAME:
        name = f"sha256-{sha256(name.encode()).hexdigest()}"
    return f"{name}-{partition.partition}"
