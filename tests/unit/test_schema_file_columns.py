"""`columns: from_schema_file`: the columns of a schema file, for writers as they are wired, and a loader."""

import io
import json
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import fastavro
import pytest
import structlog
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass

from common.errors import ConfigError
from common.metrics import Metrics
from common.protoc import compile_protobuf
from common.remedies import CONFIG
from common.schema import to_ddl
from common.settings import Stream
from common.spans import TopicPartition
from common.stage.versions import agreed_columns
from common.storage.store import FsspecStore
from common.tables.stream_columns import found_columns
from stage_writer import __main__ as program
from stage_writer import wiring
from stage_writer.columns.schemas import FileSchema, SchemaFinder
from stage_writer.columns.wiring import ColumnsOfStreams
from stage_writer.converters import ConverterParts, plain_converter
from tests.builders import required
from tests.staged import manifests
from tests.unit.test_columns import FIRST, SECOND, Sample, World, Writer, settings_of
from tests.unit.test_registry_columns import ENCODINGS, EVENT, TWO, avro


def encoded(schema: str, **values: object) -> bytes:
    if not schema.startswith("{"):
        pool = DescriptorPool()
        for file in FileDescriptorSet.FromString(compile_protobuf(schema)).file:
            pool.Add(file)
        message: bytes = GetMessageClass(pool.FindMessageTypeByName("Order"))(**values).SerializeToString()
        return message
    out = io.BytesIO()
    fastavro.schemaless_writer(out, fastavro.parse_schema(json.loads(schema)), values)
    return out.getvalue()


@dataclass(slots=True)
class FileWorld(World):
    file: Path = field(kw_only=True)

    @property
    def columns(self) -> ColumnsOfStreams:
        return ColumnsOfStreams(self.settings, self.clock)

    @property
    def check(self) -> list[str]:
        return list(self.columns.lines(self.columns.previewed()))

    def start(self, partition: TopicPartition = FIRST) -> Writer:
        settings, columns = self.settings, self.columns
        (known,) = columns.known().streams
        finder = SchemaFinder(FileSchema(settings.streams[0], compile_protobuf), self.stage, FsspecStore, self.clock)
        make = partial(plain_converter, settings, ConverterParts(read_file=columns.read_file))
        return self.started(finder, make, known, partition, Sample([]))

    def write(self, *values: dict[str, object], partition: TopicPartition = FIRST) -> None:
        """Restart the writer of a partition, and send it these records after those before."""
        writer = self.start(partition)
        staged = manifests(self.stage, f"done/orders/{partition.partition}")
        writer.group.values[partition] = [b""] * sum(manifest.records for manifest in staged)
        writer.produce(*(encoded(self.file.read_text(), **record) for record in values))


def world_of(folder: Path, schema: str = "", **stream: object) -> FileWorld:
    folder.mkdir(exist_ok=True)
    file = folder / "schema"
    file.write_text(schema or avro(("id", "int"), ("note", "string")))
    return FileWorld(folder, {"format": "avro", "schema_file": str(file), **stream}, file=file)


def version_and_columns(world: World) -> tuple[int, str]:
    agreed = required(agreed_columns(world.stage, "orders"))
    return agreed.version, to_ddl(agreed.columns)


@pytest.mark.parametrize("format_of", ["avro", "protobuf"])
def test_field_added_to_the_file_becomes_a_column_while_records_wait(tmp_path: Path, format_of: str) -> None:
    encoding = ENCODINGS[format_of]
    old, new = encoding.schemas
    world = world_of(tmp_path, old, format=format_of)
    first = f"id {encoding.id_type}, note STRING"
    assert world.check == [f"ok: orders: from_schema_file: {first}"]
    assert agreed_columns(world.stage, "orders") is None, "check agrees on nothing"
    world.write({"id": 1, "note": "a"})
    world.file.write_text(new)
    assert world.check == [f"ok: orders: from_schema_file: {first}, price DOUBLE"]
    assert version_and_columns(world) == (1, first)
    world.write({"id": 2, "price": 1.5})
    world.file.write_text(old)
    world.write({"id": 3, "note": "c"}, partition=SECOND)
    assert version_and_columns(world) == (2, f"{first}, price DOUBLE"), "both files' columns are agreed on"
    assert world.staged() == [first, f"{first}, price DOUBLE"]
    assert world.staged(SECOND) == [f"{first}, price DOUBLE"]
    assert world.counted() == (3, 0)
    world.load()
    (stream,) = world.settings.streams
    assert required(found_columns(stream, world.stage, FsspecStore)).record.columns == f"{first}, price DOUBLE"


