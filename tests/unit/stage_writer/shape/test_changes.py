"""`merge`: the rows that a stream of change events stages."""

import json
from collections.abc import Sequence

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import ExpressionError, SchemaError, UsageError
from common.schema import Field, Primitive, schema_from_json
from common.settings import Stream
from common.spans import Position
from common.stage.markers import TableKind
from common.tables.changes import HISTORY_COLUMNS, MergeBy
from stage_writer.convert import StreamConverter
from stage_writer.decode.decode_options import STRICT
from stage_writer.parquet.buffer import Buffer, StagedRows
from stage_writer.replay.records import replayable
from stage_writer.shape.changes.message_keys import MessageKeys
from tests.builders import settings_of
from tests.fakes.streams import batch_of, staged_batches, stream_of

BY_OP = {"keys": ["id"], "operation": "op", "deletes": ["d"]}


def merging(columns: str = "id BIGINT, name STRING, op STRING", **more: object) -> Stream:
    return stream_of(columns=columns, **{"load": "merge", "merge": {"keys": ["id"]}, **more})


def converted(stream: Stream, values: Sequence[bytes | None], keys: Sequence[bytes | None] | None = None) -> StagedRows:
    (staged,) = staged_batches(StreamConverter(stream), [batch_of(values, keys=keys)])
    assert staged.records == len(values)
    return staged


