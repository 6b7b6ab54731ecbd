"""`columns: from_registry`: columns of the schemas that records name, with writers and a registry over HTTP."""

import io
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import fastavro
import pyarrow.parquet as pq
import pytest
import structlog
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from common.clock import SystemClock
from common.errors import ConfigError, RegistryError, SchemaError
from common.protoc import compile_protobuf
from common.remedies import CONFIG
from common.schema import parse_ddl, schema_from_json, to_ddl
from common.settings import Stream
from common.spans import Partition, Topic, TopicPartition
from common.stage.versions import AgreedColumns, agreed_columns
from common.storage.store import FsspecStore
from common.tables.stream_columns import found_columns
from devservices.schema_registry import Registry, running_registry
from stage_writer.columns.finding import columns_text, require_known
from stage_writer.columns.following import CoveredSchemas
from stage_writer.columns.schemas import RegistrySchemas, SchemaFinder, columns_of_schema, grown
from stage_writer.convert_by_table import converter_of
from stage_writer.decode.envelopes.framing import RegisteredSchema
from stage_writer.fetch.schema_registry import SchemaRegistry
from stage_writer.layers import RecordInputs
from stage_writer.ports import Converter
from tests.builders import required
from tests.staged import manifests
from tests.unit.test_columns import FIRST, SECOND, Sample, World, Writer, settings_of
from tests.waiting import until

TYPES = ("AVRO", "JSON", "PROTOBUF")


