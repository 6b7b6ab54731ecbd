"""Change events become rows and `_cdc`, the same with and without the native decoder."""

import datetime as dt
import json
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pytest

from common.schema import parse_ddl
from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import MessageBatch, Messages
from stage_writer.decode.decode import Decoded, Decoder
from stage_writer.decode.envelopes.debezium import DebeziumOpener
from stage_writer.decode.envelopes.row_change_decoder import RowChangeDecoder
from stage_writer.decode.rejects import ErrorClass
from stage_writer.layers import PlainRecords
from tests.fakes.native import native_decoders

COLUMNS = parse_ddl("id BIGINT NOT NULL, name STRING")
SOURCE = {"db": "shop", "schema": "public", "table": "orders", "ts_ms": 1774927057000, "lsn": 7}
SCHEMA = {"type": "struct", "fields": [{"type": "struct", "optional": True, "field": "before"}], "name": "v" * 3000}


def messages_of(values: pa.BinaryArray) -> Messages:
    count = len(values)
    partition = TopicPartition(Topic("topic"), Partition(0))
    batch = MessageBatch(
        partition, np.arange(count), np.zeros(count, np.int64), values, pa.nulls(count, pa.binary()), None
    )
    return Messages.from_batches([batch])


def event(op: str, before: object, after: object, **more: object) -> dict[str, object]:
    return {"before": before, "after": after, "source": SOURCE, "op": op, "ts_ms": 1774927057260, **more}


def decode(messages: Sequence[object], rescue_column: str | None = None) -> Decoded:
    values = [message if isinstance(message, bytes | None) else json.dumps(message).encode() for message in messages]
    results: list[Decoded] = []
    for native_decoder in native_decoders():
        decoder = RowChangeDecoder(
            PlainRecords(Decoder(COLUMNS, rescue_column=rescue_column, native_decoder=native_decoder)),
            DebeziumOpener(native_decoder),
        )
        results.append(decoder.decode(messages_of(pa.array(values, pa.binary()))))
        assert results[-1].rejects == results[0].rejects
        assert results[-1].rows.to_pylist() == results[0].rows.to_pylist()
        assert results[-1].row_index.tolist() == results[0].row_index.tolist()
    return results[-1]


def wrapped(payload: object) -> dict[str, object]:
    return {"schema": SCHEMA, "payload": payload}


ROW = {"id": 1, "name": "x"}


def bare(payload: dict[str, object]) -> dict[str, object]:
    return payload


@pytest.mark.parametrize("wrap", [wrapped, bare])
def test_event_becomes_its_after_image_or_the_deleted_row(
    wrap: Callable[[dict[str, object]], dict[str, object]],
) -> None:
    events = [event("c", None, ROW), event("r", None, ROW), event("u", {"id": 1}, ROW), event("d", ROW, None)]
    decoded = decode([*map(wrap, events), None])
    assert decoded.rejects == ()
    assert decoded.tombstones.tolist() == [4]
    about = {
        "ts": dt.datetime(2026, 3, 31, 3, 17, 37, 260000, dt.UTC),
        "source": "public.orders",
        "source_ts": dt.datetime(2026, 3, 31, 3, 17, 37, 0, dt.UTC),
    }
    assert decoded.rows.to_pylist() == [{**ROW, "_cdc": {"op": op, **about}} for op in "crud"]


def test_missing_source_fields_are_null() -> None:
    of_mongodb = {"db": "a", "collection": "c"}
    decoded = decode(
        [
            {"op": "c", "after": ROW},
            event("c", None, ROW, source={"db": "a", "table": "b", "schema": None}),
            event("c", None, ROW, source=of_mongodb),
        ]
    )
    assert [row["_cdc"]["source"] for row in decoded.rows.to_pylist()] == [None, "a.b", "a.c"]


