"""The writer's loop: a real stage on disk, with a consumer group and a clock in memory."""

import math
from collections.abc import Collection, Mapping
from operator import itemgetter
from pathlib import Path

import pytest
import structlog

from common import metrics as all_metrics
from common.errors import BrokerError, ConfigError, ExitCode, HeldError, KafkaDeltaExpressError, StoreError
from common.http.pages import Pausing
from common.lagging.history import EndHistory
from common.ports import CreateOutcome
from common.settings import Stream
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.idle import MARGIN_MS, REPORT_EVERY_S, StreamFact, facts_from_bytes
from common.stage.markers import MarkerName
from common.stage.paused import StreamPart
from common.stage.paused_streams import PausedStreams
from common.storage.store import FsspecStore
from stage_writer.assignment import CHECK_HELD_EVERY_S, GIVE_UP_AFTER_S
from stage_writer.background import LIST_ORIGINS_S, LOOK_AT_QUIET_S, LOOK_AT_TOPICS_S
from stage_writer.chains import StagedChains
from stage_writer.convert import StreamConverter
from stage_writer.loop import StageWriter
from stage_writer.notifications.notifier import NO_NOTIFIER, LoaderNotifier, NotificationTopic
from stage_writer.outbox.ports import NO_OUTLETS, Outlets
from stage_writer.outbox.records import outgoing_from_bytes
from stage_writer.partitions.catching_up import CatchingUp
from stage_writer.ports import NOT_ALLOWED, OUT_OF_RANGE, TRUNCATED, Polled
from stage_writer.runtime import Attachments
from stage_writer.stage.staging import NewFile, ObjectStage
from stage_writer.stage.table_compatibility import TableCompatibility
from stage_writer.web.view import WriterView
from tests.builders import settings_of
from tests.fakes.group import HandClock, LonelyMember
from tests.fakes.markers import chain_of, put
from tests.fakes.metrics import values
from tests.fakes.pauses import paused_streams
from tests.fakes.writers import REVOKE_TIMEOUT_S, limits_with, new_writer, runtime_of
from tests.staged import manifests

ORDERS = Topic("orders")
FIRST, SECOND, THIRD = (TopicPartition(ORDERS, Partition(number)) for number in range(3))
SESSION_S = 30.0


class World:
    """One stage, a consumer group with one member, and a writer that is stepped by hand."""

    session_s = SESSION_S
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
            session_s=self.session_s,
            attachments=Attachments(
                self.pausing, self.paused, notifier if self.tells_news else NO_NOTIFIER, self.outlets
            ),
        )
        self.group.subscribe(self.settings.streams, writer)
        return writer

    def page_problems(self) -> list[tuple[str, str]]:
        """The titles and texts of the problems on the writer's page."""
        log, part = structlog.get_logger(), StreamPart.STAGING
        pausing = self.pausing or Pausing(self.clock, log, self.metrics, all_metrics.WRITER_PAUSED_BY_REQUEST)
        view = WriterView(
            EndHistory(),
            self.clock,
            self.metrics,
            pausing,
            flush_after_s=lambda _: 1.0,
            paused=paused_streams(part=part),
        )
        return [(problem.title, problem.problem) for problem in view.status(self.writer.snapshot()).problems]

    def steps(self, number: int = 8, timeout_s: float = 0.5) -> None:
        for _ in range(number):
            self.writer.step(timeout_s)

    def after(self, seconds: float, number: int = 8, timeout_s: float = 0.5) -> None:
        self.clock.now_s += seconds
        self.steps(number, timeout_s)

    def restart(self, number: int = 8) -> None:
        self.writer = self.new_writer()
        self.steps(number)

    def chain(self, partition: TopicPartition = FIRST) -> list[tuple[int, int, str | None, int]]:
        """Each marker's start, end, topic id and generation."""
        markers = manifests(self.store, f"done/{partition.topic}/{partition.partition}")
        return sorted(
            ((marker.span.start, marker.span.end, marker.topic_id, marker.generation) for marker in markers),
            key=itemgetter(0),
        )

    def origins(self) -> list[int | None]:
        """The number of the origin that each marker names."""
        markers = manifests(self.store, f"done/{FIRST.topic}/{FIRST.partition}")
        return [marker.chain_origin for marker in sorted(markers, key=lambda marker: marker.span.start)]

    def spans(self, partition: TopicPartition = FIRST) -> list[tuple[int, int]]:
        return [(start, end) for start, end, *_ in self.chain(partition)]

    def problems(self) -> str:
        return " ".join(self.writer.health().problems)


