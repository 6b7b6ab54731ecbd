"""Worlds of change events whose array `explode` makes rows of, and their model, which knows records and their elements.

The table has exactly the elements of a record's last event, however its events were divided into files and loads.
Elements come and go, events without any delete like others, and tombstones name the record alone.

Events have no sequence: what a record without rows forgets at the end of a load would be random (changes.py).
"""

import json
from collections.abc import Iterable, Iterator
from dataclasses import replace

from common.schema import Field, Primitive, StructType
from common.settings import Stream
from common.settings.columns import KAFKA_FIELDS, exploded
from common.settings.merging import merge_by_of
from common.spans import Partition, Topic, TopicPartition
from common.stage.markers import TableKind
from common.tables.changes import DELETE_COLUMN, staged_columns
from stage_writer.convert import table_format
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import StagedRows
from stage_writer.ports import Converter
from tests.fakes.events import Key, Row
from tests.fakes.records import RecordEvent, replay_records
from tests.simulation.converter import BAD, PlainConverter, Registry
from tests.simulation.kafka import Record as Sent
from tests.simulation.kinds import DEAD_LETTERS, TABLE, Context, Kind, Wanted, settings_of
from tests.simulation.world import Process

Elements = frozenset[tuple[Key, str | None, bool, int | None]]
"""Name, value, whether it is deleted, and the offset of its event."""

_COLUMNS = "id INT, items ARRAY<STRUCT<sku: STRING, v: STRING>>"
_IDS, _NAMES = range(4), "abc"
_RECORDS_OF_A_PARTITION = 100


class ElementsConverter(PlainConverter):
    """What a stream with `explode` and `merge` does with these events, made cheap for batches of five."""

    def __init__(self, stream: Stream, registry: Registry) -> None:
        super().__init__(stream, registry)
        by = merge_by_of(stream)
        assert by is not None
        self._flag = by.soft_delete
        flag = (Field(by.soft_delete, Primitive.BOOLEAN),) if by.soft_delete else ()
        table = StructType((*exploded(stream.record.schema_of_columns, "items").fields, *KAFKA_FIELDS, *flag))
        rows = table_format(stream.table, TableKind.ROWS, staged_columns(table, by), (), by)
        self.formats = (replace(rows, waits=True), self.formats[1])

    def _rows_of(self, batch: MessageBatch, index: int, value: bytes | None) -> Iterator[dict[str, object]]:
        """One row for each element, or one that deletes the record's rows."""
        event = json.loads(batch.keys[index].as_py() if value is None else value)
        items = [] if value is None or event["op"] == "d" else event["items"]
        row = {"id": event["id"], DELETE_COLUMN: not items}
        row |= {self._flag: not items} if self._flag else {}
        yield from ({**row, "items": item} for item in items or [None])

    def _convert(self, batch: MessageBatch) -> StagedRows:
        staged = super()._convert(batch)
        values = [(index, value) for index, value in enumerate(batch.values.to_pylist()) if value != BAD]
        placed = [(index, row) for index, value in values for row in self._rows_of(batch, index, value)]
        indexes, rows = [index for index, _ in placed], [row for _, row in placed]
        table = self.table(batch, indexes, rows, self.formats[0].arrow_schema)
        return replace(staged, rows=(table, staged.rows[1]), tombstones=0, exploded=len(rows) - len(values))


class ExplodedChanges(Kind):
    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._soft = context.world.rng.random() < 0.5
        merge: dict[str, object] = {"keys": ["id", "items.sku"], "operation": "op", "deletes": ["d"]}
        merge |= {"soft_delete": "gone"} if self._soft else {}
        self.settings = settings_of(columns=_COLUMNS, explode="items", load="merge", merge=merge)
        self._sent: list[tuple[RecordEvent, bool]] = []
        self._outcomes: dict[int, set[Elements]] = {}

    def converter(self, process: Process) -> Converter:
        del process
        return ElementsConverter(self.stream, self.registry)

    def record(self, partition: TopicPartition) -> tuple[bytes | None, bytes | None]:
        """An upsert, with elements or without, a delete, a tombstone, or unreadable bytes."""
        rng = self.context.world.rng
        kind = rng.choice("uuuuuudtb")
        record = int(partition.partition) * _RECORDS_OF_A_PARTITION + rng.choice(_IDS)
        items = [{"sku": name, "v": rng.choice("xyz")} for name in _NAMES if rng.random() < 0.6]
        event = {"id": record, "op": kind, "items": items}
        value = BAD if kind == "b" else None if kind == "t" else json.dumps(event).encode()
        return value, json.dumps({"id": record}).encode()

    def urls(self) -> Iterable[str]:
        """Rows of the main table are those of the last event only."""
        return (DEAD_LETTERS,)

    def wanted(self, value: bytes | None) -> Wanted:
        """Only unreadable messages are dead letters."""
        return ({DEAD_LETTERS: 1},) if value == BAD else ({},)

    def problems(self) -> Iterator[str]:
        """Records whose rows no replay gives."""
        have: dict[int, list[tuple[Key, str | None, bool, int | None]]] = {}
        for row in self.log.keyed_rows(TABLE):
            item, record, offset = row["items"], row["id"], row["_kafka_offset"]
            assert isinstance(item, dict)
            assert isinstance(record, int)
            assert isinstance(offset, int)
            have.setdefault(record, []).append(((item["sku"],), item["v"], bool(row.get("gone")), offset))
        possible = self._possible()
        for record in sorted({*have, *possible}):
            rows = have.get(record, [])
            wanted = possible.get(record, {frozenset()})
            if len(set(rows)) < len(rows) or frozenset(rows) not in wanted:
                # Operators look at the Kafka partition named first in a problem.
                partition = TopicPartition(Topic(self.topics[0]), Partition(record // _RECORDS_OF_A_PARTITION))
                yield f"{partition} record {record} has {sorted(rows)}, and may have {sorted(map(sorted, wanted))}"

    def _possible(self) -> dict[int, set[Elements]]:
        """The possible elements of each record."""
        sent = [
            (event, not self.context.may_lack(partition, record.offset, deleted=deleted))
            for partition, log, deleted in self.context.logs()
            for record in log
            if (event := _event(partition, record)) is not None
        ]
        if sent != self._sent:  # nothing new comes while the loaders finish
            self._sent, self._outcomes = sent, {}
            for event, is_certain in sent:
                before = self._outcomes.get(event.record, {frozenset()})
                # Elements that the event has are all replaced, so that few of many outcomes differ in what they leave.
                lasting = {frozenset(each for each in elements if each[0] not in event.elements) for elements in before}
                after = {self._after(elements, event) for elements in lasting}
                self._outcomes[event.record] = after if is_certain else before | after
        return self._outcomes

    def _after(self, elements: Elements, event: RecordEvent) -> Elements:
        rows = {name: Row(value, None, gone, offset) for name, value, gone, offset in elements}
        records = {event.record: rows}
        replay_records(records, [event], sequenced=False, soft=self._soft)
        made = records.get(event.record, {})
        return frozenset((name, row.value, row.deleted, row.offset) for name, row in made.items())


def _event(partition: TopicPartition, sent: Sent) -> RecordEvent | None:
    if sent.value == BAD:
        return None
    assert sent.key is not None
    content = json.loads(sent.key if sent.value is None else sent.value)
    items = [] if sent.value is None or content["op"] == "d" else content["items"]
    return RecordEvent(
        int(partition.partition), sent.offset, content["id"], {(item["sku"],): item["v"] for item in items}
    )
