"""Columns that a stream gains: writers infer in any order, all end with one schema, and no value is lost."""

import json
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import pyarrow as pa
import structlog
from hypothesis import example, given, settings
from hypothesis import strategies as st

from common.clock import SystemClock
from common.schema import ArrayType, DataType, Field, Primitive, StructType, schema_from_json, schema_to_json
from common.schema.evolution import additions, extended, joined, joined_columns
from common.schema.naming import restricted
from common.settings import Stream
from common.settings.stream import KAFKA_COLUMNS
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin
from common.stage.versions import latest
from common.storage.store import FsspecStore
from delta_loader.load.ports import Ports
from delta_loader.load.schema_evolution import SchemaEvolution
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Target
from delta_loader.tables.load_modes.compatibility import require_compatible
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.json_document import Json, Number, Object, parse_document
from stage_writer.parquet.buffer import StagedRows
from stage_writer.stage.gaining import gain_columns
from tests.builders import required, settings_of
from tests.conftest import examples
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import ports_for
from tests.fakes.streams import staged_batches

# Types.


def struct(types: dict[str, DataType]) -> StructType:
    fields: dict[str, Field] = {}
    for name in sorted(types):
        fields.setdefault(name.casefold(), Field(name, types[name]))
    return StructType(tuple(sorted(fields.values(), key=lambda field: field.name)))


NAMES = st.sampled_from(["a", "A", "b", "c"])
TYPES: st.SearchStrategy[DataType] = st.recursive(
    st.sampled_from([Primitive.BOOLEAN, Primitive.LONG, Primitive.DOUBLE, Primitive.STRING]),
    lambda inner: inner.map(ArrayType) | st.dictionaries(NAMES, inner, min_size=1, max_size=3).map(struct),
    max_leaves=5,
)
STRUCTS = st.dictionaries(NAMES, TYPES, min_size=1, max_size=3).map(struct)


@given(TYPES, TYPES, TYPES)
def test_types_are_joined_in_any_order(first: DataType, second: DataType, third: DataType) -> None:
    assert joined(first, first) == first == joined(first, None) == joined(None, first)
    assert joined(first, second) == joined(second, first)
    assert joined(joined(first, second), third) == joined(first, joined(second, third))


@given(STRUCTS, STRUCTS)
def test_known_columns_stay_when_extended(known: StructType, wanted: StructType) -> None:
    after = extended(known, wanted)
    assert additions(after, wanted) == ()
    assert additions(after, known) == ()
    assert after.names[: len(known)] == known.names


# Histories.

COLUMNS = "id BIGINT, meta STRUCT<a: BIGINT>, items ARRAY<STRUCT<n: BIGINT>>"
FIELDS = st.sampled_from(["x", "X", "y", "z", "bad name", "_kafka_offset", "kafka", "_rescued", "META", "é"])
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 5),
    st.sampled_from([2**53 - 1, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63), 2**63, 10**30]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["", "7", "text", '\u2028"\\']),
)
VALUES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3), max_leaves=6
)
EXTRA = st.dictionaries(FIELDS, VALUES, max_size=3)
RECORDS = st.builds(
    lambda number, extra, meta, items: {"id": number, **extra, **meta, **items},
    st.integers(0, 9),
    EXTRA,
    st.one_of(st.just({}), EXTRA.map(lambda extra: {"meta": {"a": 1, **extra}})),
    st.one_of(st.just({}), st.lists(st.none() | EXTRA, max_size=3).map(lambda extras: {"items": extras})),
)
Record = dict[str, object]
Step = tuple[str, int, list[Record]]
STEPS: st.SearchStrategy[Step] = st.one_of(
    st.tuples(st.just("read"), st.integers(0, 1), st.lists(RECORDS, min_size=1, max_size=4)),
    st.tuples(st.sampled_from(["flush", "look", "load"]), st.integers(0, 1), st.just([])),
)


def stream_of(limit: int = 1000) -> Stream:
    stream = {
        "app_id": "orders",
        "topics": ["orders"],
        "table": "memory://tables/orders",
        "columns": COLUMNS,
        "unknown_fields": "evolve",
        "evolve_limit": limit,
    }
    return settings_of(stream).streams[0]


