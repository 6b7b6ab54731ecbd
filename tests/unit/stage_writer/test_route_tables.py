"""Tables with separate columns, and records that go to several tables."""

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from random import Random

import fastavro
import pyarrow as pa
import pytest

from common.errors import ExpressionError, SchemaError
from common.schema import schema_from_json, to_ddl
from common.settings import Stream
from common.spans import Position
from devservices.schema_registry import running_registry
from stage_writer.convert_by_table import TablesConverter, converter_of
from stage_writer.decode.batch import headers_column
from stage_writer.layers import NO_INPUTS, RecordInputs
from stage_writer.parquet.buffer import Buffer, StagedRows
from tests.fakes.answering import schema_registry
from tests.fakes.streams import batch_of, stream_of

CLICK = {"table": "/tables/clicks", "columns": "id STRING, url STRING", "derive": {"day": "substr(url, 1, 3)"}}
VIEW = {"table": "/tables/views", "columns": "page STRUCT<name: STRING>, ms INT", "partition_by": ["ms"]}


def sectioned(**settings: object) -> Stream:
    stream: dict[str, object] = {
        "columns": "id BIGINT, kind STRING",
        "route": "kind",
        "routes": {"click": CLICK, "view": VIEW, "plain": "/tables/plain"},
        **settings,
    }
    return stream_of(**stream)


def convert(
    stream: Stream, values: Sequence[object], inputs: RecordInputs = NO_INPUTS, headers: pa.ListArray | None = None
) -> StagedRows:
    batch = batch_of(
        [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values]
    )
    converter = converter_of(stream, inputs)
    assert converter.needs_headers == (headers is not None)
    ((_, staged),) = (rows for part in converter.slices([replace(batch, headers=headers)]) for rows in part)
    return staged


def rows(staged: StagedRows) -> dict[str, list[dict[str, object]]]:
    named = {"own": staged.rows[0], **{table.url: routed for table, routed in staged.routed}}
    drop = ("_kafka_topic", "_kafka_partition", "_kafka_timestamp")
    return {name: routed.drop_columns(drop).to_pylist() for name, routed in named.items() if len(routed)}


def dead(staged: StagedRows) -> list[tuple[int, str, str]]:
    letters = staged.rows[1]
    columns = (letters.column(name).to_pylist() for name in ("_kafka_offset", "error_class", "error"))
    return list(zip(*columns, strict=True))


def test_tables_have_separate_columns_in_avro() -> None:
    names = [{"name": name, "type": ["null", "string"], "default": None} for name in ("id", "kind", "url")]
    schema = {"type": "record", "name": "R", "fields": [*names, {"name": "ms", "type": "int"}]}
    values = []
    for value in ({"id": "a", "kind": "click", "url": "/shop", "ms": 1}, {"kind": "view", "ms": 3}):
        file = io.BytesIO()
        fastavro.schemaless_writer(file, fastavro.parse_schema(schema), value)
        values.append(file.getvalue())
    stream = sectioned(columns="kind STRING", format="avro", schema_file="r.avsc")
    staged = convert(stream, [*values, b"x"], RecordInputs(schema_file=json.dumps(schema).encode()))
    assert rows(staged) == {
        "/tables/clicks": [{"id": "a", "url": "/shop", "day": "/sh", "_kafka_offset": 100}],
        "/tables/views": [{"page": None, "ms": 3, "_kafka_offset": 101}],
    }
    assert dict(staged.dead_letters) == {"invalid_record": 1}


def test_tables_have_separate_columns_in_json_with_a_schema_in_a_header() -> None:
    with running_registry() as registry:
        number = registry.register('{"properties": {"ms": {"type": "integer", "maximum": 9}}}')
        schemas = schema_registry(registry.url, resolves={"JSON"})
        header: list[tuple[str, bytes | None]] = [("__value_schema_id", b"\0" + number.to_bytes(4))]
        stream = sectioned(framing="confluent_header", validate=True)
        values = [{"kind": "view", "ms": 3}, {"kind": "view", "ms": 30}, {"kind": "view", "ms": 3}]
        staged = convert(stream, values, RecordInputs(schemas), headers_column([header, header, None]))
    assert rows(staged) == {"/tables/views": [{"page": None, "ms": 3, "_kafka_offset": 100}]}
    assert dict(staged.dead_letters) == {"against_schema": 1, "not_framed": 1}


