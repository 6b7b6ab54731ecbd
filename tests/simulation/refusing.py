"""Worlds whose table has a constraint, from its creation or for a while, and whose files have many partition values.

A record that the table refuses is a dead letter with its bytes and no row; a record that was loaded while the table
accepted it is a row and no dead letter. So each such record is there once, and of a table that always refused it, as a
dead letter.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc

from common.settings import Stream
from common.spans import Offset, TopicPartition
from delta_loader.load.ports import RawRecord
from delta_loader.load.ports import RefusalPorts as RefusingPorts
from delta_loader.plan.plan import TableShape
from stage_writer.parquet.buffer import FilePolicy
from stage_writer.ports import Converter
from tests.simulation.converter import BAD, PlainConverter, Registry
from tests.simulation.delta_log import CHECKED, CONSTRAINT, DeltaLog, SimulatedTables
from tests.simulation.kinds import DEAD_LETTERS, STAGE, TABLE, Context, Kind, Wanted, settings_of
from tests.simulation.world import Fault, Process

FORBIDDEN = b'{"n": 7}'
_TAKEN = {b'{"n": 5}': 5, b'{"n": 6}': 6, FORBIDDEN: 7}


def _forbidden(rows: pa.Table) -> pa.Array:
    return pc.equal(rows["n"], 7).combine_chunks()


class CheckedLog(DeltaLog):
    """Tables of which the main one may have its constraint from the beginning."""

    checks_at_once = False
    check = "n <> 7"

    def create(self, url: str, shape: TableShape) -> None:
        """With the constraint of the process that creates it."""
        is_new = url not in self.tables
        super().create(url, shape)
        if is_new and url == TABLE and self.checks_at_once:
            self.tables[url].properties[CONSTRAINT] = self.check


def refusing_ports(context: Context, tables: SimulatedTables) -> RefusingPorts:
    """Delta's constraint check, and Kafka for the bytes."""
    world, broker = context.world, context.broker

    def raw_records(
        partition: TopicPartition, offsets: Collection[Offset], topic_id: str | None
    ) -> Mapping[Offset, RawRecord]:
        if topic_id != str(broker.topic_id):
            return {}
        sent = {record.offset: record for record in broker.logs[partition]}
        return {
            offset: RawRecord(sent[offset].timestamp_ms, sent[offset].key, sent[offset].value) for offset in offsets
        }

    def asked(
        partition: TopicPartition, offsets: Collection[Offset], topic_id: str | None
    ) -> Mapping[Offset, RawRecord]:
        return world.effect(f"records of {partition}", lambda: raw_records(partition, offsets, topic_id))

    return RefusingPorts(tables, asked)


class NumbersConverter(PlainConverter):
    def __init__(self, stream: Stream, registry: Registry) -> None:
        super().__init__(stream, registry)
        rows, dead_letters = self.formats
        waits = stream.load.waits_for_spark
        self.formats = (replace(rows, partition_by=stream.layout.partition_by, waits=waits), dead_letters)

    def is_row(self, value: bytes | None) -> bool:
        """Regardless of the table's constraint."""
        return value in _TAKEN

    def fields(self, value: bytes) -> dict[str, object]:
        return {"n": _TAKEN[value]}


class RefusalPorts(Kind):
    values = (*_TAKEN, *_TAKEN, BAD, None)
    file_policy = FilePolicy(max_values=1)

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        rng = context.world.rng
        self.log = CheckedLog(context.bucket, STAGE, _forbidden)
        self.log.checks_at_once = self._always = rng.random() < 0.4
        load = rng.choice(["auto", "append"])
        self.settings = settings_of(load=load, partition_by=rng.choice([[], ["n"]]))

    def converter(self, process: Process) -> Converter:
        del process
        return NumbersConverter(self.stream, self.registry)

    def wanted(self, value: bytes | None) -> Wanted:
        """A row, or a dead letter of a record that the table refuses at times."""
        if value != FORBIDDEN:
            return ({TABLE: 1} if value in _TAKEN else {DEAD_LETTERS: 1} if value is not None else {},)
        return ({DEAD_LETTERS: 1},) if self._always else ({DEAD_LETTERS: 1}, {TABLE: 1})

    def inject_faults(self) -> None:
        """Someone adds the constraint, or drops it."""
        world, table = self.context.world, self.log.tables.get(TABLE)
        if table is None or self._always or world.rng.random() >= world.chances.altered:
            return
        world.faults[Fault.ALTERED] += 1
        if table.properties.pop(CONSTRAINT, None) is None:
            table.properties[CONSTRAINT] = CheckedLog.check
            table.protocol = CHECKED
        world.note(f"the table checks {list(table.properties)}")

    def refusing(self, tables: SimulatedTables) -> RefusingPorts:
        """Delta's constraint check, and Kafka for the bytes."""
        return refusing_ports(self.context, tables)

    def problems(self) -> Iterator[str]:
        """Dead letters without their bytes."""
        table = self.log.tables.get(DEAD_LETTERS)
        for letter in (letter for commit in (table.commits if table else ()) for letter in commit.dead_letter_rows):
            if letter.value != FORBIDDEN:
                yield f"the dead letter at {letter.offset} of {letter.partition} has {letter.value!r}"
