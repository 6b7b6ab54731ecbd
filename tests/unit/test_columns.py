"""Columns that a stream does not declare: taken from its table or its first records, by writers and a loader."""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import structlog

from common.errors import BrokerError, ConfigError, NewerFormatError
from common.schema import Primitive, parse_ddl, schema_from_json, schema_to_json, to_ddl
from common.schema.evolution import Addition
from common.schema.inference import JsonShape
from common.settings import Settings, Stream
from common.spans import Partition, Topic, TopicPartition
from common.stage.versions import AgreedColumns, agreed_columns, latest
from common.storage.store import FsspecStore
from common.tables.state import TableState
from common.tables.stream_columns import columns_as_agreed, found_columns, record_columns, with_columns_of_files
from delta_loader.check_result import Level
from delta_loader.checks.preflight import Preflight
from delta_loader.load.report import StreamReport
from delta_loader.ports import in_turn
from delta_loader.service import LoaderService
from delta_loader.stage.reading import Stage
from stage_writer.columns.finding import ColumnDiscovery, ColumnFinder, columns_text
from stage_writer.columns.following import LOOK_AT_TABLES_S, CoveredSchemas, FollowedColumns, PendingConverter
from stage_writer.columns.wiring import pending
from stage_writer.convert_by_table import converter_of
from stage_writer.loop import StageWriter
from stage_writer.ports import Converter
from stage_writer.runtime import Attachments
from stage_writer.stage.staging import ObjectStage
from tests.builders import content_of, instance, required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.group import HandClock, JsonMember
from tests.fakes.loading import ports_for
from tests.fakes.writers import new_writer, runtime_of
from tests.staged import manifests

FIRST, SECOND = (TopicPartition(Topic("orders"), Partition(number)) for number in range(2))


@dataclass(slots=True)
class Sample:
    records: list[object]
    error: BrokerError | None = None
    taken: int = 0
    images: tuple[object, ...] = ()
    """The images of change events that it sees."""

    def __call__(self, stream: Stream) -> JsonShape:
        self.taken += 1
        if self.error is not None:
            raise self.error
        shape = JsonShape()
        for record in self.images if stream.record.has_events else self.records:
            shape.add(record)
        return shape


@dataclass(slots=True)
class Writer:
    service: StageWriter
    group: JsonMember
    partition: TopicPartition
    sample: Sample

    def produce(self, *values: object) -> None:
        self.group.produce(self.partition, *values)
        self.step()

    def step(self) -> None:
        for _ in range(8):
            self.service.step(0.5)

    @property
    def problems(self) -> tuple[str, ...]:
        return self.service.health().problems


