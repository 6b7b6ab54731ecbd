"""Worlds with stateful tasks: a running count of each key's records, and the book that knows each count.

The topology is run by the real tasks, over real stores and state files. The book counts Kafka's logs, record by record;
it knows nothing of state. Where operators gave positions up, their records may have been counted or not: then it knows
which counts are possible.
"""

from __future__ import annotations

import io
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from common.metrics import Metrics
from stage_writer.tasks.kept import SnapshotsWhen
from stage_writer.tasks.topology import Surroundings, TopologyConverter
from stage_writer.topologies import Processor, Topology
from stage_writer.topologies.stores import Stores

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from common.settings import Stream
    from common.spans import TopicPartition
    from stage_writer.topologies import ProcessorContext, Record
    from tests.fakes.delta_tables import MemoryTable
    from tests.simulation.kafka import Record as Sent
    from tests.simulation.store import Bucket

    Place = tuple[int, int, int]

ONE, TWO, QUIET, BAD = b'{"n": 1}', b'{"n": 2}', b'{"n": 0}', b'{"n": -1}'
"""Records that are counted: with a row, with two, with none; and one for which the code fails after it has counted."""
COUNTED = (ONE, ONE, ONE, TWO, QUIET, BAD, None)
"""A tombstone begins its key's count anew."""
KEYS = (b"a", b"b", b"c", None)
ROWS = {ONE: 1, TWO: 2, QUIET: 0}
TOPOLOGY: dict[str, object] = {
    "topology": "tests.simulation.counting:build",
    "columns": "key STRING, seen BIGINT",
}


class Counts(Processor):
    """Counts the records of each key."""

    def init(self, context: ProcessorContext) -> None:
        """Take the store."""
        self.context = context
        self.counts = context.store("counts")

    def process(self, record: Record) -> None:
        """One more."""
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
            self.context.forward(record.with_value({"key": key, "seen": seen}))


def build() -> Topology:
    """The topology of these worlds."""
    topology = Topology()
    topology.add_source("orders", "orders")
    topology.add_processor("counts", Counts, "orders")
    topology.add_state_store(Stores.key_value("counts"), "counts")
    topology.add_sink("table", "counts")
    return topology


def converter(stream: Stream, wall_ms: Callable[[], int]) -> TopologyConverter:
    """The real one, which writes a snapshot every few flushes."""
    return TopologyConverter(
        stream, build().check(), Surroundings(wall_ms, Metrics(), when=SnapshotsWhen(most_changes=4, least_bytes=500))
    )


@dataclass(slots=True)
class CountBook:
    """What each row has to say."""

    bucket: Bucket
    _files: dict[str, pa.Table] = field(default_factory=dict)

    def problems(
        self,
        url: str,
        table: MemoryTable | None,
        logs: Iterable[Mapping[TopicPartition, list[Sent]]],
        may_lack: Callable[[TopicPartition, int], bool],
    ) -> Iterator[str]:
        """Rows whose count is none that their record can have had."""
        wanted = {place: one for log in logs for place, one in _wanted(log, may_lack)}
        for path, start in [] if table is None else table.parts:
            for row in self._rows(f"{url}/{path}").to_pylist():
                place = (row["_kafka_partition"], row["_kafka_offset"], int(row["_kafka_timestamp"].timestamp() * 1000))
                if row["_kafka_offset"] >= start and place in wanted:
                    key, counts = wanted[place]
                    if row["key"] != key or row["seen"] not in counts:
                        yield f"{place} is counted as {row['key']} {row['seen']}, and is {key} {sorted(counts)}"

    def _rows(self, path: str) -> pa.Table:
        """Of a data file, which never changes."""
        if path not in self._files:
            stored = self.bucket.objects.get(path)
            if stored is None:
                return pa.table({})  # shows as missing rows
            self._files[path] = pq.ParquetFile(io.BytesIO(stored[0])).read(use_threads=False)
        return self._files[path]


def _wanted(
    log: Mapping[TopicPartition, list[Sent]], may_lack: Callable[[TopicPartition, int], bool]
) -> Iterator[tuple[Place, tuple[str, set[int]]]]:
    """By the record's place, its key and the counts that it can have."""
    for source, records in log.items():
        possible: dict[str, set[int]] = {}
        for record in records:
            key = "none" if record.key is None else record.key.decode()
            before = possible.get(key, {0})
            if record.value is None:
                after = {0}
            elif record.value == BAD:
                after = before
            else:
                after = {count + 1 for count in before}
                yield (int(source.partition), record.offset, record.timestamp_ms), (key, after)
            possible[key] = before | after if may_lack(source, record.offset) else after


def wanted_rows(value: bytes | None, table: str, dead_letters: str) -> Counter[str]:
    """How many rows a record has in each table."""
    if value is None:
        return Counter()
    return Counter({dead_letters: 1}) if value == BAD else Counter({table: ROWS[value]} if ROWS[value] else {})