BAD: list[tuple[object, ErrorClass]] = [
    (event("t", None, None), ErrorClass.TRUNCATED),
    (event("c", None, None), ErrorClass.NOT_AN_EVENT),
    (event("d", None, ROW), ErrorClass.NOT_AN_EVENT),
    (event("c", None, [1]), ErrorClass.NOT_AN_EVENT),
    (event("u", ROW, "x"), ErrorClass.NOT_AN_EVENT),
    (event("x", ROW, ROW), ErrorClass.NOT_AN_EVENT),
    (ROW, ErrorClass.NOT_AN_EVENT),
    ({"schema": None, "payload": None}, ErrorClass.NOT_AN_EVENT),
    (event("c", None, {"id": "1"}), ErrorClass.WRONG_TYPE),
    (event("c", None, {"name": "x"}), ErrorClass.MISSING_FIELD),
    (event("c", None, ROW, ts_ms="yesterday"), ErrorClass.MALFORMED),
    (b'{"op":"c","after":{"id":1},"after":{"id":2}}', ErrorClass.DUPLICATE_FIELD),
    (b'{"op":"c","after":{"id":1,"id":2}}', ErrorClass.DUPLICATE_FIELD),
    (b'{"op":"c","after":{"id":1,}}', ErrorClass.INVALID_JSON),
    (b'{"op":"c","after":{"id":1}', ErrorClass.INVALID_JSON),
    (b'{"op":"c","after":{"name":"\xff"}}', ErrorClass.INVALID_UTF8),
    (b"", ErrorClass.EMPTY),
    (b"[]", ErrorClass.NOT_AN_OBJECT),
]


@pytest.mark.parametrize("wrap", [wrapped, bare])
def test_event_that_is_not_a_row_change_is_refused(wrap: Callable[[dict[str, object]], dict[str, object]]) -> None:
    messages: list[object] = []
    for bad, _ in BAD:
        inner = wrap(bad) if isinstance(bad, dict) and "payload" not in bad else bad
        messages += [wrapped(event("c", None, ROW)), inner]
    decoded = decode(messages)
    assert [(reject.index, reject.error_class) for reject in decoded.rejects] == [
        (2 * place + 1, error_class) for place, (_, error_class) in enumerate(BAD)
    ]
    assert decoded.row_index.tolist() == list(range(0, 2 * len(BAD), 2))


def test_unknown_fields_are_those_of_the_row() -> None:
    decoded = decode([wrapped(event("c", None, {**ROW, "more": [1]}, other=1))], rescue_column="_rescued")
    assert decoded.rows["_rescued"].to_pylist() == ['{"more":[1]}']


def test_events_opened_by_the_strict_decoder_keep_their_order() -> None:
    odd = [{"op": "c", "after": {"id": number}, "payload": 1} for number in (1, 4)]
    decoded = decode([odd[0], event("c", None, {"id": 2}), None, wrapped(event("u", None, {"id": 3})), odd[1]])
    assert decoded.rows["id"].to_pylist() == [1, 2, 3, 4]
    assert decoded.row_index.tolist() == [0, 1, 3, 4]
    assert [row["_cdc"]["op"] for row in decoded.rows.to_pylist()] == list("ccuc")


def test_changing_schemas_do_not_affect_the_rows() -> None:
    messages: list[object] = []
    for version in range(20):
        schema = {**SCHEMA, "version": version}
        messages += [{"schema": schema, "payload": event("c", None, {"id": version, "name": f"n{version}"})}] * 2
    decoded = decode(messages)
    assert not decoded.rejects
    rows = [(row["id"], row["name"], row["_cdc"]["op"]) for row in decoded.rows.to_pylist()]
    assert rows == [(version, f"n{version}", "c") for version in range(20) for _ in range(2)]


def test_schema_may_precede_or_follow_the_payload() -> None:
    odd = [
        b'{"schema":{},"op":"c","payload":{"op":"c","after":{"id":1}}}',  # an event by itself, without image
        b'{"schema":{},"payload":{"op":"c","after":{"id":1}},"payload":1}',
        b'{"schema":{},"payload":{"op":"c","after":{"id":1}} , "op":"c"}',
        b'{"schema":{},"payload":{"op":"c","after":{"id":1}}}',
        b'{"payload":{"op":"c","after":{"id":2}},"schema":{}}',
    ]
    decoded = decode(odd)
    assert [reject.index for reject in decoded.rejects] == [0, 1, 2]
    assert decoded.rows["id"].to_pylist() == [1, 2]


def test_skipped_values_that_look_alike_are_distinguished() -> None:
    same = b'{"name":"' + b"v" * 300 + b'"}'
    events = [
        b'{"schema":' + schema + b',"payload":{"op":"c","after":{"id":%d}}}' % number
        for number, schema in enumerate(
            [same, same, same[:-2] + b'w"}', same + b"}", same, same[:-1] + b',"a":1}', same.replace(b"v", b"\n", 1)]
        )
    ]
    unclosed = (
        b'{"schema":' + same[:-2] + b'v","payload":{"op":"c","after":{"id":8}}}'
    )  # as long as `same`, up to its quote
    decoded = decode([*events, events[0][:-2], unclosed])
    assert decoded.rows["id"].to_pylist() == [0, 1, 2, 4, 5]
    assert [reject.index for reject in decoded.rejects] == [3, 6, 7, 8]