def record(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def events(staged: StagedRows, *columns: str) -> list[tuple[object, ...]]:
    return list(zip(*(staged.rows[0].column(name).to_pylist() for name in columns), strict=True))


def test_tombstones_are_deletes_in_order_with_other_events() -> None:
    values = [record(id=1, name="a"), None, record(id=2, name="b"), None]
    staged = converted(merging(), values, [b"1", b'{"id": 7}', None, b" 9 "])
    assert events(staged, "id", "name", "_kafka_offset", "_merge_delete") == [
        (1, "a", 100, False),
        (7, None, 101, True),
        (2, "b", 102, False),
        (9, None, 103, True),
    ]
    assert (staged.tombstones, staged.dead_letters) == (0, {})


@pytest.mark.parametrize(
    "key", [None, b"", b"x", b"1.5", b'"1"', b"{}", b'{"id": null}', b"null", b"[1]", b'1,"x":2', b"1} {", b"\xff"]
)
def test_tombstone_with_an_unreadable_key_is_a_dead_letter(key: bytes | None) -> None:
    staged = converted(merging(), [None, record(id=1)], [key, None])
    assert staged.dead_letters == {"unreadable_key": 1}
    assert staged.rows[1].column("key").to_pylist() == [key]
    assert staged.rows[1].column("value").to_pylist() == [None]
    assert events(staged, "id", "_merge_delete") == [(1, False)]


def test_text_key_may_be_json_or_plain() -> None:
    keys = [b"a-1", b'"a-1"', b'{"id": "a-1"}', b'{"schema": {"type": "string"}, "payload": "a-1"}', b"42", b'a"b']
    staged = converted(merging("id STRING"), [None] * 6, keys)
    assert [key for key, _ in events(staged, "id", "_merge_delete")] == ["a-1"] * 4 + ["42", 'a"b']


def test_composite_key_is_an_object_also_in_a_connect_schema() -> None:
    columns, formats = "id BIGINT, sentAt TIMESTAMP", {"sentAt": "epoch_ms"}
    stream = merging(columns, merge={"keys": ["id", "sent"]}, rename={"sentAt": "sent"}, formats=formats)
    keys = [b'{"id":1,"sentAt":5,"x":2}', b'{"schema":{"a":[1]},"payload":{"id":2,"sentAt":6}}', b"3", b'{"id":3}']
    staged = converted(stream, [None] * 4, keys)
    assert staged.rows[0].column("id").to_pylist() == [1, 2]
    assert staged.rows[0].column("sent").cast(pa.int64()).to_pylist() == [5_000, 6_000]
    assert staged.dead_letters == {"unreadable_key": 2}


def test_key_frames_are_removed() -> None:
    keys = MessageKeys({"id": Field("id", Primitive.LONG)}, STRICT, framed=True)
    sent = [b"\0\0\0\0\7" + b'{"id":1}', b"2", b"\0\0", None, b"\0\0\0\0\x083"]
    result = keys.read(pa.array(sent, pa.binary()))
    assert result.rows.to_pylist() == [{"id": 1}, {"id": 2}, {"id": 3}]
    assert [reject.index for reject in result.rejects] == [2, 3]


def test_tombstone_without_a_key_next_to_a_key_that_is_no_text() -> None:
    keys = MessageKeys({"id": Field("id", Primitive.STRING)}, STRICT, framed=False)
    result = keys.read(pa.array([b"\xff", None, b"a"], pa.binary()))
    assert result.rows.to_pylist() == [{"id": "a"}]
    assert [(reject.index, reject.error) for reject in result.rejects] == [
        (0, "the message key '\N{REPLACEMENT CHARACTER}' does not contain the key columns"),
        (1, "the tombstone has no message key"),
    ]


def test_operation_column_marks_deletes() -> None:
    stream = merging(merge=BY_OP)
    staged = converted(stream, [record(id=1, op="u"), record(id=1, op="d"), record(id=2), record(id=3, op="D")])
    assert events(staged, "id", "_merge_delete") == [(1, False), (1, True), (2, False), (3, False)]
    flag = merging("id BIGINT, gone BOOLEAN", merge={"keys": ["id"], "operation": "gone", "deletes": ["true"]})
    staged = converted(flag, [record(id=1, gone=True), record(id=2, gone=False), record(id=3)])
    assert events(staged, "id", "_merge_delete") == [(1, True), (2, False), (3, False)]


def test_operation_is_read_before_its_field_is_dropped() -> None:
    staged = converted(merging(merge=BY_OP, drop=["op"]), [record(id=1, op="d")])
    assert events(staged, "id", "_merge_delete") == [(1, True)]
    assert "op" not in staged.rows[0].column_names


def test_event_without_key_or_sequence_is_a_dead_letter_but_deletes_need_no_sequence() -> None:
    merge = {**BY_OP, "sequence": "at"}
    values = [record(id=None, at=1), record(id=1), record(id=2, op="d"), record(id=3, at=4), None]
    staged = converted(merging("id BIGINT, at BIGINT, op STRING", merge=merge), values, [None] * 4 + [b"5"])
    assert dict(staged.dead_letters) == {"null_key": 1, "null_sequence": 1}
    assert events(staged, "id", "at", "_merge_delete") == [(2, None, True), (3, 4, False), (5, None, True)]


def test_debezium_events_carry_their_operation() -> None:
    stream = merging("id BIGINT, name STRING", envelope="debezium")
    values = [
        record(op="c", after={"id": 1, "name": "a"}),
        record(op="d", before={"id": 1}),
        None,
        record(op="r", after={"id": 2}),
    ]
    staged = converted(stream, values, [None, None, b'{"id":1}', None])
    assert events(staged, "id", "name", "_merge_delete") == [
        (1, "a", False),
        (1, None, True),
        (1, None, True),
        (2, None, False),
    ]
    ignoring = stream.model_copy(
        update={"merge": stream.merge.model_copy(update={"tombstones": "ignore"}) if stream.merge else None}
    )
    staged = converted(ignoring, values, [None] * 4)
    assert (staged.tombstones, len(staged.rows[0])) == (1, 3)


def test_flush_is_one_file_with_merge_columns_that_the_table_lacks() -> None:
    merge = {**BY_OP, "soft_delete": "gone"}
    stream = merging(merge=merge, partition_by=["name"], kafka_columns=False)
    converter = StreamConverter(stream)
    buffer = Buffer.begin(Position(100), converter.formats)
    (staged,) = staged_batches(converter, [batch_of([record(id=1, name="b"), record(id=1, name="a", op="d")])])
    buffer.add(staged, 0.0)
    own = buffer.tables[0]
    assert own.table.merge == MergeBy(("id",), ("_merge_topic", "_merge_partition", "_merge_offset"), None, "gone")
    assert schema_from_json(own.table.schema).names == ("id", "name", "op", "gone")
    assert own.table.kind is TableKind.ROWS
    (file,) = own.finish()
    assert file.values is None
    rows = pq.read_table(pa.BufferReader(file.data.to_bytes())).to_pylist()
    assert [row["_merge_offset"] for row in rows] == [100, 101]
    actual = events(staged, "name", "gone", "_merge_topic", "_merge_partition", "_merge_offset", "_merge_delete")
    assert actual == [("b", False, "orders", 3, 100, False), ("a", True, "orders", 3, 101, True)]


def test_derived_key_or_sequence_of_an_unsuitable_type_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"merge\.keys names 'half', whose type DOUBLE"):
        StreamConverter(merging(derive={"half": "id / 2"}, merge={"keys": ["half"]}))
    with pytest.raises(SchemaError, match=r"merge\.sequence names 'half'"):
        StreamConverter(merging(derive={"half": "id / 2"}, merge={"keys": ["id"], "sequence": "half"}))