@dataclass(slots=True)
class World:
    folder: Path
    stream_settings: dict[str, object]
    clock: HandClock = field(default_factory=HandClock)
    tables: MemoryDeltaTables = field(default_factory=MemoryDeltaTables)
    made: int = 0

    @property
    def settings(self) -> Settings:
        return settings_of(self.folder, **self.stream_settings)

    @property
    def stage(self) -> FsspecStore:
        return FsspecStore(f"{self.folder}/stage")

    @property
    def table(self) -> FsspecStore:
        return FsspecStore(f"{self.folder}/table")

    def finder(self, sample: Callable[[Stream], JsonShape]) -> ColumnFinder:
        return ColumnFinder(self.settings.streams[0], self.stage, FsspecStore, sample, self.clock)

    def writer(self, partition: TopicPartition = FIRST, *sampled: object) -> Writer:
        """A writer that starts now, as `stage-writer run` wires it; threads run in turn."""
        sample = Sample(list(sampled))
        finder = self.finder(sample)
        return self.started(finder, made, finder.known(), partition, sample)

    def started(
        self,
        finder: ColumnDiscovery,
        make: Callable[[Stream, CoveredSchemas | None], Converter],
        known: Stream | None,
        partition: TopicPartition,
        sample: Sample,
    ) -> Writer:
        log = structlog.get_logger()
        converter: Converter = pending(finder.stream) if known is None else make(known, None)
        followed = FollowedColumns(finder, make, self.clock, log, known, start=lambda work: work())
        if isinstance(converter, PendingConverter):
            converter.columns = followed
        group = JsonMember(self.clock, {partition: 0})
        self.made += 1
        names = iter(range(1_000))
        unique = f"{self.made}{partition.partition}"
        stage = ObjectStage(self.stage, FsspecStore, self.clock, lambda: f"{unique}{next(names):030x}", "w")
        attachments = Attachments(columns={followed.finder.stream.app_id: followed})
        service = new_writer(
            converter, source=group, stage=stage, runtime=runtime_of(self.clock), attachments=attachments
        )
        group.subscribe([converter.stream], service)
        return Writer(service, group, partition, sample)

    def load(self) -> None:
        report = self.report()
        assert (report.failure, report.held) == (None, {})
        self.commit(to_ddl(schema_from_json(self.tables.tables[self.settings.streams[0].table].schema)))

    def report(self) -> StreamReport:
        ports = ports_for(self.stage, self.tables, clock=self.clock)
        (report,) = LoaderService(self.settings.streams, self.settings.loader, ports).run_pass()
        return report

    def commit(self, columns: str, *partition_by: str) -> None:
        version = len(list(self.table.list("_delta_log")))
        schema = schema_to_json(parse_ddl(columns))
        metadata = {"id": "t", "schemaString": schema, "partitionColumns": partition_by, "configuration": {}}
        actions = [{"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": metadata}]
        self.table.write(f"_delta_log/{version:020d}.json", "\n".join(map(json.dumps, actions)).encode())

    def staged(self, partition: TopicPartition = FIRST) -> list[str]:
        """By marker, the columns of its files."""
        markers = manifests(self.stage, f"done/orders/{partition.partition}")
        return [to_ddl(schema_from_json(marker.tables[0].schema)) for marker in markers]

    def counted(self) -> tuple[int, int]:
        """The number of staged records, and how many of them are dead letters."""
        markers = manifests(self.stage)
        return sum(marker.records for marker in markers), sum(sum(marker.dead_letters.values()) for marker in markers)

    @property
    def agreed(self) -> str | None:
        columns = agreed_columns(self.stage, "orders")
        return None if columns is None else to_ddl(columns.columns)


def made(stream: Stream, covers: CoveredSchemas | None) -> Converter:
    assert covers is None
    return converter_of(stream)


def settings_of(folder: Path | str, **stream: object) -> Settings:
    content = content_of({"kafka_columns": False, **stream}, folder=str(folder))
    (only,) = instance(list, content["streams"])
    if "columns" not in stream:
        del only["columns"]
    if "framing" in stream:
        content["schema_registry"] = {"url": "http://127.0.0.1:1"}
    return Settings.model_validate(content, by_alias=True)


def from_table(folder: Path, **stream: object) -> World:
    return World(folder, {"columns": "from_table", **stream})


def from_records(folder: Path, **stream: object) -> World:
    return World(folder, {"columns": "from_records", **stream})


def test_stream_uses_its_table_s_columns_and_follows_changes(tmp_path: Path) -> None:
    world = from_table(tmp_path, derive={"day": "'x'"}, unknown_fields="rescue")
    world.commit("id BIGINT NOT NULL, day STRING, _kafka_offset BIGINT, _rescued STRING, tags MAP<STRING, INT>")
    writer = world.writer()
    writer.produce({"id": 1, "tags": {"a": 1}, "new": 1})
    assert world.staged() == ["id BIGINT, tags MAP<STRING, INT>, _rescued STRING, day STRING"]
    world.commit("id BIGINT NOT NULL, day STRING, _rescued STRING, tags MAP<STRING, INT>, new DECIMAL(9,2)")
    world.clock.now_s += LOOK_AT_TABLES_S
    writer.step()
    writer.produce({"id": 2, "new": 1.25})  # the partition has been idle, and its next row has the new column
    assert world.staged()[-1].startswith("id BIGINT, tags MAP<STRING, INT>, new DECIMAL(9,2), ")
    assert writer.sample.taken == 0
    assert world.agreed is None


