"""A writer that is paused and told to go on, and one that tells a loader of its markers."""

from itertools import pairwise
from pathlib import Path

import pytest
import structlog

from common import metrics as catalogue
from common.errors import StoreError
from common.http.pausing import Pausing
from common.metrics import Metrics
from common.spans import TopicPartition
from common.storage.store import FsspecStore
from stage_writer.notifications.notifier import LoaderNotifier
from stage_writer.stage.staging import ObjectStage
from tests.fakes.group import HandClock
from tests.unit.stage_writer.test_service import FIRST, SECOND, World


def paused_world(folder: Path) -> tuple[World, Pausing]:
    pausing = Pausing(HandClock(), structlog.get_logger(), Metrics(), catalogue.WRITER_PAUSED_BY_REQUEST)

    class Paused(World):
        pass

    Paused.pausing = pausing
    return Paused(folder, {FIRST: 10}), pausing


def test_a_paused_writer_stages_what_it_has_and_reads_no_more(tmp_path: Path) -> None:
    world, pausing = paused_world(tmp_path)
    world.steps(1)
    pausing.pause()
    world.steps(1)
    world.group.ends |= {FIRST: 20}
    world.steps(20)
    assert world.spans() == [(0, 10)]
    assert "POST /resume" in " ".join(world.writer.health().notes)
    assert world.problems() == ""
    pausing.resume()
    world.steps(20)
    assert world.spans() == [(0, 10), (10, 20)]


def test_a_partition_that_comes_while_the_writer_is_paused_waits_too(tmp_path: Path) -> None:
    world, pausing = paused_world(tmp_path)
    pausing.pause()
    world.steps(3)
    assert world.group.paused == {FIRST}
    pausing.resume()
    world.steps(10)
    assert world.spans() == [(0, 10)]


class Telling(World):
    """One whose writer tells."""

    tells_news = True

    def signs(self) -> list[str]:
        return [found.path for found in self.store.list("news/")]


def test_a_sign_follows_the_marker_and_comes_again_when_it_was_taken(tmp_path: Path) -> None:
    world = Telling(tmp_path, {FIRST: 10})
    world.steps()
    assert world.signs() == ["news/orders/w.news"]
    world.store.delete(world.signs())
    world.steps(20)
    assert world.signs() == [], "there is nothing new"
    world.group.ends[FIRST] = 20
    world.steps(20)
    assert world.spans() == [(0, 10), (10, 20)]
    assert world.signs() == ["news/orders/w.news"]


def test_many_markers_of_a_second_are_one_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Telling(tmp_path, {FIRST: 10, SECOND: 10})
    told: list[float] = []
    tell = world.store.write

    def write(path: str, data: bytes) -> None:
        if path.startswith("news/"):
            told.append(world.clock.now_s)
        tell(path, data)

    monkeypatch.setattr(world.store, "write", write)
    for end in range(20, 400, 10):
        world.group.ends |= {FIRST: end, SECOND: end}
        world.clock.now_s += 0.7
        world.steps(1, timeout_s=0.1)
    assert len(world.spans()) >= 10
    assert min(after - before for before, after in pairwise(told)) >= 1


def test_a_store_that_takes_no_sign_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Telling(tmp_path, {FIRST: 10})
    write = world.store.write

    def refuse(path: str, data: bytes) -> None:
        if path.startswith("news/"):
            raise StoreError(path)
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "write", refuse)
        world.steps(10)
    assert world.spans() == [(0, 10)]
    assert world.signs() == []
    world.steps(100)
    assert world.signs() == ["news/orders/w.news"]


def test_nothing_is_sent_without_listeners(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(20)
    assert list(world.store.list("news/")) == []


class Topic:
    """A control topic that a test breaks."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.sent: list[str] = []
        self.failed: set[str] = set()
        self.in_flight: set[str] = set()

    def send(self, app_id: str) -> bool:
        self.sent.append(app_id)
        return self.problem is None

    def undelivered(self) -> frozenset[str]:
        failed, self.failed = frozenset(self.failed), set()
        return failed

    def end(self, within_s: float) -> frozenset[str]:
        del within_s
        return self.undelivered() | self.in_flight


class ToTopic(Telling):
    """One whose writer tells in a topic."""

    def __init__(self, folder: Path, ends: dict[TopicPartition, int]) -> None:
        self.topic = self.control = Topic()
        super().__init__(folder, ends)

    def stage_more(self) -> None:
        self.group.ends[FIRST] += 10
        self.steps(20)


def test_news_in_a_topic_are_not_in_the_stage(tmp_path: Path) -> None:
    world = ToTopic(tmp_path, {FIRST: 10})
    world.steps(20)
    assert world.topic.sent == ["orders"]
    world.stage_more()
    assert world.topic.sent == ["orders", "orders"]
    assert world.signs() == []
    assert world.writer.health().notes == ()


def test_what_the_topic_did_not_take_is_in_the_stage(tmp_path: Path) -> None:
    world = ToTopic(tmp_path, {FIRST: 10})
    world.steps(20)
    world.topic.failed = {"orders"}
    world.steps(1)
    assert world.signs() == ["news/orders/w.news"]
    world.store.delete(world.signs())
    world.topic.problem = "the control topic 'c' does not accept messages: it is not there"
    world.stage_more()
    assert world.signs() == ["news/orders/w.news"], "at once"
    assert world.topic.sent == ["orders", "orders"], "and the topic is tried"
    assert world.writer.health().notes == (
        "the control topic 'c' does not accept messages: it is not there; until then, notifications go to the stage",
    )
    world.store.delete(world.signs())
    world.topic.problem = None
    world.stage_more()
    assert world.signs() == []


def test_the_last_words_of_a_writer_that_the_topic_did_not_take_are_in_the_stage(tmp_path: Path) -> None:
    world = ToTopic(tmp_path, {FIRST: 10})
    world.steps(3)
    world.topic.in_flight = {"orders"}
    world.writer.stop()
    world.writer.run(until_caught_up=False)
    assert world.signs() == ["news/orders/w.news"]


def test_each_stream_is_told_at_most_once_a_second_and_waits_for_no_other() -> None:
    store, clock, topic = FsspecStore("memory://notifier"), HandClock(), Topic()
    stage = ObjectStage(store, lambda _: store, clock, lambda: "", "w")
    notifier = LoaderNotifier(stage, clock, structlog.get_logger(), Metrics(), topic)
    for tenth in range(30):
        notifier.sealed("busy")
        if tenth == 5:
            notifier.sealed("rare")
        notifier.send_due()
        if tenth == 5:
            assert topic.sent == ["busy", "rare"]
        clock.now_s += 0.1
    assert topic.sent == ["busy", "rare", "busy", "busy"]
    notifier.end()
    assert topic.sent[-1] == "busy", "nothing is left untold"
    assert list(store.list("news/")) == []
