"""Merge streams in the loader's core: bounds, shares, plans, and what a verification says."""

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from common.errors import NotCompatibleError
from common.schema import CHAR_VARCHAR_KEY, backticks, parse_ddl, schema_from_json, schema_to_json, to_ddl
from common.schema.types import Field, Primitive, StructType
from common.settings.values import LoadSetting
from common.spans import Position, Span
from common.stage.markers import Marker, MarkerName, StagedFile, StagedTable, TableKind
from common.storage.store import FsspecStore
from common.tables.changes import MergeBy, MergedBy, made_fields
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts
from common.tables.state import TableState
from common.tables.table_features import GENERATED
from delta_loader.inspect.verify.findings import Verdict
from delta_loader.inspect.verify.verify import Verifier
from delta_loader.plan.plan import Limits, Run, TableShape, plan_load, shape_of
from delta_loader.ports import in_turn
from delta_loader.tables.file_split import SparkWrite, split_files_at
from delta_loader.tables.load_modes.compatibility import require_compatible
from delta_loader.tables.load_modes.load_mode import Append, Merge, Refused, choose_load_mode
from delta_loader.tables.merging.bounds import bounded_keys, key_bounds
from tests.builders import required
from tests.fakes.markers import ORDERS, flush
from tests.fakes.streams import stream_of
from tests.unit.delta_loader.inspect.test_verify import Rows

BY = MergeBy(("id",), ("_kafka_topic", "_kafka_partition", "_kafka_offset"), None, None)


def test_history_of_a_sequence_that_is_no_column_has_no_columns_of_its_own() -> None:
    columns = parse_ddl("id BIGINT, at TIMESTAMP")
    by = replace(BY, history=True)
    assert [made_fields(columns, replace(by, sequence=name)) != () for name in (None, "at", "gone")] == [
        True,
        True,
        False,
    ]


def file_of(low: Mapping[str, object] | None, high: Mapping[str, object] | None = None) -> StagedFile:
    statistics = "" if low is None else json.dumps({"minValues": low, "maxValues": high or low})
    return StagedFile("data/orders/f", None, 1, 1, statistics)


def bounds(columns: str, *files: StagedFile) -> tuple[str, ...]:
    schema = parse_ddl(columns)
    return key_bounds(files, schema, schema.names, backticks)


def test_bounds_are_the_lowest_and_highest_of_all_files_as_literals() -> None:
    days = file_of({"id": 3, "d": "2026-01-02"}, {"id": 9, "d": "2026-01-03"})
    more = file_of({"id": -1, "d": "2026-01-03"}, {"id": 4, "d": "2026-01-09"})
    assert bounds("id BIGINT, d DATE", days, more) == (
        "t.`id` >= -1L",
        "t.`id` <= 9L",
        "t.`d` >= DATE '2026-01-02'",
        "t.`d` <= DATE '2026-01-09'",
    )


def test_elements_that_a_record_has_lost_are_outside_the_bounds_of_those_that_it_has() -> None:
    assert bounded_keys(BY) == ("id",)
    assert bounded_keys(replace(BY, keys=("id", "tag"), element=(("tag",),))) == ("id",)
    assert bounded_keys(replace(BY, keys=("tag",), element=(("tag",),))) == ("tag",)


def test_missing_or_inexact_statistics_give_no_bound() -> None:
    assert bounds("id INT", file_of({"id": 3}), file_of(None)) == ()
    assert bounds("id INT", file_of({})) == ()
    torn = replace(file_of({"id": 3}), statistics='{"minValues":{"id":3},"maxValues":{}}')
    assert bounds("id INT", torn) == ()
    assert bounds("id INT") == ()
    assert bounds("id STRING", file_of({"id": "it's"})) == ()
    assert bounds("id STRING", file_of({"id": "a\\"}, {"id": "b"})) == ()
    assert bounds("id STRING", file_of({"id": "a\x7f"})) == ()
    assert bounds("id STRING", file_of({"id": "a\n"})) == ()
    assert bounds("id STRING", file_of({"id": "${env:HOME}"})) == ()  # Spark puts variables in
    assert bounds("id STRING", file_of({"id": "a$b{}"}))[0] == "t.`id` >= 'a$b{}'"
    assert bounds("id STRING", file_of({"id": "a"}, {"id": "b\U0010ffff"}))[0] == "t.`id` >= 'a'"
    assert bounds("id DECIMAL(3,1)", file_of({"id": 1.5})) == ()
    assert bounds("id TIMESTAMP", file_of({"id": "2026-01-01T00:00:00.000Z"})) == ()