def test_buffered_rows_keep_their_columns_when_the_table_changes(tmp_path: Path) -> None:
    world = from_table(tmp_path)
    world.commit("id BIGINT")
    writer = world.writer()
    writer.group.produce(FIRST, {"id": 1})
    writer.service.step(0.01)
    world.commit("id BIGINT, late STRING")
    world.clock.now_s += LOOK_AT_TABLES_S
    writer.produce({"id": 2, "late": "x"})
    writer.produce({"id": 3, "late": "x"})
    assert world.staged()[0] == "id BIGINT"
    assert world.staged()[-1] == "id BIGINT, late STRING"
    assert world.counted() == (3, 0)


def test_unusable_new_columns_leave_the_previous_ones_in_use(tmp_path: Path) -> None:
    world = from_table(tmp_path, where="id > 0")
    world.commit("id BIGINT")
    writer = world.writer()
    world.commit("number BIGINT")
    world.clock.now_s += LOOK_AT_TABLES_S
    writer.step()
    writer.produce({"id": 1})
    assert world.staged() == ["id BIGINT"]
    world.commit("id BIGINT, number BIGINT")
    world.clock.now_s += LOOK_AT_TABLES_S
    writer.step()
    writer.produce({"id": 2})
    assert world.staged()[-1] == "id BIGINT, number BIGINT"


def test_stream_uses_its_table_s_partitioning(tmp_path: Path) -> None:
    world = from_table(tmp_path)
    world.commit("id BIGINT, day STRING", "day")
    world.writer().produce({"id": 1, "day": "monday"})
    (manifest,) = manifests(world.stage)
    assert manifest.tables[0].partition_by == ("day",)


def test_partitioning_of_the_settings_precedes_the_table_s(tmp_path: Path) -> None:
    world = from_table(tmp_path, partition_by=["id"])
    world.commit("id BIGINT, day STRING", "day")
    assert required(world.finder(Sample([])).known()).layout.partition_by == ("id",)


def test_columns_that_delta_makes_are_not_a_record_s(tmp_path: Path) -> None:
    (stream,) = from_table(tmp_path).settings.streams
    fields = [
        {"name": name, "type": "long", "nullable": True, "metadata": metadata}
        for name, metadata in (
            ("id", {"comment": "of the order"}),
            ("year", {"delta.generationExpression": "id / 100"}),
            ("number", {"delta.identity.start": 1, "delta.identity.step": 1}),
        )
    ]
    assert record_columns(stream, json.dumps({"type": "struct", "fields": fields})).names == ("id",)


def test_type_of_the_table_precedes_one_inferred_by_a_stream_that_widens(tmp_path: Path) -> None:
    (stream,) = from_records(tmp_path, evolution="widen").settings.streams
    agreed = AgreedColumns("orders", 1, parse_ddl("id BIGINT, name STRING"), "from_records", 0)
    table = TableState(0, "id", schema_to_json(parse_ddl("id INT")), (), {}, 1, 2, frozenset())
    assert columns_as_agreed(stream, agreed, table).record.columns == "id INT, name STRING"


@pytest.mark.parametrize("columns", [None, "_kafka_offset BIGINT"])
def test_table_without_columns_for_records_is_refused(tmp_path: Path, columns: str | None) -> None:
    world = from_table(tmp_path)
    if columns is not None:
        world.commit(columns)
    with pytest.raises(ConfigError, match="columns is from_table") as caught:
        world.writer()
    assert "from_records" in caught.value.remedy or "ADD COLUMNS" in caught.value.remedy


def test_first_records_define_the_columns_and_the_loader_creates_the_table(tmp_path: Path) -> None:
    world = from_records(tmp_path)
    record = {"id": 1, "at": "2026-03-01T00:00:00Z", "meta": {"a": [1.5]}, "mixed": 1}
    writer = world.writer(FIRST, record, {"id": 2, "mixed": "x"})
    writer.step()
    assert writer.sample.taken == 0  # an empty topic is not sampled
    writer.produce(record, {"id": 2, "mixed": "x", "late": True})
    expected = "id BIGINT, at TIMESTAMP, meta STRUCT<a: ARRAY<DOUBLE>>, mixed STRING"
    assert world.agreed == expected
    assert world.staged() == [f"{expected}, late BOOLEAN, _rescued STRING"]
    assert (world.counted(), writer.problems) == ((2, 0), ())
    assert to_ddl(required(latest(world.stage, "orders")).columns) == "late BOOLEAN"
    world.load()
    table = world.tables.tables[world.settings.streams[0].table]
    assert to_ddl(schema_from_json(table.schema)) == f"{expected}, late BOOLEAN, _rescued STRING"


