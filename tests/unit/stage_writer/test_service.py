"""The writer's loop, one history after the other: a real stage on a disk, a group and a clock in memory."""

import math
from collections.abc import Collection, Mapping
from operator import itemgetter
from pathlib import Path

import pytest
import structlog

from common.errors import BrokerError, ConfigError, ExitCode, KafkaDeltaExpressError, StoreError
from common.http.pausing import Pausing
from common.ports import CreateOutcome
from common.settings import Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.idle import MARGIN_MS, REPORT_EVERY_S, StreamFact, facts_from_bytes
from common.stage.markers import MarkerName
from common.stage.paused_streams import PausedStreams
from common.storage.store import FsspecStore
from stage_writer.assignment import CHECK_HELD_EVERY_S, GIVE_UP_AFTER_S
from stage_writer.background import LOOK_AT_QUIET_S, LOOK_AT_TOPICS_S
from stage_writer.chains import StagedChains
from stage_writer.convert import StreamConverter
from stage_writer.loop import StageWriter
from stage_writer.notifications.notifier import NO_NOTIFIER, LoaderNotifier, NotificationTopic
from stage_writer.outbox.ports import NO_OUTLETS, Outlets
from stage_writer.outbox.records import outgoing_from_bytes
from stage_writer.ports import Polled
from stage_writer.runtime import Attachments
from stage_writer.stage.staging import NewFile, ObjectStage
from stage_writer.stage.table_compatibility import TableCompatibility
from tests.builders import settings_of
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.markers import chain_of, put
from tests.fakes.metrics import values
from tests.fakes.writers import limits_with, new_writer, runtime_of
from tests.staged import manifests

ORDERS = Topic("orders")
FIRST, SECOND, THIRD = (TopicPartition(ORDERS, Partition(number)) for number in range(3))
SESSION_S = 30.0


class World:
    """One stage, one group of one, and a writer that is asked to step."""

    pausing: Pausing | None = None
    paused: PausedStreams | None = None
    tells_news = False
    outlets: Outlets = NO_OUTLETS
    control: NotificationTopic | None = None

    def __init__(
        self,
        folder: Path,
        ends: dict[TopicPartition, int],
        start: str = "earliest",
        alarm: float | None = None,
        *,
        looks_at_tables: bool = False,
        **stream: object,
    ) -> None:
        self.alarm, self.looks_at_tables = alarm, looks_at_tables
        self.store = FsspecStore(f"{folder}/stage")
        self.clock = HandClock()
        self.group = LonelyMember(self.clock, dict(ends), ids={ORDERS: "first"})
        self.settings = settings_of(
            {
                "app_id": "orders",
                "topics": ["orders"],
                "table": f"{folder}/table",
                "columns": "id INT",
                "start": start,
                **stream,
            },
            folder=str(folder),
        )
        self.table = FsspecStore(f"{folder}/table")
        self.writer = self.new_writer()

    def new_writer(self, **limits: int) -> StageWriter:
        names = iter(range(1_000))
        tables = TableCompatibility(lambda _: self.table, self.clock, structlog.get_logger())
        stage = ObjectStage(
            self.store,
            lambda _: self.table,
            self.clock,
            lambda: f"{next(names):032x}",
            "w",
            compatibility=tables if self.looks_at_tables else None,
        )
        runtime = runtime_of(self.clock, dead_letter_alarm=self.alarm)
        self.metrics = runtime.metrics
        self.group.joined = False
        self.group.positions.clear()
        self.group.paused.clear()
        notifier = LoaderNotifier(stage, self.clock, runtime.log, runtime.metrics, self.control)
        writer = new_writer(
            StreamConverter(self.settings.streams[0]),
            source=self.group,
            stage=stage,
            runtime=runtime,
            limits=limits_with(**limits),
            session_s=SESSION_S,
            attachments=Attachments(
                self.pausing, self.paused, notifier if self.tells_news else NO_NOTIFIER, self.outlets
            ),
        )
        self.group.subscribe(self.settings.streams, writer)
        return writer

    def steps(self, number: int = 8, timeout_s: float = 0.5) -> None:
        for _ in range(number):
            self.writer.step(timeout_s)

    def chain(self, partition: TopicPartition = FIRST) -> list[tuple[int, int, str | None, int]]:
        """Each marker's start, end, topic id and generation."""
        found = manifests(self.store, f"done/{partition.topic}/{partition.partition}")
        return sorted(
            ((one.span.start, one.span.end, one.topic_id, one.generation) for one in found), key=itemgetter(0)
        )

    def spans(self, partition: TopicPartition = FIRST) -> list[tuple[int, int]]:
        return [(start, end) for start, end, *_ in self.chain(partition)]

    def problems(self) -> str:
        return " ".join(self.writer.health().problems)