def write_origin(world: World, partition: TopicPartition, chain_origin: ChainOrigin) -> None:
    world.store.write(origin_path(partition, chain_origin.number), origin_to_bytes(chain_origin))


def test_flush_records_the_topic_id(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    assert world.chain() == [(0, 10, "first", 0)]


def test_flush_without_broker_topic_ids_records_none(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.group.ids[ORDERS] = None
    world.steps()
    assert world.chain() == [(0, 10, None, 0)]


def test_span_covers_offsets_behind_the_last_record_once_the_end_is_reached(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 12})
    world.group.holes = {10, 11}
    world.steps()
    assert world.spans() == [(0, 12)]


# Idle partitions (stage_writer/partitions/idle_reports.py).


def stream_facts(world: World) -> list[StreamFact]:
    items = world.store.list("idle")
    return [fact for item in items for fact in facts_from_bytes(item.path, world.store.read(item.path) or b"").streams]


def test_stream_facts_are_reported_at_startup_and_every_minute(tmp_path: Path) -> None:
    """They tell a loader that cannot reach Kafka about partitions that are not staged yet."""
    world = World(tmp_path, {FIRST: 12})
    world.steps(1, 0.0)
    assert stream_facts(world) == [StreamFact("orders", world.clock.wall_ms() - MARGIN_MS, {ORDERS: 1})]
    world.group.ends[SECOND] = 3  # added, and not assigned yet
    world.after(REPORT_EVERY_S, 1, 0.0)
    assert [(fact.topics, fact.time_ms) for fact in stream_facts(world)] == [
        ({ORDERS: 2}, world.clock.wall_ms() - MARGIN_MS)
    ]


def idle_facts(world: World) -> dict[int, tuple[int, int]]:
    """By partition: its position, and how many seconds ago it was idle."""
    return {
        int(fact.partition.partition): (fact.position, (world.clock.wall_ms() - fact.time_ms) // 1000)
        for item in world.store.list("idle")
        for fact in facts_from_bytes(item.path, world.store.read(item.path) or b"").partitions
    }


def test_idle_partitions_are_reported_every_minute(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 12, SECOND: 5, THIRD: 0})
    world.group.holes = {10, 11}  # a transaction's end
    world.steps()
    assert list(idle_facts(world)) == [2], "at startup, only the empty partition"
    world.clock.now_s += REPORT_EVERY_S
    world.group.ends[SECOND] = 9
    world.steps(1, 0.0)
    assert idle_facts(world).keys() <= {0, 2}, "a partition with new records is not reported"
    world.steps(40)
    world.after(REPORT_EVERY_S, 40, 0.0)
    facts = idle_facts(world)
    assert {partition: position for partition, (position, _) in facts.items()} == {0: 12, 1: 9, 2: 0}
    assert all(60 <= seconds < 62 for _, seconds in facts.values())


def test_partition_with_only_aborted_transactions_is_reported_without_a_chain(tmp_path: Path) -> None:
    """Only the writer can know that the offsets that Kafka counts there hold no record."""
    world = World(tmp_path, {FIRST: 12})
    world.group.holes = set(range(12))
    world.steps()
    world.after(REPORT_EVERY_S)
    assert world.chain() == []
    assert {partition: position for partition, (position, _) in idle_facts(world).items()} == {0: 0}


def test_recreated_topic_is_not_reported_as_idle(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.ids[ORDERS] = "second"
    world.after(REPORT_EVERY_S, 4)
    assert idle_facts(world) == {}


# Rewinds (rule 8).


def test_idle_partition_is_restaged_after_a_rewind(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    (before,) = [item.path for item in world.store.list("done")]
    write_origin(world, FIRST, ChainOrigin(Position(0)))
    world.store.delete([before])  # as a rewind to 0 does, after its copy
    world.steps(2)
    assert world.chain() == [], "the chain is not checked in every step"
    world.after(LOOK_AT_QUIET_S, 30)  # the writer has to hear from its group first
    assert world.chain() == [(0, 10, "first", 0)]


def test_rewind_to_a_partition_s_own_end_is_noticed(tmp_path: Path) -> None:
    """It removes nothing that the partition continues from, and what is staged by the earlier origin is a stray."""
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.store.create(origin_path(FIRST, 1), origin_to_bytes(ChainOrigin(Position(10))))
    world.group.ends[FIRST] = 20
    world.steps()
    assert world.origins() == [0, 0], "origins are not listed in every step"
    world.after(LIST_ORIGINS_S, 30)
    world.group.ends[FIRST] = 30
    world.steps()
    assert world.spans() == [(0, 10), (10, 20)], "nothing continues the stray"
    world.store.delete([MarkerName(FIRST, Position(10)).path])  # as the rewind or a loader does, after its copy
    world.steps(30)
    assert world.spans() == [(0, 10), (10, 30)]
    assert world.origins() == [0, 1]


def test_partition_without_markers_notices_a_rewind_of_its_origin(tmp_path: Path) -> None:
    """No marker shows it: the stream started at its topic's end, and the rewind moves it to the first record."""
    world = World(tmp_path, {FIRST: 10}, "latest")
    world.steps()
    write_origin(world, FIRST, ChainOrigin(Position(0)))
    world.steps(2)
    assert world.chain() == [], "the chain is not checked in every step"
    world.after(LOOK_AT_QUIET_S, 30)  # the writer has to hear from its group first
    assert world.chain() == [(0, 10, "first", 0)]


def test_partition_with_buffered_records_notices_a_rewind_before_its_first_claim(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10}, "latest")
    world.steps()
    write_origin(world, FIRST, ChainOrigin(Position(0), number=1))
    world.group.ends[FIRST] = 12
    world.steps()
    assert world.chain() == [(0, 12, "first", 0)]
    assert world.origins() == [1]


def test_idle_partition_keeps_its_position_if_its_chain_is_unreadable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()

    def fails(_path: str) -> bytes | None:
        msg = "the store is away"
        raise StoreError(msg)

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "read", fails)
        world.after(LOOK_AT_QUIET_S, 30)
    world.group.ends[FIRST] = 20
    world.steps(30)
    assert world.spans() == [(0, 10), (10, 20)]


# Freshness (rule 7).


def test_suspended_process_claims_nothing_before_it_hears_from_its_group(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.clock.now_s += SESSION_S + 1  # suspended, with ten records in its buffer
    world.steps(2, timeout_s=0.5)
    world.steps(1, timeout_s=SESSION_S / 2)
    assert world.chain() == [], "polls so soon after the suspension may return records fetched before it"
    world.steps(30, timeout_s=0.5)
    assert world.spans() == [(0, 10)]


def test_process_that_lost_its_partition_while_suspended_claims_nothing(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.after(SESSION_S + 1, 2)
    world.writer.lost([FIRST])
    world.group.positions.clear()
    world.steps(60)
    assert world.chain() == []
    assert world.table.stat("anything") is None


def test_partition_that_may_not_be_read_is_held_until_it_may(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.group.denied = {"orders"}
    world.steps()
    held = world.writer.snapshot().held[FIRST]
    assert (held.reason, held.remedy, world.group.paused) == (NOT_ALLOWED, "allow it", {FIRST})
    world.after(CHECK_HELD_EVERY_S)
    assert world.writer.snapshot().held[FIRST] is held, "held without a retry while nothing has changed"
    world.group.denied = set()
    world.after(CHECK_HELD_EVERY_S, 40)
    assert (world.spans(), world.problems()) == ([(0, 10)], "")


# Recreated and truncated topics (rule 6).


@pytest.mark.parametrize("records", [3, 10, 25])
def test_records_of_a_recreated_topic_are_never_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: int
) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.ids[ORDERS] = "second"
    world.group.ends[FIRST] = records
    world.steps(4)
    if records <= 10:
        world.clock.now_s += LOOK_AT_TOPICS_S if records == 10 else 0  # no new record would reveal it
        world.steps(4)
    assert world.spans() == [(0, 10)]
    assert "orders was deleted and created again" in world.problems()
    held = world.writer.snapshot().held[FIRST]
    world.after(CHECK_HELD_EVERY_S, 1)
    with monkeypatch.context() as patched:
        patched.setattr(StagedChains, "tail", lambda *_: pytest.fail("its chain is not read in every step"))
        world.steps(4)
    assert world.writer.snapshot().held[FIRST] is held, "held without a retry while nothing has changed"
    assert world.group.paused == {FIRST}
    write_origin(world, FIRST, ChainOrigin(Position(0), 1, "second"))  # as `bootstrap restart` does
    world.store.delete([MarkerName(FIRST, Position(0)).path])
    world.after(CHECK_HELD_EVERY_S, 40)
    assert world.chain() == [(0, records, "second", 1)]
    assert world.problems() == ""


def test_new_chain_of_a_recreated_topic_may_start_where_the_old_one_ended(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.ids[ORDERS] = "second"
    world.group.ends[FIRST] = 25
    world.steps(4)
    write_origin(world, FIRST, ChainOrigin(Position(10), 1, "second"))
    world.store.delete([MarkerName(FIRST, Position(0)).path])
    world.after(CHECK_HELD_EVERY_S, 40)
    assert world.chain() == [(10, 25, "second", 1)]


def test_new_owner_reads_nothing_from_a_recreated_topic(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.ids[ORDERS] = "second"
    world.group.ends[FIRST] = 25
    world.restart()
    assert len(world.chain()) == 1
    assert "orders was deleted and created again" in world.problems()
    assert "→ load what is staged, and start a new chain with `bootstrap restart" in world.problems()
    assert "if kafka.bootstrap.servers names another cluster by mistake, only correct that" in world.problems()


@pytest.mark.parametrize("topic_id", ["first", None])
@pytest.mark.parametrize(("end", "staged"), [(42, []), (50, [(42, 50)])])
def test_marker_ahead_of_kafka_holds_its_partition_until_kafka_catches_up(
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
        world.after(CHECK_HELD_EVERY_S, 40)
    assert world.problems() == ""
    world.store.delete([typed])
    assert world.spans() == staged


def test_marker_ahead_of_kafka_waits_for_a_repair_once_kafka_has_lost_its_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.store.write(f"done/{FIRST.topic}/{FIRST.partition}/41.done", b"")
    world.steps()
    world.group.ends[FIRST] = 60
    monkeypatch.setattr(LonelyMember, "resolve", lambda *_: Position(50))
    world.after(CHECK_HELD_EVERY_S)
    assert "out of range" in world.problems()


@pytest.mark.parametrize(("id_was", "reason"), [("first", TRUNCATED), (None, TRUNCATED), ("first", OUT_OF_RANGE)])
def test_topic_shorter_than_its_chain_stays_held_after_it_grows(
    tmp_path: Path, id_was: str | None, reason: str
) -> None:
    """Also if the chain was staged from a broker without topic ids, or the broker did not say where the topic ends."""
    world = World(tmp_path, {FIRST: 10})
    world.group.beyond_is = reason
    world.group.ids[ORDERS] = id_was
    world.steps()
    world.group.ids[ORDERS] = "first"
    world.group.ends[FIRST] = 5
    world.restart()
    world.group.ends[FIRST] = 20
    world.after(CHECK_HELD_EVERY_S, 40)
    assert "out of range" in world.problems()
    assert world.spans() == [(0, 10)]


def test_lost_records_hold_their_partition_until_a_new_chain_starts(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.timestamp_ms = 2_000
    world.group.ends[FIRST] = 25
    world.restart()
    world.after(CHECK_HELD_EVERY_S)
    assert "records are lost" in world.problems()
    assert [held.reason for held in world.writer.snapshot().held.values()] == ["topic_truncated"]
    assert world.chain() == [(0, 10, "first", 0)]
    write_origin(world, FIRST, ChainOrigin(Position(5), 1, "first"))  # as `bootstrap restart --at 5` does
    world.store.delete([MarkerName(FIRST, Position(0)).path])
    world.after(CHECK_HELD_EVERY_S, 40)
    assert world.chain() == [(5, 25, "first", 1)]
    assert world.problems() == ""


def test_chain_without_a_topic_id_is_continued_under_any_topic_id(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 20})
    put(world.store, *chain_of(0, 10, partition=FIRST))
    world.steps()
    assert world.chain() == [(0, 10, None, 0), (10, 20, "first", 0)]


def test_chain_keeps_its_topic_id_under_a_broker_without_topic_ids(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps()
    world.group.ids[ORDERS] = None
    world.group.ends[FIRST] = 20
    world.restart()
    assert world.chain() == [(0, 10, "first", 0), (10, 20, "first", 0)]


def test_topic_recreated_before_the_first_flush_is_read_normally(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.group.ids[ORDERS] = "second"
    world.group.ends[FIRST] = 4
    world.steps(12)
    assert world.chain() == [(0, 4, "second", 0)]


def test_markers_of_an_older_generation_are_not_continued(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    put(world.store, *chain_of(0, 10, 20, partition=FIRST)[1:])
    write_origin(world, FIRST, ChainOrigin(Position(2), 3, "first"))
    world.steps()
    assert (2, 5, "first", 3) in world.chain()


# Where chains begin (places.py).


def test_latest_starts_known_partitions_at_their_end_and_added_ones_at_the_first_record(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 0}, "latest")
    world.steps()
    assert (world.chain(FIRST), world.chain(SECOND)) == ([], [])
    world.group.ends |= {FIRST: 6, SECOND: 3, THIRD: 7}
    world.restart()
    begun = [world.spans(partition) for partition in (FIRST, SECOND, THIRD)]
    assert begun == [[(5, 6)], [(0, 3)], [(0, 7)]]


def test_latest_keeps_its_start_after_a_crash_between_two_origins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The origin of partition 0 is written last: until then, no partition counts as added later."""
    world = World(tmp_path, {FIRST: 5, SECOND: 5}, "latest")
    create, made, away = world.store.create, list[str](), StoreError("unavailable", "wait")

    def crashes_second(path: str, data: bytes) -> CreateOutcome:
        if path.startswith("begin/"):
            made.append(path)
            if len(made) == 2:
                raise away
        return create(path, data)

    monkeypatch.setattr(world.store, "create", crashes_second)
    world.steps(1)
    assert len(made) == 2
    world.restart()
    world.group.ends |= {FIRST: 6, SECOND: 7}
    world.steps()
    begun = [world.spans(partition) for partition in (FIRST, SECOND)]
    assert begun == [[(5, 6)], [(5, 7)]]


def test_partition_added_while_another_writer_starts_the_topic_is_staged_from_zero(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is added right after the other writer recorded the origin of partition 0."""
    world = World(tmp_path, {FIRST: 5}, "latest")
    ask = LonelyMember.end_positions

    def meanwhile(group: LonelyMember, streams: Collection[Stream]) -> Mapping[TopicPartition, Position]:
        if SECOND not in group.ends:
            write_origin(world, FIRST, ChainOrigin(Position(5)))
            group.ends[SECOND] = 3
        return ask(group, streams)

    monkeypatch.setattr(LonelyMember, "end_positions", meanwhile)
    world.steps()
    world.restart()
    assert world.spans(SECOND) == [(0, 3)]


def test_added_partition_is_staged_from_zero_although_another_topic_starts_at_its_end(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5}, "latest", topics=["orders", "payments"])
    world.steps()
    world.group.ends |= {SECOND: 3, TopicPartition(Topic("payments"), Partition(0)): 7}
    world.restart()
    assert world.spans(SECOND) == [(0, 3)]


def test_start_at_a_timestamp_is_kept_after_a_restart(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5}, "2024-01-01T00:00:00Z")
    world.steps()
    world.group.ends[FIRST] = 9  # the timestamp would now be found here
    world.restart()
    assert world.spans() == [(5, 9)]


def test_origin_written_by_another_process_wins(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5}, "latest")
    write_origin(world, FIRST, ChainOrigin(Position(2)))
    world.steps()
    assert world.spans() == [(2, 5)]


def test_origin_written_by_another_process_meanwhile_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, {FIRST: 5}, "2024-01-01T00:00:00Z")
    begin = StagedChains.begin

    def after_another(chains: StagedChains, partition: TopicPartition, chain_origin: ChainOrigin) -> None:
        begin(chains, partition, ChainOrigin(Position(2)))
        begin(chains, partition, chain_origin)

    monkeypatch.setattr(StagedChains, "begin", after_another)
    world.steps(4)
    assert world.spans() == [(2, 5)]


# --until-caught-up (catching_up.py).


def must_end(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    end_s = world.clock.now_s + 20 * SESSION_S

    def sleep(clock: HandClock, seconds: float) -> None:
        assert clock.now_s < end_s, "the run does not end"
        clock.now_s += seconds

    monkeypatch.setattr(HandClock, "sleep_s", sleep)


def test_until_caught_up_polls_the_group_at_intervals_and_gives_up(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.group.unowned = {SECOND}
    with pytest.raises(BrokerError, match="no member of the consumer group has read orders/1 for 6"):
        world.writer.run(until_caught_up=True)
    assert world.group.asked_group < 40, "and not in each of 300 steps"


def test_until_caught_up_fails_if_the_group_keeps_rebalancing(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.group.unowned = None
    with pytest.raises(BrokerError, match="has been rebalancing"):
        world.writer.run(until_caught_up=True)


def test_until_caught_up_fails_if_the_writer_cannot_join_its_group(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.group.others = {FIRST: math.inf}  # this member gets no assignment, not even an empty one
    with pytest.raises(BrokerError, match="has not joined its consumer group within 30"):
        world.writer.run(until_caught_up=True)


def test_until_caught_up_fails_for_a_missing_topic_by_name(tmp_path: Path) -> None:
    world = World(tmp_path, {})
    with pytest.raises(ConfigError, match="'orders'"):
        world.writer.run(until_caught_up=True)


def test_until_caught_up_stages_everything(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 0})
    world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 5)]


def test_until_caught_up_ends_with_the_streams_that_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, {FIRST: 5})
    monkeypatch.setattr(CatchingUp, "notes", ["payments: its topic is hidden → allow it"])
    with pytest.raises(HeldError, match="could be staged: payments: its topic is hidden"):
        world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 5)]


def test_until_caught_up_fails_for_a_partition_that_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 5})
    world.store.write("done/orders/1/00000000000000000000.done", b'{"version": 99}')
    must_end(world, monkeypatch)
    with pytest.raises(HeldError, match="could be staged: marker done/orders/1/"):
        world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 5)]


