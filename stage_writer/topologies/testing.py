"""A topology without Kafka, store or table: for tests of users' topologies.

    driver = TopologyTestDriver(build(), columns="page STRING, clicks BIGINT")
    driver.pipe_input("clicks", "ada", {"page": "/"}, timestamp_ms=1_000)
    assert driver.rows() == [{"page": "/", "clicks": 1}]

Rules:

1. It runs the writer's own parts: its decoder, the tasks, their stores. A message has the same result in both.
2. Each call of `pipe_input` is a conversion that is staged immediately; `restart` then restores the tasks from the
   staged state, as another writer would.
3. Records for a topic that the topology also reads are fed back to it, in the partition of the message that they were
   made for.
4. Only `advance_wall_clock` advances the wall clock. As in the writer, its punctuations are called with the next input.
5. A table without declared columns accepts any dict, and any batch.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa

from common.schema import StructType, parse_ddl, to_arrow_schema
from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import MessageBatch, Messages, headers_column
from stage_writer.decode.decode import Decoder
from stage_writer.decode.rejects import Reject
from stage_writer.topologies.built import BuiltTopology, check_tables
from stage_writer.topologies.keys import key_encoder
from stage_writer.topologies.nodes import SourceNode
from stage_writer.topologies.records import Headers, Key, TopicRecord, Value
from stage_writer.topologies.stores import Changes, MemoryBackend, TaskStores
from stage_writer.topologies.task.inputs import Input, Output, decoded_input
from stage_writer.topologies.task.reading import dicts_of
from stage_writer.topologies.task.task import Task, TaskId
from stage_writer.topologies.task.writing import Problems, Row, RowWriter


class Checkable(Protocol):
    """A `Topology`, or another object with the same check."""

    def check(self) -> BuiltTopology:
        """The topology as it runs."""


class DeadLetter(NamedTuple):
    """A refused message."""

    topic: str
    partition: int
    offset: int
    error_class: str
    error: str


class Message(NamedTuple):
    """A message for `TopologyTestDriver.pipe_inputs`."""

    topic: str
    key: Key
    value: Value
    """The value that a producer would send, as JSON; None for a tombstone; bytes are sent unchanged."""
    timestamp_ms: int
    headers: Headers = ()
    partition: int = 0


class TopologyTestDriver:
    """Feeds a topology, and returns its output. Raises ConfigError for an invalid topology."""

    def __init__(
        self,
        topology: Checkable,
        *,
        columns: str | None = None,
        routes: Mapping[str, str | None] | None = None,
        wall_clock_ms: int = 0,
    ) -> None:
        """``columns`` are those of the stream's table, and ``routes`` has those of the other tables (rule 5)."""
        self._topology = topology.check()
        self._wall_clock_ms = wall_clock_ms
        declared = {"": columns, **(routes or {})}
        schemas = {table: parse_ddl(columns) for table, columns in declared.items() if columns is not None}
        check_tables(self._topology, schemas)
        self._writers = {table: _writer(schemas.get(table)) for table in self._topology.tables}
        self._decoders = {
            topic: None if source.columns is None else Decoder(source.columns)
            for topic, source in self._topology.sources.items()
        }
        self._tasks: dict[TaskId, _Driven] = {}
        self._offsets: Counter[TopicPartition] = Counter()
        self._rows: dict[str, list[Row]] = defaultdict(list)
        self._topics: dict[str, list[TopicRecord]] = defaultdict(list)
        self._dead_letters: list[DeadLetter] = []
        self.dropped: Counter[str] = Counter()
        """How many records processors have dropped, by reason."""
        self.commits = 0
        """How often a processor has requested a flush."""

    def pipe_input(
        self,
        topic: str,
        key: Key,
        value: Value,
        timestamp_ms: int | None = None,
        headers: Headers = (),
        *,
        partition: int = 0,
    ) -> None:
        """Feed one message; without a time it has the wall clock's."""
        time_ms = self._wall_clock_ms if timestamp_ms is None else timestamp_ms
        self.pipe_inputs([Message(topic, key, value, time_ms, headers, partition)])

    def pipe_inputs(self, messages: Iterable[Message]) -> None:
        """Feed several messages, which are converted together."""
        waiting = deque([list(messages)])
        while waiting:
            waiting.extend(self._converted(waiting.popleft()))

    def advance_wall_clock(self, by: timedelta) -> None:
        """Advance the machine's clock (rule 4)."""
        self._wall_clock_ms += round(by.total_seconds() * 1000)

    def rows(self, table: str = "") -> list[Row]:
        """The new rows since the last call."""
        return self._rows.pop(table, [])

    def topic_records(self, topic: str) -> list[TopicRecord]:
        """The new records for a topic since the last call."""
        return self._topics.pop(topic, [])

    def dead_letters(self) -> list[DeadLetter]:
        """The messages refused since the last call."""
        dead_letters, self._dead_letters = self._dead_letters, []
        return dead_letters

    def store(self, name: str, partition: int = 0) -> Any:  # noqa: ANN401 - one of the three kinds of stores
        """A task's state store. Raises KeyError when the topology has none with that name."""
        for group in self._topology.groups:
            if any(builder.name == name for builder in group.stores):
                return self._task(TaskId(Topic(group.name), Partition(partition))).stores.store(name)
        raise KeyError(name)

    def restart(self) -> None:
        """Drop all tasks, and restore them from their staged state."""
        for driven in self._tasks.values():
            driven.restore(self._topology, self._writers)

    def close(self) -> None:
        """Close the processors."""
        for driven in self._tasks.values():
            driven.task.close()

    def _task(self, task_id: TaskId) -> _Driven:
        if task_id not in self._tasks:
            self._tasks[task_id] = _Driven(self._topology, task_id, self._writers)
        return self._tasks[task_id]

    def _converted(self, messages: Sequence[Message]) -> Iterable[list[Message]]:
        """Convert messages; returns those that are fed back (rule 3)."""
        by_input: dict[TaskId, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for number, message in enumerate(messages):
            group = self._topology.group_of(message.topic)
            task_id = TaskId(Topic(group.name), Partition(message.partition))
            by_input[task_id][message.topic].append(number)
        for task_id, by_topic in by_input.items():
            inputs = [self._input(topic, numbers, messages) for topic, numbers in by_topic.items()]
            driven = self._task(task_id)
            output = driven.task.process(inputs, self._wall_clock_ms)
            driven.commit()
            rows_by_number = {int(number): (given, row) for given in inputs for row, number in enumerate(given.index)}
            back = self._taken(output, rows_by_number)
            if back:
                yield back

    def _taken(self, output: Output, rows_by_number: Mapping[int, tuple[Input, int]]) -> list[Message]:
        for table, (_, rows) in output.tables.items():
            self._rows[table] += self._writers[table].dicts_of(rows)
        for reject in output.rejects:
            given, row = rows_by_number[reject.index]
            self._refused(given.topic, given.partition, int(given.offsets[row]), reject)
        self.dropped += output.dropped
        self.commits += output.wants_commit
        back = []
        for record in output.topics:
            self._topics[record.topic].append(record)
            if record.topic in self._topology.sources:
                partition = rows_by_number[record.index][0].partition
                topic, key, value, time_ms, headers, _ = record
                back.append(Message(topic, key, value, time_ms, headers, partition))
        return back

    def _refused(self, topic: str, partition: int, offset: int, reject: Reject) -> None:
        self._dead_letters.append(DeadLetter(topic, partition, offset, str(reject.error_class), reject.error))

    def _input(self, topic: str, numbers: Sequence[int], messages: Sequence[Message]) -> Input:
        """The messages of one topic, decoded; undecodable ones become dead letters here."""
        source = self._topology.sources[topic]
        of_topic = [messages[number] for number in numbers]
        partition = TopicPartition(Topic(topic), Partition(of_topic[0].partition))
        first = self._offsets[partition]
        self._offsets[partition] += len(of_topic)
        batch = MessageBatch(
            partition,
            first + np.arange(len(of_topic)),
            np.array([message.timestamp_ms for message in of_topic], np.int64),
            pa.array([_bytes_of(message.value) for message in of_topic], pa.binary()),
            pa.array([_key_of(source, message.key) for message in of_topic], pa.binary()),
            headers_column([list(message.headers) for message in of_topic]) if self._topology.needs_headers else None,
        )
        given, rejects, _ = decoded_input(Messages.from_batches([batch]), self._decoders[topic])
        for reject in rejects:
            self._refused(topic, partition.partition, first + reject.index, reject)
        return replace(given, index=np.array(numbers, np.int64)[given.index])


class _Driven:
    def __init__(self, topology: BuiltTopology, task_id: TaskId, writers: Mapping[str, AnyRows | RowWriter]) -> None:
        self._task_id = task_id
        self._staged: list[Changes] = []
        self.restore(topology, writers)

    def restore(self, topology: BuiltTopology, writers: Mapping[str, RowWriter]) -> None:
        """Make a new task from its staged state."""
        self.stores = TaskStores(topology.group_of(self._task_id.topic).stores, MemoryBackend())
        self.stores.restore((), self._staged, f"{len(self._staged)}")
        self.task = Task(topology, self._task_id, self.stores, writers)

    def commit(self) -> None:
        self._staged.append(self.stores.seal())
        self.stores.sealed(f"{len(self._staged)}")


class AnyRows(RowWriter):
    """A table that accepts any dicts: its Arrow table has indices into the stored dicts."""

    def __init__(self) -> None:
        super().__init__(pa.schema([("number", pa.int64())]))
        self._kept: list[Row] = []

    def unknown(self, row: Row) -> set[str]:  # noqa: ARG002 - it takes any
        """None: every field is known."""
        return set()

    def fitted(self, rows: pa.Table) -> tuple[pa.Table, Problems]:
        return self.rows_of(list(dicts_of(rows)))

    def rows_of(self, values: Sequence[Row]) -> tuple[pa.Table, Problems]:
        first = len(self._kept)
        self._kept += values
        return pa.table({"number": np.arange(first, len(self._kept))}), {}

    def dicts_of(self, rows: pa.Table) -> list[Row]:
        return [self._kept[number] for number in rows["number"].to_pylist()]


class DeclaredRows(RowWriter):
    def dicts_of(self, rows: pa.Table) -> list[Row]:
        return list(dicts_of(rows))


def _writer(columns: StructType | None) -> AnyRows | DeclaredRows:
    return AnyRows() if columns is None else DeclaredRows(to_arrow_schema(columns))


def _bytes_of(value: Value) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value
    return json.dumps(value, ensure_ascii=False, allow_nan=False).encode("utf-8")


def _key_of(source: SourceNode, key: Key) -> bytes | None:
    return key if isinstance(key, bytes) else key_encoder(source.key)(key)