def write_beginning(world: World, partition: TopicPartition, chain_origin: ChainOrigin) -> None:
    world.store.write(origin_path(partition), origin_to_bytes(chain_origin))


def test_a_flush_names_the_topic_that_it_is_of(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    assert world.chain() == [(0, 10, "first", 0)]


def test_a_broker_without_topic_ids_is_not_asked_for_more(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.group.ids[ORDERS] = None
    world.steps()
    assert world.chain() == [(0, 10, None, 0)]


def test_the_positions_behind_the_last_record_are_covered_once_the_end_was_reached(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 12})
    world.group.holes = {10, 11}
    world.steps()
    assert world.spans() == [(0, 12)]


# Idle partitions (stage_writer/partitions/idle_reports.py).


def stream_facts(world: World) -> list[StreamFact]:
    items = world.store.list("idle")
    return [fact for item in items for fact in facts_from_bytes(item.path, world.store.read(item.path) or b"").streams]


def test_which_partitions_there_are_is_told_at_the_start_and_every_minute(tmp_path: Path) -> None:
    """A loader that cannot reach Kafka knows by it of a partition that is not staged yet."""
    world = World(tmp_path, {FIRST: 12})
    world.steps(1, 0.0)
    assert stream_facts(world) == [StreamFact("orders", world.clock.wall_ms() - MARGIN_MS, {ORDERS: 1})]
    world.group.ends[SECOND] = 3  # added, and not assigned yet
    world.clock.now_s += REPORT_EVERY_S
    world.steps(1, 0.0)
    assert [(fact.topics, fact.time_ms) for fact in stream_facts(world)] == [
        ({ORDERS: 2}, world.clock.wall_ms() - MARGIN_MS)
    ]


def idle_facts(world: World) -> dict[int, tuple[int, int]]:
    """By partition its position, and how many seconds ago it was idle."""
    return {
        int(fact.partition.partition): (fact.position, (world.clock.wall_ms() - fact.time_ms) // 1000)
        for item in world.store.list("idle")
        for fact in facts_from_bytes(item.path, world.store.read(item.path) or b"").partitions
    }


def test_partitions_without_new_records_are_told_every_minute(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 12, SECOND: 5, THIRD: 0})
    world.group.holes = {10, 11}  # a transaction's end
    world.steps()
    assert list(idle_facts(world)) == [2], "at the start, what is empty then"
    world.clock.now_s += REPORT_EVERY_S
    world.group.ends[SECOND] = 9
    world.steps(1, 0.0)
    assert idle_facts(world).keys() <= {0, 2}, "one that has something new is not"
    world.steps(40)
    world.clock.now_s += REPORT_EVERY_S
    world.steps(40, 0.0)
    found = idle_facts(world)
    assert {partition: position for partition, (position, _) in found.items()} == {0: 12, 1: 9, 2: 0}
    assert all(60 <= seconds < 62 for _, seconds in found.values())


def test_a_partition_with_nothing_but_aborted_transactions_is_told_without_a_chain(tmp_path: Path) -> None:
    """Nobody else can tell that what Kafka counts there is no record."""
    world = World(tmp_path, {FIRST: 12})
    world.group.holes = set(range(12))
    world.steps()
    world.clock.now_s += REPORT_EVERY_S
    world.steps()
    assert world.chain() == []
    assert {partition: position for partition, (position, _) in idle_facts(world).items()} == {0: 0}


def test_of_a_topic_that_was_created_again_nothing_is_told(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.ids[ORDERS] = "second"
    world.clock.now_s += REPORT_EVERY_S
    world.steps(4)
    assert idle_facts(world) == {}


# Rewinds (rule 8).


def test_a_partition_without_new_records_is_staged_again_after_a_rewind(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    (before,) = [item.path for item in world.store.list("done")]
    write_beginning(world, FIRST, ChainOrigin(Position(0)))
    world.store.delete([before])  # as a rewind to 0 does, after its copy
    world.steps(2)
    assert world.chain() == [], "not each round looks"
    world.clock.now_s += LOOK_AT_QUIET_S
    world.steps(30)  # it has to hear from its group first
    assert world.chain() == [(0, 10, "first", 0)]


def test_a_partition_that_has_staged_nothing_notices_a_rewind_of_its_origin(tmp_path: Path) -> None:
    """No marker shows it: the stream began at its topic's end, and is to begin at the first record after all."""
    world = World(tmp_path, {FIRST: 10}, "latest")
    world.steps()
    write_beginning(world, FIRST, ChainOrigin(Position(0)))
    world.steps(2)
    assert world.chain() == [], "not each round looks"
    world.clock.now_s += LOOK_AT_QUIET_S
    world.steps(30)  # it has to hear from its group first
    assert world.chain() == [(0, 10, "first", 0)]


def test_a_partition_with_records_in_its_buffer_notices_it_before_its_first_claim(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10}, "latest")
    world.steps()
    write_beginning(world, FIRST, ChainOrigin(Position(0)))
    world.group.ends[FIRST] = 12
    world.steps()
    assert world.chain() == [(0, 12, "first", 0)]


def test_a_quiet_partition_whose_chain_cannot_be_looked_at_stays_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()

    def fails(_path: str) -> bytes | None:
        msg = "the store is away"
        raise StoreError(msg)

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "read", fails)
        world.clock.now_s += LOOK_AT_QUIET_S
        world.steps(30)
    world.group.ends[FIRST] = 20
    world.steps(30)
    assert world.spans() == [(0, 10), (10, 20)]


# Freshness (rule 7).


def test_a_process_that_was_stopped_claims_nothing_before_it_has_heard_from_its_group(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.clock.now_s += SESSION_S + 1  # stopped, with ten records in its buffer
    world.steps(2, timeout_s=0.5)
    world.steps(1, timeout_s=SESSION_S / 2)
    assert world.chain() == [], "polls that began so soon may return what was fetched before"
    world.steps(30, timeout_s=0.5)
    assert world.spans() == [(0, 10)]


def test_a_process_that_lost_its_partition_while_it_was_stopped_claims_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.clock.now_s += SESSION_S + 1
    world.steps(2)
    world.writer.lost([FIRST])
    world.group.positions.clear()
    world.steps(60)
    assert world.chain() == []
    assert world.table.stat("anything") is None


# The topic went back (rule 6).


@pytest.mark.parametrize("records", [3, 10, 25])
def test_what_is_read_of_a_topic_that_was_created_again_is_never_claimed(tmp_path: Path, records: int) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.ids[ORDERS] = "second"
    world.group.ends[FIRST] = records
    world.steps(4)
    if records <= 10:
        world.clock.now_s += LOOK_AT_TOPICS_S if records == 10 else 0  # nothing happens there that would tell
        world.steps(4)
    assert world.spans() == [(0, 10)]
    assert "orders was deleted and created again" in world.problems()
    held = world.writer.snapshot().held[FIRST]
    world.clock.now_s += CHECK_HELD_EVERY_S
    world.steps(1)
    assert world.writer.snapshot().held[FIRST] is held, "and not tried again while nothing has changed"
    write_beginning(world, FIRST, ChainOrigin(Position(0), 1, "second"))  # as `bootstrap restart` does
    world.store.delete([MarkerName(FIRST, Position(0)).path])
    world.clock.now_s += CHECK_HELD_EVERY_S
    world.steps(40)
    assert world.chain() == [(0, records, "second", 1)]
    assert world.problems() == ""


def test_a_new_owner_reads_nothing_of_a_topic_that_was_created_again(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.ids[ORDERS] = "second"
    world.group.ends[FIRST] = 25
    world.writer = world.new_writer()
    world.steps()
    assert len(world.chain()) == 1
    assert "orders was deleted and created again" in world.problems()
    assert "→ load what is staged, and start a new chain with `bootstrap restart" in world.problems()
    assert "if kafka.bootstrap.servers names another cluster by mistake, only correct that" in world.problems()


@pytest.mark.parametrize("topic_id", ["first", None])
@pytest.mark.parametrize(("end", "staged"), [(42, []), (50, [(42, 50)])])
def test_a_marker_that_was_made_ahead_of_kafka_is_waited_for(
    tmp_path: Path, topic_id: str | None, end: int, staged: list[tuple[int, int]]
) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.group.ids[ORDERS] = topic_id
    typed = f"done/{FIRST.topic}/{FIRST.partition}/41.done"
    world.store.write(typed, b"")  # as `touch` makes it
    world.steps()
    assert "out of range" in world.problems()
    for reached in (41, end):
        assert "out of range" in world.problems()
        world.group.ends[FIRST] = reached
        world.clock.now_s += CHECK_HELD_EVERY_S
        world.steps(40)
    assert world.problems() == ""
    world.store.delete([typed])
    assert world.spans() == staged


@pytest.mark.parametrize("id_was", ["first", None])
def test_a_topic_that_is_shorter_than_its_chain_is_not_read_on_when_it_has_grown(
    tmp_path: Path, id_was: str | None
) -> None:
    """Nor where the chain was made by a broker that had no ids of topics."""
    world = World(tmp_path, {FIRST: 10})
    world.group.ids[ORDERS] = id_was
    world.steps()
    world.group.ids[ORDERS] = "first"
    world.group.ends[FIRST] = 5
    world.writer = world.new_writer()
    world.steps()
    world.group.ends[FIRST] = 20
    world.clock.now_s += CHECK_HELD_EVERY_S
    world.steps(40)
    assert "out of range" in world.problems()
    assert world.spans() == [(0, 10)]


def test_records_that_kafka_has_lost_hold_their_partition_until_a_new_chain_begins(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.timestamp_ms = 2_000
    world.group.ends[FIRST] = 25
    world.writer = world.new_writer()
    world.steps()
    world.clock.now_s += CHECK_HELD_EVERY_S
    world.steps()
    assert "records are lost" in world.problems()
    assert [held.reason for held in world.writer.snapshot().held.values()] == ["topic_truncated"]
    assert world.chain() == [(0, 10, "first", 0)]
    write_beginning(world, FIRST, ChainOrigin(Position(5), 1, "first"))  # as `bootstrap restart --at 5` does
    world.store.delete([MarkerName(FIRST, Position(0)).path])
    world.clock.now_s += CHECK_HELD_EVERY_S
    world.steps(40)
    assert world.chain() == [(5, 25, "first", 1)]
    assert world.problems() == ""


def test_a_chain_without_a_topic_id_is_compared_with_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 20})
    put(world.store, *chain_of(0, 10, partition=FIRST))
    world.steps()
    assert world.chain() == [(0, 10, None, 0), (10, 20, "first", 0)]


def test_a_topic_that_was_created_again_before_anything_was_staged_is_simply_read(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.group.ids[ORDERS] = "second"
    world.group.ends[FIRST] = 4
    world.steps(12)
    assert world.chain() == [(0, 4, "second", 0)]


def test_markers_of_an_older_generation_are_not_gone_on_from(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    put(world.store, *chain_of(0, 10, 20, partition=FIRST)[1:])
    write_beginning(world, FIRST, ChainOrigin(Position(2), 3, "first"))
    world.steps()
    assert (2, 5, "first", 3) in world.chain()


# Where chains begin (places.py).


def test_latest_begins_every_partition_at_once_and_an_added_one_at_its_first_record(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 0}, "latest")
    world.steps()
    assert (world.chain(FIRST), world.chain(SECOND)) == ([], [])
    world.group.ends |= {FIRST: 6, SECOND: 3, THIRD: 7}
    world.writer = world.new_writer()
    world.steps()
    begun = [world.spans(partition) for partition in (FIRST, SECOND, THIRD)]
    assert begun == [[(5, 6)], [(0, 3)], [(0, 7)]]


def test_latest_begins_where_it_began_after_a_crash_between_two_beginnings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partition 0 is the last one of which it is written down: without that none counts as added later."""
    world = World(tmp_path, {FIRST: 5, SECOND: 5}, "latest")
    create, made, away = world.store.create, list[str](), StoreError("it is away", "wait")

    def crashes_second(path: str, data: bytes) -> CreateOutcome:
        if path.startswith("begin/"):
            made.append(path)
            if len(made) == 2:
                raise away
        return create(path, data)

    monkeypatch.setattr(world.store, "create", crashes_second)
    world.steps(1)
    assert len(made) == 2
    world.writer = world.new_writer()
    world.steps()
    world.group.ends |= {FIRST: 6, SECOND: 7}
    world.steps()
    begun = [world.spans(partition) for partition in (FIRST, SECOND)]
    assert begun == [[(5, 6)], [(5, 7)]]


def test_a_partition_that_is_added_while_another_writer_starts_the_topic_lacks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is added right after the other writer recorded the origin of partition 0."""
    world = World(tmp_path, {FIRST: 5}, "latest")
    ask = LonelyMember.end_positions

    def meanwhile(group: LonelyMember, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        if SECOND not in group.ends:
            write_beginning(world, FIRST, ChainOrigin(Position(5)))
            group.ends[SECOND] = 3
        return ask(group, streams)

    monkeypatch.setattr(LonelyMember, "end_positions", meanwhile)
    world.steps()
    world.writer = world.new_writer()
    world.steps()
    assert world.spans(SECOND) == [(0, 3)]


def test_a_chain_that_begins_at_a_moment_begins_there_after_a_restart_too(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5}, "2024-01-01T00:00:00Z")
    world.steps()
    world.group.ends[FIRST] = 9  # where the moment would be found now
    world.writer = world.new_writer()
    world.steps()
    assert world.spans() == [(5, 9)]


def test_a_beginning_that_another_process_wrote_wins(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5}, "latest")
    write_beginning(world, FIRST, ChainOrigin(Position(2)))
    world.steps()
    assert world.spans() == [(2, 5)]


# --until-caught-up (catching_up.py).


def must_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    end_s = world.clock.now_s + 20 * SESSION_S

    def sleep(clock: HandClock, seconds: float) -> None:
        assert clock.now_s < end_s, "it does not end"
        clock.now_s += seconds

    monkeypatch.setattr(HandClock, "sleep_s", sleep)


def test_the_group_is_asked_now_and_then_and_not_forever(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.group.unowned = {SECOND}
    with pytest.raises(BrokerError, match="no member of the consumer group has read orders/1 for 6"):
        world.writer.run(until_caught_up=True)
    assert world.group.asked_group < 40, "and not in each of 300 steps"


def test_a_group_that_never_comes_to_rest_is_named(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.group.unowned = None
    with pytest.raises(BrokerError, match="has been rebalancing"):
        world.writer.run(until_caught_up=True)


def test_a_group_that_takes_no_member_is_an_error(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.group.others = {FIRST: math.inf}  # so that this member gets no assignment, not even an empty one
    with pytest.raises(BrokerError, match="has not joined its consumer group within 30"):
        world.writer.run(until_caught_up=True)


def test_a_topic_that_is_not_there_is_an_error_that_names_it(tmp_path: Path) -> None:
    world = World(tmp_path, {})
    with pytest.raises(ConfigError, match="'orders'"):
        world.writer.run(until_caught_up=True)


def test_all_is_staged_when_it_ends(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 0})
    world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 5)]


def test_a_partition_without_a_record_is_caught_up_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.group.holes = set(range(5))  # of transactions that were aborted
    must_end(world, monkeypatch)
    world.writer.run(until_caught_up=True)
    assert world.spans() == []


def test_a_silence_before_the_last_flush_is_ended_by_a_poll(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poll(group: LonelyMember, timeout_s: float) -> Polled:
        polled = poll_at_once(group, timeout_s)
        group.clock.sleep_s(SESSION_S + 1 if polled.batches else 0)  # as of a machine that was suspended
        return polled

    poll_at_once = LonelyMember.poll
    monkeypatch.setattr(LonelyMember, "poll", poll)
    world = World(tmp_path, {FIRST: 5})
    must_end(world, monkeypatch)
    world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 5)]


def test_a_partition_whose_owner_has_died_is_staged_before_it_ends(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 3})
    world.group.others = {SECOND: world.clock.now_s + SESSION_S}  # then the group notices
    world.writer.run(until_caught_up=True)
    assert [[end for _, end, *_ in world.chain(partition)] for partition in (FIRST, SECOND)] == [[5], [3]]


