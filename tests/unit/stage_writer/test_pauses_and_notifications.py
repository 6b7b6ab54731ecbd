"""A writer that is paused and resumed, and the notifications that it sends to loaders."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest
import structlog
from confluent_kafka import KafkaError
from structlog.testing import capture_logs

from common import metrics as all_metrics
from common.errors import StoreError
from common.http.pages import Pausing
from common.metrics import Metrics
from common.spans import TopicPartition
from common.storage.store import FsspecStore
from stage_writer.notifications import topic
from stage_writer.notifications.notifier import LoaderNotifier
from stage_writer.notifications.topic import KafkaControlTopic
from stage_writer.stage.staging import ObjectStage
from tests.builders import required
from tests.fakes.group import HandClock
from tests.fakes.metrics import values
from tests.unit.stage_writer.test_service import FIRST, SECOND, World


def paused_world(folder: Path) -> tuple[World, Pausing]:
    pausing = Pausing(HandClock(), structlog.get_logger(), Metrics(), all_metrics.WRITER_PAUSED_BY_REQUEST)

    class Paused(World):
        pass

    Paused.pausing = pausing
    return Paused(folder, {FIRST: 10}), pausing


def test_paused_writer_stages_its_buffer_and_reads_no_more(tmp_path: Path) -> None:
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


def test_partition_assigned_during_a_pause_is_paused_too(tmp_path: Path) -> None:
    world, pausing = paused_world(tmp_path)
    pausing.pause()
    world.steps(3)
    assert world.group.paused == {FIRST}
    pausing.resume()
    world.steps(10)
    assert world.spans() == [(0, 10)]


class Notifying(World):
    """A world whose writer notifies loaders."""

    tells_news = True

    def notifications(self) -> list[str]:
        return [stored.path for stored in self.store.list("news/")]


def test_notification_follows_each_marker_and_returns_after_it_was_taken(tmp_path: Path) -> None:
    world = Notifying(tmp_path, {FIRST: 10})
    world.steps()
    assert world.notifications() == ["news/orders/w.news"]
    world.store.delete(world.notifications())
    world.steps(20)
    assert world.notifications() == [], "there are no new records"
    world.group.ends[FIRST] = 20
    world.steps(20)
    assert world.spans() == [(0, 10), (10, 20)]
    assert world.notifications() == ["news/orders/w.news"]


def test_markers_within_a_second_share_one_notification(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Notifying(tmp_path, {FIRST: 10, SECOND: 10})
    sent_s: list[float] = []
    real_write = world.store.write

    def write(path: str, data: bytes) -> None:
        if path.startswith("news/"):
            sent_s.append(world.clock.now_s)
        real_write(path, data)

    monkeypatch.setattr(world.store, "write", write)
    for end in range(20, 400, 10):
        world.group.ends |= {FIRST: end, SECOND: end}
        world.clock.now_s += 0.7
        world.steps(1, timeout_s=0.1)
    assert len(world.spans()) >= 10
    assert min(after - before for before, after in pairwise(sent_s)) >= 1


def test_failing_notification_store_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = Notifying(tmp_path, {FIRST: 10})
    write, refused = world.store.write, list[str]()

    def refuse(path: str, data: bytes) -> None:
        if path.startswith("news/"):
            refused.append(path)
            raise StoreError(path)
        write(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(world.store, "write", refuse)
        world.steps(10)
    assert world.spans() == [(0, 10)]
    assert (world.notifications(), len(refused)) == ([], 1)
    world.steps(100)
    assert world.notifications() == ["news/orders/w.news"]


def test_no_notification_without_listeners(tmp_path: Path) -> None:
    world = World(tmp_path, {FIRST: 10})
    world.steps(20)
    assert list(world.store.list("news/")) == []


class Producer:
    """Kafka's, whose answers a test gives."""

    is_full = False

    def __init__(self, properties: dict[str, object]) -> None:
        self.properties = properties
        self.callbacks: list[Callable[[KafkaError | None, object], None]] = []

    def produce(self, *_: object, on_delivery: Callable[[KafkaError | None, object], None]) -> None:
        if self.is_full:
            raise BufferError
        self.callbacks.append(on_delivery)

    def answer(self, code: int | None = None) -> None:
        self.callbacks.pop(0)(None if code is None else KafkaError(code), None)

    def poll(self, timeout_s: float) -> None: ...

    def flush(self, timeout_s: float) -> None: ...