CONVERTER = StreamConverter(stream_of())


@lru_cache
def converter_at(gained: str) -> StreamConverter:
    return CONVERTER.at(schema_from_json(gained))


@dataclass
class Writer:
    """One writer's Kafka partition: a buffer with the columns known when it was opened."""

    partition: TopicPartition
    converter: StreamConverter = CONVERTER
    newest: StreamConverter = CONVERTER
    waiting: list[tuple[list[Record], StagedRows]] = field(default_factory=list)
    position: int = 0
    agrees: bool = False
    """Whether the writer agrees on columns before it stages new fields; otherwise it only offers them."""

    def convert(self, records: list[Record]) -> StagedRows:
        values = [json.dumps(record).encode() for record in records]
        size = len(values)
        offsets = np.arange(self.position, self.position + size)
        batch = MessageBatch(self.partition, offsets, offsets, pa.array(values), pa.nulls(size, pa.binary()), None)
        (staged,) = staged_batches(self.converter, [batch])
        assert not staged.dead_letters
        return staged

    def add(self, records: list[Record], staged: StagedRows) -> None:
        self.waiting.append((records, staged))
        self.position += len(records)


@dataclass
class World:
    stream: Stream
    store: FsspecStore
    tables: MemoryDeltaTables = field(default_factory=MemoryDeltaTables)
    staged: list[tuple[Marker, TableShape, list[tuple[Record, Record]]]] = field(default_factory=list)
    rows: list[tuple[Record, Record]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.writers = [Writer(TopicPartition(Topic("orders"), Partition(index))) for index in range(2)]
        self.loaded = 0

    def ports(self) -> Ports:
        log = structlog.wrap_logger(None, wrapper_class=structlog.make_filtering_bound_logger(50), processors=[])
        return ports_for(self.store, self.tables, lambda _: self.store, log=log)

    def read(self, writer: Writer, records: list[Record]) -> None:
        staged = writer.convert(records)
        if writer.agrees and staged.offered.fields:
            agreed = gain_columns(self.store, lambda _: self.store, SystemClock(), self.stream, {"": staged.offered})
            writer.newest = converter_at(schema_to_json(agreed.columns))
            self.flush(writer)
            staged = writer.convert(records)
            assert not restricted(agreed.columns, staged.offered).fields
        writer.add(records, staged)

    def flush(self, writer: Writer) -> None:
        if writer.waiting:
            own = writer.converter.formats[0]
            offered = StructType(())
            rows: list[tuple[Record, Record]] = []
            for records, staged in writer.waiting:
                offered = joined_columns(offered, staged.offered)
                table = staged.rows[0].drop_columns(list(KAFKA_COLUMNS))
                rows += zip(records, table.to_pylist(), strict=True)
            text = schema_to_json(offered) if offered.fields else None
            span = Span(Position(writer.position - len(rows)), Position(writer.position))
            manifest = Manifest(span, None, "orders", Origin.FLUSH, "writer", 0, offered=text)
            marker = Marker(MarkerName(writer.partition, span.start), manifest)
            self.staged.append((marker, TableShape(own.schema, own.partition_by), rows))
            writer.waiting = []
        writer.converter = writer.newest

    def look(self, writer: Writer) -> None:
        published = latest(self.store, "orders")
        if published is not None:
            writer.newest = converter_at(schema_to_json(published.columns))

    def load(self) -> None:
        if self.loaded == len(self.staged):
            return
        marker, shape, rows = self.staged[self.loaded]
        self.loaded += 1
        url = self.stream.table
        self.tables.create(url, shape)
        evolution = required(SchemaEvolution.if_configured(self.stream, self.ports(), self.ports().log))
        evolution.evolve(self.target(), shape, [marker])
        require_compatible(self.target().shape, shape, url)
        self.rows += rows

    def target(self) -> Target:
        table = self.tables.tables[self.stream.table]
        return Target(self.stream.table, table.table_id, TableShape(table.schema, table.partition_by), {}, 0)

    @property
    def columns(self) -> StructType:
        return schema_from_json(self.target().shape.schema)


def recovered(sent: Json, typed: object, left: Json) -> bool:  # noqa: PLR0911 - one for each kind of value
    """Whether a value is in a typed column, in the rescue column, or split between the two."""
    if left is not None and left == sent:
        return True
    match sent:
        case None:
            return typed is None
        case Object():
            inner = typed if isinstance(typed, dict) else {}
            rest = dict(left) if isinstance(left, Object) else {}
            return all(recovered(item, inner.get(name), rest.get(name)) for name, item in sent)
        case bool():
            return typed is sent
        case Number():
            if isinstance(typed, bool) or not isinstance(typed, int | float):
                return False
            return float(sent) == typed if any(sign in sent for sign in ".eE") else int(sent) == int(typed)
        case str():
            return typed == sent
        case list():
            inners = typed if isinstance(typed, list) else [None] * len(sent)
            rests = left if isinstance(left, list) else [None] * len(sent)
            same = len(inners) == len(rests) == len(sent)
            return same and all(recovered(*values) for values in zip(sent, inners, rests, strict=True))  # type: ignore[arg-type]


def check(world: World) -> None:
    for record, row in world.rows:
        sent, text = parse_document(json.dumps(record)), row["_rescued"]
        left = parse_document(text) if isinstance(text, str) else None
        # A field of the record that has the rescue column's name is in its text, and is not the column.
        typed = {name: value for name, value in row.items() if name != "_rescued"}
        assert recovered(sent, typed, left), (record, row)


def finish(world: World) -> None:
    """Stages and loads everything, twice: the second time with the columns that the first one agreed on."""
    for _ in range(2):
        for writer in world.writers:
            world.look(writer)
            world.flush(writer)
            world.flush(writer)
        for _ in range(len(world.staged) - world.loaded):
            world.load()
    for writer in world.writers:
        world.look(writer)
        world.flush(writer)


STORES = iter(range(10**9))


@settings(max_examples=examples(0.12))
@given(st.lists(STEPS, max_size=20), st.tuples(st.booleans(), st.booleans()))
@example(
    [
        ("read", 0, [{"id": 1, "x": 1, "meta": {"a": 1, "y": {"z": [1]}}}]),
        ("flush", 0, []),
        ("read", 1, [{"id": 1, "x": "text", "meta": {"a": 1, "y": [1]}}]),
        ("flush", 1, []),
        ("load", 0, []),
        ("look", 1, []),
        ("read", 1, [{"id": 2, "x": 2}]),
        ("flush", 1, []),
        ("load", 0, []),
        ("load", 0, []),
        ("look", 0, []),
        ("flush", 0, []),
        ("read", 0, [{"id": 3, "x": 2.5}, {"id": 4, "x": 3}, {"id": 5, "x": 2**63}]),
    ],
    (False, False),
)
@example([("read", 0, [{"id": 1, "x": 1}]), ("read", 1, [{"id": 1, "x": "text"}])], (True, True))
def test_two_writers_end_with_one_schema_and_lose_nothing(steps: list[Step], agree: tuple[bool, bool]) -> None:
    world = World(stream_of(), FsspecStore(f"memory://stage-{next(STORES)}"))
    world.writers[0].agrees, world.writers[1].agrees = agree
    for step, index, records in steps:
        writer = world.writers[index]
        match step:
            case "read":
                world.read(writer, records)
            case "flush":
                world.flush(writer)
            case "look":
                world.look(writer)
            case _:
                world.load()
    finish(world)
    first, two = (writer.converter.formats[0] for writer in world.writers)
    assert first.schema == two.schema
    if world.rows:
        columns = schema_from_json(first.schema)
        assert additions(world.columns, columns) == additions(columns, world.columns) == ()
    check(world)
    # Records read again change nothing more, except names that could not be offered together with another case.
    again = [record for record, _ in world.rows]
    after = [read_again(world, again) for _ in range(2)] if again else []
    assert after[:1] == after[1:]
    check(world)


def read_again(world: World, records: list[Record]) -> StructType:
    for writer in world.writers:
        world.read(writer, records)
    finish(world)
    return world.columns
