"""A running task and its stores, beside the buffer of its Kafka partition: a `stage_writer.ports.PartitionTask`.

Rules:

1. What a flush has changed is written as one file: the changes, or, now and then, everything (a snapshot), so that a
   new owner has little to read. A flush that changed nothing writes nothing.
2. A snapshot is due when the changes since the last one come to as much as the state itself, or to a number of files:
   so writing costs at most about twice what changed, and restoring about twice the state.
3. A job may still read the stores when the partition has gone: they are let go of when the last reader has.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.state_files import EMPTY_STATE, MarkedState, StateFiles, StateKind
from stage_writer.tasks.converting import TaskConverter
from stage_writer.tasks.look_ups import OpenTask
from stage_writer.topologies.stores.files import changes_to_pieces, snapshot_to_pieces

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.spans import TopicPartition
    from common.state_files import StateFileName
    from stage_writer.core.parquet.buffer import Buffer
    from stage_writer.ports import StateStore
    from stage_writer.tasks.topology import TopologyConverter
    from stage_writer.topologies.stores import Changes, Snapshot, Stores
    from stage_writer.topologies.task.task import Task


@dataclass(frozen=True, slots=True)
class SnapshotsWhen:
    """When a flush writes everything (rule 2)."""

    most_changes: int = 100
    """Files of changes on top of a snapshot."""
    least_bytes: int = 2**20
    """Changes that come to less are never a reason."""


class KeptTask:
    """A task that is restored, until its partition goes."""

    def __init__(
        self,
        parent: TopologyConverter,
        source: TopicPartition,
        task: Task,
        stores: Stores,
        files: StateFiles,
        *,
        changed_bytes: int,
        when: SnapshotsWhen,
    ) -> None:
        """``files`` are what it was restored from, with ``changed_bytes`` of changes among them."""
        self._source = source
        self._keeping = parent.keeping
        self._task = task
        self._stores = stores
        self._files = files
        self._changed_bytes = changed_bytes
        self._when = when
        self._readers = _Readers(stores)
        self._flying: Change | None = None
        self._look_ups = parent.look_ups
        self._open = OpenTask(source, stores)
        if self._look_ups is not None:
            self._look_ups.add(parent.stream.app_id, self._open)
        self.converter = TaskConverter(parent, task, self._open.gate)
        self._keeping.tell(source, stores)

    @property
    def memory_bytes(self) -> int:
        """What has changed since the last seal."""
        flying = 0 if self._flying is None else self._flying.memory_bytes
        return max(self._stores.memory_bytes - flying, 0)

    @property
    def wants_flush(self) -> bool:
        """Whether a processor asked for a flush since the last seal."""
        return self.converter.wants_flush

    def seal(self, buffer: Buffer) -> Change:
        """What changed since the last seal: of the messages in the buffer, and of no others."""
        del buffer
        held_bytes = self._stores.memory_bytes
        with self._open.gate:
            changes = self._stores.seal()
            snapshot = self._stores.snapshot() if self._is_snapshot_due(changes) else None
        self._flying = Change(self._files, changes, snapshot, self._readers, held_bytes)
        self.converter.wants_flush = False
        return self._flying

    def sealed(self, state: StateFiles) -> None:
        """The flush has its marker."""
        flying, self._flying = self._flying, None
        if flying is not None and flying.snapshot is None:
            self._changed_bytes += flying.changes.size_bytes
        else:
            self._changed_bytes = 0
        self._files = state
        with self._open.gate:
            self._stores.sealed(state.mark)
        self._keeping.tell(self._source, self._stores)

    def close(self) -> None:
        """Let go of it all (rule 3)."""
        self.converter.close()
        self._open.close()
        if self._look_ups is not None:
            self._look_ups.remove(self.converter.stream.app_id, self._open)
        self._keeping.forget(self._source)
        self._readers.close()

    def _is_snapshot_due(self, changes: Changes) -> bool:
        if not changes.entries:
            return False
        if len(self._files.changes) >= self._when.most_changes:
            return True
        changed_bytes = self._changed_bytes + changes.size_bytes
        return changed_bytes > max(self._stores.size_bytes, self._when.least_bytes) and self._files != EMPTY_STATE


class Change:
    """A `stage_writer.ports.StateChange`."""

    def __init__(
        self, before: StateFiles, changes: Changes, snapshot: Snapshot | None, readers: _Readers, memory_bytes: int
    ) -> None:
        self._before = before
        self._readers = readers
        self.changes = changes
        self.snapshot = snapshot
        self.memory_bytes = memory_bytes

    def write(self, store: StateStore, name: Callable[[StateKind], StateFileName]) -> MarkedState:
        """Write it, in the job's thread."""
        if not self.changes.entries:
            return MarkedState(self._before, self._before)
        if self.snapshot is None:
            written = name(StateKind.CHANGES)
            store.write(written, changes_to_pieces(self.changes))
            return MarkedState(self._before.with_changes(written.path), self._before)
        with self._readers:
            data = snapshot_to_pieces(self.snapshot)
        written = name(StateKind.SNAPSHOT)
        store.write(written, data)
        self.snapshot.close()
        return MarkedState(StateFiles(written.path), self._before)


class _Readers:
    """Who reads the stores beside the task; the last of them closes the stores of one that has gone."""

    def __init__(self, stores: Stores) -> None:
        self._stores = stores
        self._lock = Lock()
        self._count = 0
        self._is_over = False

    def __enter__(self) -> None:
        with self._lock:
            if self._is_over:
                msg = "the task has gone"
                raise StoreError(msg, "nothing is lost: its next owner reads the messages again")
            self._count += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._count -= 1
            self._close_if_unread()

    def close(self) -> None:
        with self._lock:
            self._is_over = True
            self._close_if_unread()

    def _close_if_unread(self) -> None:
        if self._is_over and self._count == 0:
            self._stores.close()