def avro(*fields: tuple[str, object], name: str = "Order") -> str:
    return json.dumps({"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields]})


def frame(schema_id: int, body: bytes) -> bytes:
    return b"\0" + schema_id.to_bytes(4) + body


@dataclass(slots=True)
class RegistryWorld(World):
    """A world whose records have schemas in a registry."""

    registry: Registry = field(kw_only=True)
    unusable: str = "nothing"
    """Columns with this text in them are refused by the converter."""

    def open_registry(self) -> SchemaRegistry:
        return SchemaRegistry(
            {"url": self.registry.url, "max.retries": 0}, SystemClock(), structlog.get_logger(), 0.0, resolves=TYPES
        )

    def registry_finder(self) -> SchemaFinder:
        schemas = RegistrySchemas(self.settings.streams[0], self.registry.url, self.open_registry, compile_protobuf)
        return SchemaFinder(schemas, self.stage, FsspecStore, self.clock)

    def follower(self, partition: TopicPartition = FIRST) -> Writer:
        schemas = self.open_registry()

        def make(stream: Stream, covers: CoveredSchemas | None) -> Converter:
            if self.unusable in stream.record.columns:
                msg = "it cannot be used"
                raise ConfigError(msg, "")
            return converter_of(stream, RecordInputs(schemas, compile_protobuf=compile_protobuf, covers=covers))

        return self.started(self.registry_finder(), make, None, partition, Sample([]))

    def registered(self, schema: str, kind: str = "AVRO", subject: str = "") -> int:
        return self.registry.register(schema, kind, subject)

    def staged_values(self, column: str) -> list[object]:
        """A column of the files of `FIRST`, in the order of the chain; None where a file lacks it."""
        values: list[object] = []
        for marker in manifests(self.stage, f"done/orders/{FIRST.partition}"):
            for file in marker.tables[0].files:
                rows = pq.read_table(f"{self.settings.streams[0].table}/{file.path}").to_pylist()
                values += [row.get(column) for row in rows]
        return values

    def schema_ids(self) -> list[int | str]:
        """The ids of the registry's schemas whose fields are among the columns."""
        agreed = required(agreed_columns(self.stage, "orders"))
        return [key for key in agreed.schema_ids if isinstance(key, int)]

    def order(self, schema_id: int, **values: object) -> bytes:
        out = io.BytesIO()
        schema = fastavro.parse_schema(json.loads(str(self.registry.schemas[schema_id - 1]["schema"])))
        fastavro.schemaless_writer(out, schema, values)
        return frame(schema_id, out.getvalue())


def wait_for_staged(world: RegistryWorld, count: int, *writers: Writer) -> None:
    """Steps the writers until ``count`` records are staged: the registry responds asynchronously."""

    def is_done() -> bool:
        for writer in writers:
            writer.step()
        return world.counted()[0] >= count

    until(is_done, f"{count} staged records")


def wait_for_problem(writer: Writer, problem: str) -> None:

    def is_done() -> bool:
        writer.step()
        return problem in str(writer.problems)

    until(is_done, problem)


@pytest.fixture
def registry() -> Iterator[Registry]:
    with running_registry() as running:
        yield running


def world_of(folder: Path, registry: Registry, **stream: object) -> RegistryWorld:
    usual = {"columns": "from_registry", "format": "avro", "framing": "confluent", **stream}
    return RegistryWorld(folder, usual, registry=registry)


def json_schema(*fields: tuple[str, str]) -> str:
    return json.dumps({"type": "object", "properties": {name: {"type": kind} for name, kind in fields}})


def proto(*fields: tuple[str, str, int]) -> str:
    declared = " ".join(f"optional {kind} {name} = {number};" for name, kind, number in fields)
    return f'syntax = "proto3"; message Order {{ {declared} }}'


@dataclass(frozen=True, slots=True)
class Encoding:
    """The same two schemas, and records of them, in one format."""

    format: str
    schemas: tuple[str, str]
    id_type: str

    def message(self, world: RegistryWorld, schema_id: int, **values: object) -> bytes:
        if self.format == "avro":
            return world.order(schema_id, **values)
        if self.format == "json":
            return frame(schema_id, json.dumps(values).encode())
        text = str(world.registry.schemas[schema_id - 1]["schema"])
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(compile_protobuf(text)).file:
            pool.Add(file)
        record = GetMessageClass(pool.FindMessageTypeByName("Order"))(**values)
        return frame(schema_id, b"\0" + record.SerializeToString())


ENCODINGS = {
    each.format: each
    for each in (
        Encoding(
            "avro", (avro(("id", "int"), ("note", "string")), avro(("price", "double"), ("id", "int"))), id_type="INT"
        ),
        Encoding(
            "protobuf",
            (
                proto(("id", "int32", 1), ("note", "string", 2)),
                proto(("price", "double", 3), ("id", "int32", 1), ("note", "string", 2)),
            ),
            id_type="INT",
        ),
        Encoding(
            "json",
            (json_schema(("id", "integer"), ("note", "string")), json_schema(("price", "number"), ("id", "integer"))),
            id_type="BIGINT",
        ),
    )
}


@pytest.mark.parametrize("format_of", ENCODINGS)
def test_new_field_has_its_column_from_its_first_record(tmp_path: Path, registry: Registry, format_of: str) -> None:
    encoding = ENCODINGS[format_of]
    world = world_of(tmp_path, registry, format=format_of)
    message = partial(encoding.message, world)
    kind = format_of.upper()
    old_id = world.registered(encoding.schemas[0], kind)
    writer = world.follower()
    writer.produce(message(old_id, id=1, note="a"))
    wait_for_staged(world, 1, writer)
    new_id = world.registered(encoding.schemas[1], kind)
    writer.group.produce(FIRST, message(old_id, id=2, note="b"))
    writer.service.step(0.01)  # it is in the buffer, whose file keeps the old columns
    writer.produce(message(new_id, id=3, price=1.5), message(old_id, id=4, note="d"))
    wait_for_staged(world, 4, writer)
    before = f"id {encoding.id_type}, note STRING"
    after = f"{before}, price DOUBLE"
    rescue = ", _rescued STRING" if format_of == "json" else ""
    assert world.staged() == [before + rescue, before + rescue, after + rescue]
    assert world.staged_values("price") == [None, None, 1.5, None]
    assert world.counted() == (4, 0)
    assert world.schema_ids() == [old_id, new_id]
    restarted = world.follower(SECOND)
    asked = len(registry.requests)
    restarted.produce(message(new_id, id=5, price=2.5))
    wait_for_staged(world, 5, restarted)
    assert world.staged(SECOND) == [after + rescue]
    assert registry.requests[asked:] == [f"GET /schemas/ids/{new_id}"], "the columns are in the stage"


def test_subject_s_latest_schema_is_among_the_first_columns(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry)
    old = world.registered(avro(("id", "int"), ("gone", "string")), subject="orders-value")
    latest = world.registered(avro(("id", "long"), ("new", "string")), subject="orders-value")
    stream = world.settings.streams[0]
    assert columns_text(stream, world.registry_finder().preview()) == "ok: orders: from_registry: id BIGINT, new STRING"
    assert agreed_columns(world.stage, "orders") is None
    writer = world.follower()
    writer.produce(world.order(old, id=1, gone="x"))
    wait_for_staged(world, 1, writer)
    assert world.staged() == ["id BIGINT, new STRING, gone STRING"]
    assert world.schema_ids() == [latest, old]


def test_writers_that_meet_schemas_in_different_orders_agree_on_columns(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry)
    ids = [world.registered(avro(("id", "int"), (name, "string"))) for name in ("a", "b", "c")]
    first, second = world.follower(FIRST), world.follower(SECOND)
    records = ((first, 0, {"a": "x"}), (second, 1, {"b": "x"}), (second, 2, {"c": "x"}), (first, 2, {"c": "x"}))
    for number, (writer, which, more) in enumerate(records):
        writer.produce(world.order(ids[which], id=number, **more))
        wait_for_staged(world, number + 1, writer)
    agreed = required(agreed_columns(world.stage, "orders"))
    assert (agreed.version, to_ddl(agreed.columns)) == (3, "id INT, a STRING, b STRING, c STRING")
    assert world.staged(FIRST)[-1] == world.staged(SECOND)[-1] == to_ddl(agreed.columns)
    assert world.counted() == (4, 0)


def test_records_wait_while_the_registry_is_unreachable(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry)
    old_id, new_id = (world.registered(avro(("id", "int"), *more)) for more in ((), (("a", "string"),)))
    writer = world.follower()
    writer.produce(world.order(old_id, id=1))
    wait_for_staged(world, 1, writer)
    new = world.order(new_id, id=2, a="x")
    registry.stop()
    other = world.follower(SECOND)
    other.produce(world.order(old_id, id=3))
    writer.produce(new)
    wait_for_problem(writer, "does not respond")
    wait_for_problem(other, "does not respond")
    assert world.counted() == (1, 0)
    registry.start()
    wait_for_staged(world, 3, writer, other)
    assert (world.counted(), writer.problems, other.problems) == ((3, 0), (), ())
    assert world.staged()[-1] == "id INT, a STRING"


def test_records_of_another_format_or_without_a_schema_are_dead_letters(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry)
    schema_id = world.registered(avro(("id", "int")), subject="orders-value")
    other = world.registered("{}", "JSON")
    writer = world.follower()
    writer.produce(frame(other, b"{}"), b"no frame", world.order(schema_id, id=1), frame(other, b"{}"))
    wait_for_staged(world, 4, writer)
    assert (world.counted(), writer.problems) == ((4, 3), ())
    assert to_ddl(required(agreed_columns(world.stage, "orders")).columns) == "id INT"


def test_schema_that_yields_no_columns_is_named(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry)
    tree = world.registered(avro(("id", "int"), ("in", ["null", "Order"])))
    writer = world.follower()
    writer.produce(frame(tree, b"\2\0"))
    problem = f"no columns can be derived from the schema {tree}: `in` is of the Avro type Order"
    wait_for_problem(writer, problem)
    assert world.staged() == []
    empty = world_of(tmp_path / "empty", registry)
    with pytest.raises(RegistryError, match="no avro schema"):
        empty.registry_finder().find(frozenset())
    assert empty.registry_finder().preview() is None


def test_fields_outside_a_json_schema_are_rescued(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry, format="json")
    (stream,) = world.settings.streams
    assert (stream.record.unknown_fields, stream.evolution) == ("rescue", "add")
    schema = {"type": "object", "properties": {"id": {"type": "integer"}, "any": {}}}
    schema_id = world.registered(json.dumps(schema), "JSON")
    writer = world.follower()
    writer.produce(frame(schema_id, b'{"id": 1, "any": [1, "x"], "more": 2}'))
    wait_for_staged(world, 1, writer)
    assert world.staged() == ["id BIGINT, any STRING, _rescued STRING"]
    assert required(agreed_columns(world.stage, "orders")).formats == {"any": "json"}
    assert world.counted() == (1, 0)


def test_fields_outside_a_json_schema_become_columns_until_a_schema_has_them(
    tmp_path: Path, registry: Registry
) -> None:
    """The type that a column already has wins: rows of both have to fit one table."""
    world = world_of(tmp_path, registry, format="json", unknown_fields="evolve")
    old_id = world.registered(json_schema(("id", "integer")), "JSON")
    writer = world.follower()
    writer.produce(frame(old_id, b'{"id": 1, "more": 2, "any": "x"}'))
    wait_for_staged(world, 1, writer)
    properties = {"id": {"type": "integer"}, "more": {"type": "number"}, "any": {}, "new": {"type": "string"}}
    new_id = world.registered(json.dumps({"type": "object", "properties": properties}), "JSON")
    writer.produce(frame(new_id, b'{"id": 2, "more": 3, "any": "y", "new": "z", "later": true}'))
    wait_for_staged(world, 2, writer)
    restarted = world.follower(SECOND)
    restarted.produce(frame(old_id, b'{"id": 3, "later": false}'))
    wait_for_staged(world, 3, restarted)
    assert world.staged() == [
        "id BIGINT, any STRING, more BIGINT, _rescued STRING",
        "id BIGINT, more BIGINT, any STRING, new STRING, later BOOLEAN, _rescued STRING",
    ]
    assert world.staged(SECOND) == world.staged()[1:]
    assert world.staged_values("any") == ["x", "y"]
    assert world.counted() == (3, 0)


@pytest.mark.parametrize("format_of", ["avro", "protobuf"])
def test_evolve_works_with_schemas_that_declare_all_fields(tmp_path: Path, registry: Registry, format_of: str) -> None:
    encoding = ENCODINGS[format_of]
    world = world_of(tmp_path, registry, format=format_of, unknown_fields="evolve")
    old_id, new_id = (world.registered(schema, format_of.upper()) for schema in encoding.schemas)
    writer = world.follower()
    writer.produce(encoding.message(world, old_id, id=1, note="a"))
    wait_for_staged(world, 1, writer)
    writer.produce(encoding.message(world, new_id, id=2, price=1.5))
    wait_for_staged(world, 2, writer)
    assert world.staged()[-1] == "id INT, note STRING, price DOUBLE, _rescued STRING"
    assert world.staged_values("price") == [None, 1.5]


ROWS = (avro(("id", "int"), name="Row"), avro(("id", "int"), ("tier", "string"), name="Row"))
EVENTS = [avro(("before", ["null", json.loads(row)]), ("after", ["null", "Row"]), ("op", "string")) for row in ROWS]


def test_change_events_follow_a_column_that_their_source_gains(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry, envelope="debezium", load="merge", merge={"keys": ["id"]})
    old_id, new_id = map(world.registered, EVENTS)
    writer = world.follower()
    writer.produce(world.order(old_id, before=None, after={"id": 1}, op="c"))
    wait_for_staged(world, 1, writer)
    writer.produce(world.order(new_id, before=None, after={"id": 1, "tier": "gold"}, op="u"))
    wait_for_staged(world, 2, writer)
    assert [columns.partition(", _cdc")[0] for columns in world.staged()] == ["id INT", "id INT, tier STRING"]
    assert world.counted() == (2, 0)


def test_merged_change_events_without_an_envelope_are_recognized_by_their_schemas(
    tmp_path: Path, registry: Registry
) -> None:
    world = world_of(tmp_path, registry, load="merge", merge={"keys": ["id"]})
    old_id, new_id = map(world.registered, EVENTS)
    assert world.registry_finder().find(frozenset({old_id})).stream.record.envelope == "debezium"
    writer = world.follower()
    writer.produce(world.order(old_id, before=None, after={"id": 1}, op="c"))
    wait_for_staged(world, 1, writer)
    (stream,) = world.settings.streams
    of_loader = required(found_columns(stream, world.stage, FsspecStore))
    assert (of_loader.record.envelope, of_loader.record.columns) == ("debezium", "id INT")
    writer = restarted(world)
    writer.produce(world.order(new_id, before=None, after={"id": 1, "tier": "gold"}, op="u"))
    wait_for_staged(world, 2, writer)
    assert [columns.partition(", _cdc")[0] for columns in world.staged()] == ["id INT", "id INT, tier STRING"]
    world.registry_finder().find(frozenset({old_id, new_id}))
    requests = len(registry.requests)
    for same in ({}, {"envelope": "debezium"}):
        world.stream_settings |= same
        world.registry_finder().find(frozenset({old_id, new_id}))
        assert len(registry.requests) == requests, "these columns are agreed on"
    world.stream_settings["envelope"] = "plain"
    plain = world.registry_finder().find(frozenset({old_id})).stream
    assert (plain.record.envelope, plain.record.columns[:38]) == ("plain", "id INT, tier STRING, before STRUCT<id:")


@pytest.mark.parametrize(
    ("settings", "schema"),
    [
        ({"load": "auto", "merge": None}, EVENTS[0]),
        ({"envelope": "plain"}, EVENTS[0]),
        ({"merge": {"keys": ["op"], "operation": "op", "deletes": ["d"]}}, EVENTS[0]),
        ({}, avro(("before", "int"), ("after", "int"), ("op", "string"))),
        ({}, avro(("after", json.loads(ROWS[0])), ("op", "string"))),
    ],
)
def test_other_records_than_merged_change_events_have_no_envelope(
    tmp_path: Path, registry: Registry, settings: dict[str, object], schema: str
) -> None:
    world = world_of(tmp_path, registry, **{"load": "merge", "merge": {"keys": ["op"]}, **settings})
    new = world.registry_finder().find(frozenset({world.registered(schema)})).stream
    assert (new.record.envelope, "op STRING" in new.record.columns) == ("plain", True)
    assert required(agreed_columns(world.stage, "orders")).envelope is None


def test_streams_that_have_merged_change_events_as_records_keep_their_columns(
    tmp_path: Path, registry: Registry
) -> None:
    settings = {"load": "merge", "merge": {"keys": ["key"]}, "derive": {"key": "after.id"}, "envelope": "plain"}
    world = world_of(tmp_path, registry, **settings)
    old_id, new_id = map(world.registered, EVENTS)
    world.registry_finder().find(frozenset({old_id}))
    del world.stream_settings["envelope"]
    new = world.registry_finder().find(frozenset({new_id})).stream
    assert (new.record.envelope, new.record.columns) == (
        "plain",
        "before STRUCT<id: INT, tier: STRING>, after STRUCT<id: INT, tier: STRING>, op STRING",
    )


def test_schemas_of_other_messages_than_change_events_have_no_columns(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry, envelope="debezium")
    heartbeat = world.registered(avro(("ts_ms", "long"), name="Heartbeat"))
    schema = world.registered(EVENTS[0])
    with pytest.raises(ConfigError, match="from the schemas of its records, of which none has a field 'after'"):
        world.registry_finder().find(frozenset({heartbeat}))
    columns = world.registry_finder().find(frozenset({heartbeat, schema}))
    assert columns.stream.record.columns == "id INT"
    assert columns.ids.issuperset({heartbeat, schema})
    writer = world.follower()
    writer.produce(world.order(heartbeat, ts_ms=1), world.order(schema, before=None, after={"id": 1}, op="c"))
    wait_for_staged(world, 2, writer)
    assert world.staged_values("id") == [1]
    (marker,) = manifests(world.stage, f"done/orders/{FIRST.partition}")
    assert (marker.filtered, dict(marker.dead_letters)) == (1, {})


def test_records_wait_while_the_new_columns_cannot_be_used(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry, derive={"price": "1.5"})
    old_id, new_id = (world.registered(avro(("id", "int"), *more)) for more in ((), (("price", "double"),)))
    three = world.registered(avro(("id", "int"), ("name", "string")))
    writer = world.follower()
    writer.produce(world.order(old_id, id=1))
    wait_for_staged(world, 1, writer)
    other = world.follower(SECOND)
    other.produce(world.order(new_id, id=3, price=2.5))
    wait_for_problem(other, "derive makes the column 'price', which columns has too")
    world.unusable = "name"
    writer.produce(world.order(three, id=2, name="x"))
    wait_for_problem(writer, "cannot be used")
    world.clock.now_s += 600
    wait_for_problem(writer, "cannot be used")
    assert world.counted() == (1, 0)
    world.unusable = "nothing"
    world.clock.now_s += 600
    wait_for_staged(world, 2, writer)
    assert world.staged()[-1] == "id INT, name STRING, price DECIMAL(2,1)"


def test_table_types_win_unless_evolution_is_widen(tmp_path: Path, registry: Registry) -> None:
    for evolution, expected in (("add", "id INT, a STRING"), ("widen", "id BIGINT, a STRING")):
        world = world_of(tmp_path / evolution, registry, evolution=evolution)
        world.commit("id INT")
        schema_id = world.registered(avro(("id", "long"), ("a", "string")))
        writer = world.follower()
        writer.produce(world.order(schema_id, id=1, a="x"))
        wait_for_staged(world, 1, writer)
        assert world.staged() == [expected]


def test_columns_that_the_settings_cannot_use_are_not_agreed_on(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry, partition_by=["day"])
    schema_id = world.registered(avro(("id", "int")))
    with pytest.raises(ConfigError, match="partition_by names 'day'"):
        world.registry_finder().find(frozenset({schema_id}))
    assert agreed_columns(world.stage, "orders") is None


PROTO = 'syntax = "proto3"; message Order { int64 id = 1; map<string, int32> counts = 2; }'
EVENT = avro(
    ("before", ["null", {"type": "record", "name": "Row", "fields": [{"name": "id", "type": "int"}]}]),
    ("after", ["null", "Row"]),
    ("op", "string"),
)
IMAGE = {"oneOf": [{"type": "null"}, {"type": "object", "properties": {"id": {"type": "integer"}, "any": True}}]}
JSON_EVENT = json.dumps({"type": "object", "properties": {"after": IMAGE, "source": {}}})


@pytest.mark.parametrize(
    ("settings", "schema", "expected"),
    [
        ({"format": "protobuf"}, PROTO, ("id BIGINT, counts MAP<STRING, INT>", {})),
        ({"format": "avro", "envelope": "debezium"}, EVENT, ("id INT", {})),
        ({"format": "json", "envelope": "debezium"}, JSON_EVENT, ("id BIGINT, any STRING", {"any": "json"})),
    ],
)
def test_columns_of_a_schema(settings: dict[str, object], schema: str, expected: tuple[str, object]) -> None:
    (stream,) = settings_of("/x", columns="from_registry", framing="confluent", **settings).streams
    columns, formats = columns_of_schema(stream, RegisteredSchema("", schema), compile_protobuf)
    assert (to_ddl(columns), formats) == expected


TWO = 'syntax = "proto3"; package shop; message Address { string city = 1; } message Order { int64 id = 1; }'
ADDRESS, ORDER = b"\0\x0a\x01a", b"\2\2\x08\5"


@pytest.mark.parametrize(
    ("message", "columns", "refused"),
    [
        ({}, "city STRING", (ORDER, "shop.Order, and the stream's message is shop.Address")),
        ({"message": "Order"}, "id BIGINT", (ADDRESS, "shop.Address, and the stream's message is shop.Order")),
    ],
)
def test_columns_are_of_one_message_and_other_messages_are_dead_letters(
    tmp_path: Path, registry: Registry, message: dict[str, str], columns: str, refused: tuple[bytes, str]
) -> None:
    world = world_of(tmp_path, registry, format="protobuf", **message)
    schema = world.registered(TWO, "PROTOBUF")
    writer = world.follower()
    writer.produce(frame(schema, ADDRESS), frame(schema, ORDER))
    wait_for_staged(world, 2, writer)
    (marker,) = manifests(world.stage, f"done/orders/{FIRST.partition}")
    assert (world.staged(), dict(marker.dead_letters)) == ([columns], {"wrong_schema": 1})
    rows, letters = (table.files[0].path for table in marker.tables)
    assert pq.read_table(f"{world.settings.streams[0].table}/{rows}").num_rows == 1
    (letter,) = pq.read_table(f"{world.settings.streams[0].dead_letters}/{letters}").to_pylist()
    assert letter["value"] == frame(schema, refused[0])
    assert refused[1] in letter["error"]


def restarted(world: RegistryWorld, **stream: object) -> Writer:
    """The stream's writer, after an edit of these settings."""
    world.stream_settings |= stream
    writer = world.follower()
    writer.group.values[FIRST] = [b""] * world.counted()[0]
    return writer


def test_another_message_of_the_same_schema_adds_its_columns(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry, format="protobuf")
    schema = world.registered(TWO, "PROTOBUF")
    for count, (message, record) in enumerate({"Address": ADDRESS, "Order": ORDER}.items(), 1):
        writer = restarted(world, message=message)
        writer.produce(frame(schema, record))
        wait_for_staged(world, count, writer)
    assert world.staged() == ["city STRING", "city STRING, id BIGINT"]
    assert (world.staged_values("city"), world.staged_values("id")) == (["a", None], [None, 5])
    assert world.schema_ids() == [schema, schema]
    requests = len(registry.requests)
    writer = restarted(world, message="Address")
    world.registry_finder().find(frozenset({schema}))
    assert len(registry.requests) == requests, "these columns are agreed on"


def test_repairs_wait_for_the_columns_of_the_present_settings(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry, format="protobuf")
    schema = world.registered(TWO, "PROTOBUF")
    for count, (message, record) in enumerate({"Address": ADDRESS, "Order": ORDER}.items(), 1):
        writer = restarted(world, message=message)
        with pytest.raises(ConfigError, match="the columns of orders are not yet those of its message") as caught:
            require_known(world.registry_finder())
        assert caught.value.remedy == f"run the writer first: stage-writer run {CONFIG}"
        writer.produce(frame(schema, record))
        wait_for_staged(world, count, writer)
        assert require_known(world.registry_finder()).record.columns == world.staged()[-1]


def test_another_envelope_of_the_same_schemas_adds_their_columns(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry)
    rows = [avro(("id", "int"), *more, name="Row") for more in ((), (("tier", "string"),))]
    events = [avro(("after", json.loads(row)), ("op", "string")) for row in rows]
    old_id, new_id = (world.registered(event) for event in events)
    for staged, envelope in ((0, "plain"), (2, "debezium")):
        writer = restarted(world, envelope=envelope)
        writer.produce(world.order(old_id, after={"id": 7}, op="c"))
        wait_for_staged(world, staged + 1, writer)
        writer.produce(world.order(new_id, after={"id": 8, "tier": "gold"}, op="c"))
        wait_for_staged(world, staged + 2, writer)
    assert world.staged_values("id") == [None, None, 7, 8]
    assert world.staged_values("tier") == [None, None, None, "gold"]


def test_same_id_of_another_registry_adds_its_columns(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry)
    with running_registry() as other:
        registries = ((registry, "a", "a INT"), (other, "b", "a INT, b INT"))
        for count, (world.registry, name, columns) in enumerate(registries, 1):
            schema = world.registered(avro((name, "int")), subject="orders-value")
            assert required(world.registry_finder().preview()).record.columns == columns
            writer = restarted(world)
            writer.produce(world.order(schema, **{name: 5}))
            wait_for_staged(world, count, writer)
    assert world.staged() == ["a INT", "a INT, b INT"]
    assert world.staged_values("b") == [None, 5]
    assert world.schema_ids() == [schema, schema]


def test_columns_agreed_on_without_a_digest_are_not_derived_again(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry, message="Order", format="protobuf")
    older = AgreedColumns("orders", 1, parse_ddl("id BIGINT"), "from_registry", 0, {}, (1,))
    assert older.create(world.stage)
    assert world.registry_finder().find(frozenset({1})).stream.record.columns == "id BIGINT"
    assert (required(agreed_columns(world.stage, "orders")), registry.requests) == (older, [])


def test_event_schema_without_images_is_refused() -> None:
    (stream,) = settings_of(
        "/x", columns="from_registry", framing="confluent", format="avro", envelope="debezium"
    ).streams
    with pytest.raises(SchemaError, match="no field 'after'"):
        columns_of_schema(stream, RegisteredSchema("AVRO", avro(("op", "string"))), compile_protobuf)


def test_schema_nested_too_deeply_is_refused() -> None:
    (stream,) = settings_of("/x", columns="from_registry", framing="confluent").streams
    schema = '{"properties":{"v":' * 400 + "{}" + "}}" * 400
    with pytest.raises(SchemaError, match="nested too deeply"):
        columns_of_schema(stream, RegisteredSchema("JSON", schema), compile_protobuf)


@pytest.mark.parametrize(
    ("known", "later", "expected"),
    [
        ("a INT", "b INT", "a INT, b INT"),
        ("a INT", "a BIGINT", "a BIGINT"),
        ("a BIGINT", "a INT", "a BIGINT"),
        ("a FLOAT", "a DOUBLE", "a DOUBLE"),
        ("a INT", "a STRING", "a INT"),
        ("a STRUCT<b: INT>", "a STRUCT<c: INT, b: BIGINT>", "a STRUCT<b: BIGINT, c: INT>"),
        ("a ARRAY<INT>, m MAP<STRING, INT>", "a ARRAY<BIGINT>, m MAP<STRING, BIGINT>", None),
        ("a STRUCT<b: INT>", "a INT", "a STRUCT<b: INT>"),
        ("a INT", "A STRING", "a INT"),
    ],
)
def test_grown_columns_keep_every_column_and_widen_types(known: str, later: str, expected: str | None) -> None:
    assert to_ddl(grown(parse_ddl(known), parse_ddl(later))) == (expected or later)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({"framing": "none", "format": "json"}, "write framing: confluent"),
        ({"schema_file": "x"}, "columns is from_registry, but .* remove schema_file"),
        ({"format": "json", "envelope": "maxwell"}, "envelope is maxwell"),
    ],
)
def test_contradictory_registry_settings_are_refused(stream: dict[str, object], words: str) -> None:
    usual = {"columns": "from_registry", "framing": "confluent", "format": "avro"}
    with pytest.raises(ValueError, match=words):
        settings_of("/x", **{**usual, **stream})


