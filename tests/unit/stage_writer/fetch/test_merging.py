"""Merged topics: which are merged or refused, and which repairs an operator can make on their chains."""

import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from bootstrap.apply.kafka import with_chain
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.state import Author, Ends, PartitionState, StagedMarker
from common.errors import ConfigError, MarkerError, UsageError
from common.settings import Settings, StartAt
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin
from common.stage.merged import (
    InputEnd,
    ids_together,
    inputs_at,
    inputs_of,
    merged_position,
    require_inputs,
    with_chains,
)
from stage_writer.decode.batch import MessageBatch, Messages
from stage_writer.decode.merged_batch import merged_batch
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.fetch.consumer_properties import consumer_properties
from stage_writer.fetch.merged.groups import TopicGroup, TopicGroups
from stage_writer.tasks.converting import decoded_by_topic, messages_of
from stage_writer.topologies.task.inputs import Input
from tests.builders import settings_of

CHAIN = TopicPartition(Topic("a+b"), Partition(0))
A, B = inputs_of(CHAIN)


def place(a: int, b: int) -> Position:
    return merged_position([InputEnd(A, Position(a)), InputEnd(B, Position(b))])


def settings(**kafka: str) -> Settings:
    stream = {"app_id": "x", "topics": ["a", "b"], "table": "file:///t", "columns": "id INT", "topology": "shop:build"}
    return settings_of(stream, stage={"url": "file:///s"}, kafka={"bootstrap.servers": "h:1", **kafka})


def state() -> PartitionState:
    markers = []
    for start, end in ((place(0, 0), place(2, 3)), (place(2, 3), place(4, 3))):
        name = MarkerName(CHAIN, start)
        manifest = Manifest(Span(start, end), None, "x", Origin.FLUSH, "w", 1, records=1)
        markers.append(StagedMarker(name.path, name, Marker(name, manifest)))
    ends = Ends(place(0, 0), place(9, 9))
    return PartitionState(CHAIN, "x", StartAt.EARLIEST, ends, None, markers)


def test_partitions_with_one_number_are_one_chain() -> None:
    groups = TopicGroups((TopicGroup(("b", "a"), 2.0),))
    other = TopicPartition(Topic("c"), Partition(0))
    assert groups.chain_of(A) == groups.chain_of(B) == CHAIN
    assert groups.chain_of(other) == other
    assert groups.longest_idle_s(CHAIN) == 2.0
    assert groups.chains({A: Position(2), other: Position(5)}) == {A: Position(2), other: Position(5)}
    assert groups.chains({A: Position(2), B: Position(3)}) == {CHAIN: Position(5)}


def test_topic_in_two_groups_or_too_long_names_are_refused() -> None:
    with pytest.raises(ConfigError, match="the topic a is joined with two different sets"):
        TopicGroups((TopicGroup(("a", "b")), TopicGroup(("a", "c"))))
    with pytest.raises(ConfigError, match="more than 249 characters together"):
        TopicGroup(("a" * 200, "b" * 200))


def test_joined_topics_use_the_range_assignor() -> None:
    assert consumer_properties(settings())["partition.assignment.strategy"] == "cooperative-sticky"
    assert consumer_properties(settings(), co_partitioned=True)["partition.assignment.strategy"] == "range"
    new = consumer_properties(settings(**{"group.protocol": "consumer"}), co_partitioned=True)
    assert new["group.remote.assignor"] == "range"
    given = settings(**{"partition.assignment.strategy": "cooperative-sticky"})
    with pytest.raises(ConfigError, match=r"partition\.assignment\.strategy is 'cooperative-sticky'"):
        consumer_properties(given, co_partitioned=True)


def test_stream_takes_the_chains_of_its_topics() -> None:
    (stream,) = settings().streams
    assert stream.takes("a+b")
    assert not stream.takes("a+c")
    assert stream.may_merge


