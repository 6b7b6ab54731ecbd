"""The shared state of a stream's tasks: its settings and formats, the decoding of its topics, and their surroundings.

Rule: each source topic is decoded by its own columns, as strictly as any stream's records; a source without columns
accepts any JSON value, which the task parses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from typing import TYPE_CHECKING

import numpy as np

from common import metrics as all_metrics
from common.metrics import Metrics
from common.settings import Stream
from common.spans import TopicPartition
from common.stage.task_files import StateFiles
from stage_writer.decode.batch import Index, MessageBatch, Messages
from stage_writer.decode.decode_options import MakeNativeDecoder, no_native_decoder
from stage_writer.decode.rejects import Reject
from stage_writer.ports import RestoreTask, StateStore
from stage_writer.stopping import NEVER_STOPPING, Stopping
from stage_writer.tasks.tables import decoders_of, formats_of, row_format
from stage_writer.tasks.task_storage import TaskStorage
from stage_writer.topologies.built import BuiltTopology
from stage_writer.topologies.task.inputs import Input, decoded_input, input_of

if TYPE_CHECKING:
    from stage_writer.tasks.look_ups import LookUps


@dataclass(frozen=True, slots=True)
class SnapshotsWhen:
    """When a flush writes a snapshot (stage_writer/tasks/kept.py, rule 2)."""

    most_changes: int = 100
    """Files of changes on top of a snapshot."""
    least_bytes: int = 2**20
    """Smaller changes are never a reason."""
    oldest_s: float = inf
    """The age of changes in a topic that makes a snapshot due (rule 4 there)."""


@dataclass(frozen=True, slots=True)
class TaskEnvironment:
    wall_ms: Callable[[], int]
    metrics: Metrics
    native_decoder: MakeNativeDecoder = no_native_decoder
    state_folder: str | None = None
    when: SnapshotsWhen = field(default_factory=SnapshotsWhen)
    look_ups: LookUps | None = None
    """The process's tasks for lookups; None where lookups are disabled."""
    unsuitable_topics: Collection[str] = frozenset()
    """Changelog topics currently known not to keep their messages long enough."""
    stopping: Stopping = NEVER_STOPPING


class StreamTasks(ABC):
    def __init__(self, stream: Stream, topology: BuiltTopology, environment: TaskEnvironment) -> None:
        self.stream = stream
        self.topology = topology
        self.environment = environment
        self.storage = TaskStorage(stream.app_id, environment.metrics, environment.state_folder)
        for group in topology.groups:
            self.storage.require_place(group.stores)
            if environment.look_ups is not None:
                environment.look_ups.declare(stream.app_id, group.stores)
        self.formats = formats_of(stream)
        self.row_formats = {"": self.formats[0]} | {
            name: row_format(stream, url) for name, url in stream.routing.routes.items()
        }
        self._decoders = decoders_of(stream, topology, environment.native_decoder)

    @abstractmethod
    def restores(self, partition: TopicPartition, state: StateFiles, store: StateStore) -> RestoreTask:
        """A job that restores the task of a Kafka partition."""

    def decoded(self, parts: Sequence[MessageBatch]) -> list[tuple[Input, list[Reject], Index]]:
        """The messages of several partitions of one topic for their tasks, the refused ones, and the tombstones."""
        decoder = self._decoders.get(parts[0].partition.topic)
        if decoder is None or len(parts) == 1:
            return [decoded_input(Messages.from_batches([part]), decoder) for part in parts]
        messages = Messages.from_batches(parts)
        decoded = decoder.decode(messages.values)
        rejected = np.array([reject.index for reject in decoded.rejects], np.int64)
        made = []
        for part, first, (start, end), (low, high), tombstones in zip(
            parts,
            messages.starts.tolist(),
            pairwise(messages.bounds(decoded.row_index).tolist()),
            pairwise(messages.bounds(rejected).tolist()),
            messages.parted(decoded.tombstones),
            strict=False,  # the last of the starts is the end
        ):
            rows, row_index = decoded.rows.slice(start, end - start), decoded.row_index[start:end] - first
            rejects = [replace(reject, index=reject.index - first) for reject in decoded.rejects[low:high]]
            given = input_of(Messages.from_batches([part]), rows, row_index, tombstones - first)
            made.append((given, rejects, tombstones - first))
        return made

    def count_dropped(self, dropped: Mapping[str, int]) -> None:
        for reason, count in dropped.items():
            self.environment.metrics.add(
                all_metrics.WRITER_TOPOLOGY_DROPPED, count, app_id=self.stream.app_id, reason=reason
            )
