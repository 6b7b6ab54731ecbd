"""Which load mode a table gets, and which schemas are compatible with it."""

import pytest

from common.errors import TableError
from common.remedies import repair
from common.schema import nullable_columns, parse_ddl, schema_from_json, schema_to_json
from common.schema.types import DataType
from common.schema.widening import widened
from common.settings.values import LoadSetting
from common.spans import Partition, Position, Topic, TopicPartition
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from common.tables.state import TableState
from common.tables.table_features import may_have_refused_rows, may_refuse_rows
from delta_loader.plan.held import stage_again
from delta_loader.plan.plan import TableShape
from delta_loader.tables.load_modes.casting import casts_of
from delta_loader.tables.load_modes.compatibility import differences, remedy_for, require_compatible
from delta_loader.tables.load_modes.load_mode import Add, Append, Merge, Refused, choose_load_mode, require_loadable
from tests.builders import instance


def shape(ddl: str, *partition_by: str) -> TableShape:
    return TableShape(schema_to_json(parse_ddl(ddl)), partition_by)


def state(
    ddl: str = "a INT", *, properties: dict[str, str] | None = None, features: tuple[str, ...] = (), writer: int = 2
) -> TableState:
    return TableState(0, "id", schema_to_json(parse_ddl(ddl)), (), properties or {}, 1, writer, frozenset(features))


@pytest.mark.parametrize(
    ("table", "staged"),
    [
        ("a INT, b STRING", "a INT"),
        ("b STRING, a INT", "a INT, b STRING"),
        ("s STRUCT<x: INT, y: INT>", "s STRUCT<x: INT>"),
        ("l ARRAY<STRUCT<x: INT, y: INT>>, m MAP<STRING, BIGINT>", "l ARRAY<STRUCT<x: INT>>, m MAP<STRING, BIGINT>"),
    ],
)
def test_table_may_have_more_columns(table: str, staged: str) -> None:
    assert differences(shape(table), shape(staged)) == ()


@pytest.mark.parametrize(
    ("table", "staged", "message"),
    [
        ("a INT", "a INT, b STRING", "the column b is not in it"),
        ("A INT", "a INT", "the column a is not in it (it has A)"),
        ("a INT", "a BIGINT", "the column a is INT, staged as BIGINT"),
        ("s STRUCT<x: INT>", "s STRUCT<x: INT, y: INT>", "the column s.y is not in it"),
        ("l ARRAY<INT>", "l ARRAY<STRING>", "the column l.element is INT, staged as STRING"),
        ("m MAP<STRING, INT>", "m MAP<STRING, DATE>", "the column m.value is INT, staged as DATE"),
    ],
)
def test_schema_difference_is_named(table: str, staged: str, message: str) -> None:
    assert differences(shape(table), shape(staged)) == (message,)
    with pytest.raises(TableError, match="/t: the column"):
        require_compatible(shape(table), shape(staged), "/t")


def test_remedy_for_a_difference_has_its_commands() -> None:
    starts = {TopicPartition(Topic("orders"), Partition(number)): Position(10 + number) for number in range(5)}
    again = stage_again(starts)
    for table, staged in [(shape("a INT"), shape("a BIGINT")), (shape("a INT", "a"), shape("a INT"))]:
        with pytest.raises(TableError) as raised:
            require_compatible(table, staged, "/t", restage=again)
        for number in range(3):
            command = f"`{repair('rewind', TopicPartition(Topic('orders'), Partition(number)), 10 + number)} --yes`"
            assert command in raised.value.remedy
        assert "so for 2 more" in raised.value.remedy
    assert "rewind" not in remedy_for(shape("a INT"), shape("a BIGINT"), "/t", "streams[0].columns"), "nothing waits"
    assert "--below-table" in stage_again(starts, below_table=True)


