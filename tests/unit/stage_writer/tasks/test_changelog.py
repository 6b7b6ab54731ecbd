"""State changes in a Kafka topic: the changes that markers name are restored, and no state stays there for long."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import structlog

from common.errors import BrokerError, ConfigError, StoreError
from common.metrics import Metrics
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.task_files import StateFileName, StateFiles, StateKind, spans_of
from common.storage.chunks import ByteChunks
from stage_writer.assignment import CHECK_HELD_EVERY_S
from stage_writer.changelog.changelog import Appended, ChangelogMessage, TopicChangelog
from stage_writer.changelog.topic import retention_s, snapshot_after_s, suitability_problem
from stage_writer.changelog.watch import ChangelogWatch
from stage_writer.partitions.state_renewal import StateRenewal
from stage_writer.stage.staging import ObjectStage
from stage_writer.tasks.shared import SnapshotsWhen
from tests.builders import settings_of
from tests.fakes.changelog import MemoryTopics
from tests.fakes.counting import FIRST, World, counted
from tests.fakes.group import HandClock, InTurn

CHANGES = Topic("changes")
HOUR = SnapshotsWhen(oldest_s=3600.0)


def flushed(folder: Path, *ends: int) -> World:
    """A chain with the state of its first flush in the stage, and the changes of later flushes in the topic."""
    world = World(folder, ends[0])
    world.new_writer(HOUR, topic=CHANGES)
    for end in ends:
        world.grow(end)
    return world


def held(world: World) -> tuple[str, str]:
    hold = world.writer.snapshot().held[FIRST]
    assert hold.reason == "state"
    return hold.problem, hold.remedy


def test_changes_go_to_the_topic_above_a_snapshot_in_the_stage(tmp_path: Path) -> None:
    world = flushed(tmp_path, 10, 15, 21)
    assert [manifest.version for manifest in world.manifests()] == [1, 6, 6]
    state = world.states()[-1].files
    assert (state.snapshot is not None, len(state.in_topics), len(state.paths)) == (True, 2, 1)
    assert [item.path for item in world.store.list("state/orders/0")] == [state.snapshot]
    assert all(changes.pieces > 1 for changes in state.in_topics)
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(30)
    assert world.staged() == counted(30)
    assert world.restored_bytes() > sum(changes.size_bytes for changes in state.in_topics)


def test_failed_write_is_retried_and_only_its_last_messages_are_read(tmp_path: Path) -> None:
    world = flushed(tmp_path, 10)
    world.topics.fails = [0, 1, 2]
    world.grow(15)
    world.steps(40)
    named = [
        offset for changes in world.states()[-1].files.in_topics for span in changes.spans for offset in offsets(span)
    ]
    assert len(world.topics.logs[CHANGES]) == len(named) + 3
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(20)
    assert world.topics.read == named
    assert world.staged() == counted(20)


def offsets(span: Span) -> range:
    return range(span.start, span.end)


def test_changes_are_as_old_as_the_first_of_their_messages() -> None:
    clock = HandClock()
    before_ms = clock.wall_ms()

    class Slow(MemoryTopics):
        def append(self, topic: Topic, task: TopicPartition, pieces: Sequence[ChangelogMessage]) -> Appended:
            clock.sleep_s(60)
            return super().append(topic, task, pieces)

    name = StateFileName(FIRST, Position(0), 0, "0", StateKind.CHANGES)
    changes = TopicChangelog(Slow(), clock, Metrics()).write(CHANGES, "counts", name, ByteChunks([b"1"]))
    assert changes.written_ms == before_ms


def test_changes_written_by_a_lost_claim_belong_to_no_flush(tmp_path: Path) -> None:
    world = flushed(tmp_path, 10)
    world.group.ends[FIRST] = 14
    world.writer.step(0.2)  # read and counted, but not flushed
    other = World(tmp_path, 13)
    other.topics, other.names = world.topics, iter(range(2_000, 3_000))
    other.new_writer(HOUR, topic=CHANGES)
    other.steps()
    world.grow(20)
    named = sum(changes.pieces for changes in world.states()[-1].files.in_topics)
    assert len(world.topics.logs[CHANGES]) > named
    assert world.staged() == counted(20)
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(25)
    assert world.staged() == counted(25)


def test_rewind_restores_the_state_of_the_older_marker(tmp_path: Path) -> None:
    world = flushed(tmp_path, 10, 15, 20)
    last = max(item.path for item in world.store.list("done/orders/0"))
    world.store.write(f"stray/{last}", world.store.read(last) or b"")
    world.store.delete([last])
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(24)
    assert world.staged() == counted(24)


def test_changelog_can_be_switched_on_and_off_between_runs(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.steps()
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(15)
    mixed = world.states()[-1].files
    assert (len(mixed.paths), len(mixed.in_topics)) == (1, 1)
    world.new_writer(HOUR, topic="others")
    world.grow(20)  # the first flush with another topic, or none, has all of the state in the stage
    assert (len(world.states()[-1].files.paths), world.states()[-1].files.in_topics) == (1, ())
    world.grow(25)
    world.new_writer(HOUR)
    world.grow(30)
    assert (len(world.states()[-1].files.paths), world.states()[-1].files.in_topics) == (1, ())
    world.grow(33)
    world.new_writer(HOUR)
    world.grow(36)
    assert world.staged() == counted(36)


def test_missing_changes_hold_the_partition_with_a_rewind_position(tmp_path: Path) -> None:
    world = flushed(tmp_path, 10, 15, 20)
    first = world.states()[-1].files.in_topics[0].spans[0].start
    world.topics.low = first + 1
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(24)
    problem, remedy = held(world)
    assert f"at offset {first} of changes/0 are gone" in problem
    assert "--to 10 --below-table" in remedy
    assert world.staged() == counted(20)
    world.topics.low = 0  # as if the messages were restored
    world.clock.sleep_s(CHECK_HELD_EVERY_S)
    world.steps()
    assert world.staged() == counted(24)


def test_foreign_messages_or_a_recreated_topic_hold_the_partition(tmp_path: Path) -> None:
    world = flushed(tmp_path, 10, 15)
    log = world.topics.logs[CHANGES]
    good = log[1]
    log[1] = replace(good, value=b"x" + good.value[1:])
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(20)
    assert "offset 1 of changes/0 is not the one that a marker names" in held(world)[0]
    log[1], world.topics.topic_id = good, "second"
    world.clock.sleep_s(CHECK_HELD_EVERY_S)
    world.steps()
    assert "made again" in held(world)[0]


def test_changes_that_grow_old_are_replaced_by_a_snapshot(tmp_path: Path) -> None:
    world = World(tmp_path, 10)
    world.new_writer(SnapshotsWhen(oldest_s=7.0), topic=CHANGES)
    for end in (10, 15, 17, 20):
        world.grow(end)
    assert [len(state.files.in_topics) for state in world.states()] == [0, 1, 2, 0]
    assert world.staged() == counted(20)


@pytest.mark.parametrize("topic", [CHANGES, None])
def test_idle_state_is_copied_to_the_stage_before_its_topic_expires(tmp_path: Path, topic: str | None) -> None:
    world = flushed(tmp_path, 10, 15)
    if topic is None:
        world.new_writer(HOUR)  # the setting was removed
    else:
        world.clock.sleep_s(3700.0)
    world.steps()
    world.clock.sleep_s(61.0)
    world.steps()
    markers = list(world.store.list("done/orders/0"))
    world.topics.low = 1_000
    world.new_writer(HOUR, topic=topic)
    world.steps()
    assert list(world.store.list("done/orders/0")) == markers
    world.grow(20)
    assert world.staged() == counted(20)
    before, files = world.states()[-1].before, world.states()[-1].files
    assert (before.in_topics, files.snapshot) == ((), before.snapshot)


def test_writer_continues_from_a_later_snapshot(tmp_path: Path) -> None:
    world = flushed(tmp_path, 10, 15)
    world.clock.sleep_s(3700.0)
    world.steps()
    world.clock.sleep_s(61.0)
    world.steps()
    world.grow(20)
    files = world.states()[-1].files
    assert (len(files.paths), len(files.in_topics)) == (1, 1), "only later changes are in the topic"
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(25)
    assert world.staged() == counted(25)


def test_unsuitable_topic_sends_states_to_the_stage(tmp_path: Path) -> None:
    world, unsuitable_topics = World(tmp_path, 10), set[str]()
    world.new_writer(HOUR, topic=CHANGES, unfit=unsuitable_topics)
    world.grow(10)
    world.grow(15)
    assert len(world.states()[-1].files.in_topics) == 1
    unsuitable_topics.add(CHANGES)
    messages = len(world.topics.logs[CHANGES])
    world.clock.sleep_s(61.0)
    world.steps()  # without new records, a later snapshot is written
    world.grow(20)
    world.steps(30)  # after that minute, the first claim waits until the writer hears from its group
    world.grow(22)
    assert [state.files.in_topics for state in world.states()[-2:]] == [(), ()]
    assert len(world.topics.logs[CHANGES]) == messages
    assert world.states()[-2].before.in_topics == ()
    unsuitable_topics.clear()
    world.grow(25)
    assert len(world.topics.logs[CHANGES]) > messages
    assert world.staged() == counted(25)


def test_topic_that_refuses_messages_does_not_end_the_writer(tmp_path: Path) -> None:
    """Its policy was changed during a flush, before the next check of the topic."""
    world = flushed(tmp_path, 10, 15)
    messages = len(world.topics.logs[CHANGES])
    world.topics.refuses = ConfigError("it is compacted", "set cleanup.policy to delete")
    world.grow(20)
    state = world.states()[-1].files
    assert (len(state.in_topics), len(state.paths)) == (1, 2)
    assert len(world.topics.logs[CHANGES]) == messages
    world.topics.refuses = None
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(25)
    assert world.staged() == counted(25)


def test_unsuitable_topics_are_checked_and_reported_each_minute() -> None:
    clock, metrics, unsuitable_topics = HandClock(), Metrics(), set[str]()
    answers: dict[str, Exception | None] = dict.fromkeys((CHANGES, "others"))

    def require_suitable(topic: Topic) -> None:
        error = answers[topic]
        if error is not None:
            raise error

    both = [CHANGES, Topic("others")]
    log = structlog.get_logger()
    watch = ChangelogWatch(require_suitable, both, unsuitable_topics, InTurn(), clock=clock, log=log, metrics=metrics)

    def after_a_minute(**given: Exception | None) -> tuple[set[str], int, list[str]]:
        answers.update(given)
        clock.sleep_s(61.0)
        watch.check()
        watch.check()
        gauges = [line for line in metrics.exposition().decode().splitlines() if "changelog_topic_fit{" in line]
        return unsuitable_topics.copy(), len(watch.notes), [line[-3:] for line in sorted(gauges)]

    assert after_a_minute() == (set(), 0, ["1.0", "1.0"])
    short = ConfigError("it is compacted", "set delete")
    assert after_a_minute(changes=short) == ({"changes"}, 1, ["0.0", "1.0"])
    assert watch.notes == ("it is compacted; until then, states are stored in the stage: set delete",)
    away = BrokerError("unavailable")
    assert after_a_minute(changes=away, others=away) == ({"changes"}, 1, ["0.0", "1.0"]), "the problem remains"
    assert after_a_minute(changes=None, others=short) == ({"others"}, 1, ["1.0", "0.0"])
    answers["others"] = None
    watch.check()
    assert unsuitable_topics, "a minute has not passed"
    assert after_a_minute() == (set(), 0, ["1.0", "1.0"])


def test_written_and_restored_changes_are_counted(tmp_path: Path) -> None:
    world = flushed(tmp_path, 10, 15, 20)

    def counts(kind: str) -> tuple[float, float]:
        lines = world.metrics.exposition().decode().splitlines()
        names = (f"stage_writer_changelog_{kind}_{unit}_total" for unit in ("bytes", "messages"))
        values = [line.rpartition(" ")[2] for name in names for line in lines if line.startswith(f"{name}{{")]
        return float(values[0]), float(values[1])

    written = world.topics.logs[CHANGES]
    assert counts("written") == (sum(len(change.value) for change in written), len(written))
    world.new_writer(HOUR, topic=CHANGES)
    world.grow(22)
    assert counts("restored") == (
        sum(len(change.value) for change in written[: len(world.topics.read)]),
        len(world.topics.read),
    )
    assert len(world.topics.read) > 2


def test_state_that_cannot_be_stored_does_not_delay_others() -> None:
    clock = HandClock()
    begun: list[int] = []
    done: list[int] = []

    class Job:
        def __init__(self, number: int) -> None:
            self.number = number

        def __call__(self) -> StateFiles:
            if self.number == 0 and len(begun) < 3:
                msg = "unavailable"
                raise StoreError(msg)
            return StateFiles(str(self.number))

    class Task:
        def __init__(self, number: int) -> None:
            self.number = number

        def renewal(self, *_: object) -> Job | None:
            if self.number in done:
                return None
            begun.append(self.number)
            return Job(self.number)

        def renewed(self, *_: object) -> None:
            done.append(self.number)

    def idle(number: int) -> SimpleNamespace:
        partition = TopicPartition(Topic("orders"), Partition(number))
        tail, buffer = SimpleNamespace(state=StateFiles()), SimpleNamespace(is_empty=True)
        return SimpleNamespace(partition=partition, task=Task(number), tail=tail, buffer=buffer, in_flight=None)

    stage = SimpleNamespace(states=None)
    renewing = StateRenewal(cast("ObjectStage", stage), InTurn(), clock, structlog.get_logger())
    owned = [idle(0), idle(1)]
    for _ in range(20):
        clock.sleep_s(10.0)
        renewing.step(owned)  # type: ignore[arg-type]
    assert begun == [0, 1, 0]
    assert done == [1, 0]


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("cleanup.policy", "compact", "delete"),
        ("cleanup.policy", "compact,delete", "delete"),
        ("retention.ms", "3600000", "172800000 or more"),
        ("retention.bytes", "1000000", "-1"),
        ("max.message.bytes", "100000", "524288 or more"),
        ("max.message.bytes", "262144", "524288 or more"),
    ],
)
def test_topic_with_unsuitable_settings_is_refused(key: str, value: str, text: str) -> None:
    good = {"cleanup.policy": "delete", "retention.ms": "604800000", "retention.bytes": "-1"}
    assert suitability_problem(CHANGES, good, 86_400.0) is None
    assert suitability_problem(CHANGES, good | {"retention.ms": "-1"}, 86_400.0) is None
    problem = suitability_problem(CHANGES, good | {key: value}, 86_400.0)
    assert isinstance(problem, ConfigError)
    assert f"'changes', which has {key}={value}" in problem.problem
    assert f"set the topic's {key} to {text}" in problem.remedy


def test_topic_retention_exceeds_the_snapshot_age() -> None:
    for keep_s in (0.0, 60.0, 86_400.0):
        assert 4 * snapshot_after_s(keep_s) <= retention_s(keep_s)


def test_offsets_are_grouped_into_spans() -> None:
    assert spans_of([3, 4, 7]) == (Span(Position(3), Position(5)), Span(Position(7), Position(8)))
    with pytest.raises(ValueError, match="offset 3 comes after 4"):
        spans_of([4, 3])


@pytest.mark.parametrize(
    ("streams", "text"),
    [
        ([{"topology": None}], "only applies to the state of a topology"),
        ([{}, {"app_id": "b", "topics": ["changes"], "table": "file:///b", "state_changelog": None}], "'b' reads"),
        ([{"topics": ["orders", "changes"]}], "'orders' reads"),
    ],
)
def test_invalid_changelog_setting_is_refused(streams: list[dict[str, object]], text: str) -> None:
    usual = {
        "app_id": "orders",
        "topics": ["orders"],
        "table": "file:///t",
        "columns": "id INT",
        "topology": "a:b",
        "state_changelog": "changes",
    }
    with pytest.raises(ValueError, match=text):
        settings_of(*(usual | stream for stream in streams), stage={"url": "file:///s"})