def merged(start: int, end: int, by: MergeBy | None, previous: int | None = None) -> Marker:
    marker = flush(start, end, previous)
    offsets = {"_kafka_offset": start}
    file = file_of(offsets, {"_kafka_offset": end - 1})
    table = StagedTable("/t", TableKind.ROWS, '{"type":"struct","fields":[]}', ("day",), (file,), by)
    return replace(marker, manifest=replace(required(marker.manifest), tables=(table,)))


def test_load_merges_by_one_set_of_settings() -> None:
    chain = (merged(0, 3, BY), merged(3, 5, BY, 0), merged(5, 9, replace(BY, sequence="at"), 3), merged(9, 12, None, 5))
    load = required(plan_load({ORDERS: Run(chain)}, Limits(100, 100)))
    assert [marker.name for marker in load.markers] == [MarkerName(ORDERS, Position(start)) for start in (0, 3)]
    (write,) = split_files_at("/t", chain[1], Position(4)).written
    assert (write.shape.merge, write.start, write.root) == (BY, 4, None)
    (write,) = split_files_at("/t", chain[3], Position(9)).written
    assert (write.shape.merge, write.start) == (None, None)


def staged(columns: str, by: MergeBy = BY) -> Marker:
    marker = flush(0, 3, None)
    table = StagedTable("/t", TableKind.ROWS, schema_to_json(parse_ddl(columns)), (), (file_of(None),), by)
    return replace(marker, manifest=replace(required(marker.manifest), tables=(table,)))


def read(marker: Marker, table: str, *owned: str) -> SparkWrite:
    schema = schema_to_json(parse_ddl(table))
    (write,) = split_files_at("/t", marker, Position(0), schema=schema, complete_columns=frozenset(owned)).written
    return write


def test_column_missing_in_an_older_file_is_null_and_other_columns_stay() -> None:
    marker = staged("id INT, inside STRUCT<a: INT>")
    write = read(marker, "id INT, mine STRING, inside STRUCT<b: INT, a: INT>, gained ARRAY<INT>", "id", "gained")
    assert to_ddl(schema_from_json(write.shape.schema)) == "id INT, inside STRUCT<a: INT, b: INT>, gained ARRAY<INT>"
    assert write.shape.merge == BY
    assert read(marker, "id INT, inside STRUCT<a: INT>", "id", "gained").shape == shape_of(marker.tables[0])


def test_generated_column_is_left_to_delta() -> None:
    made = Field("made", Primitive.INTEGER, metadata_json=json.dumps({GENERATED: "id + 1"}))
    schema = schema_to_json(StructType((*parse_ddl("id INT"), made)))
    (write,) = split_files_at(
        "/t", staged("id INT"), Position(0), schema=schema, complete_columns=frozenset({"made"})
    ).written
    assert schema_from_json(write.shape.schema).names == ("id",)


def test_delete_is_not_refused_for_a_value_that_it_does_not_set() -> None:
    casts = read(staged("id BIGINT, inside STRUCT<a: BIGINT>"), "id INT, inside STRUCT<a: INT, b: INT>").casts
    assert [(cast.column, cast.unused_if) for cast in casts] == [("id", ""), ("inside", "_merge_delete")]
    assert casts[1].type == "STRUCT<a: INT, b: INT>"
    assert casts[0].loses.startswith("NOT (try_cast")
    assert casts[1].loses.startswith("(NOT _merge_delete AND NOT (try_cast")


def test_append_only_table_is_refused_for_merges() -> None:
    state = TableState(
        version=0,
        table_id="t",
        schema='{"type":"struct","fields":[]}',
        partition_by=(),
        properties={"delta.appendOnly": "true"},
        reader_version=1,
        writer_version=2,
        features=frozenset(),
        transactions={},
    )
    assert isinstance(choose_load_mode(state, LoadSetting.MERGE), Refused)
    assert not isinstance(choose_load_mode(state, LoadSetting.AUTO), Refused)


