"""Chains of several topics: their names, their positions, and their stored form."""

import json
from dataclasses import replace

import pytest

from bootstrap.apply.kafka import with_chain
from common.errors import MarkerError
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, newest_paths, origin_from_bytes, origin_path, origin_to_bytes
from common.stage.markers import Manifest, Marker, MarkerName, Origin, marker_from_bytes, marker_to_bytes
from common.stage.merged import (
    InputEnd,
    chain_topic,
    ends_at,
    has_reached,
    inputs_at,
    inputs_of,
    kafka_partition,
    kafka_topic,
    may_name_chain,
    merged_position,
    shared_chain,
    stream_of,
    topics_of,
    with_chains,
)
from tests.builders import required

CHAIN = TopicPartition(Topic("orders+payments"), Partition(3))
ORDERS, PAYMENTS = inputs_of(CHAIN)


def place(orders: int, payments: int) -> Position:
    return merged_position([InputEnd(PAYMENTS, Position(payments)), InputEnd(ORDERS, Position(orders))])


def manifest(end: Position) -> Manifest:
    return Manifest(Span(Position(2), end), None, "shop", Origin.FLUSH, "w", 1, records=3)


def test_chain_is_named_by_its_sorted_topics() -> None:
    assert chain_topic(["payments", "orders"]) == "orders+payments"
    assert topics_of("orders+payments") == ("orders", "payments")
    assert topics_of("orders") == ("orders",)
    assert TopicPartition(Topic("payments"), Partition(3)) == PAYMENTS


def test_merged_position_is_a_sum_that_knows_its_inputs() -> None:
    there = place(5, 7)
    assert there == 12
    assert inputs_at(there) == (InputEnd(ORDERS, Position(5)), InputEnd(PAYMENTS, Position(7)))
    assert inputs_at(Position(12)) == ()
    assert inputs_at(max(there, Position(4))) == inputs_at(there)


def test_merged_position_is_reached_input_by_input() -> None:
    assert not has_reached(place(9, 3), place(5, 7))
    assert has_reached(place(5, 7), place(5, 7))
    assert has_reached(Position(8), Position(8))


def test_marker_has_the_ends_of_its_inputs() -> None:
    name = MarkerName(CHAIN, Position(2))
    assert MarkerName.parse(name.path) == name
    data = marker_to_bytes(Marker(name, manifest(place(5, 7))))
    assert json.loads(data)["inputs"] == [
        {"topic": "orders", "partition": 3, "end": 5},
        {"topic": "payments", "partition": 3, "end": 7},
    ]
    marker = marker_from_bytes(name, data)
    assert inputs_at(marker.span.end) == inputs_at(place(5, 7))
    assert required(marker.manifest).inputs == inputs_at(place(5, 7))
    assert inputs_at(marker.span.start) == (), "as markers of older releases have it"
    plain = MarkerName(TopicPartition(Topic("orders"), Partition(3)), Position(2))
    assert b"inputs" not in marker_to_bytes(Marker(plain, manifest(Position(12))))


def test_marker_has_the_starts_of_its_inputs() -> None:
    span = Span(place(2, 0), place(5, 7))
    data = marker_to_bytes(Marker(MarkerName(CHAIN, span.start), replace(manifest(span.end), span=span)))
    assert [input_["start"] for input_ in json.loads(data)["inputs"]] == [2, 0]
    marker = marker_from_bytes(MarkerName(CHAIN, Position(2)), data)
    assert ends_at(CHAIN, marker.span.start) == inputs_at(place(2, 0))
    wrong = json.loads(data)
    wrong["inputs"][0]["start"] = 1
    with pytest.raises(MarkerError, match="its inputs' starts add up to 1, but it starts at 2"):
        marker_from_bytes(MarkerName(CHAIN, Position(2)), json.dumps(wrong).encode())


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        ([{"topic": "orders", "partition": 3, "end": 12}], "its inputs are not those of orders\\+payments/3"),
        (
            [{"topic": "orders", "partition": 3, "end": 5}, {"topic": "payments", "partition": 3, "end": 8}],
            "its inputs add up to 13, but it ends at 12",
        ),
    ],
)
def test_inputs_that_are_not_the_chain_s_are_refused(inputs: object, problem: str) -> None:
    name = MarkerName(CHAIN, Position(2))
    data = json.dumps(json.loads(marker_to_bytes(Marker(name, manifest(place(5, 7))))) | {"inputs": inputs}).encode()
    with pytest.raises(MarkerError, match=problem):
        marker_from_bytes(name, data)


