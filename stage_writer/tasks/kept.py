"""A running task with its stores, and the conversion of its Kafka partition's messages.

Rules:

1. A flush's state is written as one file (or to a Kafka topic): the changes, or, periodically, everything (a snapshot),
   so that a new owner has little to read. A flush that changed nothing writes nothing.
2. A snapshot is due when the changes since the last one are as large as the state itself, or reach a number of files.
   Writing therefore costs at most about twice the changes, and restoring about twice the state. The first flush without
   a store of the files writes a snapshot as well: if the store came back later, its old entries would lack all records
   since.
3. A job may still read the stores after the partition was revoked: the last reader closes them.
4. A state does not depend on a Kafka topic for long, because the topic deletes old messages. The dependence ends when
   the state's oldest changes in the topic reach the age limit, when the stream has another topic or none by now, or
   when the topic is no longer suitable (stage_writer/changelog/watch.py). The next flush then writes a snapshot. If no
   flush happens, `renewal` writes a snapshot that replaces what the last marker names (common/stage/task_files.py,
   rule 4). While a topic is unsuitable, changes go to the stage.
5. A state in a topic is based on a file in the stage. When the markers that named the state are gone, that file still
   shows that there is one (stage_writer/stage/state_files.py, rule 2).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Lock

from common.errors import StoreError
from common.spans import TopicPartition
from common.stage.task_files import EMPTY_STATE, MarkedState, StateFileName, StateFiles, StateKind, later_snapshot_name
from stage_writer.chain_end import Tail
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import Buffer, StagedRows
from stage_writer.ports import RestoreTask, StateStore
from stage_writer.tasks.converting import DecodedBatch, staged_output
from stage_writer.tasks.look_ups import OpenTask
from stage_writer.tasks.shared import StreamTasks
from stage_writer.tasks.tables import TopologyConverterBase
from stage_writer.topologies.stores import Changes, Snapshot, TaskStores
from stage_writer.topologies.stores.files import changes_to_chunks, snapshot_to_chunks
from stage_writer.topologies.task.inputs import Output
from stage_writer.topologies.task.task import Task


class KeptTask(TopologyConverterBase):
    """A `stage_writer.ports.PartitionTask`; the tasks of a stream convert together (joint_converter.py)."""

    def __init__(
        self, parent: StreamTasks, partition: TopicPartition, task: Task, files: StateFiles, *, changed_bytes: int
    ) -> None:
        """``files`` are the files that it was restored from, including ``changed_bytes`` of changes."""
        self.parent = parent
        self.stream, self.formats = parent.stream, parent.formats
        self.task = task
        self.is_closed = False
        self.wants_flush = False
        self._source = partition
        self._stores = task.stores
        self._files = files
        self._changed_bytes = changed_bytes
        self._has_dropped_stores = task.stores.has_dropped
        self._readers = _Readers(task.stores)
        self._flying: TaskChange | None = None
        self._open = OpenTask(partition, task.stores)
        self.gate = self._open.gate
        """Held while the task uses its stores: lookups come from other threads."""
        look_ups = parent.environment.look_ups
        if look_ups is not None:
            look_ups.add(parent.stream.app_id, self._open)
        parent.storage.report(partition, task.stores)

    def restores(self, partition: TopicPartition, state: StateFiles, store: StateStore) -> RestoreTask:
        """A new task: this one's partition is read again."""
        return self.parent.restores(partition, state, store)

    def staged(self, batch: MessageBatch, output: Output, decoded: DecodedBatch) -> StagedRows:
        """The task's output for a batch."""
        self.wants_flush = self.wants_flush or output.wants_commit
        self.parent.count_dropped(output.dropped)
        return staged_output(self.parent, batch, output, decoded.rejects, decoded.tombstones)

    @property
    def memory_bytes(self) -> int:
        flying = 0 if self._flying is None else self._flying.memory_bytes
        return max(self._stores.memory_bytes - flying, 0)

    def seal(self, buffer: Buffer) -> TaskChange:
        """The changes since the last seal: of the messages in the buffer, and of no others."""
        del buffer
        held_bytes = self._stores.memory_bytes
        with self.gate:
            changes = self._stores.seal()
            snapshot = self._stores.snapshot() if self._is_snapshot_due(changes) else None
        self._flying = TaskChange(self._files, changes, snapshot, self._readers, held_bytes)
        self.wants_flush = False
        return self._flying

    def sealed(self, state: StateFiles) -> None:
        flying, self._flying = self._flying, None
        if flying is not None and flying.snapshot is None:
            self._changed_bytes += flying.changes.size_bytes
        else:
            self._changed_bytes = 0
            self._has_dropped_stores = False
        self._files = state
        with self.gate:
            self._stores.sealed(state.mark)
        self.parent.storage.report(self._source, self._stores)

    def renewal(self, store: StateStore, tail: Tail) -> Callable[[], StateFiles] | None:
        """A job that replaces a state that should not stay in a topic (rule 4)."""
        if self._files.mark != tail.state.mark or not self._is_leaving_a_topic():
            return None
        name = later_snapshot_name(self._source, tail.marker, tail.lineage.generation, self._files)
        with self.gate:
            return partial(self._renew, name, self._stores.snapshot(), store)

    def _renew(self, name: StateFileName, snapshot: Snapshot, store: StateStore) -> StateFiles:
        """Write the replacement, in the background. Raises StoreError."""
        try:
            with self._readers:
                data = snapshot_to_chunks(snapshot)
        finally:
            snapshot.close()
        store.write(name, data)
        return StateFiles(name.path)

    def renewed(self, before: StateFiles, state: StateFiles) -> None:
        if self._files == before and self._flying is None:
            self._files = state
            self._changed_bytes = 0

    def close(self) -> None:
        """The partition was revoked (converting.py, rule 2)."""
        if not self.is_closed:
            self.is_closed = True
            with suppress(Exception):  # errors in the user's code are ignored: this task is no longer used
                self.task.close()
        self._open.close()
        look_ups = self.parent.environment.look_ups
        if look_ups is not None:
            look_ups.remove(self.parent.stream.app_id, self._open)
        self.parent.storage.forget(self._source)
        self._readers.close()

    def _is_snapshot_due(self, changes: Changes) -> bool:
        when = self.parent.environment.when
        if self._has_dropped_stores or self._is_leaving_a_topic():
            return True
        if not changes.entries:
            return False
        if len(self._files.changes) >= when.most_changes:
            return True
        if self.parent.stream.state_changelog is not None and not self._files.paths:
            return True  # rule 5
        changed_bytes = self._changed_bytes + changes.size_bytes
        return changed_bytes > max(self._stores.size_bytes, when.least_bytes) and self._files != EMPTY_STATE

    def _is_leaving_a_topic(self) -> bool:
        """Whether the state is partly in a topic, and should not stay there (rule 4)."""
        environment, topic = self.parent.environment, self.parent.stream.state_changelog
        now_ms, oldest_ms = environment.wall_ms(), environment.when.oldest_s * 1000
        return any(
            topic_changes.place.topic != topic
            or topic_changes.place.topic in environment.unsuitable_topics
            or abs(now_ms - topic_changes.written_ms) > oldest_ms
            for topic_changes in self._files.in_topics
        )


class TaskChange:
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
        if self.snapshot is None:
            if not self.changes.entries:
                return MarkedState(self._before, self._before)
            written = store.write(name(StateKind.CHANGES), changes_to_chunks(self.changes))
            return MarkedState(self._before.with_changes(written), self._before)
        with self._readers:
            data = snapshot_to_chunks(self.snapshot)
        snapshot = name(StateKind.SNAPSHOT)
        store.write(snapshot, data)
        self.snapshot.close()
        return MarkedState(StateFiles(snapshot.path), self._before)


class _Readers:
    """Counts the concurrent readers of a task's stores; the last one closes the stores of a task that has ended."""

    def __init__(self, stores: TaskStores) -> None:
        self._stores = stores
        self._lock = Lock()
        self._count = 0
        self._is_over = False

    def __enter__(self) -> None:
        with self._lock:
            if self._is_over:
                raise StoreError("the task is gone", "nothing is lost: its next owner reads the messages again")
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
