"""Worlds of change events: upserts, deletes and tombstones by key, merged into a table with one row for each key; and
their model, which applies the events one by one in Kafka's order.

Some tables have a CHECK, from their creation or for a while. An event that it forbids is a dead letter and has no other
effect. Every dead letter has to be a forbidden event, and where the table always had its CHECK, every forbidden event
has to be a dead letter.

Where operators gave positions up, or a topic was deleted, an event may have been applied or not: the model then knows
the possible rows. The records of a key are in one Kafka partition. A sequence is used with soft deletes only: without
them a deleted row's sequence is forgotten at the end of a load, and how events are divided into loads is random.
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import astuple, replace

from common.schema import Field, Primitive, StructType
from common.settings import Stream
from common.settings.columns import KAFKA_FIELDS
from common.settings.merging import merge_by_of
from common.spans import Partition, Topic, TopicPartition
from common.stage.markers import TableKind
from common.tables.changes import DELETE_COLUMN, staged_columns
from delta_loader.load.ports import RefusalPorts
from stage_writer.convert import table_format
from stage_writer.decode.batch import MessageBatch
from stage_writer.ports import Converter
from tests.fakes.events import Event, Forbids, Row, Table, replay
from tests.simulation.converter import BAD, PlainConverter, Registry
from tests.simulation.delta_log import CHECKED, CONSTRAINT, Place, SimulatedTables
from tests.simulation.kafka import Record as Sent
from tests.simulation.kinds import DEAD_LETTERS, STAGE, TABLE, Context, Kind, Wanted, settings_of
from tests.simulation.refusing import CheckedLog, refusing_ports
from tests.simulation.world import Fault, Process

_IDS = range(5)
_CHECKS: dict[str, Forbids] = {
    "v IS NULL OR v <> 'z'": lambda row: row.value == "z",
    "v <> 'z'": lambda row: row.value in (None, "z"),  # nor does the table take a row of the deleted key alone
}
_ROWS_OF_A_PARTITION = 100


class EventsConverter(PlainConverter):
    """What a stream with `merge` does with these events, made cheap for batches of five."""

    def __init__(self, stream: Stream, registry: Registry) -> None:
        super().__init__(stream, registry)
        by = merge_by_of(stream)
        assert by is not None
        flag = (Field(by.soft_delete, Primitive.BOOLEAN),) if by.soft_delete else ()
        table = StructType((*stream.record.schema_of_columns.fields, *KAFKA_FIELDS, *flag))
        rows = table_format(stream.table, TableKind.ROWS, staged_columns(table, by), (), by)
        self.formats = (replace(rows, waits=True), self.formats[1])
        self._flag = by.soft_delete

    def is_row(self, value: bytes | None) -> bool:
        """Every event is one, also a tombstone."""
        return value != BAD

    def row(self, batch: MessageBatch, index: int, value: bytes | None) -> dict[str, object]:
        """An event, with its merge columns."""
        row = super().row(batch, index, value)
        if not self.is_row(value):
            return row
        event = json.loads(batch.keys[index].as_py() if value is None else value)
        deletes = value is None or event["op"] == "d"
        row |= {"id": event["id"], DELETE_COLUMN: deletes}
        row |= {"v": None if value is None else event["v"], "at": None if value is None else event["at"]}
        return row | ({self._flag: deletes} if self._flag else {})

    def tombstones(self, values: list[bytes | None]) -> int:
        """They delete, and are no longer counted as tombstones."""
        del values
        return 0


class Changes(Kind):
    soft = False
    sequenced = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        rng = context.world.rng
        self.soft = rng.random() < 0.6
        self.sequenced = self.soft and rng.random() < 0.6
        merge: dict[str, object] = {"keys": ["id"], "operation": "op", "deletes": ["d"]}
        merge |= {"soft_delete": "gone"} if self.soft else {}
        merge |= {"sequence": "at"} if self.sequenced else {}
        self.settings = settings_of(columns="id INT, v STRING, at BIGINT", load="merge", merge=merge)
        self._check = rng.choice([None, *_CHECKS, *_CHECKS])
        self._always = self._check is not None and rng.random() < 0.5
        log = CheckedLog(context.bucket, STAGE)
        log.check, log.checks_at_once = self._check or "", self._always
        self.log = log

    def converter(self, process: Process) -> Converter:
        del process
        return EventsConverter(self.stream, self.registry)

    def record(self, partition: TopicPartition) -> tuple[bytes | None, bytes | None]:
        """An upsert, a delete, a tombstone, or unreadable bytes."""
        rng = self.context.world.rng
        kind = rng.choice("uuuuddtb")
        key = int(partition.partition) * _ROWS_OF_A_PARTITION + rng.choice(_IDS)
        event = {"id": key, "op": kind, "v": rng.choice("xyz"), "at": rng.randrange(6)}
        value = BAD if kind == "b" else None if kind == "t" else json.dumps(event).encode()
        return value, json.dumps({"id": key}).encode()

    def urls(self) -> Iterable[str]:
        """Rows of the main table are those of the last event only."""
        return (DEAD_LETTERS,)

    def wanted(self, value: bytes | None) -> Wanted:
        """Dead letters appear once; the model decides which events have to be dead letters."""
        if value == BAD:
            return ({DEAD_LETTERS: 1},)
        return ({},) if self._check is None else ({}, {DEAD_LETTERS: 1})

    def refusing(self, tables: SimulatedTables) -> RefusalPorts | None:
        """Delta's constraint check, and Kafka for the bytes."""
        return refusing_ports(self.context, tables)

    def inject_faults(self) -> None:
        """Someone adds the CHECK, which Delta accepts where all rows pass it, or drops it."""
        world, table = self.context.world, self.log.tables.get(TABLE)
        is_fixed = self._check is None or self._always or table is None
        if is_fixed or world.rng.random() >= world.chances.altered:
            return
        assert table is not None
        assert self._check is not None
        if table.properties.pop(CONSTRAINT, None) is None and self.log.takes(TABLE, self._check):
            table.properties[CONSTRAINT] = self._check
            table.protocol = CHECKED
        world.faults[Fault.ALTERED] += 1
        world.note(f"the table checks {list(table.properties)}")

    def problems(self) -> Iterator[str]:
        have: dict[object, list[tuple[object, ...]]] = {}
        for row in self.log.keyed_rows(TABLE):
            gone = bool(row.get("gone"))
            sequence = row["at"] if self.sequenced else None
            have.setdefault(row["id"], []).append((row["v"], sequence, gone, row["_kafka_offset"]))
        possible, doubts = self._possible()
        yield from doubts
        for key in sorted({*have, *possible}, key=str):
            rows = have.get(key, [])
            wanted = possible.get(key, {None})
            if len(rows) > 1 or (rows[0] if rows else None) not in wanted:
                # Operators look at the Kafka partition named first in a problem.
                assert isinstance(key, int)
                partition = TopicPartition(Topic(self.topics[0]), Partition(key // _ROWS_OF_A_PARTITION))
                yield f"{partition} key {key} has {rows}, and may have {sorted(wanted, key=str)}"

    def _possible(self) -> tuple[dict[object, set[tuple[object, ...] | None]], list[str]]:
        """The possible rows of each key, and what is wrong with the refused events."""
        outcomes: dict[object, set[tuple[object, ...] | None]] = {}
        letters, doubts = self._letters(), list[str]()
        for partition, log, deleted in self.context.logs():
            for record in log:
                event = _event(partition, record)
                if event is None:
                    continue
                (key,) = event.key
                before = outcomes.get(key, {None})
                forbidden = {self._forbids(row, event) for row in before}
                place = Place.of(partition, record)
                if place in letters:
                    if True not in forbidden or letters[place] != record.value:
                        doubts.append(f"{partition} offset {record.offset} is a dead letter: {letters[place]!r}")
                    continue
                after = {self._after(row, event) for row in before}
                is_certain = not self.context.may_lack(partition, record.offset, deleted=deleted)
                if is_certain and self._always and forbidden == {True}:
                    doubts.append(f"{partition} offset {record.offset} is forbidden, and no dead letter")
                outcomes[key] = after if is_certain else before | after
        return outcomes, doubts

    def _letters(self) -> dict[Place, bytes | None]:
        table = self.log.tables.get(DEAD_LETTERS)
        letters = (letter for commit in (table.commits if table else ()) for letter in commit.dead_letter_rows)
        return {
            Place(int(letter.partition.partition), int(letter.offset), letter.timestamp_ms or 0): letter.value
            for letter in letters
        }

    def _forbids(self, row: tuple[object, ...] | None, event: Event) -> bool:
        """By the rule of the replay, with the row before it."""
        if self._check is None:
            return False
        table: Table = {} if row is None else {event.key: Row(*row)}  # type: ignore[arg-type]
        forbids = _CHECKS[self._check]
        return bool(replay(table, [event], sequenced=self.sequenced, soft=self.soft, forbids=forbids))

    def _after(self, row: tuple[object, ...] | None, event: Event) -> tuple[object, ...] | None:
        table: Table = {} if row is None else {event.key: Row(*row)}  # type: ignore[arg-type]
        replay(table, [event], sequenced=self.sequenced, soft=self.soft)
        made = table.get(event.key)
        return None if made is None else astuple(made)


def _event(partition: TopicPartition, record: Sent) -> Event | None:
    if record.value == BAD:
        return None
    assert record.key is not None
    place = (str(partition.topic), int(partition.partition), record.offset)
    if record.value is None:
        return Event(*place, (json.loads(record.key)["id"],), None, deletes=True)
    event = json.loads(record.value)
    deletes = event["op"] == "d"
    return Event(*place, (event["id"],), event["v"], deletes, event["at"])