def test_what_a_living_owner_has_not_staged_in_time_is_left_to_it(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 3}, flush_after="100s")
    began_s = world.clock.now_s
    world.group.others = {SECOND: math.inf}
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s >= SESSION_S + 100
    assert world.group.asked_group < 100


def test_it_ends_when_another_member_has_staged_the_rest(tmp_path: Path) -> None:
    other = World(tmp_path, {SECOND: 3})
    other.writer.run(until_caught_up=True)
    world = World(tmp_path, {FIRST: 5, SECOND: 3})
    began_s = world.clock.now_s
    world.group.others = {SECOND: math.inf}
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s < SESSION_S / 2


def test_members_that_wait_for_each_other_have_staged_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, world = World(tmp_path, {SECOND: 3}), World(tmp_path, {FIRST: 5, SECOND: 3}, flush_after="100s")
    began_s, poll = world.clock.now_s, LonelyMember.poll
    world.group.others = {SECOND: math.inf}

    def poll_both(group: LonelyMember, timeout_s: float) -> Polled:
        if group is world.group and world.chain(FIRST) and not world.chain(SECOND):
            other.writer.run(until_caught_up=True)
        return poll(group, timeout_s)

    monkeypatch.setattr(LonelyMember, "poll", poll_both)
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s < SESSION_S / 2