def section_of(folder: Path) -> dict[str, object]:
    """A table with columns of its own, for the records with the ids 10 and more."""
    section = {"table": f"{folder}/own", "columns": "id STRING, note STRING", "derive": {"size": "length(note)"}}
    return {"route": "CASE WHEN id > 9 THEN 'x' END", "routes": {"x": section}, "coerce": "lenient"}


def staged_in(world: RegistryWorld, url: str) -> list[tuple[str, list[dict[str, object]]]]:
    """The columns and the rows, without Kafka's columns, of each file for a table, in the order of the chain."""
    files = []
    for marker in manifests(world.stage, f"done/orders/{FIRST.partition}"):
        for table in (table for table in marker.tables if table.url == url):
            for path in (file.path for file in table.files):
                rows = pq.read_table(f"{url}/{path}").to_pylist()
                own = [{name: value for name, value in row.items() if not name.startswith("_kafka")} for row in rows]
                files.append((to_ddl(schema_from_json(table.schema)), own))
    return files


@pytest.mark.parametrize("format_of", ENCODINGS)
def test_section_keeps_its_own_columns_and_other_tables_follow_the_schemas(
    tmp_path: Path, registry: Registry, format_of: str
) -> None:
    encoding = ENCODINGS[format_of]
    world = world_of(tmp_path, registry, format=format_of, unknown_fields="ignore", **section_of(tmp_path))
    message, kind = partial(encoding.message, world), format_of.upper()
    old_id = world.registered(encoding.schemas[0], kind)
    writer = world.follower()
    writer.produce(message(old_id, id=1, note="a"), message(old_id, id=10, note="bc"))
    wait_for_staged(world, 2, writer)
    new_id = world.registered(encoding.schemas[1], kind)
    writer.produce(message(new_id, id=11, price=2.5), message(old_id, id=2, note="d"), message(new_id, id=3, price=1.5))
    wait_for_staged(world, 5, writer)
    before = f"id {encoding.id_type}, note STRING"
    main, own = (staged_in(world, f"{tmp_path}/{name}") for name in ("table", "own"))
    assert [columns for columns, _ in main] == [before, f"{before}, price DOUBLE"]
    assert [(row["id"], row.get("price")) for _, rows in main for row in rows] == [(1, None), (2, None), (3, 1.5)]
    assert [columns for columns, _ in own] == ["id STRING, note STRING, size BIGINT"] * 2
    assert next((row["id"], row["size"]) for _, rows in own for row in rows) == ("10", 2)
    assert [row["id"] for _, rows in own for row in rows] == ["10", "11"]
    assert world.counted() == (5, 0)