def test_writers_that_infer_differently_share_one_schema_and_lose_no_record(tmp_path: Path) -> None:
    world = from_records(tmp_path)
    first = world.writer(FIRST, {"id": 1, "a": "x"})
    second = world.writer(SECOND, {"id": 2.5, "b": True})
    for writer, value in ((first, {"id": 1, "a": "x"}), (second, {"id": 2, "b": True})):
        writer.produce(value)
    assert world.agreed == "id BIGINT, a STRING"
    assert world.staged(FIRST) == ["id BIGINT, a STRING, _rescued STRING"]
    assert world.staged(SECOND) == ["id BIGINT, a STRING, b BOOLEAN, _rescued STRING"]
    assert world.counted() == (2, 0)
    world.load()
    table = world.tables.tables[world.settings.streams[0].table]
    assert to_ddl(schema_from_json(table.schema)) == "id BIGINT, a STRING, _rescued STRING, b BOOLEAN"

    restarted = world.writer(TopicPartition(Topic("orders"), Partition(2)), {"other": 1})
    restarted.produce({"id": 3})
    assert restarted.sample.taken == 0
    assert len(world.staged(restarted.partition)) == 1
    assert world.agreed == "id BIGINT, a STRING"


def test_writer_that_loses_the_race_uses_the_agreed_columns(tmp_path: Path) -> None:
    world = from_records(tmp_path)

    def beaten(stream: Stream) -> JsonShape:
        assert AgreedColumns("orders", 1, parse_ddl("id STRING"), "from_records", 0).create(world.stage)
        return Sample([{"id": 1}])(stream)

    assert world.finder(beaten).find().stream.record.columns == "id STRING"


def test_existing_table_s_columns_precede_inferred_ones(tmp_path: Path) -> None:
    world = from_records(tmp_path)
    world.commit("id INT, note STRING, day STRING", "day")
    world.writer(FIRST, {"id": 1, "note": 1, "extra": 1.5}).produce({"id": 1, "note": "n", "extra": 2.5})
    assert world.agreed == "id INT, note STRING, day STRING, extra DOUBLE"
    (manifest,) = manifests(world.stage)
    assert manifest.tables[0].partition_by == ("day",)
    world.commit("id BIGINT, note STRING, day STRING", "day")  # widened; the next start takes the table's type
    assert (
        required(world.finder(Sample([])).known()).record.columns == "id BIGINT, note STRING, day STRING, extra DOUBLE"
    )


def test_table_strings_stay_plain_text_and_new_mixed_columns_are_json(tmp_path: Path) -> None:
    world = from_records(tmp_path)
    world.commit("note STRING, meta STRUCT<code: STRING>, tags ARRAY<STRING>")
    mixed: list[object] = ["n", 7]
    records = [
        {"note": value, "meta": {"code": value, "unit": value}, "tags": [value], "extra": value} for value in mixed * 50
    ]
    world.writer(FIRST, {}, *records).produce(records[0], {"note": 7}, {"extra": 7})
    assert required(agreed_columns(world.stage, "orders")).formats == {"meta.unit": "json", "extra": "json"}
    (manifest,) = manifests(world.stage)
    (file,) = manifest.tables[0].files
    row, new = pq.read_table(tmp_path / "table" / file.path).to_pylist()
    assert row == {"note": "n", "meta": {"code": "n", "unit": '"n"'}, "tags": ["n"], "extra": '"n"', "_rescued": None}
    assert new["extra"] == "7"
    assert world.counted() == (3, 1)  # a number for the table's STRING