def test_until_caught_up_ends_for_a_partition_without_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, {FIRST: 5})
    world.group.holes = set(range(5))  # aborted transactions
    must_end(world, monkeypatch)
    world.writer.run(until_caught_up=True)
    assert world.spans() == []


def test_until_caught_up_recovers_from_a_suspension_before_the_last_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def poll(group: LonelyMember, timeout_s: float) -> Polled:
        polled = poll_at_once(group, timeout_s)
        group.clock.sleep_s(SESSION_S + 1 if polled.batches else 0)  # as if the machine was suspended
        return polled

    poll_at_once = LonelyMember.poll
    monkeypatch.setattr(LonelyMember, "poll", poll)
    world = World(tmp_path, {FIRST: 5})
    must_end(world, monkeypatch)
    world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 5)]


def test_until_caught_up_stages_the_partition_of_a_dead_member(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 3})
    world.group.others = {SECOND: world.clock.now_s + SESSION_S}  # then the group notices
    world.writer.run(until_caught_up=True)
    assert [[end for _, end, *_ in world.chain(partition)] for partition in (FIRST, SECOND)] == [[5], [3]]


def test_until_caught_up_leaves_a_live_members_partition_after_its_timeout(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 3}, flush_after="100s")
    began_s = world.clock.now_s
    world.group.others = {SECOND: math.inf}
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s >= SESSION_S + 100
    assert world.group.asked_group < 100


