"""Exploded rows come in slices of limited size, which add up to the whole."""

import json
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from common.schema import parse_ddl, to_arrow_schema
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.parquet.buffer import Buffer, StagedRows
from stage_writer.shape.explode import row_bytes
from stage_writer.shape.slicing import ExplodeLimits
from tests.fakes.streams import batch_of, staged_batches, stream_of

COLUMNS = "id INT, text STRING, kind STRING, v ARRAY<STRUCT<a: INT, b: STRING>>"
STREAM = stream_of(
    columns=COLUMNS,
    explode="v",
    where="kind <> 'out'",
    route="kind",
    routes={"left": "/left", "right": "/right"},
    drop=["v.b"],
)


def message(number: int, elements: int, text: str = "t", kind: str = "own") -> bytes:
    items = [{"a": place, "b": "b"} for place in range(elements)]
    return json.dumps({"id": number, "text": text, "kind": kind, "v": items or None}).encode()


def batches() -> list[MessageBatch]:
    first = [
        b"{",
        message(1, 3),
        None,
        message(3, 200, "x" * 50, "left"),
        message(4, 0),
        message(5, 7, kind="out"),
        message(6, 5),
    ]
    second = [
        b"no",
        None,
        message(2, 1, "y" * 3000, "right"),
        message(3, 40, "z" * 300, "right"),
        b"[]",
        message(5, 1),
        None,
    ]
    return [batch_of(first), batch_of(second, partition=4), batch_of([None, b"{"], partition=5)]


def summed(slices: Sequence[StagedRows]) -> tuple[object, ...]:
    """The totals that a marker would have, and the rows."""
    buffer: dict[str, list[object]] = {}
    counts: Counter[str] = Counter()
    for staged in slices:
        named = [*zip(("own", "dead"), staged.rows, strict=True), *((table.url, rows) for table, rows in staged.routed)]
        for name, rows in named:
            buffer.setdefault(name, []).extend(rows.to_pylist())
        counts += Counter(
            records=staged.records,
            tombstones=staged.tombstones,
            exploded=staged.exploded,
            filtered=staged.filtered,
            **staged.dead_letters,
        )
    ends = [staged.end for staged in slices]
    assert ends == sorted(ends)
    times = [bound for staged in slices for bound in staged.timestamp_bounds_ms or ()]
    return {name: rows for name, rows in buffer.items() if rows}, counts, ends[-1], min(times), max(times)


@pytest.mark.parametrize("slice_bytes", [1, 100, 1_000, 5_000, 10**9])
def test_slices_add_up_to_the_whole(slice_bytes: int) -> None:
    given = batches()
    whole = staged_batches(StreamConverter(STREAM), given)
    slices = list(StreamConverter(STREAM, limits=ExplodeLimits(slice_bytes)).slices(given))
    for place, (batch, staged) in enumerate(zip(given, whole, strict=True)):
        mine = [rows for part in slices for source, rows in part if source.partition == batch.partition]
        assert summed(mine) == summed([staged]), place
        assert not mine[-1].is_segment
    assert (len(slices) == 1) == (slice_bytes == 10**9)


def test_slice_size_is_limited() -> None:
    converter = StreamConverter(STREAM, limits=ExplodeLimits(10_000))
    values: list[bytes | None] = [message(number, number * 37 % 400, "x" * (number % 90)) for number in range(60)]
    sizes = [
        sum(rows.nbytes for _, staged in part for rows in (*staged.rows, *(rows for _, rows in staged.routed)))
        for part in converter.slices([batch_of(values)])
    ]
    assert len(sizes) > 50
    assert max(sizes) < 40_000  # Kafka's columns are not counted


def test_segments_of_a_record_share_one_buffer() -> None:
    converter = StreamConverter(STREAM, limits=ExplodeLimits(500))
    buffer = Buffer.begin(batch_of([None]).end, converter.formats)
    (segments,) = [[staged for part in converter.slices([batch_of([message(0, 1000)])]) for _, staged in part]]
    assert [segment.is_segment for segment in segments[-3:]] == [True, True, False]
    for staged in segments:
        buffer.add(staged, 0.0)
    assert (buffer.records, buffer.exploded, len(segments) > 10) == (1, 999, True)
    (file,) = buffer.tables[0].finish()
    assert file.rows == 1000


def test_record_too_large_to_explode_is_a_dead_letter() -> None:
    converter = StreamConverter(STREAM, limits=ExplodeLimits(1_000, 50_000))
    slices = [
        staged
        for part in converter.slices([batch_of([message(0, 2), message(1, 900, "x" * 100)])])
        for _, staged in part
    ]
    assert [dict(staged.dead_letters) for staged in slices] == [{"explodes_too_far": 1}]
    (letter,) = slices[0].rows[1].to_pylist()
    assert (letter["_kafka_offset"], json.loads(letter["value"])["id"]) == (101, 1)
    assert "four times writer.memory" in letter["error"]


def test_row_bytes_are_the_bytes_of_the_values() -> None:
    ddl = (
        "i INT, b BOOLEAN, s STRING, d DECIMAL(20,2), l ARRAY<STRING>, m MAP<STRING, BIGINT>, "
        "t STRUCT<x: BINARY, y: DATE>"
    )
    rows = [
        {"s": "x" * 10, "l": ["a" * 7, None], "m": {"k": 1, "kk": 2}, "t": {"x": b"12345"}},
        {},
        {"s": "", "l": [], "m": {}, "t": {"x": b""}},
        {"l": ["b" * 100], "t": None},
    ]
    table = pa.Table.from_pylist(rows, to_arrow_schema(parse_ddl(ddl)))
    sizes = row_bytes(table)
    fixed = sizes[1]
    assert (sizes - fixed).tolist() == [10 + 7 + 8 + 27 + 5, 0, 0, 104]
    assert row_bytes(table.slice(1, 2)).tolist() == sizes[1:3].tolist()
    assert row_bytes(pa.concat_tables([table, table])).tolist() == np.tile(sizes, 2).tolist()
    assert row_bytes(table.slice(0, 0)).tolist() == []