def test_given_format_precedes_an_inferred_one(tmp_path: Path) -> None:
    (stream,) = settings_of(tmp_path, formats={"raw": "hex"}).streams
    agreed = AgreedColumns("orders", 1, parse_ddl("raw STRING"), "from_records", 0, {"raw": "json"})
    table = TableState(3, "id", schema_to_json(parse_ddl("raw BINARY")), (), {}, 1, 2, frozenset())
    record = columns_as_agreed(stream, agreed, table).record
    assert (record.columns, record.formats) == ("raw BINARY", {"raw": "hex"})


def test_records_wait_until_columns_can_be_inferred(tmp_path: Path) -> None:
    world = from_records(tmp_path)
    writer = world.writer(FIRST)
    writer.produce("no object")
    assert "have no JSON object" in writer.problems[0]
    taken = writer.sample.taken
    writer.step()
    assert writer.sample.taken <= taken + 1, "the pause between samples grows"
    writer.sample.error = BrokerError("Kafka is away")
    world.clock.now_s += 30
    writer.step()
    assert "Kafka is away" in writer.problems[0]
    assert world.staged() == []
    writer.sample.error, writer.sample.records = None, [{"id": 1}]
    world.clock.now_s += 30
    writer.produce({"id": 1})
    assert (world.counted(), writer.problems) == ((2, 1), ())


def test_inferred_columns_that_the_settings_cannot_use_are_not_agreed_on(tmp_path: Path) -> None:
    world = from_records(tmp_path, partition_by=["dya"])
    writer = world.writer(FIRST, {"id": 1, "day": "x"})
    writer.produce({"id": 1, "day": "x"})
    assert "partition_by names 'dya'" in writer.problems[0]
    assert (world.agreed, world.staged()) == (None, [])


@pytest.mark.parametrize("framed", [False, True])
def test_change_events_read_without_their_envelope_are_diagnosed(tmp_path: Path, *, framed: bool) -> None:
    event = {"op": "c", "before": None, "after": {"id": 1}}
    world = from_records(tmp_path, load="merge", merge={"keys": ["id"]}, envelope="plain")
    with pytest.raises(ConfigError, match=r"merge\.keys names 'id'.*look like Debezium change events") as caught:
        world.finder(Sample([{"schema": None, "payload": event} if framed else event])).find()
    assert caught.value.remedy.startswith("set envelope: debezium in orders")
    with pytest.raises(ConfigError, match=r"merge\.keys names 'id'") as caught:
        world.finder(Sample([{"number": 1}])).find()
    assert "the columns are: number BIGINT" in caught.value.remedy


@pytest.mark.parametrize("framed", [False, True])
def test_merged_change_events_use_the_debezium_envelope_in_every_program(tmp_path: Path, *, framed: bool) -> None:
    event = {"op": "c", "before": None, "after": {"id": 1}}
    record = {"schema": None, "payload": event} if framed else event
    world = from_records(tmp_path, load="merge", merge={"keys": ["id"]})
    written, stage = world.settings.streams[0], world.stage
    finder = world.finder(Sample([record], images=({"id": 1},)))
    assert columns_text(written, finder.preview()) == "ok: orders: from_records, envelope: debezium: id BIGINT"
    assert world.agreed is None
    stream = finder.find().stream
    assert (stream.record.envelope, stream.record.columns) == ("debezium", "id BIGINT")
    assert required(agreed_columns(stage, "orders")).envelope == "debezium"
    known = required(found_columns(written, stage, FsspecStore))
    assert (known.record.envelope, known.record.columns) == ("debezium", "id BIGINT"), "a restart, and other writers"
    of_loader = with_columns_of_files(written, "", lambda app_id: agreed_columns(stage, app_id))
    assert (of_loader.record.envelope, of_loader.record.columns) == ("debezium", "id BIGINT")
    plain = written.model_copy(update={"envelope": "plain"})
    assert required(found_columns(plain, stage, FsspecStore)).record.envelope == "plain", "an explicit setting wins"