def test_until_caught_up_ends_once_another_member_has_staged_the_rest(tmp_path: Path) -> None:
    other = World(tmp_path, {SECOND: 3})
    other.writer.run(until_caught_up=True)
    world = World(tmp_path, {FIRST: 5, SECOND: 3})
    began_s = world.clock.now_s
    world.group.others = {SECOND: math.inf}
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s < SESSION_S / 2


def test_until_caught_up_flushes_its_own_partitions_before_it_waits_for_others(
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


def test_until_caught_up_timeout_restarts_for_a_later_owner(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 3, THIRD: 4}, flush_after="60s")
    began_s = world.clock.now_s
    world.group.others = {SECOND: began_s + 40, THIRD: math.inf}
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s >= 40 + SESSION_S + 60


def test_until_caught_up_timeout_restarts_for_an_owner_after_a_dead_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, {FIRST: 5, SECOND: 3}, flush_after="60s")
    began_s = world.clock.now_s
    world.group.others = {SECOND: math.inf}

    def ownerless(group: LonelyMember, _: Collection[TopicPartition]) -> set[TopicPartition]:
        return {SECOND} if began_s + 40 < group.clock.now_s < began_s + 50 else set()

    monkeypatch.setattr(LonelyMember, "ownerless", ownerless)
    world.writer.run(until_caught_up=True)
    assert world.clock.now_s - began_s >= 50 + SESSION_S + 60


