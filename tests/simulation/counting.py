"""Worlds with stateful tasks: a running count of each key's records and of the punctuations by stream time; and the
model that knows each count.

The topology is run by the real tasks, over real stores and state files. The model counts Kafka's logs record by record
and does not use the tasks' state. Where operators gave positions up, their records may have been counted or not: the
model then knows the possible counts.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta

import pyarrow as pa

from common.metrics import Metrics
from common.settings import Stream
from common.spans import TopicPartition
from stage_writer.tasks.shared import SnapshotsWhen, TaskEnvironment
from stage_writer.tasks.topology import TopologyConverter
from stage_writer.topologies import Processor, ProcessorContext, PunctuationType, Record, Topology
from stage_writer.topologies.stores import Stores
from tests.fakes.delta_tables import MemoryTable
from tests.simulation.kafka import Record as Sent

Place = tuple[int, int, int]

ONE, TWO, QUIET, BAD = b'{"n": 1}', b'{"n": 2}', b'{"n": 0}', b'{"n": -1}'
"""Records that are counted: with a row, with two, with none; and one for which the code fails after it has counted."""
COUNTED = (ONE, ONE, ONE, TWO, QUIET, BAD, None)
"""A tombstone restarts its key's count."""
KEYS = (b"a", b"b", b"c", None)
ROWS = {ONE: 1, TWO: 2, QUIET: 0}
TICK = timedelta(seconds=5)
_TICK_MS = 5_000
TOPOLOGY: dict[str, object] = {
    "topology": "tests.simulation.counting:build",
    "columns": "key STRING, seen BIGINT, ticks BIGINT",
}


class Counts(Processor):
    """Counts the records of each key."""

    rows: str | None = None
    """The sink of the rows; all sinks where this names none."""

    def init(self, context: ProcessorContext) -> None:
        self.context = context
        self.counts = context.store("counts")
        context.schedule(TICK, PunctuationType.STREAM_TIME, self.tick)

    def tick(self, time_ms: int) -> None:
        """An interval of stream time has passed."""
        del time_ms
        self.counts.put("ticks", (self.counts.get("ticks") or 0) + 1)

    def process(self, record: Record) -> None:
        key = record.key or "none"
        if record.value is None:
            self.counts.delete(key)
            return
        seen = (self.counts.get(key) or 0) + 1
        self.counts.put(key, seen)
        if record.value["n"] < 0:
            msg = "less than nothing"
            raise ValueError(msg)
        for _ in range(record.value["n"]):
            ticks = self.counts.get("ticks") or 0
            self.context.forward(record.with_value({"key": key, "seen": seen, "ticks": ticks}), self.rows)


def build() -> Topology:
    return topology(persistent=False)


def topology(*, persistent: bool) -> Topology:
    """The same, with its state on disk or in memory."""
    made = Topology()
    made.add_source("orders", "orders")
    made.add_processor("counts", Counts, "orders")
    made.add_state_store(Stores.key_value("counts", persistent=persistent), "counts")
    made.add_sink("table", "counts")
    return made


def converter(stream: Stream, wall_ms: Callable[[], int], build: Callable[[], Topology] = build) -> TopologyConverter:
    """The real converter, which writes a snapshot every few flushes."""
    return TopologyConverter(
        stream,
        build().check(),
        TaskEnvironment(wall_ms, Metrics(), when=SnapshotsWhen(most_changes=4, least_bytes=500)),
    )


@dataclass(slots=True)
class CountModel:
    read: Callable[[str], pa.Table]
    """The rows of a data file."""

    def problems(
        self,
        url: str,
        table: MemoryTable | None,
        logs: Iterable[Mapping[TopicPartition, list[Sent]]],
        may_lack: Callable[[TopicPartition, int], bool],
    ) -> Iterator[str]:
        """Rows whose count is impossible for their record."""
        wanted = counts_of(logs, may_lack)
        for path, start in [] if table is None else table.parts:
            for row in self.read(f"{url}/{path}").to_pylist():
                place = (row["_kafka_partition"], row["_kafka_offset"], int(row["_kafka_timestamp"].timestamp() * 1000))
                if row["_kafka_offset"] >= start and place in wanted:
                    key, counts, ticks = wanted[place]
                    if row["key"] != key or row["seen"] not in counts:
                        yield f"{place} is counted as {row['key']} {row['seen']}, and is {key} {sorted(counts)}"
                    if row["ticks"] not in ticks:
                        yield f"{place} comes after {row['ticks']} ticks, and not after {sorted(ticks)}"


def counts_of(
    logs: Iterable[Mapping[TopicPartition, list[Sent]]], may_lack: Callable[[TopicPartition, int], bool]
) -> dict[Place, tuple[str, set[int], set[int]]]:
    """For the place of each counted record: its key, its possible counts, and the ticks before it."""
    return {place: counts for log in logs for place, counts in _wanted(log, may_lack)}


def _wanted(
    log: Mapping[TopicPartition, list[Sent]], may_lack: Callable[[TopicPartition, int], bool]
) -> Iterator[tuple[Place, tuple[str, set[int], set[int]]]]:
    for partition, records in log.items():
        possible: dict[str, set[int]] = {}
        clocks = {(0, 0)}  # when the next tick is due, and how many there were
        for record in records:
            key = "none" if record.key is None else record.key.decode()
            before = possible.get(key, {0})
            if record.value is None:
                after = {0}
            elif record.value == BAD:
                after = before
            else:
                after = {count + 1 for count in before}
                place = (int(partition.partition), record.offset, record.timestamp_ms)
                yield place, (key, after, {ticks for _, ticks in clocks})
            later = clocks if record.value == BAD else {_ticked(clock, record.timestamp_ms) for clock in clocks}
            is_certain = not may_lack(partition, record.offset)
            possible[key] = after if is_certain else before | after
            clocks = later if is_certain else clocks | later


def _ticked(clock: tuple[int, int], time_ms: int) -> tuple[int, int]:
    due_ms, ticks = clock
    return clock if time_ms < due_ms else ((time_ms // _TICK_MS + 1) * _TICK_MS, ticks + 1)


def wanted_rows(value: bytes | None, table: str, dead_letters: str) -> Counter[str]:
    if value is None:
        return Counter()
    return Counter({dead_letters: 1}) if value == BAD else Counter({table: ROWS[value]} if ROWS[value] else {})
