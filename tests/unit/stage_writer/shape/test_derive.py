import datetime as dt
from collections.abc import Mapping, Sequence
from decimal import Decimal
from functools import cache
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pytest

from common.errors import ExpressionError, SchemaError
from common.schema import DecimalType, Primitive, parse_ddl, to_arrow_schema
from common.spans import Partition, Topic, TopicPartition
from stage_writer.decode.batch import Headers, MessageBatch, Messages, headers_column
from stage_writer.decode.decode import Decoder
from stage_writer.decode.rejects import ErrorClass
from stage_writer.shape import expressions
from stage_writer.shape.evaluation import Deriver
from stage_writer.shape.rows import Rows
from stage_writer.shape.spark_functions import DUCKDB_FOR

COLUMNS = parse_ddl(
    "meta STRUCT<producer: STRUCT<timestamp: STRING>>, id BIGINT, tags ARRAY<STRING>, text STRING, moment TIMESTAMP, "
    'price DECIMAL(10,2), props MAP<STRING, INT>, data BINARY, `a "b` STRING'
)


def batch_of(
    values: Sequence[bytes | None],
    keys: Sequence[bytes | None] | None = None,
    headers: Sequence[Headers | None] | None = None,
) -> MessageBatch:
    count = len(values)
    return MessageBatch(
        TopicPartition(Topic("orders"), Partition(3)),
        np.arange(100, 100 + count),
        np.array([1_600_000_000_123 if place % 2 == 0 else -1 for place in range(count)]),
        pa.array(values, pa.binary()),
        pa.array(keys or [None] * count, pa.binary()),
        None if headers is None else headers_column(headers),
    )


def derive(expressions: Mapping[str, str], batch: MessageBatch) -> Rows:
    decoded = Decoder(COLUMNS).decode(batch.values)
    rows = Rows(decoded.rows, decoded.row_index)
    return Deriver(COLUMNS, expressions).apply(rows, Messages.from_batches([batch]))


def test_date_derived_from_nested_text_is_the_last_column() -> None:
    batch = batch_of([b'{"meta":{"producer":{"timestamp":"2021-03-24T15:06:17.321710+00:00"}}}', b"{}"])
    derived = derive({"date": "substr(meta.producer.timestamp, 1, 10)"}, batch)
    assert derived.table.column_names[-1] == "date"
    assert derived.table["date"].to_pylist() == ["2021-03-24", None]
    assert derived.table.schema.field("date").type == pa.string()
    assert derived.index.tolist() == [0, 1]


def test_kafka_fields_describe_the_record() -> None:
    batch = batch_of(
        [b"{}", b"nonsense", b"{}"], keys=[b"k", None, b"\xff"], headers=([("a", b"1"), ("a", b"2")], None, None)
    )
    derived = derive(
        {
            "place": "kafka.topic || '/' || kafka.partition || '/' || kafka.offset",
            "stamp": "kafka.timestamp",
            "day": "CAST(kafka.timestamp AS DATE)",
            "key": "kafka.key",
            "key_text": "kafka.key_text",
            "header": "decode(kafka.headers['a'])",
        },
        batch,
    )
    assert derived.index.tolist() == [0, 2]
    rows = derived.table.select(["place", "stamp", "day", "key", "key_text", "header"]).to_pylist()
    moment = dt.datetime(2020, 9, 13, 12, 26, 40, 123_000, dt.UTC)
    assert rows == [
        {"place": "orders/3/100", "stamp": moment, "day": moment.date(), "key": b"k", "key_text": "k", "header": "2"},
        {
            "place": "orders/3/102",
            "stamp": moment,
            "day": moment.date(),
            "key": b"\xff",
            "key_text": None,
            "header": None,
        },
    ]
    assert derived.table.schema.field("stamp").type == pa.timestamp("us", tz="UTC")


def test_record_without_a_timestamp_has_a_null_timestamp() -> None:
    assert derive({"t": "kafka.timestamp"}, batch_of([b"{}", b"{}"])).table["t"].to_pylist()[1] is None


@pytest.mark.parametrize(
    ("expression", "meant"),
    [
        ("id + 1", Primitive.LONG),
        ("id::INT", Primitive.INTEGER),
        ("price", DecimalType(10, 2)),
        ("price::DOUBLE", Primitive.DOUBLE),
        ("moment::DATE", Primitive.DATE),
        ("moment", Primitive.TIMESTAMP),
        ("moment AT TIME ZONE 'UTC'", Primitive.TIMESTAMP_NTZ),
        ("text = 'x'", Primitive.BOOLEAN),
        ("id::UTINYINT", Primitive.SHORT),
        ("data", Primitive.BINARY),
        ("'constant'", Primitive.STRING),
    ],
)
def test_derived_column_has_the_type_of_its_expression(expression: str, meant: object) -> None:
    deriver = Deriver(COLUMNS, {"x": expression})
    assert [(field.name, field.type) for field in deriver.columns.fields[-1:]] == [("x", meant)]
    message = b'{"id":1,"price":1.50,"moment":"2020-01-01T00:00:00Z","text":"x","data":""}'
    derived = derive({"x": expression}, batch_of([message]))
    assert derived.table.schema.field("x").type == to_arrow_schema(deriver.columns).field("x").type
    assert derived.table["x"].null_count == 0