def test_remedy_for_swapped_tables_mixes_no_rows_with_dead_letters() -> None:
    rows, dead_letters = shape("id BIGINT"), TableShape(schema_to_json(DEAD_LETTER_SCHEMA), ())
    for table, staged, wrong in [(rows, dead_letters, "dead_letters"), (dead_letters, rows, "table")]:
        remedy = remedy_for(table, staged, "/t", "columns", restage="stage again")
        assert f"set {wrong} to another table" in remedy
        assert remedy.endswith(" and stage again")
        assert "ADD COLUMNS" not in remedy


def test_remedy_for_a_partition_column_that_is_not_staged_names_it() -> None:
    table, staged = shape("a INT, b INT", "a"), shape("b INT, c INT", "c")
    assert "partition_by: [a] with a among the stream's columns" in remedy_for(table, staged, "/t", "columns")


def test_remedy_for_another_case_is_a_rename() -> None:
    table = shape("userId INT, s STRUCT<userId: INT>, _KAFKA_OFFSET BIGINT")
    remedy = remedy_for(table, shape("userid INT, s STRUCT<USERID: INT>, _kafka_offset BIGINT"), "/t", "columns")
    assert "set rename: {userid: userId, s.USERID: userId};" in remedy


def test_remedy_for_a_refused_table_names_the_table() -> None:
    way = choose_load_mode(state(properties={"delta.appendOnly": "true"}), LoadSetting.MERGE)
    with pytest.raises(TableError) as raised:
        require_loadable(way, "/t")
    assert "ALTER TABLE delta.`/t` UNSET TBLPROPERTIES ('delta.appendOnly')" in raised.value.remedy


def test_different_partitioning_is_named() -> None:
    assert differences(shape("a INT", "a"), shape("a INT")) == ("it is partitioned by a, staged by nothing",)


@pytest.mark.parametrize(
    "table",
    [
        state(),
        state(writer=7, features=("appendOnly", "invariants", "deletionVectors", "columnMapping", "timestampNtz")),
        state(writer=7, features=("rowTracking", "domainMetadata", "clustering")),
        state(properties={"delta.columnMapping.mode": "none", "delta.appendOnly": "True"}),
    ],
)
def test_files_are_added_to_plain_tables_unless_set_otherwise(table: TableState) -> None:
    for setting in (LoadSetting.AUTO, LoadSetting.ADD):
        assert isinstance(choose_load_mode(table, setting), Add)
        require_loadable(choose_load_mode(table, setting), "/t")
    assert choose_load_mode(table, LoadSetting.APPEND) == Append("load is append")
    append_only = "delta.appendOnly" in table.properties
    assert isinstance(choose_load_mode(table, LoadSetting.MERGE), Refused if append_only else Merge)


@pytest.mark.parametrize(
    ("table", "checks", "did"),
    [
        (state(), False, False),
        (state(writer=3), False, True),
        (state(writer=6), False, True),
        (state("a INT NOT NULL"), True, True),
        (state("s STRUCT<x: INT NOT NULL>"), True, True),
        (state(properties={"Delta.constraints.positive": "a > 0"}), True, True),
    ],
)
def test_table_that_checks_its_rows_or_did_may_have_refused_some(table: TableState, *, checks: bool, did: bool) -> None:
    assert (may_refuse_rows(table), may_have_refused_rows(table)) == (checks, did)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (state(properties={"delta.columnMapping.mode": "name"}), "column mapping mode is name"),
        (state(properties={"delta.constraints.positive": "a > 0"}), "positive"),
        (state(properties={"delta.enableIcebergCompatV2": "true"}), "Iceberg"),
        (state(writer=7, features=("materializePartitionColumns",)), "hold the partition columns"),
        (state("a INT NOT NULL"), "a is NOT NULL"),
        (state("s STRUCT<x: INT NOT NULL>"), "s.x is NOT NULL"),
        (state("a INT, v VARIANT", writer=7, features=("variantType",)), "v is a VARIANT"),
    ],
)
def test_table_features_that_need_spark_require_append(table: TableState, message: str) -> None:
    for setting in (LoadSetting.AUTO, LoadSetting.APPEND):
        way = instance(Append, choose_load_mode(table, setting))
        assert message in way.reason
    refused = instance(Refused, choose_load_mode(table, LoadSetting.ADD))
    assert message in refused.reason
    with pytest.raises(TableError, match="load is add") as raised:
        require_loadable(refused, "/t")
    assert "load: auto" in raised.value.remedy