def test_tables_with_the_same_columns_have_separate_formats() -> None:
    units = ("epoch_s", "epoch_ms")
    sections = {
        unit: {"table": f"/tables/{unit}", "columns": "at TIMESTAMP", "formats": {"at": unit}} for unit in units
    }
    staged = convert(sectioned(routes=sections), [{"kind": "epoch_s", "at": 7}, {"kind": "epoch_ms", "at": 7_000}])
    assert {row["at"] for made in rows(staged).values() for row in made} == {datetime.fromtimestamp(7, UTC)}


def test_record_is_decoded_by_the_columns_of_its_route() -> None:
    staged = convert(
        sectioned(),
        [
            {"id": "a", "kind": "click", "url": "/shop"},
            {"id": 7, "kind": "other"},
            {"kind": "view", "page": {"name": "p"}, "ms": 3},
            {"id": 8, "kind": "plain"},
        ],
    )
    assert rows(staged) == {
        "own": [{"id": 7, "kind": "other", "_kafka_offset": 101}],
        "/tables/clicks": [{"id": "a", "url": "/shop", "day": "/sh", "_kafka_offset": 100}],
        "/tables/views": [{"page": {"name": "p"}, "ms": 3, "_kafka_offset": 102}],
        "/tables/plain": [{"id": 8, "kind": "plain", "_kafka_offset": 103}],
    }
    assert {table.url: (to_ddl(schema_from_json(table.schema)).partition(", _kafka")[0], table.partition_by)
            for table, _ in staged.routed} == {
        "/tables/clicks": ("id STRING, url STRING, day STRING", ()),
        "/tables/views": ("page STRUCT<name: STRING>, ms INT", ("ms",)),
        "/tables/plain": ("id BIGINT, kind STRING", ()),
    }  # fmt: skip
    assert (staged.records, staged.exploded, staged.filtered) == (4, 0, 0)


def test_dead_letter_names_the_route_that_refused_it() -> None:
    staged = convert(
        sectioned(),
        [
            {"id": 1, "kind": "click"},
            {"id": "x", "kind": "other"},
            {"kind": 5},
            b"{",
            {"kind": "view", "ms": "x"},
            None,
        ],
    )
    errors = {offset: (error_class, error) for offset, error_class, error in dead(staged)}
    assert rows(staged) == {}
    assert {offset: error_class for offset, (error_class, _) in errors.items()} == {
        100: "wrong_type",
        101: "wrong_type",
        102: "wrong_type",
        103: "invalid_json",
        104: "wrong_type",
    }
    assert errors[100][1].endswith("(in routes.click)")
    assert errors[104][1].endswith("(in routes.view)")
    assert "(in" not in errors[101][1]
    assert staged.tombstones == 1


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        ({"where": "kind <> 'view'"}, {"/tables/clicks": [100], "own": [102]}),
        (
            {"where": "kafka.offset > 100", "route": "kafka.topic", "routes": {"orders": VIEW}},
            {"/tables/views": [101, 102, 103]},
        ),
        ({"derive": {"what": "'cl' || kind"}, "route": "what"}, {"own": [101, 102], "/tables/clicks": [103]}),
        ({"unknown_fields": "rescue", "where": "_rescued IS NOT NULL"}, {"/tables/views": [101]}),
    ],
)
def test_conditions_and_routes_see_the_streams_columns(
    settings: dict[str, object], wanted: dict[str, list[int]]
) -> None:
    given = [
        {"id": "a", "kind": "click", "url": "/"},
        {"kind": "view", "ms": 3, "page": None},
        {"id": 7, "kind": "other"},
        {"id": "b", "kind": "ick"},
    ]
    staged = convert(sectioned(**settings), given)
    offsets_of = {name: [row["_kafka_offset"] for row in some] for name, some in rows(staged).items()}
    assert {name: offsets for name, offsets in offsets_of.items() if name in wanted} == wanted
    assert sum(map(len, offsets_of.values())) + staged.filtered + len(dead(staged)) == len(given)


def test_section_without_columns_changes_only_its_own_settings() -> None:
    stream = sectioned(partition_by=["id"], routes={"click": {"table": "/tables/clicks", "load": "append"}})
    staged = convert(stream, [{"id": 1, "kind": "click"}])
    ((table, routed),) = staged.routed
    assert (table.waits, table.partition_by, routed.column("id").to_pylist()) == (True, ("id",), [1])
    assert not isinstance(converter_of(stream), TablesConverter)