def test_origin_has_the_positions_of_its_inputs() -> None:
    path = origin_path(CHAIN)
    assert newest_paths([path]) == {CHAIN: path}
    origin = origin_from_bytes(path, origin_to_bytes(ChainOrigin(place(5, 7), 1)))
    assert inputs_at(origin.position) == inputs_at(place(5, 7))
    assert origin == ChainOrigin(Position(12), 1)
    assert b"inputs" not in origin_to_bytes(ChainOrigin(Position(12)))


def test_origin_at_zero_is_at_zero_of_every_topic() -> None:
    path = origin_path(CHAIN)
    for data in (b"", origin_to_bytes(ChainOrigin(Position(0)))):
        assert inputs_at(origin_from_bytes(path, data).position) == inputs_at(place(0, 0))


def test_shared_topic_has_a_separate_chain_for_each_stream() -> None:
    chain = shared_chain("orders", "audit")
    assert chain == "orders@audit"
    assert (topics_of(chain), stream_of(chain), kafka_topic(chain)) == (("orders",), "audit", "orders")
    assert [stream_of(other) for other in ("orders", "orders+payments")] == [None, None]
    place = TopicPartition(chain, Partition(3))
    assert kafka_partition(place) == ORDERS
    assert inputs_of(place) == (ORDERS,)
    assert ends_at(place, Position(7)) == (InputEnd(ORDERS, Position(7)),)
    name = MarkerName(place, Position(2))
    assert name.path == "done/orders@audit/3/00000000000000000002.done"
    assert MarkerName.parse(name.path) == name
    assert newest_paths([origin_path(place)]) == {place: origin_path(place)}


def test_marker_of_another_stream_s_chain_is_refused() -> None:
    own, other = (MarkerName(TopicPartition(Topic(chain), Partition(3)), Position(2)) for chain in ("o", "o@b"))
    data = marker_to_bytes(Marker(other, manifest(Position(5))))
    assert marker_from_bytes(other, data).manifest is not None
    with pytest.raises(MarkerError):
        marker_from_bytes(own, data)


@pytest.mark.parametrize("name", ["orders@", "@b", "orders@b@c", "orders@b/c", "orders+payments@b", "orders@b+c"])
def test_invalid_chain_name_is_not_a_marker_path(name: str) -> None:
    assert MarkerName.parse(f"done/{name}/3/00000000000000000002.done") is None


@pytest.mark.parametrize(
    ("app_id", "fits"), [("audit", True), ("a.b_c-1", True), ("a b", False), ("a@b", False), ("ä", False), ("", False)]
)
def test_app_id_may_be_part_of_a_chain_name(app_id: str, *, fits: bool) -> None:
    assert may_name_chain("orders", app_id) == fits
    assert not may_name_chain("o" * 249, "b")


def test_kafka_ends_are_mapped_to_the_chains_that_read_them() -> None:
    first, second = (TopicPartition(Topic(chain), Partition(3)) for chain in ("orders@b", "orders@c"))
    ends = {ORDERS: Position(5), PAYMENTS: Position(7)}
    assert with_chains(ends, [ORDERS, first]) == {ORDERS: 5, first: 5, PAYMENTS: 7}
    assert with_chains(ends, [first, second]) == {first: 5, second: 5, PAYMENTS: 7}
    assert with_chains({first: Position(9)}, [first]) == {first: 9}
    assert with_chains(ends, [CHAIN]) == {CHAIN: 12}
    assert with_chains({}, [first]) == {}


def test_with_chain_selects_the_partitions_of_a_chain() -> None:
    place = TopicPartition(Topic("orders@b"), Partition(3))
    assert with_chain([place], "orders@b") == [place]
    assert with_chain([place], "orders") == []
    assert with_chain([ORDERS, PAYMENTS], "orders+payments") == [CHAIN]