@pytest.mark.parametrize(
    "key", ["delta.generationExpression", "delta.invariants", "delta.identity.start", "CURRENT_DEFAULT"]
)
def test_columns_that_delta_computes_require_append(key: str) -> None:
    way = choose_load_mode(TableState(0, "id", column_with(f'{{"{key}":1}}'), (), {}, 1, 2, frozenset()))
    assert isinstance(way, Append)
    assert "column a " in way.reason


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (state(writer=7, features=("appendOnly", "rainbow")), "rainbow"),
        (state(writer=7, features=("catalogManaged",)), "its catalog makes its commits"),
        (state(writer=8), "protocol 8"),
        (state(properties={"delta.universalFormat.enabledFormats": "iceberg"}), "iceberg"),
    ],
)
def test_unknown_table_feature_is_refused_by_name(table: TableState, message: str) -> None:
    for setting in LoadSetting:
        way = instance(Refused, choose_load_mode(table, setting))
        assert message in way.reason
        with pytest.raises(TableError, match="rows cannot be loaded into the Delta table /t"):
            require_loadable(way, "/t")


def test_unknown_type_is_refused() -> None:
    json = '{"type":"struct","fields":[{"name":"a","type":"hologram","nullable":true,"metadata":{}}]}'
    way = instance(Refused, choose_load_mode(TableState(0, "id", json, (), {}, 1, 2, frozenset())))
    assert "hologram" in way.reason


def column_with(metadata: str, *, nullable: str = "true") -> str:
    field = f'{{"name":"a","type":"long","nullable":{nullable},"metadata":{metadata}}}'
    return f'{{"type":"struct","fields":[{field},{{"name":"b","type":"long","nullable":true,"metadata":{{}}}}]}}'


APPENDED = Append("a reason")


@pytest.mark.parametrize(
    ("table", "staged", "messages"),
    [
        (TableShape(column_with('{"delta.generationExpression":"b"}'), ("a",)), shape("b BIGINT"), ()),
        (TableShape(column_with('{"CURRENT_DEFAULT":"7"}', nullable="false"), ()), shape("b BIGINT", "b"), ()),
        (TableShape(column_with("{}", nullable="false"), ()), shape("b BIGINT"), ("a is NOT NULL, but is not staged",)),
        (TableShape(column_with("{}"), ("a",)), shape("b BIGINT"), ("partitioned by a, which is not staged",)),
        (
            TableShape(column_with('{"delta.identity.start":1,"delta.identity.allowExplicitInsert":false}'), ()),
            shape("a BIGINT"),
            ("GENERATED ALWAYS AS IDENTITY",),
        ),
        (
            TableShape(column_with('{"delta.identity.start":1,"delta.identity.allowExplicitInsert":true}'), ()),
            shape("a BIGINT"),
            (),
        ),
        (shape("s STRUCT<x: INT, y: INT NOT NULL>"), shape("s STRUCT<x: INT>"), ("s.y is NOT NULL, but is not",)),
    ],
)
def test_columns_that_delta_computes_need_not_be_staged(
    table: TableShape, staged: TableShape, messages: tuple[str, ...]
) -> None:
    problems = differences(table, staged, APPENDED)
    assert len(problems) == len(messages)
    for problem, words in zip(problems, messages, strict=True):
        assert words in problem


