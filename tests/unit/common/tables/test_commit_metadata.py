"""Commit metadata round-trips, and absent values take no bytes."""

import json

import pytest

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Origin
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts, counts_of
from tests.builders import required
from tests.fakes.markers import by_hand, flush

ORDERS = TopicPartition(Topic("orders"), Partition(3))
SPAN = Span(Position(10), Position(20))


@pytest.mark.parametrize("here", [None, 0, 5])
def test_zero_rows_here_differ_from_an_absent_count(here: int | None) -> None:
    counts = Counts(10, 7, 2, 1, (Span(Position(12), Position(13)),), here=here)
    metadata = CommitMetadata("c", "orders", {ORDERS: SPAN}, None, {ORDERS: counts})
    stored = json.loads(metadata.to_json())["kafka_delta_express"]
    assert ("here" in stored["counts"]["orders"]["3"]) == (here is not None)
    assert CommitMetadata.from_json(metadata.to_json()) == metadata


def test_absent_values_and_generation_0_are_not_stored() -> None:
    metadata = CommitMetadata("c", "orders", {ORDERS: SPAN}, None, generations={ORDERS: 0}, plain_topic="")
    stored = json.loads(metadata.to_json())["kafka_delta_express"]
    assert stored == {
        "version": 1,
        "commit_id": "c",
        "app_id": "orders",
        "spans": {"orders": {"3": [10, 20]}},
        "valid_through_ms": None,
        "plain_topic": "",
    }


def test_partition_without_a_topic_id_has_none_of_its_topics_others() -> None:
    partitions = [TopicPartition(Topic("orders"), Partition(number)) for number in range(3)]
    positions, ids = dict.fromkeys(partitions, Position(9)), dict.fromkeys(partitions[1:], "id")
    metadata = CommitMetadata("c", "orders", {}, None, positions=positions, topic_ids=ids)
    assert required(CommitMetadata.from_json(metadata.to_json())).topic_ids == ids


@pytest.mark.parametrize(
    "edit",
    [{"version": 2}, {"spans": {"orders": {"x": [10, 20]}}}, {"spans": {"orders": {"3": [20, 10]}}}, {"counts": 1}],
)
def test_unreadable_metadata_counts_as_another_program_s(edit: dict[str, object]) -> None:
    stored = json.loads(CommitMetadata("c", "orders", {ORDERS: SPAN}, None).to_json())["kafka_delta_express"]
    assert CommitMetadata.from_json(json.dumps({"kafka_delta_express": stored | edit})) is None


def test_marker_that_is_loaded_in_part_is_not_counted() -> None:
    markers = [flush(0, 10), flush(10, 20)]
    assert counts_of(markers, Position(0), "/t") == Counts(20, 0, 0, 0)
    assert counts_of(markers, Position(4), "/t") is None
    assert counts_of(markers[1:], Position(10), "/t") == Counts(10, 0, 0, 0)
    assert counts_of([by_hand(9), flush(10, 20)], Position(9), "/t") == Counts(
        10, 0, 0, 0, (Span(Position(9), Position(10)),)
    )
    given_up = counts_of([by_hand(8), by_hand(9), flush(10, 20), by_hand(20)], Position(8), "/t")
    assert required(given_up).given_up == (Span(Position(8), Position(10)), Span(Position(20), Position(21)))


@pytest.mark.parametrize("origin", [Origin.SKIP, Origin.BOOTSTRAP])
def test_positions_that_an_operator_declared_done_are_not_proved(origin: Origin) -> None:
    counted = counts_of([flush(0, 10), flush(10, 15, origin=origin), flush(15, 20)], Position(0), "/t")
    assert required(counted).given_up == (Span(Position(10), Position(15)),)