class RecordingOutlets(Outlets):
    leaves = 0
    paths: tuple[str, ...] = ()

    def open(self, *_: object) -> "RecordingOutlets":
        return self

    def pending(self) -> tuple[str, ...]:
        return ()

    def sealed(self, paths: tuple[str, ...]) -> None:
        self.paths += paths

    def leave(self) -> None:
        self.leaves += 1

    def problems(self) -> tuple[KafkaDeltaExpressError, ...]:
        return ()


def test_topic_dead_letters_are_in_the_outbox_named_by_the_marker(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 3}, columns="missing INT NOT NULL", dead_letters="kafka://errors")
    world.outlets = recording = RecordingOutlets()
    world.restart(200)
    assert recording.leaves == 0
    world.writer.revoked([FIRST])
    assert recording.leaves == 1
    (marker,) = manifests(world.store, f"done/{ORDERS}/0")
    assert (marker.records, dict(marker.dead_letters)) == (3, {"missing_field": 3})
    (path,) = marker.outboxes
    assert recording.paths == (path,), "its delivery starts now"
    records = outgoing_from_bytes(path, world.store.read(path) or b"").records.to_pylist()
    assert [(record["topic"], record["input"], record["offset"]) for record in records] == [
        ("errors", 0, offset) for offset in range(3)
    ]
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


