"""Worlds whose records gain fields: their converter, and the check of each value.

Each field of a record is in the column of its name if its value has that column's type, also in the first record with
the field. Otherwise it is in the rescue column of its row, unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import pyarrow as pa

from common.schema import (
    DataType,
    Field,
    Primitive,
    StructType,
    parse_ddl,
    schema_from_json,
    schema_to_json,
    to_arrow_schema,
)
from common.schema.evolution import NO_COLUMNS
from common.settings import Stream
from common.settings.columns import KAFKA_FIELDS
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.json_document import parse_document
from stage_writer.decode.unknown.column_names import ColumnNames
from stage_writer.decode.unknown.offers import Offers, type_of
from stage_writer.parquet.buffer import StagedRows
from tests.fakes.delta_tables import MemoryTable
from tests.fakes.streams import stream_of
from tests.simulation.converter import GOOD, PlainConverter, Registry
from tests.simulation.delta_log import Place, place_of

Record = dict[str, object]

GAINING = (
    b'{"n": 1, "x": 5}',
    b'{"n": 1, "x": 2.5, "y": "text"}',
    b'{"n": 1, "x": "seven"}',
    b'{"n": 1, "y": true, "z": 9007199254740993}',
    b'{"n": 1, "z": 0.5, "w": [1, 2]}',
)


def sent_beside(value: bytes) -> Record:
    record: Record = json.loads(value)
    return {name: value for name, value in record.items() if name != "n"}


@lru_cache(maxsize=1000)
def _schema(columns: str, rescue_column: str, gained: StructType) -> tuple[str, pa.Schema]:
    rescue = Field(rescue_column, Primitive.STRING)
    schema = StructType((*parse_ddl(columns).fields, rescue, *KAFKA_FIELDS, *gained.fields))
    return schema_to_json(schema), to_arrow_schema(schema)


@lru_cache(maxsize=1000)
def _offers(columns: str, rescue_column: str, limit: int, gained: StructType) -> Offers:
    known = StructType((*parse_ddl(columns).fields, *gained.fields))
    made = {rescue_column, *(field.name for field in KAFKA_FIELDS)}
    names = ColumnNames(stream_of(columns=columns, unknown_fields="evolve", rescue_column=rescue_column), made)
    return Offers(known, names, limit - len(gained.fields))


class EvolvingConverter(PlainConverter):
    """What a stream with ``unknown_fields: evolve`` does with the records of these worlds."""

    def __init__(self, stream: Stream, registry: Registry, gained: StructType = NO_COLUMNS) -> None:
        super().__init__(stream, registry)
        self._gained = gained
        record = stream.record
        rows, dead = self.formats
        schema, arrow_schema = _schema(record.columns, record.rescue_column, gained)
        self.formats = (replace(rows, schema=schema, arrow_schema=arrow_schema), dead)
        self.offers = _offers(record.columns, record.rescue_column, record.evolve_limit, gained)
        self._fields: dict[bytes, Record] = {}

    def at(self, gained: StructType) -> EvolvingConverter:
        return EvolvingConverter(self.stream, self._registry, gained)

    def is_row(self, value: bytes | None) -> bool:
        return value == GOOD or value in GAINING

    def fields(self, value: bytes) -> Record:
        """The columns of a record; fields without a column are in the rescue column."""
        if value not in self._fields:
            self._fields[value] = self._fields_of(value)
        return self._fields[value]

    def _fields_of(self, value: bytes) -> Record:
        columns, rest = dict[str, object](), dict[str, object]()
        for name, value_of_field in sent_beside(value).items():
            place = self._gained.field(name)
            fitted = None if place is None else _fitting(value_of_field, place.type)
            (rest if fitted is None else columns)[name] = value_of_field if fitted is None else fitted
        return {**columns, self.stream.record.rescue_column: json.dumps(rest) if rest else None}

    def _convert(self, batch: MessageBatch) -> StagedRows:
        staged = super()._convert(batch)
        tables = (staged.rows[0], *(rows for _, rows in staged.routed))
        texts = [text for rows in tables for text in rows[self.stream.record.rescue_column].drop_null().to_pylist()]
        return replace(staged, offered=self.offers.of(texts))


def _fitting(value: object, data_type: DataType) -> object | None:
    """The value as one of the type, if it is exactly that."""
    own = type_of(parse_document(json.dumps(value)))
    if own == data_type:
        return value
    is_exact = isinstance(value, int) and own is Primitive.LONG and int(float(value)) == value
    return float(str(value)) if is_exact and data_type is Primitive.DOUBLE else None


@dataclass(slots=True)
class Values:
    read: Callable[[str], pa.Table]
    """The rows of a data file."""
    rescue_column: str

    def problems(self, url: str, table: MemoryTable | None, sent: Mapping[Place, bytes]) -> Iterator[str]:
        """Rows whose values differ from those sent."""
        if table is None:
            return
        columns = schema_from_json(table.schema)
        known = to_arrow_schema(columns)
        for path, start in table.parts:
            staged = self.read(f"{url}/{path}")
            for name in staged.column_names:
                if name not in known.names:
                    yield f"{path} has the column {name}, and the table has not"
                elif known.field(name).type != staged.schema.field(name).type:
                    yield f"{path} has {name} as {staged.schema.field(name).type}, the table {known.field(name).type}"
            for row in staged.to_pylist():
                place = place_of(row)
                value = sent.get(place)
                if row["_kafka_offset"] >= start and value is not None:
                    have = self._values(row)
                    if have != sent_beside(value):
                        yield f"{place} has {have}, and was sent with {sent_beside(value)}"
                    for name in self._not_in_columns(row, columns):
                        yield f"{place} has {name} in the rescue column, which is a column of the table"

    def _not_in_columns(self, row: Record, columns: StructType) -> Iterator[str]:
        for name, value in self._rescued(row).items():
            column = columns.field(name)
            if column is not None and _fitting(value, column.type) is not None:
                yield name

    def _values(self, row: Record) -> Record:
        base = {"n", self.rescue_column, *(field.name for field in KAFKA_FIELDS)}
        columns = {name: value for name, value in row.items() if name not in base and value is not None}
        return {**columns, **self._rescued(row)}

    def _rescued(self, row: Record) -> Record:
        text = row.get(self.rescue_column)
        rescued: Record = {} if text is None else json.loads(str(text))
        return rescued