def test_an_owner_that_got_a_partition_later_has_as_long_for_it(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 3, THIRD: 4}, flush_after="60s")
    began_s = world.clock.now_s
    world.group.others = {SECOND: began_s + 40, THIRD: math.inf}
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s >= 40 + SESSION_S + 60


def test_an_owner_in_place_of_one_that_died_has_as_long_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 3}, flush_after="60s")
    began_s = world.clock.now_s
    world.group.others = {SECOND: math.inf}

    def ownerless(group: LonelyMember, _: Collection[TopicPartition]) -> set[TopicPartition]:
        return {SECOND} if began_s + 40 < group.clock.now_s < began_s + 50 else set()

    monkeypatch.setattr(LonelyMember, "ownerless", ownerless)
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s >= 50 + SESSION_S + 60


class Letterbox(Outlets):
    leaves = 0
    paths: tuple[str, ...] = ()

    def open(self, *_: object) -> "Letterbox":
        return self

    def pending(self) -> tuple[str, ...]:
        return ()

    def sealed(self, paths: tuple[str, ...]) -> None:
        self.paths += paths

    def leave(self) -> None:
        self.leaves += 1

    def problems(self) -> tuple[KafkaDeltaExpressError, ...]:
        return ()


def test_dead_letters_for_a_topic_are_in_the_outbox_that_their_marker_names(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 3}, columns="missing INT NOT NULL", dead_letters="kafka://errors")
    world.outlets = letterbox = Letterbox()
    world.writer = world.new_writer()
    world.steps(200)
    assert letterbox.leaves == 0
    world.writer.revoked([FIRST])
    assert letterbox.leaves == 1
    (marker,) = manifests(world.store, f"done/{ORDERS}/0")
    assert (marker.records, dict(marker.dead_letters)) == (3, {"missing_field": 3})
    (path,) = marker.outboxes
    assert letterbox.paths == (path,), "it is delivered now"
    records = outgoing_from_bytes(path, world.store.read(path) or b"").records.to_pylist()
    assert [(one["topic"], one["input"], one["offset"]) for one in records] == [("errors", 0, at) for at in range(3)]
    headers = {header["name"]: header["value"] for header in records[1]["headers"]}
    assert headers.pop("dead_letter.error").startswith(b"missing: ")
    assert headers == {
        "dead_letter.app_id": b"orders",
        "dead_letter.error_class": b"missing_field",
        "dead_letter.topic": b"orders",
        "dead_letter.partition": b"0",
        "dead_letter.offset": b"1",
    }
    assert world.settings.streams[0].dead_letters == f"{tmp_path}/table_dead_letters"


