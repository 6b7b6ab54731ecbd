import pytest

from common.spans import MAX_POSITION, Offset, Partition, Position, Topic, TopicPartition, position_after
from tests.builders import span


def test_span_includes_its_start_and_excludes_its_end() -> None:
    interval = span(3, 7)
    assert [interval.covers(Position(position)) for position in range(2, 9)] == [False] + [True] * 4 + [False] * 2
    assert interval.positions == 4
    assert interval.last_offset == 6
    assert str(interval) == "[3, 7)"


@pytest.mark.parametrize(("start", "end"), [(0, 0), (5, 5), (5, 4), (-1, 3), (0, MAX_POSITION + 1)])
def test_empty_or_impossible_span_is_refused(start: int, end: int) -> None:
    with pytest.raises(ValueError, match="start < end"):
        span(start, end)


def test_position_after_a_record_is_the_next_offset() -> None:
    assert position_after(Offset(41)) == 42
    assert position_after(span(0, 42).last_offset) == 42


def test_partitions_are_ordered_by_number() -> None:
    partitions = [TopicPartition(Topic("orders"), Partition(number)) for number in (10, 9, 1)]
    assert [str(partition) for partition in sorted(partitions)] == ["orders/1", "orders/9", "orders/10"]