def test_rows_appended_by_spark_carry_their_position_in_that_table_only() -> None:
    routes = {"click": {"table": "/tables/clicks", "load": "append"}}
    staged = convert(sectioned(kafka_columns=False, routes=routes), [{"id": 1, "kind": "click"}, {"id": 2}])
    ((table, routed),) = staged.routed
    assert table.place is not None
    assert routed.column_names == ["id", "kind", *table.place]
    assert staged.rows[0].column_names == ["id", "kind"]


def test_array_of_routes_gives_the_record_to_each_table_once() -> None:
    stream = stream_of(
        columns="id BIGINT, kinds ARRAY<STRING>",
        route="kinds",
        routes={"a": "/tables/a", "also a": "/tables/a/", "b": "/tables/b"},
    )
    kinds = [["a", "b"], ["b", "also a", "a"], ["a", "x"], [], None, ["b"], ["x", None]]
    staged = convert(stream, [{"id": number, "kinds": kind} for number, kind in enumerate(kinds)])
    assert {name: [row["id"] for row in some] for name, some in rows(staged).items()} == {
        "own": [2, 3, 4, 6],
        "/tables/a": [0, 1, 2],
        "/tables/b": [0, 1, 5],
    }
    assert (staged.records, staged.exploded) == (7, 3)


def test_record_with_one_unknown_route_is_a_dead_letter_if_configured() -> None:
    stream = stream_of(columns="kinds ARRAY<STRING>", route="kinds", routes={"a": "/tables/a"}, unrouted="dead_letters")
    staged = convert(stream, [{"kinds": ["a", "x"]}, {"kinds": ["a"]}, {"kinds": []}, {"kinds": ["a", None]}])
    assert [row["_kafka_offset"] for row in rows(staged)["/tables/a"]] == [101]
    assert dead(staged) == [
        (100, "unrouted", "its route is 'x', which is not in routes"),
        (102, "unrouted", "its route is null, which is not in routes"),
        (103, "unrouted", "its route is null, which is not in routes"),
    ]


def test_every_record_goes_to_all_tables_without_a_route() -> None:
    items = {"table": "/tables/names", "columns": "name STRING"}
    stream = stream_of(table="/tables/orders", columns="id BIGINT", tables=["/tables/copy", items])
    staged = convert(stream, [{"id": 1, "name": "a"}, {"id": "x", "name": "b"}, None, {"id": 3, "name": 5}, {"id": 4}])
    assert rows(staged) == {
        "own": [{"id": 1, "_kafka_offset": 100}, {"id": 4, "_kafka_offset": 104}],
        "/tables/copy": [{"id": 1, "_kafka_offset": 100}, {"id": 4, "_kafka_offset": 104}],
        "/tables/names": [{"name": "a", "_kafka_offset": 100}, {"name": None, "_kafka_offset": 104}],
    }
    assert [(offset, error_class) for offset, error_class, _ in dead(staged)] == [
        (101, "wrong_type"),
        (103, "wrong_type"),
    ]
    assert (staged.records, staged.exploded, staged.tombstones) == (5, 4, 1)


def test_exploded_rows_go_to_each_table() -> None:
    stream = stream_of(columns="items ARRAY<INT>", explode="items", tables=["/tables/copy"])
    staged = convert(stream, [{"items": [1, 2]}, {"items": []}])
    assert [row["items"] for row in rows(staged)["/tables/copy"]] == [1, 2, None]
    assert rows(staged)["own"] == rows(staged)["/tables/copy"]
    assert staged.exploded == 4