@pytest.mark.parametrize(
    ("spark_says", "is_taken"), [("char(3)", False), ("array<struct<d:char(3)>>", False), ("varchar(3)", True)]
)
def test_table_with_padded_texts_is_refused_for_merges(spark_says: str, *, is_taken: bool) -> None:
    column = Field("c.d", Primitive.STRING, metadata_json=json.dumps({CHAR_VARCHAR_KEY: spark_says}))
    schema = schema_to_json(StructType((column,)))
    state = TableState(0, "t", schema, (), {}, 1, 2, frozenset())
    way = choose_load_mode(state, LoadSetting.MERGE)
    assert isinstance(way, Merge if is_taken else Refused)
    assert isinstance(choose_load_mode(state), Append)
    if isinstance(way, Refused):
        assert ("ALTER COLUMN `c.d` TYPE STRING" in way.remedy) == (spark_says == "char(3)")


BY_ID = MergedBy(("id",))


class Twice(Rows):
    """A table in which another program wrote a key's row once more."""

    def repeated_keys(self, _url: str, version: int, keys: Sequence[str], _where: str | None) -> list[str]:
        return ['{"id":7}'] if (version, tuple(keys)) == (1, ("`id`",)) else []


def written_log(table: str, merged_by: MergedBy | None = BY_ID) -> FsspecStore:
    """A table into which two loads of events were merged."""
    store = FsspecStore(table)
    schema = schema_to_json(parse_ddl("id INT, is_current BOOLEAN"))
    made = {"metaData": {"id": "t", "schemaString": schema, "partitionColumns": [], "configuration": {}}}
    for version, (start, end) in enumerate(((0, 10), (10, 30))):
        span = Span(Position(start), Position(end))
        counts = {ORDERS: Counts(end - start, end - start, 0, 0)}
        positions = {ORDERS: span.end}
        metadata = CommitMetadata(
            f"c{version}", "orders", {ORDERS: span}, None, counts, positions=positions, merged_by=merged_by
        )
        actions = (
            *(() if version else ({"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, made)),
            {"commitInfo": {"operation": "STREAMING UPDATE", "userMetadata": metadata.to_json()}},
            {"txn": {"appId": "orders-0", "version": end - 1}},
            {"add": {"path": f"{version}.parquet", "stats": '{"numRecords":4}', "dataChange": True}},
            *([{"remove": {"path": "0.parquet", "dataChange": True}}] if version else []),
        )
        store.write(f"_delta_log/{version:020d}.json", "\n".join(map(json.dumps, actions)).encode())
        store.write(f"{version}.parquet", b"rows")
    return store


def test_verification_proves_positions_but_not_rows_of_a_merged_table() -> None:
    table = f"memory://{uuid.uuid4().hex}"
    stream = stream_of(columns="id INT", table=table, load="merge", merge={"keys": ["id"]})
    store = written_log(table)
    report = Verifier(FsspecStore, in_turn, Rows(), None).verify(stream)
    assert (report.failure, report.is_clean) == (None, True)
    assert [(finding.kind, finding.verdict) for finding in report.findings] == [("merged", Verdict.UNPROVED)]
    assert [(partition.partition, partition.begins, partition.position) for partition in report.partitions] == [
        (ORDERS, 0, 30)
    ]
    report = Verifier(FsspecStore, in_turn, Twice(), None).verify(stream)
    assert [(fault.kind, fault.version, '{"id":7}' in fault.text) for fault in report.faults] == [
        ("keys_twice", 1, True)
    ]
    store.write(f"_delta_log/{1:020d}.json", store.read(f"_delta_log/{0:020d}.json") or b"")
    report = Verifier(FsspecStore, in_turn, Rows(), None).verify(stream)
    assert "overlap" in [fault.kind for fault in report.faults]


def test_verification_reports_repeated_keys_in_each_table() -> None:
    class InTheCopy(Rows):
        def repeated_keys(self, url: str, _version: int, _keys: Sequence[str], _where: str | None) -> list[str]:
            return ['{"id":7}'] if url.endswith("copy") else []

    table = f"memory://{uuid.uuid4().hex}"
    tables = {"table": f"{table}/own", "tables": [f"{table}/copy"]}
    stream = stream_of(columns="id INT", load="merge", merge={"keys": ["id"]}, **tables)
    for url in stream.row_tables:
        written_log(url)
    report = Verifier(FsspecStore, in_turn, InTheCopy(), None).verify(stream)
    assert [(fault.kind, fault.table) for fault in report.faults] == [("keys_twice", f"{table}/copy")]
    assert Verifier(FsspecStore, in_turn, Rows(), None).verify(stream).faults == ()


def test_verification_reports_two_current_versions_of_a_key() -> None:
    class Currents(Rows):
        def repeated_keys(self, _url: str, _version: int, _keys: Sequence[str], where: str | None) -> list[str]:
            return ['{"id":7}'] if where == "coalesce(is_current, true)" else []

    stream = stream_of(
        columns="id INT", table=f"memory://{uuid.uuid4().hex}", load="merge", merge={"keys": ["id"], "history": True}
    )
    written_log(stream.table, MergedBy(("id",), history=True))
    report = Verifier(FsspecStore, in_turn, Currents(), None).verify(stream)
    assert [fault.kind for fault in report.faults] == ["keys_twice"]


@pytest.mark.parametrize(
    ("merged_by", "looked_for"),
    [
        (MergedBy(("id",), history=True), (("`id`",), "coalesce(is_current, true)")),
        (MergedBy(("is_current",)), (("`is_current`",), None)),
    ],
)
def test_keys_are_looked_for_as_the_rows_were_merged_and_not_as_the_settings_say_now(
    merged_by: MergedBy, looked_for: tuple[tuple[str, ...], str | None]
) -> None:
    class Table(Rows):
        def repeated_keys(self, _url: str, _version: int, keys: Sequence[str], where: str | None) -> list[str]:
            asked.append((tuple(keys), where))
            return duplicates

    asked: list[tuple[tuple[str, ...], str | None]] = []
    duplicates: list[str] = []
    stream = stream_of(columns="id INT", table=f"memory://{uuid.uuid4().hex}", load="merge", merge={"keys": ["id"]})
    written_log(stream.table, merged_by)
    assert Verifier(FsspecStore, in_turn, Table(), None).verify(stream).is_clean
    assert asked == [looked_for]
    duplicates.append('{"id":7}')
    assert [fault.kind for fault in Verifier(FsspecStore, in_turn, Table(), None).verify(stream).faults] == [
        "keys_twice"
    ]


def test_keys_twice_in_rows_that_were_never_merged_are_no_fault_and_keys_that_are_gone_are_not_looked_for() -> None:
    stream = stream_of(columns="id INT", table=f"memory://{uuid.uuid4().hex}", load="merge", merge={"keys": ["id"]})
    written_log(stream.table, None)
    report = Verifier(FsspecStore, in_turn, Twice(), None).verify(stream)
    assert (report.is_clean, report.findings[-1].kind) == (True, "keys_twice")
    assert "the rows were not merged" in report.findings[-1].text
    overwritten = (
        {"commitInfo": {"operation": "WRITE", "operationParameters": {"mode": "Overwrite"}}},
        {"remove": {"path": "1.parquet", "dataChange": True}},
    )
    store = FsspecStore(stream.table)
    store.write(f"_delta_log/{2:020d}.json", "\n".join(map(json.dumps, overwritten)).encode())
    report = Verifier(FsspecStore, in_turn, Rows(), None).verify(stream)
    assert [(finding.kind, finding.version) for finding in report.findings][1:] == [("rows_removed", 2)]
    store.delete([f"_delta_log/{2:020d}.json"])
    written_log(stream.table, MergedBy(("gone",)))
    report = Verifier(FsspecStore, in_turn, Twice(), None).verify(stream)
    assert (report.is_clean, report.findings[-1].kind) == (True, "merged_otherwise")
    assert "merged by gone" in report.findings[-1].text


def test_versions_are_not_merged_by_key_alone_once_history_is_off() -> None:
    columns = "id INT, valid_from TIMESTAMP, valid_to TIMESTAMP, is_current BOOLEAN"
    table = TableShape(schema_to_json(parse_ddl(columns)), ())
    staged = TableShape(schema_to_json(parse_ddl("id INT")), (), BY)
    with pytest.raises(NotCompatibleError, match="it keeps every version of a row") as caught:
        require_compatible(table, staged, "/t", Merge("load is merge"), restage="stage again with `x`")
    assert caught.value.remedy.startswith("set merge.history: true and stage again with `x`; or load into a new table")
    declared = replace(staged, schema=table.schema)
    for fine in (declared, replace(declared, merge=replace(BY, history=True)), replace(staged, merge=None)):
        require_compatible(table, fine, "/t", Merge("load is merge"))


def test_delete_that_adds_a_version_loses_no_value_by_a_cast() -> None:
    by = replace(BY, soft_delete="gone", history=True)
    plain = (replace(by, soft_delete=None), replace(by, history=False))
    for how, unused in ((by, ""), *((merge, "_merge_delete") for merge in plain)):
        casts = read(staged("id BIGINT, n BIGINT", how), "id INT, n INT").casts
        assert [cast.unused_if for cast in casts] == ["", unused]