def test_schema_keeps_the_type_that_a_column_of_a_stream_with_sections_has_gained(
    tmp_path: Path, registry: Registry
) -> None:
    settings = {"format": "json", "unknown_fields": "evolve", **section_of(tmp_path)}
    world = world_of(tmp_path, registry, **settings)
    old_id = world.registered(json_schema(("id", "integer")), "JSON")
    writer = world.follower()
    writer.produce(frame(old_id, b'{"id": 1, "more": 2}'), frame(old_id, b'{"id": 10, "more": "x"}'))
    wait_for_staged(world, 2, writer)
    new_id = world.registered(json_schema(("id", "integer"), ("more", "number")), "JSON")
    writer.produce(frame(new_id, b'{"id": 2, "more": 3}'), frame(new_id, b'{"id": 11, "more": "y"}'))
    wait_for_staged(world, 4, writer)
    main, own = (staged_in(world, f"{tmp_path}/{name}") for name in ("table", "own"))
    columns = {"id BIGINT, more BIGINT, _rescued STRING"}
    assert ({columns for columns, _ in main}, [row["more"] for _, rows in main for row in rows]) == (columns, [2, 3])
    assert [(row["id"], row["more"]) for _, rows in own for row in rows] == [("10", "x"), ("11", "y")]
    assert world.counted() == (4, 0)


def test_all_partitions_share_one_set_of_columns(tmp_path: Path, registry: Registry) -> None:
    world = world_of(tmp_path, registry)
    schema_id = world.registered(avro(("id", "int")))
    third = TopicPartition(Topic("orders"), Partition(2))
    for number, partition in enumerate((FIRST, SECOND, third), 1):
        writer = world.follower(partition)
        writer.produce(world.order(schema_id, id=1))
        wait_for_staged(world, number, writer)
    assert world.counted() == (3, 0)
    assert {table.schema for marker in manifests(world.stage) for table in marker.tables[:1]} == {
        manifests(world.stage)[0].tables[0].schema
    }
    assert required(agreed_columns(world.stage, "orders")).version == 1