def test_nested_results_have_the_table_types() -> None:
    derived = derive(
        {
            "s": "{'a': id, 'l': tags}",
            "l": "[upper(tag) for tag in tags]",
            "m": "props",
            "n": "list_transform(tags, lambda t: len(t))",
        },
        batch_of([b'{"id":1,"tags":["x","yz"],"props":{"p":1}}']),
    )
    (row,) = derived.table.select(["s", "l", "m", "n"]).to_pylist()
    assert row == {"s": {"a": 1, "l": ["x", "yz"]}, "l": ["X", "YZ"], "m": [("p", 1)], "n": [1, 2]}


def test_record_with_a_failing_expression_is_rejected_alone() -> None:
    values = [b'{"text":"%d"}' % place if place % 3 else b'{"text":"no number","id":1}' for place in range(100)]
    derived = derive({"n": "text::INT", "p": "id"}, batch_of(values))
    bad = [place for place in range(100) if place % 3 == 0]
    assert [reject.index for reject in derived.rejects] == bad
    assert {reject.error_class for reject in derived.rejects} == {ErrorClass.EXPRESSION_FAILED}
    assert "derive.n" in derived.rejects[0].error
    assert "no number" in derived.rejects[0].error
    assert derived.index.tolist() == [place for place in range(100) if place % 3]
    assert derived.table["n"].to_pylist() == derived.index.tolist()


def test_each_failing_expression_is_named() -> None:
    batch = batch_of([b'{"text":"x","id":1}', b'{"text":"1","id":300}', b'{"text":"1","id":1}'])
    derived = derive({"n": "text::INT", "small": "id::TINYINT"}, batch)
    assert [(reject.index, reject.error.split(":")[0]) for reject in derived.rejects] == [
        (0, "derive.n"),
        (1, "derive.small"),
    ]
    assert derived.table.select(["n", "small"]).to_pylist() == [{"n": 1, "small": 1}]


def test_many_failures_are_found_in_one_batch() -> None:
    values = [b'{"text":"no","id":%d}' % place for place in range(5000)]
    derived = derive({"n": "CASE WHEN id % 2 = 0 THEN text::INT ELSE 1 END"}, batch_of(values))
    assert len(derived.rejects) == 2500
    assert all("derive.n" in reject.error for reject in derived.rejects)
    assert derived.index.tolist() == list(range(1, 5000, 2))


def test_timestamp_beyond_the_calendar_is_refused() -> None:
    derived = derive({"x": "CAST(text AS TIMESTAMP)"}, batch_of([b'{"text":"infinity"}', b'{"text":"2020-01-01"}']))
    assert [reject.index for reject in derived.rejects] == [0]
    assert derived.table["x"].to_pylist() == [dt.datetime(2020, 1, 1)]  # noqa: DTZ001 - without a zone


def test_empty_batch_stays_empty() -> None:
    derived = derive({"x": "id + 1", "k": "kafka.offset"}, batch_of([]))
    assert derived.table.num_rows == 0
    assert derived.table.column_names[-2:] == ["x", "k"]


def test_headers_are_read_only_if_an_expression_uses_them() -> None:
    assert Deriver(COLUMNS, {"x": "kafka.headers['a']"}).needs_headers
    assert Deriver(COLUMNS, {"x": "kafka"}).needs_headers
    assert not Deriver(COLUMNS, {"x": "kafka.offset"}).needs_headers


def test_quoted_column_name_is_resolved() -> None:
    assert derive({"x y": '"a ""b"'}, batch_of([b'{"a \\"b":"z"}'])).table["x y"].to_pylist() == ["z"]


@pytest.mark.parametrize(
    ("expression", "parts"),
    [
        ("substr(metta.x, 1, 2)", ["no field `metta`", "did you mean meta?"]),
        ("meta.producer.time", ["time"]),
        ("kafka.key_txt", ["key_txt"]),
        ("id +", ["derive.x", "id +"]),
        ("sum(id)", ["sum", "one value for each record"]),
        ("count(*)", ["count"]),
        ("row_number() OVER ()", ["a window function"]),
        ("(SELECT 1)", ["a subquery"]),
        ("id IN (SELECT 1)", ["a subquery"]),
        ("(SELECT content FROM read_text('/etc/passwd'))", ["a subquery"]),
        ("unnest(tags)", ["unnest", "one value for each record"]),
        ("*", ["a star"]),
        ("id, id", ["more than one expression"]),
        ("id AS y", ["remove AS …"]),
        ("id) FROM range(3) --", ["more than one expression|syntax|Parser|comment"]),
        ("id), (id", ["syntax", "double quotes"]),
        ("id; DROP TABLE x", ["more than one expression"]),
        ("random()", ["random", "read again"]),
        ("now()", ["now", "kafka.timestamp"]),
        ("uuid()", ["uuid"]),
        ("error('no')", ["error"]),
        ("current_date", ["no field `current_date`"]),
        ("current_setting('TimeZone')", ["current_setting"]),
        ("ago(INTERVAL 1 DAY)", ["a different value each time"]),
        ("user()", ["a different value each time"]),
        ("?", ["a parameter"]),
        ("#1", ["a column by its number"]),
        ("INTERVAL 1 DAY", ["INTERVAL", "cast it"]),
        ("1::HUGEINT", ["HUGEINT", "DECIMAL(38,0)"]),
        ("NULL", ["cast it"]),
        ("no_such_function(id)", ["no_such_function"]),
        ("upper(id, 3)", ["upper"]),
    ],
)
def test_invalid_expression_is_refused_at_startup(expression: str, parts: list[str]) -> None:
    with pytest.raises(ExpressionError) as raised:
        Deriver(COLUMNS, {"x": expression})
    error = str(raised.value)
    assert "derive.x" in error
    assert raised.value.remedy
    for part in parts:
        assert any(choice in error for choice in part.split("|")), error