def test_failing_writer_seals_nothing_on_exit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_buffered_records_are_sealed_on_revocation(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(1)
    world.writer.revoked([FIRST])
    assert world.spans() == [(0, 10)]
    assert not world.writer.snapshot().assigned


def test_until_caught_up_stages_the_rest_after_its_last_claim_is_lost(
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


def test_only_claims_that_continue_the_chain_are_committed_to_kafka(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10, SECOND: 10})
    put(world.store, *chain_of(0, 4, partition=SECOND))
    world.steps(1)
    put(world.store, *chain_of(20, 30, partition=SECOND))  # by another writer that owns it too
    world.steps()
    assert world.spans(SECOND) == [(0, 4), (4, 10), (20, 30)]
    assert world.group.reported == {FIRST: 10}


def test_partition_is_paused_until_its_chain_can_be_reread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_partition_revoked_before_its_chain_was_read_is_not_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StoreError("the stage has gone")

    world = World(tmp_path, {FIRST: 10})
    with monkeypatch.context() as patched:
        patched.setattr(StagedChains, "tail", fails)
        world.steps()
        assert set(world.writer.assignment.starting) == {FIRST}
        world.writer.revoked([FIRST])
    world.steps(100)
    assert (world.writer.assignment.by_partition, world.spans()) == ({}, [])


# Store and broker errors.


@pytest.mark.parametrize("error", [StoreError("unavailable"), BrokerError("unavailable")])
def test_persistent_store_error_ends_the_writer_but_a_broker_error_does_not(
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
    world.group.ends[FIRST] = 20
    began_s = world.clock.now_s
    if isinstance(error, BrokerError):
        with monkeypatch.context() as patched:
            patched.setattr(ObjectStage, "upload", fails)
            world.steps(100, timeout_s=10)
        assert world.clock.now_s - began_s > GIVE_UP_AFTER_S
        assert world.spans() == [(0, 10)]
        world.steps(100)
        assert (world.problems(), world.spans()) == ("", [(0, 10), (10, 20)])
        return
    monkeypatch.setattr(ObjectStage, "upload", fails)
    with pytest.raises(KafkaDeltaExpressError, match="unavailable") as raised:
        world.steps(100, timeout_s=10)
    assert raised.value.exit_code is ExitCode.FAILED
    assert GIVE_UP_AFTER_S < world.clock.now_s - began_s < 2 * GIVE_UP_AFTER_S


def test_until_caught_up_gives_up_a_partition_whose_store_refuses_while_others_are_staged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sleep(clock: HandClock, seconds: float) -> None:
        clock.now_s += seconds
        world.group.ends[SECOND] += 1  # its producers go on
        assert clock.now_s - began_s < 3 * GIVE_UP_AFTER_S, "the run does not end"

    def uploads(stage: ObjectStage, file: NewFile) -> None:
        if file.staged.path.startswith("orders-0-"):
            raise StoreError("refused")
        upload(stage, file)

    world, upload = World(tmp_path, {FIRST: 10, SECOND: 1}), ObjectStage.upload
    began_s = world.clock.now_s
    monkeypatch.setattr(HandClock, "sleep_s", sleep)
    monkeypatch.setattr(ObjectStage, "upload", uploads)
    with pytest.raises(KafkaDeltaExpressError, match="refused") as raised:
        world.writer.run(until_caught_up=True)
    assert raised.value.exit_code is ExitCode.FAILED
    assert world.clock.now_s - began_s > GIVE_UP_AFTER_S
    assert len(world.spans(SECOND)) > 1


def test_partition_that_comes_back_has_not_failed_since_it_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StoreError("refused")

    world = World(tmp_path, {FIRST: 10})
    assignment = world.writer.assignment
    assignment.outage.waits_for_each = True
    monkeypatch.setattr(StagedChains, "tail", fails)
    for _ in range(2):
        assignment.assigned([FIRST])
        assignment.drop([FIRST], "lost")
        world.clock.now_s += 2 * GIVE_UP_AFTER_S
    assignment.assigned([FIRST])
    world.clock.now_s += 2 * GIVE_UP_AFTER_S
    with pytest.raises(KafkaDeltaExpressError, match="refused"):
        assignment.outage.failed(FIRST, StoreError("refused"))


def test_stopped_writer_says_how_many_partitions_its_store_did_not_take(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise StoreError("unavailable")

    world = World(tmp_path, {FIRST: 10})
    must_end(world, monkeypatch)
    world.steps(1)
    monkeypatch.setattr(ObjectStage, "upload", fails)
    world.writer.stop()
    stopped_s = world.clock.now_s
    world.clock.now_s += REVOKE_TIMEOUT_S / 2  # its last conversion
    with pytest.raises(StoreError, match=r"^1 partition could not be flushed within "):
        world.writer.run(until_caught_up=False)
    assert world.clock.now_s == pytest.approx(stopped_s + REVOKE_TIMEOUT_S)


@pytest.mark.parametrize("revoked", [True, False])
def test_last_flush_that_takes_longer_than_a_session_is_sealed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    revoked: bool,  # noqa: FBT001 - a parameter
) -> None:
    world, upload = World(tmp_path, {FIRST: 10}), ObjectStage.upload
    if revoked:
        world.session_s = 1.0
        world.writer = world.new_writer()
    began_s = world.clock.now_s

    def upload_later(stage: ObjectStage, file: NewFile) -> None:
        if world.clock.now_s < began_s + 2 * world.session_s:
            raise StoreError("it is slow")
        upload(stage, file)

    must_end(world, monkeypatch)
    monkeypatch.setattr(ObjectStage, "upload", upload_later)
    if revoked:
        world.steps(2, 0.1)
        world.writer.revoked([FIRST])
    else:
        world.writer.run(until_caught_up=True)
    assert world.spans() == [(0, 10)]


def test_assigned_partitions_and_lost_claims_are_counted(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10, SECOND: 10})
    world.steps(1)
    put(world.store, *chain_of(0, 4))  # by another writer
    world.steps()
    counted = values(world.metrics)
    assert counted["stage_writer_assigned_partitions", ()] == 2
    assert counted["stage_writer_lost_claims_total", (("topic", "orders"),)] == 1
    world.writer.revoked([FIRST])
    assert values(world.metrics)["stage_writer_assigned_partitions", ()] == 1
