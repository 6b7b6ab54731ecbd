"""`where`: the records that become rows, and the filtered ones."""

import pytest

from common.errors import ExpressionError
from common.settings import Settings
from stage_writer.convert import StreamConverter
from tests.fakes.streams import batch_of, staged_batches, stream_of


def converter(where: str, **more: object) -> StreamConverter:
    return StreamConverter(stream_of(columns="id BIGINT, text STRING", where=where, **more))


def test_filtered_record_is_counted_and_has_no_row() -> None:
    values = [b'{"id":1}', b'{"id":-1}', b"{}", None, b'{"id":"x"}', b'{"id":5}']
    (staged,) = staged_batches(converter("id > 0"), [batch_of(values)])
    assert staged.rows[0].column("id").to_pylist() == [1, 5]
    assert staged.rows[0].column("_kafka_offset").to_pylist() == [100, 105]
    assert staged.filtered_offsets.tolist() == [101, 102]
    assert (staged.records, staged.filtered, staged.tombstones, sum(staged.dead_letters.values())) == (6, 2, 1, 1)


def test_record_with_a_failing_condition_is_a_dead_letter() -> None:
    (staged,) = staged_batches(
        converter("text::INT = 1"), [batch_of([b'{"text":"1"}', b'{"text":"x"}', b'{"text":"2"}'])]
    )
    assert staged.dead_letters == {"expression_failed": 1}
    assert staged.rows[1].column("_kafka_offset").to_pylist() == [101]
    assert staged.rows[1].column("error").to_pylist()[0].startswith("where: ")
    assert (staged.filtered_offsets.tolist(), staged.rows[0].num_rows) == ([102], 1)


def test_filtered_record_is_not_derived() -> None:
    stream = converter("text <> 'x'", derive={"n": "text::INT"})
    (staged,) = staged_batches(stream, [batch_of([b'{"text":"x"}', b'{"text":"7"}'])])
    assert staged.rows[0].column("n").to_pylist() == [7]
    assert (staged.filtered, dict(staged.dead_letters)) == (1, {})


def test_filtered_offsets_are_split_by_kafka_partition() -> None:
    batches = [batch_of([b'{"id":1}', b'{"id":-1}']), batch_of([b'{"id":-1}'], partition=4, first=7), batch_of([])]
    parts = staged_batches(converter("id > 0"), batches[:2])
    assert [part.filtered_offsets.tolist() for part in parts] == [[101], [7]]
    assert [part.rows[0].num_rows for part in parts] == [1, 0]


@pytest.mark.parametrize(
    ("where", "text"),
    [
        ("id", "where: id: its type is BIGINT"),
        ("idd > 0", "did you mean id"),
        ("id > 0; DROP TABLE x", "more than one expression"),
        ("random() > 0.5", "a different value each time"),
        ("id > [1]", "where: "),
    ],
)
def test_invalid_condition_is_refused_at_startup(where: str, text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        converter(where)
    assert text in f"{caught.value.problem} {caught.value.remedy}"


def test_condition_may_use_headers() -> None:
    assert converter("kafka.headers['a'] = 'b'::BLOB").needs_headers
    assert not converter("kafka.offset > 0").needs_headers


def test_empty_condition_is_refused() -> None:
    with pytest.raises(ValueError, match="where"):
        Settings.model_validate({"streams": [{"where": ""}]})
