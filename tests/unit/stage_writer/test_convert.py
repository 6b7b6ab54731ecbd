"""A stream's messages are converted together, across partitions, and split again."""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from common.errors import SchemaError
from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch, Messages
from stage_writer.parquet.buffer import Buffer, StagedRows
from tests.builders import settings_of
from tests.fakes.streams import batch_of, staged_batches, stream_of


def converter() -> StreamConverter:
    settings = settings_of(
        {
            "topics": ["orders", "returns"],
            "table": "/orders",
            "columns": "id INT",
            "derive": {
                "place": "kafka.topic || '/' || kafka.partition || '/' || kafka.offset",
                "tenth": "CAST(CASE WHEN id = 10 THEN 'ten' ELSE '1' END AS INT)",
                "key": "kafka.key_text",
            },
        }
    )
    return StreamConverter(settings.streams[0])


def batch(topic: str, partition: int, values: Sequence[bytes | None], first: int = 0) -> MessageBatch:
    count = len(values)
    return MessageBatch(
        TopicPartition(Topic(topic), Partition(partition)),
        np.arange(first, first + count),
        np.arange(first, first + count) * 1000,
        pa.array(values, pa.binary()),
        pa.array([b"key %d" % number for number in range(count)], pa.binary()),
        None,
    )


BATCHES = [
    batch("orders", 0, [b'{"id": 1}', None, b"{", b'{"id": 10}', b'{"id": 25}'], 100),
    batch("orders", 7, [b'{"id": 3}']),
    batch("returns", 0, [None, None]),
    batch("orders", 2, [b"[]", b'{"id": 1.5}']),
    batch("returns", 1, [b'{"id": 4}', b'{"id": 5}', b'{"id": 6}'], 10**9),
]


def content(staged: StagedRows) -> tuple[object, ...]:
    return (
        staged.end,
        staged.records,
        staged.tombstones,
        dict(staged.dead_letters),
        staged.timestamp_bounds_ms,
        [rows.to_pylist() for rows in staged.rows],
    )


def test_batches_converted_together_match_single_conversions() -> None:
    together = staged_batches(converter(), BATCHES)
    apart = [staged_batches(converter(), [batch])[0] for batch in BATCHES]
    assert [content(staged) for staged in together] == [content(staged) for staged in apart]


def test_each_row_belongs_to_its_partition() -> None:
    first, *_, last = staged_batches(converter(), BATCHES)
    assert first.rows[0].column("place").to_pylist() == ["orders/0/100", "orders/0/104"]
    assert first.rows[1].column("_kafka_offset").to_pylist() == [102, 103]
    assert last.rows[0].column("_kafka_topic").to_pylist() == ["returns"] * 3
    assert last.rows[0].column("key").to_pylist() == ["key 0", "key 1", "key 2"]
    assert last.end == Position(10**9 + 3)


def test_small_result_does_not_keep_the_others_in_memory() -> None:
    large = batch("orders", 0, [b'{"id": %d}' % number for number in range(11, 5000)])
    _, small = staged_batches(converter(), [large, batch("orders", 1, [b'{"id": 1}'])])
    assert small.rows[0].get_total_buffer_size() < 1000


def test_no_batches_yield_no_rows() -> None:
    assert staged_batches(converter(), []) == []


@pytest.mark.parametrize("types", [(pa.binary(), pa.large_binary()), (pa.large_binary(), pa.large_binary())])
def test_binary_and_large_binary_batches_are_concatenated(types: tuple[pa.DataType, ...]) -> None:
    messages = Messages.from_batches(
        [
            MessageBatch(batch.partition, batch.offsets, batch.timestamps_ms, batch.values.cast(kind), batch.keys, None)
            for batch, kind in zip(BATCHES, types, strict=False)
        ]
    )
    assert messages.values.to_pylist() == [*BATCHES[0].values.to_pylist(), *BATCHES[1].values.to_pylist()]
    assert messages.partitions(np.array([0, 4, 5])).to_pylist() == [0, 0, 7]


def test_null_struct_with_a_required_field_is_written_to_its_file() -> None:
    columns = "p STRUCT<q: STRUCT<i: INT, t: STRING NOT NULL>>, s ARRAY<STRUCT<d: DATE NOT NULL>>, id BIGINT NOT NULL"
    stream = stream_of(columns=columns, derive={"again": "p"}, rename={"p.q.i": "j"}, kafka_columns=False)
    converter = StreamConverter(stream)
    values = [
        b'{"id":1}',
        b'{"id":2,"p":{},"s":[null]}',
        b'{"id":3,"p":{"q":{"t":"x"}}}',
        b'{"id":4,"p":{"q":{}}}',
        b"{}",
    ]
    (staged,) = staged_batches(converter, [batch_of(values)])
    assert staged.dead_letters == {"missing_field": 2}
    buffer = Buffer.begin(Position(100), converter.formats)
    buffer.add(staged, now_s=0.0)
    (file,) = buffer.tables[0].finish()
    assert pq.read_table(pa.BufferReader(file.data.to_bytes())).column("p").to_pylist() == [
        None,
        {"q": None},
        {"q": {"j": None, "t": "x"}},
    ]


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("flag", "cluster_by names 'flag', which has the type BOOLEAN"),
        ("pair", "cluster_by names 'pair', which has the type STRUCT"),
        ("pair.b", "cluster_by names 'pair.b', which is not a field of it"),
        ("_cdc", "cluster_by names '_cdc', which has the type STRUCT"),
        ("day", ""),
        ("pair.a", ""),
        ("_cdc.op", ""),
    ],
)
def test_cluster_by_accepts_derived_columns_of_orderable_types_only(name: str, problem: str) -> None:
    derive = {"flag": "id > 1", "day": "DATE '2026-01-01'", "pair": "{'a': 1}"}
    stream = stream_of(columns="id INT", derive=derive, envelope="debezium", cluster_by=[name])
    if not problem:
        assert StreamConverter(stream).formats
        return
    with pytest.raises(SchemaError, match=problem):
        StreamConverter(stream)


@pytest.mark.parametrize(
    ("expression", "kind"),
    [
        ("id > 1", ""),
        ("DATE '2026-01-01'", ""),
        ("1.5::DECIMAL(3,1)", ""),
        ("1.5::DOUBLE", "DOUBLE"),
        ("'a'::BLOB", "BINARY"),
        ("[id]", "ARRAY"),
        ("{'a': id}", "STRUCT"),
    ],
)
def test_partition_by_accepts_derived_columns_of_types_with_a_text_form_only(expression: str, kind: str) -> None:
    stream = stream_of(columns="id INT", derive={"part": expression}, partition_by=["part"])
    if not kind:
        assert StreamConverter(stream).formats[0].partition_by == ("part",)
        return
    with pytest.raises(SchemaError, match=f"partition_by names 'part', which has the type {kind}"):
        StreamConverter(stream)