# The end of the loop.


def test_a_writer_that_fails_seals_nothing_on_its_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world, poll = World(tmp_path, {FIRST: 10}), LonelyMember.poll

    def poll_once(group: LonelyMember, timeout_s: float) -> Polled:
        if group.positions:
            assert world.writer.snapshot().assigned[0].buffer.records == 10
            raise BrokerError("Kafka has gone")
        return poll(group, timeout_s)

    monkeypatch.setattr(LonelyMember, "poll", poll_once)
    with pytest.raises(BrokerError, match="Kafka has gone"):
        world.writer.run(until_caught_up=False)
    assert world.chain() == []


def test_what_a_partition_holds_is_sealed_before_it_is_given_back(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.writer.revoked([FIRST])
    assert world.spans() == [(0, 10)]
    assert not world.writer.snapshot().assigned


def test_a_run_whose_last_claim_is_lost_stages_what_comes_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, claim = World(tmp_path, {FIRST: 10}), StagedChains.claim

    def claim_second(chains: StagedChains, name: MarkerName, data: bytes) -> bool:
        if not world.chain():
            put(world.store, *chain_of(0, 4))
        return claim(chains, name, data)

    monkeypatch.setattr(StagedChains, "claim", claim_second)
    world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 4), (4, 10)]


def test_kafka_is_told_of_what_continues_the_chain_and_of_nothing_else(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10, SECOND: 10})
    put(world.store, *chain_of(0, 4, partition=SECOND))
    world.steps(1)
    put(world.store, *chain_of(20, 30, partition=SECOND))  # by a writer that has it, too
    world.steps()
    assert world.spans(SECOND) == [(0, 4), (4, 10), (20, 30)]
    assert world.group.reported == {FIRST: 10}