def test_history_events_have_their_time() -> None:
    history = {"keys": ["id"], "history": True}
    stream = merging("id BIGINT, name STRING", merge=history, envelope="debezium", drop=["_cdc"], kafka_columns=False)
    values = [
        record(op="c", after={"id": 1, "name": "a"}, ts_ms=6, source={"ts_ms": 5}),
        record(op="u", after={"id": 1, "name": "b"}, ts_ms=7),
        record(op="d", before={"id": 1}),
        None,
    ]
    staged = converted(stream, values, [None, None, None, b"1"])
    sent = 1_600_000_002_000
    rows = staged.rows[0]
    assert rows["valid_from"].cast(pa.int64()).to_pylist() == [5_000, 7_000, sent * 1000, (sent + 1000) * 1000]
    assert events(staged, "valid_to", "is_current") == [(None, True), (None, True), (None, False), (None, False)]
    assert schema_from_json(StreamConverter(stream).formats[0].schema).names == ("id", "name", *HISTORY_COLUMNS)


def test_history_with_a_sequence_uses_it_also_for_deletes() -> None:
    merge = {**BY_OP, "sequence": "at", "history": True, "tombstones": "ignore"}
    values = [record(id=1, at=4), record(id=1, at=6, op="d"), record(id=1, op="d")]
    staged = converted(merging("id BIGINT, at BIGINT, op STRING", merge=merge), values)
    assert events(staged, "valid_from", "is_current") == [(4, True), (6, False)]
    assert dict(staged.dead_letters) == {"null_sequence": 1}


def test_soft_delete_version_is_current() -> None:
    merge = {**BY_OP, "sequence": "at", "history": True, "tombstones": "ignore", "soft_delete": "gone"}
    values = [record(id=1, at=4), record(id=1, at=6, op="d")]
    staged = converted(merging("id BIGINT, at BIGINT, op STRING", merge=merge), values)
    assert events(staged, "gone", "is_current") == [(False, True), (True, True)]


ROUTES = {"eu": "/tables/eu", "us": "/tables/us"}


def test_events_and_tombstones_of_a_key_go_to_the_table_of_its_route() -> None:
    route = "CASE WHEN ID < 10 THEN 'eu' WHEN ID < 20 THEN 'us' END"
    stream = merging("ID BIGINT, op STRING", route=route, rename={"ID": "id"}, merge=BY_OP, routes=ROUTES)
    values = [record(ID=1, op="u"), None, record(ID=12, op="u"), None, record(ID=30), None]
    staged = converted(stream, values, [None, b'{"ID":1}', None, b'{"ID":12}', None, b'{"ID":31}'])
    by_table = {"own": staged.rows[0], **{table.url: rows for table, rows in staged.routed}}
    deletes = {
        url: list(zip(rows["id"].to_pylist(), rows["_merge_delete"].to_pylist(), strict=True))
        for url, rows in by_table.items()
    }
    assert deletes == {
        "own": [(30, False), (31, True)],
        "/tables/eu": [(1, False), (1, True)],
        "/tables/us": [(12, False), (12, True)],
    }