def test_variant_column_accepts_staged_text() -> None:
    table, staged = shape("a INT, v VARIANT, s STRUCT<w: VARIANT>"), shape("v STRING, a INT")
    assert differences(table, staged, APPENDED) == ()
    assert differences(table, staged) == ("the column v is VARIANT, staged as STRING",)
    assert differences(table, shape("v BIGINT"), APPENDED) == ("the column v is STRING, staged as BIGINT",)
    assert differences(table, shape("s STRUCT<w: STRING>"), APPENDED) == (
        "the column s.w is VARIANT, staged as STRING",
    )


def test_new_tables_have_nullable_columns_at_every_depth() -> None:
    given = parse_ddl("a INT NOT NULL, s STRUCT<x: INT NOT NULL>, l ARRAY<STRUCT<y: INT NOT NULL>>")
    relaxed = schema_to_json(nullable_columns(given))
    assert '"nullable":false' not in relaxed
    assert isinstance(choose_load_mode(TableState(0, "id", relaxed, (), {}, 1, 2, frozenset())), Add)
    assert schema_from_json(relaxed).names == ("a", "s", "l")


@pytest.mark.parametrize(
    ("table", "staged", "wider"),
    [
        ("INT", "BIGINT", "BIGINT"),
        ("BIGINT", "INT", "BIGINT"),
        ("TINYINT", "DOUBLE", "DOUBLE"),
        ("FLOAT", "DOUBLE", "DOUBLE"),
        ("FLOAT", "INT", "DOUBLE"),
        ("BIGINT", "DOUBLE", None),
        ("DOUBLE", "BIGINT", None),
        ("INT", "DECIMAL(5,2)", "DECIMAL(12,2)"),
        ("DECIMAL(5,2)", "DECIMAL(4,3)", "DECIMAL(6,3)"),
        ("DECIMAL(38,2)", "DECIMAL(38,3)", None),
        ("DATE", "TIMESTAMP_NTZ", "TIMESTAMP_NTZ"),
        ("DATE", "TIMESTAMP", None),
        ("STRING", "INT", None),
    ],
)
def test_types_are_widened_as_delta_allows(table: str, staged: str, wider: str | None) -> None:
    result = widened(type_of(table), type_of(staged))
    assert result == (None if wider is None else type_of(wider))
    if wider is not None:
        assert widened(type_of(wider), type_of(staged)) == type_of(wider), "widening is idempotent"


@pytest.mark.parametrize(
    ("table", "staged", "casts"),
    [
        ("BIGINT", "INT", "BIGINT"),
        ("INT", "BIGINT", "INT"),
        ("INT", "DOUBLE", "INT"),
        ("STRUCT<a: BIGINT, b: INT>", "STRUCT<a: INT>", "STRUCT<a: BIGINT>"),
        ("ARRAY<STRUCT<a: INT>>", "ARRAY<STRUCT<a: BIGINT>>", "ARRAY<STRUCT<a: INT>>"),
        ("STRING", "INT", None),
        ("INT", "STRING", None),
        ("MAP<STRING, BIGINT>", "MAP<STRING, INT>", None),
        ("STRUCT<a: BIGINT, m: MAP<STRING, INT>>", "STRUCT<a: INT, m: MAP<STRING, INT>>", None),
        ("MAP<STRING, INT>", "MAP<STRING, INT>", None),
        ("INT", "INT", None),
    ],
)
def test_only_numbers_are_cast(table: str, staged: str, casts: str | None) -> None:
    known, given = shape(f"c {table}"), shape(f"c {staged}")
    types = [parse_ddl(f"c {cast.type}") for cast in casts_of(known.schema, given.schema)]
    assert types == ([] if casts is None else [parse_ddl(f"c {casts}")])
    assert (differences(known, given, casting=True) == ()) == (casts is not None or table == staged)


def type_of(ddl: str) -> DataType:
    return parse_ddl(f"c {ddl}").fields[0].type
