"""The records of a replay, and the streams that cannot be replayed."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import pytest

from common.errors import UsageError
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin
from stage_writer.replay.records import (
    OffsetRanges,
    ReplayKafka,
    TimeRange,
    replay_selection,
    replayable,
    require_first_chain,
    require_same_topic,
    spans_of,
)
from tests.builders import settings_of, span

ORDERS = [TopicPartition(Topic("orders"), Partition(number)) for number in range(2)]


@dataclass
class Kafka:
    """Has offsets from ``low`` to 20 in each partition, one record a second."""

    low: int

    def partitions(self, topic: str) -> Sequence[TopicPartition]:
        return ORDERS if topic == "orders" else []

    def ends(self, _: TopicPartition) -> tuple[Position, Position]:
        return Position(self.low), Position(20)

    def position_at(self, _: TopicPartition, time_ms: int, end: Position) -> Position:
        return min(end, Position(max(self.low, -(-time_ms // 1000))))


def spans(
    selection: TimeRange | OffsetRanges, low: int = 10, topic: str = "orders", partition: int | None = None
) -> object:
    return spans_of(cast("ReplayKafka", Kafka(low)), topic, partition, selection)


def test_range_is_resolved_per_partition_from_kafka() -> None:
    offsets = OffsetRanges(Position(10), Position(20))
    assert spans(offsets) == [(partition, span(10, 20)) for partition in ORDERS]
    assert spans(offsets, partition=1) == [(ORDERS[1], span(10, 20))]
    assert spans(TimeRange(11_500, 15_000), partition=0) == [(ORDERS[0], span(12, 15))]
    assert spans(TimeRange(0, 5_000), low=0, partition=0) == [(ORDERS[0], span(0, 5))], "nothing was deleted"
    assert spans(TimeRange(30_000, 40_000)) == [], "there are no records in that time"


@pytest.mark.parametrize(
    ("given", "selection"),
    [
        ((10, 20, None, None), OffsetRanges(Position(10), Position(20))),
        ((None, None, "1970-01-01T00:00:10Z", "1970-01-01T00:00:15Z"), TimeRange(10_000, 15_000)),
        ((10, 10, None, None), "a range that is not empty"),
        ((None, None, "1970-01-01T00:00:15Z", "1970-01-01T00:00:15Z"), "a range that is not empty"),
        ((10, None, None, None), "a range that is not empty"),
        ((10, 20, "1970-01-01T00:00:10Z", "1970-01-01T00:00:15Z"), "a range that is not empty"),
        ((None, None, "yesterday", "1970-01-01T00:00:15Z"), "--since yesterday"),
    ],
)
def test_range_is_given_as_offsets_or_as_times(
    given: tuple[int | None, int | None, str | None, str | None], selection: TimeRange | OffsetRanges | str
) -> None:
    if isinstance(selection, str):
        with pytest.raises(UsageError, match=selection):
            replay_selection(*given)
    else:
        assert replay_selection(*given) == selection


@pytest.mark.parametrize(
    ("selection", "named"),
    [
        (OffsetRanges(Position(9), Position(20)), r"Kafka has \[10, 20\) of orders/0, but \[9, 20\) is to be replaced"),
        (
            OffsetRanges(Position(10), Position(21)),
            r"Kafka has \[10, 20\) of orders/0, but \[10, 21\) is to be replaced",
        ),
        (TimeRange(10_000, 15_000), "Kafka has orders/0 from 10 on, and records since 10000 ms may be older than that"),
    ],
)
def test_range_that_kafka_may_not_have_is_refused(selection: TimeRange | OffsetRanges, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        spans(selection)


def test_missing_topic_or_partition_is_named() -> None:
    offsets = OffsetRanges(Position(10), Position(20))
    with pytest.raises(UsageError, match=r"no topic 'other'\n"):
        spans(offsets, topic="other")
    with pytest.raises(UsageError, match="no topic 'orders' with a partition 7"):
        spans(offsets, partition=7)


def test_topic_counts_as_recreated_only_if_both_ids_are_known() -> None:
    for chain, broker in ((None, "new"), ("old", None), ("same", "same")):
        require_same_topic(ORDERS[0], chain, broker)
    with pytest.raises(UsageError, match="its id is new, the staged one was old"):
        require_same_topic(ORDERS[0], "old", "new")


def test_chain_that_was_started_again_is_refused() -> None:
    for origin in (None, ChainOrigin(Position(3))):
        require_first_chain(ORDERS[0], origin)
    with pytest.raises(UsageError, match="was started again"):
        require_first_chain(ORDERS[0], ChainOrigin(Position(3), 1))


@pytest.mark.parametrize(
    ("stream", "named"),
    [
        ({"kafka_columns": False}, "kafka_columns: off, so the rows to replace cannot be identified"),
        ({"load": "merge", "merge": {"keys": ["id"], "sequence": "id"}}, "merges change events"),
        ({"topology": "tests.fakes.joining:build"}, "has a topology, whose state depends on all earlier records"),
        ({"topics": ["others"]}, "no stream of the config reads the topic 'orders'"),
    ],
)
def test_stream_without_identifiable_rows_is_refused(stream: dict[str, object], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        replayable(settings_of(stream), "orders")
