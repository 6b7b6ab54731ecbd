"""`jmespath`: columns filled like kafka-delta-ingest's transforms, in bulk where possible."""

import datetime as dt
import json
import re
from decimal import Decimal

import pytest

from common.errors import ExpressionError
from common.schema import parse_ddl
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import Messages
from stage_writer.shape.jmespath.decoder import JmesPathDecoder
from tests.fakes.streams import batch_of, staged_batches, stream_of

META = "meta STRUCT<producer: STRUCT<timestamp: STRING>, kafka: STRUCT<offset: BIGINT, partition: INT, topic: STRING>>"


def rows_of(*records: object, **settings: object) -> list[object]:
    values = [record if isinstance(record, bytes) else json.dumps(record).encode() for record in records]
    stream = stream_of(kafka_columns=False, **settings)
    (staged,) = staged_batches(StreamConverter(stream), [batch_of(values)])
    rows: list[object] = staged.rows[0].to_pylist()
    letters = staged.rows[1].to_pylist()
    return rows + [(letter["_kafka_offset"], letter["error_class"], letter["error"]) for letter in letters]


def is_bulk(columns: str, expressions: dict[str, str]) -> bool:
    return JmesPathDecoder(parse_ddl(columns), expressions).is_bulk


def test_kafka_delta_ingest_example_transforms_run_in_bulk() -> None:
    columns = f"{META}, date STRING"
    expressions = {
        "date": "substr(meta.producer.timestamp, `0`, `10`)",
        "meta.kafka.offset": "kafka.offset",
        "meta.kafka.partition": "kafka.partition",
        "meta.kafka.topic": "kafka.topic",
    }
    assert is_bulk(columns, expressions)
    first, second = rows_of(
        {"meta": {"producer": {"timestamp": "2021-03-24T15:06:17Z"}}}, {"id": 1}, columns=columns, jmespath=expressions
    )
    kafka = {"offset": 100, "partition": 3, "topic": "orders"}
    assert first == {"meta": {"producer": {"timestamp": "2021-03-24T15:06:17Z"}, "kafka": kafka}, "date": "2021-03-24"}
    assert isinstance(second, tuple)  # substr of a missing field fails, as it does in kafka-delta-ingest
    assert second[:2] == (101, "expression_failed")
    assert second[2].startswith("jmespath.date: ")


def test_undeclared_field_can_be_used_without_a_column() -> None:
    settings = {"columns": "id INT, city STRING, zip INT", "jmespath": {"city": "address.city", "zip": "address.zip"}}
    assert is_bulk("id INT, city STRING, zip INT", {"city": "address.city", "zip": "address.zip"})
    records = [{"id": 1, "address": {"city": "Bern", "zip": 3000}}, {"id": 2, "address": "nowhere"}, {"id": 3}]
    assert rows_of(*records, **settings) == [
        {"id": 1, "city": "Bern", "zip": 3000},
        {"id": 2, "city": None, "zip": None},  # a path through a non-object is null
        {"id": 3, "city": None, "zip": None},
    ]


def test_result_overrides_the_field_and_null_keeps_it() -> None:
    settings = {"columns": "a INT, b INT", "jmespath": {"a": "b", "b": "a"}}
    assert rows_of({"a": 1, "b": 2}, {"a": 1}, {"b": None}, **settings) == [
        {"a": 2, "b": 1},
        {"a": 1, "b": 1},
        {"a": None, "b": None},
    ]
    assert rows_of({"a": "no number", "b": 2}, columns="a INT, b INT", jmespath={"a": "b"}) == [{"a": 2, "b": 2}]


def test_result_is_decoded_as_strictly_as_a_field() -> None:
    settings = {"columns": "a INT, d DATE, m DECIMAL(30,10)", "jmespath": {"a": "x", "d": "y", "m": "z"}}
    digits = "12345678901234567.1234567891"
    good = b'{"x": 1, "y": "2024-02-29", "z": %s}' % digits.encode()
    bad = [{"x": 1.5}, {"y": "2023-02-29"}, {"x": "1"}]
    rows = rows_of(good, *bad, **settings)
    assert rows[0] == {"a": 1, "d": dt.date(2024, 2, 29), "m": Decimal(digits)}
    assert [row[:2] for row in rows[1:] if isinstance(row, tuple)] == [
        (101, "not_exact"),
        (102, "malformed"),
        (103, "wrong_type"),
    ]


def test_other_expressions_run_record_by_record() -> None:
    expressions = {
        "n": "length(items)",
        "prices": "items[?price > `1`].price",
        "at": "epoch_seconds_to_iso8601(seconds)",
    }
    columns = "n INT, prices ARRAY<DECIMAL(4,2)>, at TIMESTAMP, seconds DOUBLE"
    assert not is_bulk(columns, expressions)
    record = {"items": [{"price": 1.25}, {"price": 1}, {}], "seconds": 1626823098.5}
    rows = rows_of(record, {"items": 1, "seconds": 0}, b"{", columns=columns, jmespath=expressions)
    time = dt.datetime(2021, 7, 20, 23, 18, 18, tzinfo=dt.UTC)
    assert rows[0] == {"n": 3, "prices": [Decimal("1.25")], "at": time, "seconds": 1626823098.5}
    assert [row[:2] for row in rows[1:] if isinstance(row, tuple)] == [
        (101, "expression_failed"),
        (102, "invalid_json"),
    ]