def test_error_of_a_function_that_only_spark_has_gives_duckdbs_expression() -> None:
    with pytest.raises(ExpressionError, match="to_date does not exist") as error:
        Deriver(COLUMNS, {"date": "To_Date(text)"})
    instead = "CAST(strptime(day, '%Y-%m-%d') AS DATE)"
    assert error.value.remedy == f"expressions are DuckDB's SQL, in which Spark's to_date is written {instead}"


def test_duckdb_has_none_of_the_functions_that_only_spark_has_but_what_replaces_them() -> None:
    own = {name for (name,) in expressions.connect().execute("SELECT function_name FROM duckdb_functions()").fetchall()}
    assert DUCKDB_FOR.keys() & own == set()
    columns = parse_ddl(
        "a BIGINT, b BIGINT, c BIGINT, days INT, seconds DOUBLE, millis BIGINT, micros BIGINT, text STRING, "
        "day STRING, moment TIMESTAMP, items ARRAY<BIGINT>, others ARRAY<BIGINT>, names ARRAY<STRING>"
    )
    Deriver(columns, DUCKDB_FOR)


def test_error_of_an_unknown_function_says_whose_functions_there_are() -> None:
    with pytest.raises(ExpressionError, match="frobnicate does not exist") as error:
        Deriver(COLUMNS, {"date": "frobnicate(text)"})
    assert "DuckDB's SQL: use one of its functions (https://" in str(error.value.remedy)


def test_derived_column_cannot_take_a_declared_name() -> None:
    with pytest.raises(ExpressionError, match="declared in `columns`"):
        Deriver(COLUMNS, {"ID": "id"})


def test_two_derived_columns_need_two_names() -> None:
    with pytest.raises(SchemaError, match="declared twice"):
        Deriver(COLUMNS, {"x": "id", "X": "id"})


def test_declared_field_named_kafka_is_ambiguous_only_if_used() -> None:
    columns = parse_ddl("kafka STRUCT<offset: INT>, id INT")
    assert Deriver(columns, {"x": "id"}).columns.fields[-1].type is Primitive.INTEGER
    with pytest.raises(ExpressionError, match="ambiguous"):
        Deriver(columns, {"x": "kafka.offset"})


def test_decimals_stay_exact() -> None:
    derived = derive({"x": "price * 2"}, batch_of([b'{"price":12345678.91}']))
    assert derived.table["x"].to_pylist() == [Decimal("24691357.82")]


def test_times_are_in_utc_in_any_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    expressions._instance.cache_clear()
    try:
        derived = derive({"x": "moment::VARCHAR"}, batch_of([b'{"moment":"2020-01-01T00:00:00Z"}']))
    finally:
        expressions._instance.cache_clear()
    assert derived.table["x"].to_pylist() == ["2020-01-01 00:00:00+00"]


@pytest.mark.parametrize("text", ["SET TimeZone = 'Asia/Tokyo'", "SET threads = 2", "FROM read_text('/etc/hosts')"])
def test_duckdb_reads_no_files_and_accepts_no_settings(text: str) -> None:
    with pytest.raises(duckdb.Error):
        expressions.connect().execute(text)


def test_broken_duckdb_instance_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = duckdb.connect(str(tmp_path / "broken"))
    instances = iter([broken, duckdb.connect()])
    monkeypatch.setattr(expressions, "_instance", cache(lambda: next(instances)))
    deriver = Deriver(COLUMNS, {"x": "id"})
    broken.execute("CREATE TABLE t AS SELECT 1; PRAGMA debug_checkpoint_abort = 'before_header'")
    with pytest.raises(duckdb.FatalException):
        broken.execute("CHECKPOINT")
    batch = batch_of([b'{"id":1}'])
    decoded = Decoder(COLUMNS).decode(batch.values)
    derived = deriver.apply(Rows(decoded.rows, decoded.row_index), Messages.from_batches([batch]))
    assert derived.table["x"].to_pylist() == [1]