@pytest.fixture
def control(monkeypatch: pytest.MonkeyPatch) -> tuple[KafkaControlTopic, Producer, Metrics]:
    made: list[Producer] = []

    def producer(properties: dict[str, object], **_: object) -> Producer:
        made.append(Producer(properties))
        return made[0]

    monkeypatch.setattr(topic, "Producer", producer)
    metrics = Metrics()
    control = KafkaControlTopic({"bootstrap.servers": "kafka:9092"}, "control", structlog.get_logger(), metrics)
    return control, made[0], metrics


def test_failing_control_topic_is_logged_once(control: tuple[KafkaControlTopic, Producer, Metrics]) -> None:
    notifications, producer, metrics = control
    producer.is_full = True
    with capture_logs() as logs:
        assert [notifications.send("orders") for _ in range(3)] == [False] * 3
    assert [line["log_level"] for line in logs] == ["warning"]
    assert "too many messages wait for Kafka" in required(notifications.problem)
    assert values(metrics)["stage_writer_control_topic_reached", ()] == 0


def test_control_topic_is_relied_on_until_it_fails_and_again_once_it_works(
    control: tuple[KafkaControlTopic, Producer, Metrics],
) -> None:
    notifications, producer, metrics = control
    assert producer.properties["message.timeout.ms"] == 5_000
    assert notifications.send("orders")
    assert notifications.end(0.1) == {"orders"}, "the answer may not come any more"
    producer.answer()
    assert notifications.end(0.1) == set()
    assert notifications.send("orders")
    producer.answer(KafkaError._MSG_TIMED_OUT)
    assert [notifications.undelivered() for _ in range(2)] == [{"orders"}, set()]
    assert not notifications.send("orders"), "the stage has it, too"
    producer.answer(KafkaError._MSG_TIMED_OUT)
    assert notifications.undelivered() == set()
    assert not notifications.send("orders")
    producer.answer()
    assert (notifications.problem, values(metrics)["stage_writer_control_topic_reached", ()]) == (None, 1)
    assert notifications.send("orders")


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


class ToTopic(Notifying):
    """A world whose writer notifies loaders through a topic."""

    def __init__(self, folder: Path, ends: dict[TopicPartition, int]) -> None:
        self.topic = self.control = Topic()
        super().__init__(folder, ends)

    def stage_more(self) -> None:
        self.group.ends[FIRST] += 10
        self.steps(20)


def test_notification_sent_to_the_topic_is_not_in_the_stage(tmp_path: Path) -> None:
    world = ToTopic(tmp_path, {FIRST: 10})
    world.steps(20)
    assert world.topic.sent == ["orders"]
    world.stage_more()
    assert world.topic.sent == ["orders", "orders"]
    assert world.notifications() == []
    assert world.writer.health().notes == ()


def test_undelivered_topic_notification_goes_to_the_stage(tmp_path: Path) -> None:
    world = ToTopic(tmp_path, {FIRST: 10})
    world.steps(20)
    world.topic.failed = {"orders"}
    world.steps(1)
    assert world.notifications() == ["news/orders/w.news"]
    world.store.delete(world.notifications())
    world.topic.problem = "the control topic 'c' does not accept messages: it is not there"
    world.stage_more()
    assert world.notifications() == ["news/orders/w.news"], "at once"
    assert world.topic.sent == ["orders", "orders"], "and the topic was tried"
    assert world.writer.health().notes == (
        "the control topic 'c' does not accept messages: it is not there; until then, notifications go to the stage",
    )
    world.store.delete(world.notifications())
    world.topic.problem = None
    world.stage_more()
    assert world.notifications() == []


def test_undelivered_notification_of_a_stopping_writer_goes_to_the_stage(tmp_path: Path) -> None:
    world = ToTopic(tmp_path, {FIRST: 10})
    world.steps(3)
    world.topic.in_flight = {"orders"}
    world.writer.stop()
    world.writer.run(until_caught_up=False)
    assert world.notifications() == ["news/orders/w.news"]


def test_notifications_are_limited_to_one_a_second_per_stream() -> None:
    store, clock, topic = FsspecStore("memory://notifier"), HandClock(), Topic()
    stage = ObjectStage(store, lambda _: store, clock, lambda: "", "w")
    log, listening = structlog.get_logger(), ("busy", "rare")
    notifier = LoaderNotifier(stage, clock, log, Metrics(), topic, app_ids=listening)
    for tenth in range(30):
        notifier.sealed("busy")
        notifier.sealed("by schedule")
        if tenth == 5:
            notifier.sealed("rare")
        notifier.send_due()
        if tenth == 5:
            assert topic.sent == ["busy", "rare"]
        clock.now_s += 0.1
    assert topic.sent == ["busy", "rare", "busy", "busy"]
    notifier.end()
    assert topic.sent == ["busy", "rare", "busy", "busy", "busy"], "the last marker is notified at the end"
    assert list(store.list("news/")) == []