@pytest.mark.parametrize("expression", ["kafka.timestamp", " kafka.timestamp "])
@pytest.mark.parametrize("other", ["text", "not_null(text)"])
def test_kafka_timestamp_is_the_same_in_bulk_and_record_by_record(expression: str, other: str) -> None:
    settings = {
        "columns": "t TIMESTAMP, n BIGINT, x STRING",
        "jmespath": {"t": expression, "n": expression, "x": other},
    }
    moment = dt.datetime(2020, 9, 13, 12, 26, 40, tzinfo=dt.UTC)
    assert rows_of({"text": "a"}, **settings) == [{"t": moment, "n": 1_600_000_000_000_000_000, "x": "a"}]


def test_columns_without_an_expression_keep_their_digits_and_text() -> None:
    settings = {
        "columns": "d DECIMAL(38,20), x STRING, n INT",
        "unknown_fields": "rescue",
        "jmespath": {"n": "length(x)"},
    }
    sent = '{"d": 1.10000000000000000001, "x": "é\\u0041", "more": {"a" :1.10}}'
    assert rows_of(sent.encode(), **settings) == [
        {"d": Decimal("1.10000000000000000001"), "x": "éA", "n": 2, "_rescued": '{"more":{"a" :1.10}}'}
    ]


def test_number_that_a_double_cannot_hold_can_only_be_copied() -> None:
    settings = {"columns": "d DECIMAL(38,20), s STRING", "jmespath": {"d": "x || y", "s": "to_string(floor(y))"}}
    rows = rows_of(b'{"x": 0.12345678901234567891, "y": 1.5}', b'{"y": 0.12345678901234567891}', **settings)
    assert rows[0] == {"d": Decimal("0.12345678901234567891"), "s": "1"}
    assert isinstance(rows[1], tuple)
    assert rows[1][1] == "expression_failed"


def test_required_column_can_be_filled() -> None:
    settings = {"columns": "id INT, d STRING NOT NULL", "jmespath": {"d": "other"}}
    rows = rows_of({"other": "x"}, {"id": 1}, **settings)
    assert rows[0] == {"id": None, "d": "x"}
    assert isinstance(rows[1], tuple)
    assert rows[1][1] == "missing_field"


@pytest.mark.parametrize(
    ("column", "expression", "message"),
    [
        ("dat", "x", "jmespath.dat: x: `dat` is not a declared column"),
        ("dat", "x", "did you mean date?"),
        ("s.x", "x", "nor a field of a STRUCT"),
        ("date", "substr(x, `0`", "jmespath.date: substr(x, `0`"),
        ("date", "substring(x, `0`, `1`)", "there is no function substring; did you mean substr?"),
        ("date", "substr(x)", "substr takes 3 arguments, not 1"),
        ("date", "kafka.offset", "its column is STRING; declare it as BIGINT"),
        ("date", "kafka.timestamp_type", "is not kept"),
    ],
)
def test_invalid_expression_or_column_is_refused_at_startup(column: str, expression: str, message: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        JmesPathDecoder(parse_ddl("date STRING, s STRUCT<a: INT>"), {column: expression})
    assert message in f"{caught.value.problem}; {caught.value.remedy}"


def test_column_cannot_be_filled_twice() -> None:
    with pytest.raises(ExpressionError, match=re.escape("jmespath.s fills the same column")):
        JmesPathDecoder(parse_ddl("s STRUCT<a: INT>"), {"s": "x", "s.a": "y"})


def test_good_and_bad_messages_keep_their_order() -> None:
    values = [b'{"a":{"b":"1234"}}', b"[]", None, b'{"a":{}}', b'{"a":{"b":"xy"}}', b'{"a":{"b":7}}']
    decoder = JmesPathDecoder(parse_ddl("c STRING"), {"c": "substr(a.b, `1`, `2`)"})
    decoded = decoder.decode(Messages.from_batches([batch_of(values)]))
    assert decoded.rows.column("c").to_pylist() == ["23", "y"]
    assert decoded.row_index.tolist() == [0, 4]
    assert [(reject.index, reject.error_class.value) for reject in decoded.rejects] == [
        (1, "not_an_object"),
        (3, "expression_failed"),
        (5, "expression_failed"),
    ]
    assert decoded.tombstones.tolist() == [2]


def test_format_applies_to_record_fields_but_not_to_kafka_timestamp() -> None:
    stream = stream_of(columns="t TIMESTAMP", jmespath={"t": "kafka.timestamp"}, formats={"t": "epoch_ms"})
    with pytest.raises(ExpressionError, match="its column has the format epoch_ms"):
        StreamConverter(stream)
    stream = stream_of(columns="t TIMESTAMP", jmespath={"t": "sent"}, formats={"t": "epoch_ms"}, kafka_columns=False)
    (staged,) = staged_batches(StreamConverter(stream), [batch_of([b'{"sent": 1600000000123}'])])
    moment = dt.datetime(2020, 9, 13, 12, 26, 40, 123000, tzinfo=dt.UTC)
    assert staged.rows[0].to_pylist() == [{"t": moment}]