@pytest.mark.parametrize(
    "tables",
    [
        {"routes": ROUTES, "route": "CASE WHEN id < 10 THEN ['eu', 'us', 'eu'] ELSE ['own', 'us'] END"},
        {"tables": list(ROUTES.values())},
    ],
    ids=["an array", "all tables"],
)
def test_event_with_several_tables_is_in_each_once(tables: dict[str, object]) -> None:
    values = [record(id=1), None, record(id=12), b"{", None, record(id=2)]
    staged = converted(merging("id BIGINT", **tables), values, [None, b"1", None, None, b"12", None])
    by_table = {"own": staged.rows[0], **{table.url: rows for table, rows in staged.routed}}
    small, large = [(1, False), (1, True), (2, False)], [(12, False), (12, True)]
    every = [(1, False), (1, True), (12, False), (12, True), (2, False)]
    by_route = {"own": large, "/tables/eu": small, "/tables/us": every}
    assert {
        url: list(zip(rows["id"].to_pylist(), rows["_merge_delete"].to_pylist(), strict=True))
        for url, rows in by_table.items()
    } == (by_route if "route" in tables else dict.fromkeys(by_table, every))
    copies = 5 if "route" in tables else 10
    assert (staged.records, staged.exploded, dict(staged.dead_letters)) == (6, copies, {"invalid_json": 1})


def test_unrouted_tombstone_is_a_dead_letter_if_configured() -> None:
    stream = merging("id BIGINT", route="CASE WHEN id < 10 THEN 'eu' END", unrouted="dead_letters", routes=ROUTES)
    staged = converted(stream, [None, None, None], [b"5", b"50", b"x"])
    assert dict(staged.dead_letters) == {"unrouted": 1, "unreadable_key": 1}
    assert [(table.url, rows["id"].to_pylist()) for table, rows in staged.routed] == [("/tables/eu", [5])]


def test_route_that_may_differ_among_events_of_a_key_is_refused() -> None:
    with pytest.raises(ExpressionError, match="more than the key") as caught:
        StreamConverter(merging(route="name", routes=ROUTES))
    assert "kafka.topic" in caught.value.remedy
    with pytest.raises(ExpressionError, match="nmae"):
        StreamConverter(merging(route="nmae", routes=ROUTES))
    stream = merging(envelope="debezium", route="_cdc.source", routes=ROUTES)
    with pytest.raises(ExpressionError, match="more than the key"):
        StreamConverter(stream)
    ignoring = {"keys": ["id"], "tombstones": "ignore"}
    stream = merging(envelope="debezium", route="_cdc.source", routes=ROUTES, merge=ignoring)
    values = [record(op="d", before={"id": 1}, source={"table": "us", "db": "x"}), None]
    (staged,) = staged_batches(StreamConverter(stream), [batch_of(values)])
    assert (staged.tombstones, staged.records) == (1, 2)
    for part in ("op", "ts", "source_ts"):
        stream = merging(envelope="debezium", route=f"CAST(_cdc.{part} AS VARCHAR)", routes=ROUTES, merge=ignoring)
        with pytest.raises(ExpressionError, match=r"more than the key \(id, _cdc.source\)"):
            StreamConverter(stream)
    for part in ("topic", "key_text", "partition"):
        StreamConverter(merging(route=f"CAST(kafka.{part} AS VARCHAR)", routes=ROUTES))
    for part in ("offset", "timestamp"):
        with pytest.raises(ExpressionError, match=f"kafka.{part} may differ among the events of one row"):
            StreamConverter(merging(route=f"CAST(kafka.{part} AS VARCHAR)", routes=ROUTES))
    with pytest.raises(ExpressionError, match=r"kafka\.\w+ may differ among"):
        StreamConverter(merging(route="CAST(kafka AS VARCHAR)", routes=ROUTES))


def test_field_with_a_reserved_merge_name_is_not_offered_as_a_column() -> None:
    staged = converted(merging(unknown_fields="evolve"), [record(id=1, _merge_delete=True, _MERGE_x=1, size=5)])
    assert staged.offered.names == ("size",)
    assert events(staged, "id", "_merge_delete") == [(1, False)]


def test_merge_stream_cannot_be_replayed_by_range() -> None:

    settings = settings_of(merging().model_dump(exclude_defaults=True))
    with pytest.raises(UsageError, match="the result of many events"):
        replayable(settings, "orders")
