"""The conversion of a stream with a topology: the parts shared by all of its tasks.

Rules:

1. Each source topic is decoded by its own columns, as strictly as any stream's records; a source without columns
   accepts any JSON value, which the task parses.
2. Only tasks convert: the state belongs to a Kafka partition. This class makes tasks, from the state of a chain's end.
3. A disk that already holds the state of that end is reused; any other content is discarded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn, cast

import numpy as np
import pyarrow as pa

from common import metrics as catalogue
from common.schema import to_arrow_schema
from common.stage.state_files import EMPTY_STATE
from stage_writer.core.batch import Messages
from stage_writer.core.decoding.first_pass import no_first_pass
from stage_writer.stopping import NEVER_STOPPING, Stopping
from stage_writer.tasks.converting import input_of
from stage_writer.tasks.decoders import decoders_of
from stage_writer.tasks.keeping import Keeping
from stage_writer.tasks.kept import KeptTask, SnapshotsWhen
from stage_writer.tasks.tables import declared_of, formats_of, row_format
from stage_writer.topologies.stores import Stores
from stage_writer.topologies.stores.files import changes_from_bytes, snapshot_from_file
from stage_writer.topologies.task.task import Task

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from common.metrics import Metrics
    from common.schema import StructType
    from common.settings import Stream
    from common.spans import TopicPartition
    from common.stage.state_files import StateFiles
    from stage_writer.core.batch import MessageBatch
    from stage_writer.core.decoding.first_pass import MakeFirstPass
    from stage_writer.core.decoding.rejects import Reject
    from stage_writer.ports import StateStore
    from stage_writer.tasks.look_ups import LookUps
    from stage_writer.topologies.built import BuiltTopology, TaskGroup
    from stage_writer.topologies.stores import Changes, StoreBuilder
    from stage_writer.topologies.task.inputs import Input

    Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a topology needs from its process."""

    wall_ms: Callable[[], int]
    metrics: Metrics
    first_pass: MakeFirstPass = no_first_pass
    state_folder: str | None = None
    when: SnapshotsWhen = field(default_factory=SnapshotsWhen)
    look_ups: LookUps | None = None
    """The process's tasks for lookups; None where lookups are disabled."""
    unfit_topics: Collection[str] = frozenset()
    """Changelog topics currently known not to keep their messages long enough."""
    stopping: Stopping = NEVER_STOPPING