@pytest.mark.parametrize(
    ("more", "others"),
    [
        ({}, [{"id": 2}]),
        ({"load": "append"}, []),
        ({"merge": {"keys": ["op"], "operation": "op", "deletes": ["d"]}}, []),
    ],
    ids=["mixed with other records", "not merged", "operation in the records"],
)
def test_other_streams_read_change_events_as_plain_records(
    tmp_path: Path, more: dict[str, object], others: list[object]
) -> None:
    event = {"op": "c", "before": None, "after": {"id": 1}}
    merged = {"load": "merge", "merge": {"keys": ["op"]}} if more.get("load") != "append" else {}
    inferred = from_records(tmp_path, **{**merged, **more}).finder(Sample([event, *others], images=({"id": 1},))).find()
    assert (inferred.stream.record.envelope, "op STRING" in inferred.stream.record.columns) == ("plain", True)


def test_rows_of_an_older_file_are_written_with_all_columns_of_the_table(tmp_path: Path) -> None:
    world = from_table(tmp_path, load="merge", merge={"keys": ["id"]}, evolution="add")
    world.commit("id BIGINT, day STRING")
    stale = world.writer()
    stale.produce({"id": 1, "day": "monday"})
    world.load()
    url = world.settings.streams[0].table
    world.tables.add_columns(url, [Addition(("mood",), Primitive.STRING)])
    stale.produce({"id": 1, "day": "tuesday", "mood": "good"})
    world.load()
    (write,) = world.tables.tables[url].commits[-1].written
    assert to_ddl(schema_from_json(write.shape.schema)) == "id BIGINT, day STRING, mood STRING"


def test_names_taken_by_the_table_are_not_inferred(tmp_path: Path) -> None:
    world = from_records(tmp_path, derive={"Day": "'x'"}, kafka_columns=True, evolve_limit=3)
    many = {f"user{number}": 1 for number in range(5)}
    record = {"id": 1, "day": 1, "_kafka_offset": 1, "_rescued": 1, "kafka": 1, "many": many, "b": 1}
    assert to_ddl(required(world.finder(Sample([record])).preview()).record.schema_of_columns) == "id BIGINT, b BIGINT"
    assert world.agreed is None


def test_stream_can_switch_to_declared_columns_and_back(tmp_path: Path) -> None:
    world = from_records(tmp_path)
    world.writer(FIRST, {"id": 1}).produce({"id": 1})
    world.stream_settings["columns"] = "id BIGINT, more STRING"
    stream = found_columns(world.settings.streams[0], world.stage, FsspecStore)
    assert required(stream).record.columns == "id BIGINT, more STRING"
    world.stream_settings["columns"] = "from_records"
    assert required(world.finder(Sample([])).known()).record.columns == "id BIGINT"


def test_each_change_of_columns_keeps_loading_or_names_the_remedy(tmp_path: Path) -> None:
    world = World(tmp_path, {})
    records: list[dict[str, object]] = []

    def staged(columns: str | None) -> str:
        world.stream_settings = {} if columns is None else {"columns": columns}
        writer = world.writer(FIRST, {"id": 0, "a": "x"})
        writer.produce(*records)
        records.append({"id": len(records), "a": "x", f"new{len(records)}": 1})
        writer.produce(records[-1])
        return world.staged()[-1]

    assert staged("id BIGINT, a STRING") == "id BIGINT, a STRING"
    world.load()
    assert staged("from_table") == "id BIGINT, a STRING"
    world.load()
    assert staged("from_records") == "id BIGINT, a STRING, new2 BIGINT, _rescued STRING"
    world.load()
    assert staged(None) == "id BIGINT, a STRING, new2 BIGINT, new3 BIGINT, _rescued STRING"
    world.load()
    assert staged("from_table") == "id BIGINT, a STRING, new2 BIGINT, new3 BIGINT"
    world.load()
    assert staged("id BIGINT, b DATE") == "id BIGINT, b DATE"
    failure = required(world.report().failure)
    assert "the column b" in failure.problem
    assert failure.remedy.startswith(f"ALTER TABLE delta.`{tmp_path}/table` ADD COLUMNS (b DATE)")
    world.tables.add_columns(world.settings.streams[0].table, [Addition(("b",), Primitive.DATE)])
    world.load()
    assert world.counted() == (len(records), 0)
    assert set(world.tables.tables[f"{tmp_path}/table"].transactions.values()) == {len(records) - 1}


