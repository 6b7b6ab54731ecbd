"""`include: [key, headers]`: a message's key and headers in columns of its row."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from common.schema import schema_from_json, to_ddl
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import Headers, MessageBatch, headers_column
from stage_writer.parquet.buffer import StagedRows
from tests.fakes.streams import batch_of, staged_batches, stream_of

NOT_UTF8 = b"\xff".decode("utf-8", "surrogateescape")
HEADERS: tuple[Headers | None, ...] = (
    [("trace", b"1"), ("trace", b"\xff"), ("é", None), ("", b"")],
    None,
    [(NOT_UTF8, b"x")],
    [("trace", b"4")],
)
KEYS = (b"a", None, b"c", b"\xff")
COLUMNS = "id INT, `_kafka_key` BINARY, `_kafka_headers` ARRAY<STRUCT<`key`: STRING, `value`: BINARY>>"  # as declared


def messages(headers: Sequence[Headers | None] = HEADERS) -> MessageBatch:
    values = [b'{"id": %d}' % number for number in range(len(headers))]
    return replace(batch_of(values, keys=KEYS[: len(values)]), headers=headers_column(headers))


def converted(batch: MessageBatch, **settings: object) -> StagedRows:
    (staged,) = staged_batches(StreamConverter(stream_of(columns="id INT", kafka_columns=False, **settings)), [batch])
    return staged


def test_rows_have_their_key_and_headers_in_order() -> None:
    staged = converted(messages(), include=["headers", "key"])
    assert staged.rows[0].to_pylist() == [
        {
            "id": 0,
            "_kafka_key": b"a",
            "_kafka_headers": [
                {"key": "trace", "value": b"1"},
                {"key": "trace", "value": b"\xff"},
                {"key": "é", "value": None},
                {"key": "", "value": b""},
            ],
        },
        {"id": 1, "_kafka_key": None, "_kafka_headers": None},
        {"id": 3, "_kafka_key": b"\xff", "_kafka_headers": [{"key": "trace", "value": b"4"}]},
    ]
    (letter,) = staged.rows[1].to_pylist()
    assert (letter["_kafka_offset"], letter["key"], letter["error_class"]) == (102, b"c", "invalid_utf8")


def test_table_schema_declares_key_and_header_columns() -> None:
    converter = StreamConverter(stream_of(columns="id INT", kafka_columns=False, include=["key", "headers"]))
    assert to_ddl(schema_from_json(converter.formats[0].schema)).replace("`", "") == COLUMNS.replace("`", "")


def test_headers_are_read_only_if_used() -> None:
    for include, wanted in (([], False), (["key"], False), (["headers"], True)):
        assert StreamConverter(stream_of(columns="id INT", include=include)).needs_headers is wanted


def test_exploded_rows_share_headers_and_a_refused_record_has_no_row() -> None:
    stream = stream_of(columns="ids ARRAY<INT>", explode="ids", include=["headers"])
    batch = replace(
        batch_of([b'{"ids": [1, 2]}', b'{"ids": [3, 4]}']), headers=headers_column([[("h", b"1")], [(NOT_UTF8, b"")]])
    )
    (staged,) = staged_batches(StreamConverter(stream), [batch])
    rows = staged.rows[0].select(["ids", "_kafka_offset", "_kafka_headers"]).to_pylist()
    headers = [{"key": "h", "value": b"1"}]
    assert rows == [{"ids": number, "_kafka_offset": 100, "_kafka_headers": headers} for number in (1, 2)]
    assert staged.rows[1]["_kafka_offset"].to_pylist() == [101]


def test_batches_with_and_without_headers_are_converted_together() -> None:
    first, second = messages(HEADERS[:2]), replace(batch_of([b'{"id": 7}'], partition=4), headers=None)
    stream = stream_of(columns="id INT", include=["headers"])
    staged = staged_batches(StreamConverter(stream), [first, second])
    assert [len(pairs or ()) for rows in staged for pairs in rows.rows[0]["_kafka_headers"].to_pylist()] == [4, 0, 0]


@pytest.mark.parametrize("headers", [HEADERS, HEADERS[1:2] + HEADERS[3:]], ids=["repeated", "distinct"])
def test_expression_sees_the_last_header_of_a_repeated_name(headers: tuple[Headers | None, ...]) -> None:
    stream = stream_of(columns="id INT", derive={"trace": "kafka.headers['trace']"}, kafka_columns=False)
    (staged,) = staged_batches(StreamConverter(stream), [messages(headers)])
    expected = [dict(pairs or []).get("trace") for pairs in headers if pairs is None or pairs[0][0] != NOT_UTF8]
    assert staged.rows[0]["trace"].to_pylist() == expected
    assert list(staged.dead_letters) == ["invalid_utf8"] * (len(headers) - len(expected))


def test_tombstone_delete_row_has_its_key_and_headers() -> None:
    stream = stream_of(columns="id INT", load="merge", merge={"keys": ["id"]}, include=["key", "headers"])
    batch = replace(
        batch_of([b'{"id": 1}', None], keys=[b"one", b'{"id": 2}']), headers=headers_column([[("h", b"")], None])
    )
    (staged,) = staged_batches(StreamConverter(stream), [batch])
    assert staged.rows[0].select(["id", "_kafka_key", "_kafka_headers"]).to_pylist() == [
        {"id": 1, "_kafka_key": b"one", "_kafka_headers": [{"key": "h", "value": b""}]},
        {"id": 2, "_kafka_key": None, "_kafka_headers": None},
    ]


def test_headers_count_as_memory() -> None:
    lean, rich = messages([None] * 2), messages([None, [("h", b"x" * 10_000)]])
    assert rich.memory_bytes - lean.memory_bytes >= 10_000
    assert np.array_equal(rich.part(0, 1).offsets, lean.part(0, 1).offsets)
    assert rich.part(0, 1).memory_bytes < 1_000