def test_a_partition_whose_chain_cannot_be_read_again_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StoreError("the stage has gone")

    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    put(world.store, *chain_of(0, 4))
    with monkeypatch.context() as patched:
        patched.setattr(StagedChains, "tail", fails)
        world.steps()
        assert world.group.paused == {FIRST}
    world.steps(100)
    assert world.spans() == [(0, 4), (4, 10)]
    assert not world.group.paused


# A stage or a broker that fails.


@pytest.mark.parametrize("error", [StoreError("it has gone"), BrokerError("it has gone")])
def test_a_failing_stage_is_reported_and_ends_the_writer_after_minutes_and_a_failing_broker_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: KafkaDeltaExpressError
) -> None:
    def fails(*_: object) -> None:
        raise error

    world = World(tmp_path, {FIRST: 10})
    with monkeypatch.context() as patched:
        patched.setattr(ObjectStage, "upload", fails)
        world.steps()
        assert ("the store or Kafka fails" in world.problems()) is isinstance(error, StoreError)
    world.steps(100)
    assert (world.problems(), world.spans()) == ("", [(0, 10)])
    monkeypatch.setattr(ObjectStage, "upload", fails)
    world.group.ends[FIRST] = 20
    began_s = world.clock.now_s
    if isinstance(error, BrokerError):
        world.steps(100, timeout_s=10)
        return
    with pytest.raises(KafkaDeltaExpressError, match="it has gone") as found:
        world.steps(100, timeout_s=10)
    assert found.value.exit_code is ExitCode.FAILED
    assert GIVE_UP_AFTER_S < world.clock.now_s - began_s < 2 * GIVE_UP_AFTER_S


def test_a_last_flush_that_takes_longer_than_a_session_is_sealed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, upload = World(tmp_path, {FIRST: 10}), ObjectStage.upload
    began_s = world.clock.now_s

    def upload_later(stage: ObjectStage, file: NewFile) -> None:
        if world.clock.now_s < began_s + 2 * SESSION_S:
            raise StoreError("it is slow")
        upload(stage, file)

    must_end(world, monkeypatch)
    monkeypatch.setattr(ObjectStage, "upload", upload_later)
    world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 10)]


def test_partitions_and_what_they_lose_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10, SECOND: 10})
    world.steps(1)
    put(world.store, *chain_of(0, 4))  # by another writer
    world.steps()
    counted = values(world.metrics)
    assert counted["stage_writer_assigned_partitions", ()] == 2
    assert counted["stage_writer_lost_claims_total", (("topic", "orders"),)] == 1
    world.writer.revoked([FIRST])
    assert values(world.metrics)["stage_writer_assigned_partitions", ()] == 1