def test_running_writer_keeps_its_columns_when_the_table_disappears(tmp_path: Path) -> None:
    world = from_table(tmp_path)
    world.commit("id BIGINT")
    writer = world.writer()
    shutil.rmtree(tmp_path / "table")
    world.clock.now_s += LOOK_AT_TABLES_S
    writer.step()
    writer.produce({"id": 1})
    assert world.staged() == ["id BIGINT"]
    with pytest.raises(ConfigError, match="there is no Delta table") as caught:
        world.writer()
    assert caught.value.remedy == "create the table, or write columns: from_records, with which the loader creates it"


def test_route_tables_get_the_main_table_s_columns(tmp_path: Path) -> None:
    world = from_table(tmp_path, route="kind", routes={"a": f"{tmp_path}/a"}, unrouted="table")
    world.commit("id BIGINT, kind STRING")
    world.writer().produce({"id": 1, "kind": "a"}, {"id": 2, "kind": "b"})
    (manifest,) = manifests(world.stage)
    columns = {table.url: to_ddl(schema_from_json(table.schema)) for table in manifest.tables}
    assert columns.pop(world.settings.streams[0].dead_letters)
    assert columns == dict.fromkeys((f"{tmp_path}/table", f"{tmp_path}/a"), "id BIGINT, kind STRING")


def test_section_with_declared_columns_rescues_other_fields(tmp_path: Path) -> None:
    clicks = {"table": f"{tmp_path}/a", "columns": "id BIGINT, url STRING", "partition_by": ["url"]}
    world = from_records(
        tmp_path, route="kind", routes={"a": clicks, "b": {"table": f"{tmp_path}/b", "load": "append"}}
    )
    records = [{"id": 1, "kind": "a", "url": "x"}, {"id": 2, "kind": "b"}]
    world.writer(FIRST, *records).produce(*records)
    (manifest,) = manifests(world.stage)
    columns = {table.url: to_ddl(schema_from_json(table.schema)) for table in manifest.tables if table.files}
    agreed = "id BIGINT, kind STRING, url STRING, _rescued STRING"
    assert columns == {f"{tmp_path}/a": "id BIGINT, url STRING, _rescued STRING", f"{tmp_path}/b": agreed}
    assert world.counted() == (2, 0)


def test_check_shows_inferred_columns(tmp_path: Path) -> None:
    world = from_records(tmp_path)
    stream = world.settings.streams[0]
    assert columns_text(stream, world.finder(Sample([])).preview()).endswith("they are inferred from the first records")
    preview = world.finder(Sample([{"id": 1}])).preview()
    assert columns_text(stream, preview) == "ok: orders: from_records: id BIGINT"


def test_table_is_checked_with_its_own_columns_until_writers_agree_on_some(tmp_path: Path) -> None:
    world = from_records(tmp_path)
    world.commit("id BIGINT, name STRING")
    stage = Stage(world.stage, in_turn)
    checks = Preflight(world.settings, world.stage, stage, FsspecStore, lambda _: None, world.clock).checks()
    columns = [(check.level, check.message) for check in checks if check.name == "columns"]
    assert (Level.OK, "orders: from_records: id BIGINT, name STRING") in columns
    assert {level for level, _ in columns} == {Level.OK}


def test_columns_default_to_from_records() -> None:
    (stream,) = settings_of("/x").streams
    assert (stream.record.columns, stream.record.unknown_fields) == ("from_records", "evolve")
    (stream,) = settings_of("/x", columns="from_records", unknown_fields="ignore").streams
    assert stream.record.unknown_fields == "ignore"
    (stream,) = settings_of("/x", columns="from_table").streams
    assert stream.record.unknown_fields == "ignore"


@pytest.mark.parametrize(
    ("stream", "columns"),
    [
        ({"format": "avro"}, "from_registry"),
        ({"format": "protobuf", "framing": "confluent_header"}, "from_registry"),
        ({"format": "json"}, "from_records"),
        ({"format": "avro", "columns": "id BIGINT"}, "id BIGINT"),
        (
            {
                "format": "avro",
                "route_columns": "own",
                "route": "kafka.topic",
                "route_table": "/y/{route}",
            },
            "from_records",
        ),
    ],
)
def test_columns_default_to_from_registry_when_records_name_a_schema(stream: dict[str, object], columns: str) -> None:
    raw = {"app_id": "orders", "topics": ["orders"], "table": "/x", "framing": "confluent", **stream}
    assert Stream.model_validate(raw).record.columns == columns


