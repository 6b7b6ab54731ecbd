"""A stream of change events staged by the writer's own code, without Kafka: events in, markers and files out."""

import json
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.spans import Offset, Partition, Position, Topic, TopicPartition
from common.storage.store import FsspecStore, stores_of
from delta_loader.load.merged_keys import KeyReader, MergedKeys
from delta_loader.load.ports import RawRecord, RefusalPorts
from delta_loader.ports import DeltaTables
from delta_loader.service import LoaderService
from delta_loader.spark.constraint_check import ConstraintChecker
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import Buffer
from stage_writer.ports import FlushIdentity, Sealed
from stage_writer.stage.staging import ObjectStage
from tests.builders import settings_of
from tests.fakes.events import Event, Forbids, Row, Table, replay
from tests.fakes.loading import ports_for
from tests.fakes.streams import staged_batches
from tests.fakes.writers import always
from tests.reading import place_of, rows_of

_MADE_MS = 1_700_000_000_000
NULL = "null"
"""Stands for the value of an upsert that has none."""
COLUMNS = "id INT, name STRING, value STRING, at INT, op STRING"


@dataclass
class ChangeStream:
    folder: Path | str
    sequenced: bool = False
    soft: bool = False
    more: dict[str, object] = field(default_factory=dict)
    storage_options: dict[str, object] = field(default_factory=dict)
    patches: bool = False
    """Whether a null leaves the row's value unchanged."""
    label: str = "name"
    """The table's name of the second key column, which is `name` in records."""
    forbids: Forbids = lambda _row: False
    """Which rows the table refuses."""
    expected: Table = field(default_factory=dict)
    refused: set[tuple[str, int, int]] = field(default_factory=set)
    """The places of the events that the table refused."""
    sent: dict[tuple[TopicPartition, Offset], RawRecord] = field(default_factory=dict)
    """The records in Kafka."""
    _waiting: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        merge: dict[str, object] = {"keys": ["id", self.label], "operation": "op", "deletes": ["d"]}
        merge |= {"sequence": "at"} if self.sequenced else {}
        merge |= {"soft_delete": "gone"} if self.soft else {}
        merge |= {"ignore_nulls": True} if self.patches else {}
        stream = {
            "app_id": "orders",
            "topics": ["orders"],
            "table": self.table,
            "columns": COLUMNS,
            "load": "merge",
            "merge": merge,
            **({"rename": {"name": self.label}} if self.label != "name" else {}),
            **self.more,
        }
        self.settings = settings_of(
            stream,
            stage={"url": f"{self.root}/stage", "storage_options": self.storage_options},
            loader={"http": None, "marker_retention": "0s"},
        )
        self.store = FsspecStore(self.settings.stage.url, self.storage_options)
        self.stage = ObjectStage(
            self.store, stores_of(self.storage_options), SystemClock(), lambda: str(uuid.uuid4()), "test"
        )
        self.converter = StreamConverter(self.settings.streams[0])

    @property
    def table(self) -> str:
        return f"{self.root}/tables/orders"

    @property
    def root(self) -> str:
        return self.folder if isinstance(self.folder, str) else self.folder.as_uri()

    def flush(self, partition: int, events: Sequence[tuple[int, str | None, int | None]]) -> None:
        """Stage (id, value, sequence) events: without a value a delete, also without a sequence a tombstone."""
        topic_partition = TopicPartition(Topic("orders"), Partition(partition))
        tail = self.stage.chains.tail(topic_partition)
        start = Position(0) if tail is None else tail.end
        values, keys = [], []
        for place, (key, value, sequence) in enumerate(events):
            tombstone, given = value is None and sequence is None, None if value == NULL else value
            self._waiting.append(Event("orders", partition, start + place, (key, "k"), given, value is None, sequence))
            op = "d" if value is None else "u"
            content = {"id": key, "name": "k", "value": given, "at": sequence, "op": op}
            values.append(None if tombstone else json.dumps(content).encode())
            keys.append(json.dumps({"id": key, "name": "k"}).encode())
            self.sent[topic_partition, Offset(start + place)] = RawRecord(
                _MADE_MS + start + place, keys[-1], values[-1]
            )
        offsets = np.arange(start, start + len(events))
        times = _MADE_MS + offsets
        keys_of = pa.array(keys, pa.binary())
        batch = MessageBatch(topic_partition, offsets, times, pa.array(values, pa.binary()), keys_of, None)
        buffer = Buffer.begin(start, self.converter.formats)
        (staged,) = staged_batches(self.converter, [batch])
        assert not staged.dead_letters, staged.rows[1].to_pylist()
        buffer.add(staged, 0.0)
        flush = FlushIdentity(topic_partition, self.settings.streams[0], buffer, tail)
        outcome = self.stage.flush_job(flush, always).run()
        assert isinstance(outcome, Sealed)

    def load(self, tables: DeltaTables, spark: SparkSession | None = None) -> None:
        """Load all that waits at once, and update the expected table; ``spark``: refused events become dead letters."""
        (report,) = self.loader(tables, spark).run_pass()
        assert report.failure is None, report.failure
        assert report.held == {}
        self.replay_waiting()

    def replay_waiting(self) -> None:
        """Update the expected table as if all that waits were loaded."""
        self.refused |= replay(
            self.expected,
            self._waiting,
            sequenced=self.sequenced,
            soft=self.soft,
            forbids=self.forbids,
            patches=self.patches,
        )
        self._waiting.clear()

    def raw_records(
        self,
        partition: TopicPartition,
        offsets: Collection[Offset],
        topic_id: str | None,  # noqa: ARG002 - the port's
        /,
    ) -> dict[Offset, RawRecord]:
        return {offset: self.sent[partition, offset] for offset in offsets}

    def loader(
        self, tables: DeltaTables, spark: SparkSession | None = None, *, keys: KeyReader | None = None
    ) -> LoaderService:
        """A new loader; with ``spark``, events that the table refuses become dead letters."""
        refusing = RefusalPorts(ConstraintChecker(spark, self.settings.stage.url), self.raw_records) if spark else None
        ports = ports_for(
            self.store,
            tables,
            stores_of(self.storage_options),
            refusing=refusing,
            merged_keys=None if keys is None else MergedKeys(keys),
        )
        return LoaderService(self.settings.streams, self.settings.loader, ports)

    def letters(self) -> dict[tuple[str, int, int], tuple[bytes | None, bytes | None, str]]:
        """The dead letters' keys, values and problems, by the events' places."""
        url = self.settings.streams[0].dead_letters
        rows = rows_of(url, self.storage_options, "error_class = 'refused_by_table'")
        letters = {place_of(row): (row["key"], row["value"], row["error"]) for row in rows}
        assert len(letters) == len(rows), "each once"
        for (topic, partition, offset), (key, value, _) in letters.items():
            sent = self.sent[TopicPartition(Topic(topic), Partition(partition)), Offset(offset)]
            assert (key, value) == (sent.key, sent.value), "with its bytes"
        return letters

    def rows(self, table: str | None = None) -> Table:
        rows = rows_of(table or self.table, self.storage_options)
        by_key: Table = {
            (row["id"], row[self.label]): Row(
                row["value"],
                row["at"] if self.sequenced else None,
                self.soft and row["gone"],
                row.get("_kafka_offset", 0),
            )
            for row in rows
        }
        assert len(by_key) == len(rows), "one row for each key"
        return by_key