class TopologyConverter:
    """A `stage_writer.ports.Converter` whose partitions have tasks. Raises SchemaError."""

    def __init__(self, stream: Stream, topology: BuiltTopology, around: Surroundings) -> None:
        self.stream = stream
        self.topology = topology
        self.wall_ms = around.wall_ms
        self._around = around
        self.keeping = Keeping(stream.app_id, around.metrics, around.state_folder)
        for group in topology.groups:
            self.keeping.require_place(_builders(group))
            if around.look_ups is not None:
                around.look_ups.declare(stream.app_id, _builders(group))
        self.formats = formats_of(stream)
        self.row_formats = {"": self.formats[0]} | {
            name: row_format(stream, url) for name, url in stream.routes.items()
        }
        self._output_schemas = {name: to_arrow_schema(columns) for name, columns in declared_of(stream).items()}
        self._decoders = decoders_of(stream, topology, around.first_pass)

    @property
    def look_ups(self) -> LookUps | None:
        """The tasks for lookups."""
        return self._around.look_ups

    @property
    def unfit_topics(self) -> Collection[str]:
        """Changelog topics that are currently unreliable."""
        return self._around.unfit_topics

    @property
    def needs_headers(self) -> bool:
        """Whether Kafka's headers must be read."""
        return self.topology.needs_headers

    def waits(self, batch: MessageBatch) -> None:
        """There is nothing to wait for."""

    def at(self, gained: StructType) -> TopologyConverter:  # noqa: ARG002 - the port's
        """A table that a topology fills gains no columns."""
        return self

    def slices(self, batches: Sequence[MessageBatch]) -> NoReturn:
        """Only tasks convert (rule 2)."""
        msg = f"messages of {batches[0].source} were converted without a task"
        raise RuntimeError(msg)

    def restores(self, source: TopicPartition, state: StateFiles, store: StateStore) -> Restoring:
        """A job that restores the task of a Kafka partition."""
        return Restoring(self, source, state, store)

    def decoded(self, messages: Messages) -> tuple[Input, list[Reject], Index]:
        """The messages of one partition for its task, the refused ones, and the tombstones."""
        topic = str(messages.batches[0].source.topic)
        decoder = self._decoders.get(topic)
        if decoder is None:
            tombstones = np.flatnonzero(messages.values.is_null().to_numpy(zero_copy_only=False))
            rows = pa.table({"value": messages.values})
            everything = np.arange(len(messages))
            given = input_of(messages, topic, rows, everything, tombstones[:0])
            return replace(given, is_null=np.isin(everything, tombstones)), [], tombstones
        found = decoder.decode(messages.values)
        given = input_of(messages, topic, found.rows, found.row_index, found.tombstones)
        return given, list(found.rejects), found.tombstones

    def decoded_together(self, parts: Sequence[MessageBatch]) -> list[tuple[Input, list[Reject], Index]]:
        """The same for several partitions of one topic, decoded in one call."""
        topic = str(parts[0].source.topic)
        decoder = self._decoders.get(topic)
        if decoder is None or len(parts) == 1:
            return [self.decoded(Messages.of([part])) for part in parts]
        messages = Messages.of(parts)
        found = decoder.decode(messages.values)
        rejected = np.array([reject.index for reject in found.rejects], np.int64)
        made = []
        for part, first, (start, end), (low, high), tombstones in zip(
            parts,
            messages.starts.tolist(),
            pairwise(messages.bounds(found.row_index).tolist()),
            pairwise(messages.bounds(rejected).tolist()),
            messages.parted(found.tombstones),
            strict=False,  # the last of the starts is the end
        ):
            rows, row_index = found.rows.slice(start, end - start), found.row_index[start:end] - first
            rejects = [replace(reject, index=reject.index - first) for reject in found.rejects[low:high]]
            given = input_of(Messages.of([part]), topic, rows, row_index, tombstones - first)
            made.append((given, rejects, tombstones - first))
        return made

    def count_dropped(self, dropped: Mapping[str, int]) -> None:
        """Count the records that processors have dropped."""
        for reason, count in dropped.items():
            self._around.metrics.add(catalogue.WRITER_TOPOLOGY_DROPPED, count, app_id=self.stream.app_id, reason=reason)

    def restored(self, source: TopicPartition, state: StateFiles, store: StateStore) -> KeptTask:
        """The task of a Kafka partition, at the end of the chain that names these files."""
        builders = _builders(self.topology.group_of(source.topic))
        started_ms = self.wall_ms()
        stores = Stores.open(builders, self.keeping.backend(source, builders))
        try:
            changed = _Changed(source, state, store)
            read_bytes = 0
            if stores.mark != state.mark or state == EMPTY_STATE:
                read_bytes = _restore(stores, state, changed, store)
            task = Task(self.topology, source, stores, self._output_schemas, self._around.stopping)
        except BaseException:
            stores.close()
            raise
        self.keeping.tell_restored(read_bytes, (self.wall_ms() - started_ms) / 1000)
        return KeptTask(self, source, task, stores, state, changed_bytes=changed.size_bytes, when=self._around.when)


def _builders(group: TaskGroup) -> tuple[StoreBuilder, ...]:
    return cast("tuple[StoreBuilder, ...]", group.stores)


def _restore(stores: Stores, state: StateFiles, changed: _Changed, store: StateStore) -> int:
    """Returns the bytes of files that were read."""
    if state.snapshot is None:
        stores.restore((), changed, state.mark)
        return changed.read_bytes
    with store.open(state.snapshot) as opened:
        stores.restore(snapshot_from_file(state.snapshot, opened), changed, state.mark)
        return opened.tell() + changed.read_bytes


class _Changed:
    """The changes on top of the snapshot, read one after the other, and their total size."""

    def __init__(self, source: TopicPartition, state: StateFiles, store: StateStore) -> None:
        self._source = source
        self._state = state
        self._store = store
        self.size_bytes = 0
        self.read_bytes = 0

    def __iter__(self) -> Iterator[Changes]:
        for path, data in self._store.changes(self._source, self._state):
            self.read_bytes += len(data)
            changes = changes_from_bytes(path, data)
            self.size_bytes += changes.size_bytes
            yield changes


@dataclass(frozen=True, slots=True)
class Restoring:
    """A background job."""

    converter: TopologyConverter
    source: TopicPartition
    state: StateFiles
    store: StateStore

    def run(self) -> KeptTask:
        """Raises StoreError, BrokerError, StateError, and ConfigError for a store of another shape."""
        return self.converter.restored(self.source, self.state, self.store)