def test_records_are_decoded_by_the_schema_that_the_columns_are_of(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    columns, (written,) = world.columns, world.settings.streams
    (stream,) = columns.known().streams
    before = world.file.read_bytes()
    world.file.write_text(avro(("id", "int"), ("new", "string")))
    assert columns.read_file(stream) == before
    assert world.columns.read_file(written) != before
    world.stream_settings["columns"] = "id INT"
    assert world.columns.read_file(*world.settings.streams) == world.file.read_bytes()


class _DecodersMade(Exception):  # noqa: N818 - the end of what is tested
    """Decoders would be made with these `ConverterParts`."""


def test_run_and_replay_decode_by_the_content_that_their_columns_are_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = world_of(tmp_path)
    world.start()
    before, settings = world.file.read_bytes(), world.settings

    def passes_of(_settings: object, passes: ConverterParts, *_: object, **_more: object) -> None:
        world.file.write_bytes(b"changed since")
        raise _DecodersMade(passes)

    monkeypatch.setattr(wiring, "_memory", lambda _: None)
    monkeypatch.setattr(wiring, "converters_of", passes_of)
    monkeypatch.setattr(program, "plain_converter", passes_of)
    for make in (
        lambda: wiring.wired_writer(settings, world.clock, structlog.get_logger(), Metrics()),
        lambda: program._converter_now(settings, settings.streams[0], yes=False),
    ):
        world.file.write_bytes(before)
        with pytest.raises(_DecodersMade) as caught:
            make()
        (passes,) = caught.value.args
        assert passes.read_file(settings.streams[0]) == before


def test_repairs_wait_for_the_writer_to_agree_on_the_file(tmp_path: Path) -> None:
    world = world_of(tmp_path)
    for fields in ([("id", "int")], [("id", "int"), ("new", "string")]):
        world.file.write_text(avro(*fields))
        with pytest.raises(ConfigError, match="the columns of orders are not yet those of its schema_file") as caught:
            world.columns.required("orders")
        assert caught.value.remedy == f"run the writer first: stage-writer run {CONFIG}"
        world.start()
        assert world.columns.required("orders").streams[0].record.columns_from is None


@pytest.mark.parametrize(
    ("settings", "schema", "more", "expected"),
    [
        ({"format": "protobuf"}, TWO, {"message": "Order"}, "city STRING, id BIGINT"),
        ({}, EVENT, {"envelope": "debezium"}, "before STRUCT<id: INT>, after STRUCT<id: INT>, op STRING, id INT"),
    ],
)
def test_columns_follow_the_settings_that_choose_a_part_of_the_file(
    tmp_path: Path, settings: dict[str, object], schema: str, more: dict[str, object], expected: str
) -> None:
    world = world_of(tmp_path, schema, **settings)
    world.start()
    world.stream_settings |= more
    world.start()
    assert version_and_columns(world) == (2, expected)
    world.start()
    assert version_and_columns(world) == (2, expected)


def test_merged_change_events_are_recognized_by_the_file(tmp_path: Path) -> None:
    world = world_of(tmp_path, EVENT, load="merge", merge={"keys": ["id"]})
    for _ in range(2):
        world.start()
        assert world.columns.known().streams[0].record.envelope == "debezium"
        assert version_and_columns(world) == (1, "id INT")


def test_reader_s_schema_has_the_columns_of_framed_records(tmp_path: Path) -> None:
    world = world_of(tmp_path, framing="confluent")
    assert world.columns.known().streams[0].record.columns == "id INT, note STRING"


TREE = avro(("id", "int"), ("in", ["null", "Order"]))
PROTO_TREE = 'syntax = "proto3"; message Tree { int32 id = 1; Tree left = 2; }'
PROTO = ENCODINGS["protobuf"].schemas[0]


@pytest.mark.parametrize(
    ("format_of", "content", "problem"),
    [
        ("avro", TREE, "`in` is of the Avro type Order, which contains itself"),
        ("avro", "", "the Avro schema is invalid"),
        ("avro", "{", "the Avro schema is invalid"),
        ("avro", PROTO, "the Avro schema is invalid"),
        ("avro", '"string"', "type string, and a table's rows are records"),
        ("protobuf", PROTO_TREE, "`left` is of the Protobuf message Tree, which contains itself"),
        ("protobuf", "", "no message"),
        ("protobuf", TREE, "the Protobuf schema is invalid"),
    ],
)
def test_file_without_columns_is_refused_at_start(tmp_path: Path, format_of: str, content: str, problem: str) -> None:
    world = world_of(tmp_path, format=format_of)
    world.file.write_text(content)
    for start in (world.columns.known, world.columns.previewed):
        with pytest.raises(ConfigError, match=f"no columns can be derived from schema_file {world.file}: .*{problem}"):
            start()
    assert agreed_columns(world.stage, "orders") is None


def test_missing_file_and_missing_package_are_named_at_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = world_of(tmp_path)
    world.file.unlink()
    with pytest.raises(ConfigError, match=f"schema_file {world.file} cannot be read: No such file"):
        world.columns.known()
    monkeypatch.setattr("stage_writer.fetch.schema_file.find_spec", lambda _: None)
    with pytest.raises(ConfigError, match="needs the package fastavro"):
        world.columns.known()


def test_columns_can_be_declared_and_taken_from_the_file_while_records_wait(tmp_path: Path) -> None:
    world = world_of(tmp_path, columns="id BIGINT, note STRING", evolution="add")
    world.write({"id": 1, "note": "a"})
    del world.stream_settings["columns"]
    world.write({"id": 2, "note": "b"})
    world.file.write_text(avro(("id", "int"), ("note", "string"), ("price", "double")))
    world.write({"id": 3, "note": "c", "price": 1.5})
    world.stream_settings["columns"] = "id BIGINT, price DOUBLE"
    world.write({"id": 4, "note": "d", "price": 2.5})
    assert world.staged() == [
        "id BIGINT, note STRING",
        "id INT, note STRING",
        "id INT, note STRING, price DOUBLE",
        "id BIGINT, price DOUBLE",
    ]
    world.load()
    assert world.counted() == (4, 0)
    del world.stream_settings["columns"]
    world.write({"id": 5, "note": "e", "price": 1.5})
    assert world.staged()[-1] == "id BIGINT, note STRING, price DOUBLE", "the table's types count"


def test_table_types_win_unless_evolution_is_widen(tmp_path: Path) -> None:
    for evolution, expected in (("add", "id INT, a STRING"), ("widen", "id BIGINT, a STRING")):
        world = world_of(tmp_path / evolution, avro(("id", "long"), ("a", "string")), evolution=evolution)
        world.commit("id INT")
        world.write({"id": 1, "a": "x"})
        assert world.staged() == [expected]


@pytest.mark.parametrize(
    ("stream", "columns", "evolution"),
    [
        ({"format": "avro"}, "from_schema_file", "add"),
        ({"format": "protobuf"}, "from_schema_file", "add"),
        ({"format": "avro", "framing": "confluent"}, "from_schema_file", "add"),
        ({"format": "avro", "evolution": "strict"}, "from_schema_file", "strict"),
        ({"format": "avro", "columns": " from_schema_file "}, " from_schema_file ", "add"),
        ({"format": "avro", "columns": "id INT"}, "id INT", "strict"),
        ({"format": "json", "validate": True}, "from_records", "strict"),
    ],
)
def test_columns_default_to_those_of_the_file(stream: dict[str, object], columns: str, evolution: str) -> None:
    raw = {"app_id": "orders", "topics": ["orders"], "table": "/x", "schema_file": "/f", **stream}
    validated = Stream.model_validate(raw)
    assert (validated.record.columns, validated.evolution) == (columns, evolution)


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        ({}, "columns is from_schema_file, but format is json.*write columns: from_records"),
        ({"validate": True, "schema_file": "x"}, "format is json, whose schema_file only validates"),
        ({"format": "avro", "framing": "confluent"}, "there is no schema_file; set it, or write columns: from_reg"),
        ({"format": "avro", "schema_file": "x", "envelope": "maxwell"}, r"from_schema_file \(the default\), but env"),
        (
            {"format": "avro", "schema_file": "x", "framing": "confluent", "columns": "from_registry"},
            "columns is from_registry, but schema_file has another schema; write columns: from_schema_file",
        ),
        (
            {"format": "avro", "schema_file": "x", "columns": "from_records"},
            "from_records, which reads JSON only, but format is avro; write columns: from_schema_file",
        ),
        ({"format": "avro", "schema_file": "x", "columns": "from_schemafile"}, "from_registry, from_schema_file, or"),
        ({"format": "avro", "schema_file": "x", "columns": "From-schema-file"}, "from_registry, from_schema_file, or"),
    ],
)
def test_contradictory_settings_of_the_file_are_refused(stream: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings_of("/x", **{"columns": "from_schema_file", **stream})
