"""A run that stages all that is in Kafka ends once its part is staged, and that of others too, or their owners live."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from common.errors import BrokerError, BrokerRefusedError, ConfigError, KafkaDeltaExpressError
from common.settings import Stream
from common.spans import Partition, Position, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.storage.store import FsspecStore
from stage_writer.chain_end import Lineage
from stage_writer.chains import StagedChains
from stage_writer.parquet.buffer import Buffer
from stage_writer.partitions.catching_up import (
    ASK_EVERY_S,
    NO_OWNER_AFTER_S,
    NO_REST_AFTER_S,
    CatchingUp,
    require_all,
    undelivered,
)
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import Converter
from stage_writer.stage.staging import ObjectStage
from tests.builders import settings_of
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.markers import ORDERS as OURS
from tests.fakes.markers import chain_of, put

THEIRS = TopicPartition(OURS.topic, Partition(1))
ALIVE_AFTER_S = 45.0


@dataclass
class Staged:
    """The only part of a stage that is asked for."""

    chains: StagedChains


@dataclass
class Run:
    store: FsspecStore
    ends: dict[TopicPartition, int] = field(default_factory=lambda: {OURS: 10, THEIRS: 10})
    streams: tuple[Stream, ...] = settings_of().streams

    def __post_init__(self) -> None:
        self.clock = HandClock()
        self.group = LonelyMember(self.clock, self.ends)
        stage = cast("ObjectStage", Staged(StagedChains(self.store)))
        self.goal = CatchingUp(self.group, stage, self.clock, self.streams, ALIVE_AFTER_S)

    def after(self, seconds: float) -> CatchingUp:
        self.clock.now_s += seconds
        return self.goal


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(f"{tmp_path}/stage")


@pytest.fixture
def run(store: FsspecStore) -> Run:
    return Run(store)


class Hiding(LonelyMember):
    """A group whose member may not see the topics of the streams `denied`."""

    def end_positions(self, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        for stream in streams:
            if stream.app_id in self.denied:
                raise BrokerRefusedError(f"the topic of {stream.app_id} is hidden", "allow it")
        return super().end_positions(streams)


def at(position: int, *, caught_up: bool = False, partition: TopicPartition = OURS) -> AssignedPartition:
    converter, buffer = cast("Converter", None), Buffer.begin(Position(position), ())
    return AssignedPartition(partition, converter, None, Lineage(), buffer, 0.0, caught_up=caught_up)


@pytest.mark.parametrize("denied", [{"payments"}, {"orders", "payments"}])
def test_stream_with_a_hidden_topic_is_left_out_unless_all_are(store: FsspecStore, denied: set[str]) -> None:
    clock, stage = HandClock(), cast("ObjectStage", Staged(StagedChains(store)))
    streams = settings_of(
        *({"app_id": name, "topics": [name], "table": f"memory://lake/{name}"} for name in ("orders", "payments"))
    ).streams
    group = Hiding(clock, {OURS: 10}, denied=denied)
    if len(denied) == len(streams):
        with pytest.raises(BrokerRefusedError, match="the topic of orders is hidden"):
            CatchingUp(group, stage, clock, streams, ALIVE_AFTER_S)
        return
    goal = CatchingUp(group, stage, clock, streams, ALIVE_AFTER_S)
    assert not goal.is_done([at(9)])
    assert goal.is_done([at(10)])
    assert goal.notes == ["payments: the topic of payments is hidden → allow it"]


def test_own_partition_is_done_at_the_first_end_or_at_a_later_one(run: Run) -> None:
    run.ends[OURS] = 20
    assert not run.goal.is_done([at(9)])
    assert run.goal.is_done([at(10)])
    assert run.goal.is_done([at(9, caught_up=True)])
    added = TopicPartition(OURS.topic, Partition(2))
    assert run.goal.is_done([at(10), at(0, partition=added)])


def test_partition_of_another_counts_once_it_is_staged(run: Run) -> None:
    assert not run.goal.others_have_staged({OURS})
    put(run.store, *chain_of(0, 10, partition=THEIRS))
    assert not run.goal.others_have_staged({OURS}), "the stage is asked at intervals"
    assert run.after(ASK_EVERY_S).others_have_staged({OURS})


def test_partition_of_another_counts_where_its_chain_begins_at_the_end(run: Run) -> None:
    run.store.write(origin_path(THEIRS), origin_to_bytes(ChainOrigin(Position(10))))
    assert run.goal.others_have_staged({OURS})


def test_unreadable_chain_of_another_is_not_staged(run: Run) -> None:
    (marker,) = chain_of(0, 10, partition=THEIRS)
    run.store.write(marker.name.path, b"{")
    assert not run.goal.others_have_staged({OURS})


def test_owner_that_keeps_its_partition_for_long_enough_lives(run: Run) -> None:
    assert not run.goal.others_have_staged({OURS})
    assert not run.after(ALIVE_AFTER_S - 1).others_have_staged({OURS})
    assert run.after(1).others_have_staged({OURS})


def test_each_owner_has_its_own_time(run: Run) -> None:
    run.goal.others_have_staged({OURS})
    assert not run.after(ALIVE_AFTER_S).others_have_staged({THEIRS}), "the partitions have changed hands"
    assert not run.after(ALIVE_AFTER_S - 1).others_have_staged({THEIRS})
    run.group.unowned = {OURS}
    assert not run.after(ASK_EVERY_S).others_have_the_rest()
    run.group.unowned = set()
    assert run.after(ASK_EVERY_S).others_have_the_rest()
    assert not run.goal.others_have_staged({THEIRS}), "it had no owner meanwhile"
    assert run.after(ALIVE_AFTER_S).others_have_staged({THEIRS})


def test_group_is_asked_at_intervals_and_its_last_answer_holds(run: Run) -> None:
    assert run.goal.others_have_the_rest()
    run.group.unowned = {THEIRS}
    assert run.after(ASK_EVERY_S - 1).others_have_the_rest()
    assert run.group.asked_group == 1
    assert not run.after(1).others_have_the_rest()
    assert not run.goal.others_have_the_rest()
    assert run.group.asked_group == 2


@pytest.mark.parametrize(
    ("unowned", "after_s", "problem"),
    [
        (None, NO_REST_AFTER_S, "has been rebalancing for 302 s"),
        ({THEIRS}, NO_OWNER_AFTER_S, "no member of the consumer group has read orders/1 for 62 s"),
    ],
)
def test_wait_for_owners_is_bounded(
    run: Run, unowned: set[TopicPartition] | None, after_s: float, problem: str
) -> None:
    run.group.unowned = unowned
    assert not run.goal.others_have_the_rest()
    assert not run.after(after_s - 10).others_have_the_rest()
    run.group.unowned = set()
    assert run.after(9).others_have_the_rest()
    run.group.unowned = unowned
    assert not run.after(9).others_have_the_rest(), "it begins again"
    assert not run.after(after_s).others_have_the_rest()
    with pytest.raises(BrokerError, match=problem):
        run.after(ASK_EVERY_S).others_have_the_rest()


def test_group_that_does_not_answer_is_waited_for_and_then_an_error(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise BrokerError("no answer")

    assert run.goal.others_have_the_rest()
    monkeypatch.setattr(LonelyMember, "ownerless", fails)
    assert not run.after(ASK_EVERY_S).others_have_the_rest()
    assert not run.after(1).others_have_the_rest()
    with pytest.raises(BrokerError, match="no answer"):
        run.after(NO_REST_AFTER_S).others_have_the_rest()


def test_topic_that_is_named_must_exist_and_a_pattern_may_match_none(store: FsspecStore) -> None:
    with pytest.raises(ConfigError, match="names the topic 'orders', which does not exist"):
        Run(store, {})
    assert Run(store, {}, settings_of({"topics": ["^orders"]}).streams).goal.is_nothing


def test_run_that_left_something_out_says_so() -> None:
    require_all([], stopped=False)
    for held, stopped, exit_code in (([], True, 1), (["orders/0"], True, 1), (["orders/0"], False, 3)):
        with pytest.raises(KafkaDeltaExpressError, match="staged") as raised:
            require_all(held, stopped=stopped)
        assert raised.value.exit_code == exit_code
    assert undelivered([]).exit_code == 1
    refused = undelivered([BrokerError("not allowed", "allow it")])
    assert (refused.exit_code, refused.remedy) == (3, "allow it")