@pytest.mark.parametrize("seed", range(20))
def test_every_message_is_in_its_tables_or_is_one_dead_letter(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - a test's dice
    stream = sectioned(
        columns="id BIGINT, kinds ARRAY<STRING>", route="kinds", unrouted=rng.choice(["table", "dead_letters"])
    )
    kinds = ["click", "view", "plain", "x"]
    tables = {"click": "/tables/clicks", "view": "/tables/views", "plain": "/tables/plain"}
    batches, expected = [], []
    for partition in range(3):
        values: list[bytes | None] = []
        for offset in range(100, 100 + rng.randrange(1, 20)):
            chosen = rng.sample(kinds, rng.randrange(4))
            record = {"id": rng.choice([1, "a"]), "ms": rng.choice([1, "a"]), "kinds": chosen}
            gone = rng.random() < 0.1
            values.append(None if gone else json.dumps(record).encode())
            wanted = {tables.get(kind, "own") for kind in chosen} or {"own"}
            bad = "own" in wanted and stream.routing.unrouted == "dead_letters"
            bad |= bool(wanted & {"own", "/tables/plain"}) and record["id"] == "a"
            bad |= ("/tables/clicks" in wanted and record["id"] == 1) or (
                "/tables/views" in wanted and record["ms"] == "a"
            )
            expected += [] if gone else [(partition, offset, {"dead"} if bad else wanted)]
        batches.append(batch_of(values, partition=partition))
    actual: dict[tuple[int, int], set[str]] = {}
    (slice_,) = converter_of(stream).slices(batches)
    for batch, staged in slice_:
        named = {"own": staged.rows[0], "dead": staged.rows[1], **{table.url: some for table, some in staged.routed}}
        for name, some in named.items():
            for offset in some.column("_kafka_offset").to_pylist():
                place = actual.setdefault((batch.partition.partition, offset), set())
                assert name not in place
                place.add(name)
    assert actual == {(partition, offset): wanted for partition, offset, wanted in expected}


def test_expect_rules_see_the_streams_columns_and_apply_to_all_tables() -> None:
    rules: dict[str, object] = {"known": "kind <> 'odd'", "long": {"rule": "what <> 'click!'", "on_fail": "count"}}
    stream = sectioned(derive={"what": "kind || '!'"}, expect=rules)
    given = [
        {"id": "a", "kind": "click"},
        {"id": 7, "kind": "odd"},
        {"kind": "view", "ms": "x"},
        {"id": 8, "kind": "plain"},
        {"id": 9, "kind": "click"},
    ]
    staged = convert(stream, given)
    offsets_of = {name: [row["_kafka_offset"] for row in some] for name, some in rows(staged).items()}
    assert offsets_of == {"/tables/clicks": [100], "/tables/plain": [103]}
    assert [(offset, error_class) for offset, error_class, _ in dead(staged)] == [
        (101, "expectation"),
        (102, "wrong_type"),
        (104, "wrong_type"),
    ]
    assert staged.violations == {"known": 1, "long": 2}


def test_hold_rule_stops_a_partition_with_separate_table_columns() -> None:
    stream = sectioned(expect={"known": "kind <> 'odd'"}, on_fail="hold")
    values = [{"id": "a", "kind": "click"}, {"id": 7, "kind": "odd"}, {"kind": "view"}]
    batches = [
        batch_of([json.dumps(value).encode() for value in values]),
        batch_of([b'{"id":1,"kind":"x"}'], partition=4),
    ]
    parts = [part for slice_ in converter_of(stream).slices(batches) for part in slice_]
    stops = [(batch.partition.partition, staged.end) for batch, staged in parts if staged.stop is not None]
    assert stops == [(3, 101)]
    assert [(batch.partition.partition, len(batch), staged.end) for batch, staged in parts if staged.stop is None] == [
        (3, 1, 101),
        (4, 1, 101),
    ]


def test_buffer_takes_the_rows_of_each_table() -> None:
    converter = converter_of(sectioned())
    buffer = Buffer.begin(Position(100), converter.formats)
    for values in ([{"id": "a", "kind": "click"}], [{"kind": "view", "ms": 1}, {"id": "b", "kind": "click"}]):
        ((_, staged),) = next(converter.slices([batch_of([json.dumps(value).encode() for value in values])]))
        buffer.add(staged, 0.0)
    assert {rows.table.url: sum(file.rows for file in rows.finish()) for rows in buffer.tables} == {
        "/tables/orders": 0,
        "/tables/orders_dead_letters": 0,
        "/tables/clicks": 2,
        "/tables/views": 1,
    }


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"route": "kindd"}, ExpressionError, "did you mean kind"),
        ({"route": "id"}, ExpressionError, "its type is BIGINT, but a route must be text"),
        ({"route": "[id]"}, ExpressionError, "its type is ARRAY<BIGINT>, but a route must be text"),
        ({"where": "url = '/'"}, ExpressionError, "there is no field `url`"),
        ({"routes": {"click": CLICK | {"derive": {"day": "kind"}}}}, ExpressionError, "there is no field `kind`"),
        (
            {"routes": {"click": {"table": "/c", "columns": "b INT", "derive": {"a": "[b]"}, "partition_by": ["a"]}}},
            SchemaError,
            "partition_by names 'a', which has the type ARRAY",
        ),
    ],
)
def test_invalid_tables_or_routes_are_refused_at_startup(
    settings: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as caught:
        converter_of(sectioned(**settings))
    assert message in str(caught.value)