def test_chain_ends_and_ids_combine_those_of_the_inputs() -> None:
    other = TopicPartition(Topic("c"), Partition(0))
    ends = {A: Position(2), B: Position(3), other: Position(4), TopicPartition(Topic("a"), Partition(7)): Position(1)}
    assert with_chains(ends, [CHAIN]) == {CHAIN: Position(5), other: Position(4)}
    assert with_chains(ends, [other]) == ends
    assert ids_together(Topic("a+b"), {Topic("a"): "x", Topic("b"): "y"}) == "x,y"
    assert ids_together(Topic("a+b"), {Topic("a"): "x"}) is None
    assert ids_together(Topic("a"), {Topic("a"): "x"}) == "x"


def test_chain_end_without_input_positions_is_an_error() -> None:
    require_inputs(CHAIN, place(2, 3))
    require_inputs(A, Position(5))
    with pytest.raises(MarkerError, match=re.escape("the chain of a+b/0 ends at 5, and the position of each")):
        require_inputs(CHAIN, Position(5))


def test_merged_chain_can_only_be_rewound_to_a_marker_end() -> None:
    for table in (None, Position(5)):
        rewind = plan_rewind(replace(state(), table=table), Position(5), Author("me", 1))
        assert rewind.chain_origin is not None
        assert inputs_at(rewind.chain_origin.position) == inputs_at(place(2, 3))
    with pytest.raises(UsageError) as refused:
        plan_rewind(replace(state(), table=Position(6)), Position(6), Author("me", 1))
    assert refused.value.remedy == "use a position where one of its markers ends: 5, 7"
    assert with_chain([A, B, TopicPartition(Topic("a"), Partition(1))], "a+b") == [CHAIN]
    loaded = PartitionState(CHAIN, "x", StartAt.EARLIEST, Ends(place(0, 0), place(9, 9)), Position(6))
    with pytest.raises(UsageError, match="the position of each of them is unknown at 6"):
        plan_rewind(loaded, Position(6), Author("me", 1))


def test_merged_chain_cannot_be_skipped() -> None:
    with pytest.raises(UsageError, match="one number does not say which of them to skip in"):
        plan_skip(state(), Position(8), Author("me", 1))


def test_merged_batch_is_decoded_by_topic_and_indexed_as_one() -> None:
    numbers = [np.array(offsets, np.int64) for offsets in ([4, 6], [3])]
    parts = [
        (number, MessageBatch(partition, own, own * 0, pa.array([b"v"] * len(own)), pa.array([b"k"] * len(own)), None))
        for number, (partition, own) in enumerate(zip((A, B), numbers, strict=True))
    ]
    batch = merged_batch(CHAIN, (A, B), (Position(4), Position(3)), parts, np.array([0, 2, 1]))
    assert batch.offsets.tolist() == [7, 8, 10]

    def decoded(batches: Sequence[MessageBatch]) -> list[tuple[Input, list[Reject], NDArray[np.int64]]]:
        """The first message of each topic is refused, and the last is a tombstone."""
        (of_topic,) = batches
        messages = Messages.from_batches(batches)
        index, count = np.arange(1, len(of_topic)), len(of_topic)
        rows, is_null = pa.table({"v": messages.values}).slice(1), np.zeros(count - 1, np.bool_)
        times = of_topic.timestamps_ms[1:]
        given = Input(
            str(of_topic.partition.topic),
            0,
            index,
            of_topic.offsets[index],
            times,
            messages.keys[1:],
            rows,
            is_null,
        )
        return [(given, [Reject(0, ErrorClass.EMPTY, "no")], np.array([count - 1]))]

    (made,) = decoded_by_topic([batch], decoded)
    assert [(input_.topic, input_.index.tolist(), input_.offsets.tolist()) for input_ in made.inputs] == [
        ("a", [2], [6]),
        ("b", [], []),
    ]
    assert [reject.index for reject in made.rejects] == [0, 1]
    assert made.tombstones.tolist() == [1, 2]
    messages = messages_of(batch)
    index = np.array([0, 1, 2])
    assert messages.topics(index).to_pylist() == ["a", "b", "a"]
    assert messages.partitions(index).to_pylist() == [0, 0, 0]
    assert messages.offsets.tolist() == [4, 3, 6]
    assert messages_of(parts[0][1]).topics(np.array([1])).to_pylist() == ["a"]