@pytest.mark.parametrize("stream", [{"jmespath": {"a": "b"}}, {"rename": {"a": "b"}}, {"field_names": "snake_case"}])
def test_columns_from_records_evolve_with_renamed_fields(stream: dict[str, object]) -> None:
    (parsed,) = settings_of("/x", columns=" from_records ", **stream).streams
    assert parsed.record.unknown_fields == "evolve"


@pytest.mark.parametrize(
    ("stream", "needed"),
    [
        ({}, False),
        ({"framing": "confluent_header"}, True),
        ({"include": ["headers"]}, True),
        ({"derive": {"trace": "kafka.headers['trace']"}}, True),
        ({"expect": {"traced": "kafka.headers['trace'] IS NOT NULL"}}, True),
        (
            {
                "route": "a",
                "routes": {"x": {"table": "/x", "columns": "id BIGINT", "derive": {"trace": "kafka.headers['trace']"}}},
            },
            True,
        ),
    ],
)
def test_headers_that_rows_will_need_are_read_from_the_start(stream: dict[str, object], *, needed: bool) -> None:
    registry = {"url": "http://127.0.0.1:1"}
    content = {**content_of({"columns": "from_records", **stream}), "schema_registry": registry}
    (parsed,) = Settings.model_validate(content, by_alias=True).streams
    assert pending(parsed).needs_headers is needed


@pytest.mark.parametrize(
    ("stream", "words"),
    [
        (
            {"columns": "from_records", "format": "avro", "framing": "confluent"},
            "reads JSON only, but format is avro; write columns: from_registry",
        ),
        ({"columns": "from_tabel"}, "write from_table, from_records, from_registry, from_schema_file, or the columns"),
        ({"columns": "from_kafka"}, "write from_table, from_records"),
        ({"columns": "from_table", "unknown_fields": "evolve"}, "write columns: from_records"),
        ({"columns": "from_table", "rename": {"a": "b"}}, "rename renames or moves fields"),
        ({"columns": "from_table", "field_names": "snake_case"}, "field_names renames or moves fields"),
        ({"columns": "from_table", "explode": "items"}, "explode renames or moves fields"),
        ({"columns": "from_table", "drop": ["a"]}, "drop renames or moves fields"),
        ({"topology": "a:b"}, r"columns is from_records \(the default\), but a topology makes the rows"),
    ],
)
def test_contradictory_column_settings_are_refused(stream: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        settings_of("/x", **stream)


def test_agreed_columns_round_trip(tmp_path: Path) -> None:
    store = FsspecStore(f"{tmp_path}/stage")
    assert agreed_columns(store, "a/b") is None
    agreed = AgreedColumns(
        "a/b", 3, parse_ddl("x STRUCT<y: STRING>"), "from_records", 7, {"x.y": "json"}, (), "debezium"
    )
    assert agreed.create(store)
    assert not replace(agreed, created_ms=8).create(store)
    assert agreed_columns(store, "a/b") == agreed
    path = "columns/a%2Fb/00000000000000000003.json"
    stored = json.loads(required(store.read(path)))
    assert stored == {  # the stored format stays readable: fields may be added, none changed
        "version": 1,
        "app_id": "a/b",
        "columns": schema_to_json(agreed.columns),
        "formats": {"x.y": "json"},
        "source": "from_records",
        "envelope": "debezium",
        "created_ms": 7,
        "schema_ids": [],
    }
    del stored["formats"], stored["schema_ids"]
    data = json.dumps({**stored, "later": 1}).encode()
    assert AgreedColumns.from_bytes(path, 3, data) == replace(agreed, formats={})
    store.write("columns/a%2Fb/00000000000000000004.json", b'{"version": 2}')
    with pytest.raises(NewerFormatError):
        agreed_columns(store, "a/b")
