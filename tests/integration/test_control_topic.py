"""``loader.control_topic``: what both services do with a real one, and while it is not there."""

import time
import uuid
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
import structlog
from confluent_kafka import Producer
from structlog.testing import capture_logs

from common import metrics as all_metrics
from common.metrics import Metrics
from common.stage.notifications import MESSAGE, notification_key
from delta_loader.scheduling import listening
from delta_loader.scheduling.listening import Listener
from devservices.kafka import KafkaCluster
from stage_writer.notifications.topic import KafkaControlTopic
from tests.integration.conftest import Programs
from tests.integration.test_on_marker import Pipeline, Service
from tests.waiting import until

pytestmark = pytest.mark.broker

STREAMS = ("orders", "ümlaut/b=c")
NOWHERE = {"bootstrap.servers": "127.0.0.1:9"}
HEARD, REACHED = "delta_loader_control_topic_heard", "stage_writer_control_topic_reached"
REFUSED = '"event": "control topic refused a notification"'


def properties(kafka: KafkaCluster) -> dict[str, str | int | float | bool | None]:
    return {"bootstrap.servers": kafka.bootstrap_servers}


def listen(kafka: dict[str, str | int | float | bool | None], topic: str) -> Listener:
    return Listener(kafka, topic, STREAMS, log=structlog.get_logger(), metrics=Metrics(), check_every_s=1)


def say(kafka: KafkaCluster, topic: str, *messages: tuple[bytes | None, bytes | None]) -> None:
    producer = Producer(dict(properties(kafka)))
    for key, value in messages:
        producer.produce(topic, value, key)
    assert producer.flush(180) == 0


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is slow to answer disconnects no listener, which would notify it of all streams."""
    monkeypatch.setattr(listening, "_TIMEOUT_S", 300.0)


def heard(listener: Listener) -> set[str]:
    app_ids: set[str] = set()

    def is_told() -> bool:
        app_ids.update(listener.take())
        return bool(app_ids)

    until(is_told)
    return app_ids


@pytest.mark.usefixtures("patient")
def test_notifications_are_heard_and_other_messages_are_not(kafka: KafkaCluster, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    sign = (notification_key("orders"), MESSAGE)
    say(kafka, topic, *[sign] * 50)
    with closing(listen(properties(kafka), topic)) as listener:
        until(lambda: listener.is_connected)
        assert heard(listener) == set(STREAMS), "another program may have notified before"
        strange = [
            (None, None),
            (b"\xff\xfe", MESSAGE),
            (b"orders", b"x" * 900_000),
            (b"orders", None),
            (b"orders", b'{"type": "news"}'),
            (None, MESSAGE),
            (b"another loader's stream", MESSAGE),
            (b"", b""),
        ]
        say(kafka, topic, *strange * 20)
        say(kafka, topic, (notification_key(STREAMS[1]), MESSAGE))
        assert heard(listener) == {STREAMS[1]}, "nothing of what is old, or strange"
        say(kafka, topic, sign, sign)
        listener.wait(3600)
        assert heard(listener) == {"orders"}


@pytest.mark.usefixtures("patient")
def test_lost_and_restored_control_topic_is_reported_once_each(kafka: KafkaCluster) -> None:
    topic = f"control-{uuid.uuid4().hex[:12]}"
    with capture_logs() as logs, closing(listen(properties(kafka), topic)) as listener:
        for partitions in (1, 2):
            until(lambda: listener.problem is not None)
            assert not listener.is_connected
            kafka.create_topic(topic, partitions)
            until(lambda: listener.is_connected)
            assert heard(listener) == set(STREAMS)
            say(kafka, topic, (notification_key("orders"), MESSAGE))
            assert heard(listener) == {"orders"}
            kafka.delete_topic(topic)
    events = [str(line["event"]).removeprefix("control topic ") for line in logs]
    assert events == ["disconnected", "connected"] * (len(events) // 2) + ["disconnected"] * (len(events) % 2)
    assert events.count("connected") >= 2  # more often where a broker was slow to answer
    assert all(topic in str(line["problem"]) for line in logs if line["log_level"] == "warning")
    assert "create the topic" in str(logs[0]["remedy"])


def test_brokers_that_are_away_delay_no_caller() -> None:
    with capture_logs() as logs:
        listener = listen(dict(NOWHERE), "control")
        waits = KafkaControlTopic(dict(NOWHERE), "control", structlog.get_logger(), Metrics(), give_up_after_s=3600)
        assert waits.send("orders")
        assert waits.undelivered() == frozenset()
        assert listener.take() == frozenset()
        assert waits.end(0.1) == {"orders"}, "its fate is unknown"
        control = KafkaControlTopic(dict(NOWHERE), "control", structlog.get_logger(), Metrics())
        assert control.send("orders")
        until(lambda: bool(control.undelivered()))
        until(lambda: listener.problem is not None)
        assert not control.send("orders"), "it takes nothing now"
        listener.close()
    assert sorted(str(line["event"]) for line in logs) == [
        "control topic disconnected",
        "control topic refused a notification",
    ]
    assert all("127.0.0.1:9" in str(line["problem"]) for line in logs)


def test_control_topic_that_takes_no_messages_is_reported_until_it_does(kafka: KafkaCluster) -> None:
    topic, metrics = f"control-{uuid.uuid4().hex[:12]}", Metrics()
    with capture_logs() as logs:
        control = KafkaControlTopic(properties(kafka), topic, structlog.get_logger(), metrics)
        assert control.send("orders")
        until(lambda: control.undelivered() == {"orders"})
        assert control.problem is not None
        assert topic in control.problem
        kafka.create_topic(topic, config={"cleanup.policy": "compact"})

        def is_taken() -> bool:
            control.send("orders")
            time.sleep(0.2)
            assert control.undelivered() == frozenset(), "who asks knows that it takes nothing"
            return control.problem is None

        until(is_taken)
        assert control.end(180) == frozenset()
    kafka.delete_topic(topic)
    assert [line["log_level"] for line in logs][:2] == ["warning", "info"]  # a slow broker may take none again
    assert all_metrics.WRITER_CONTROL_TOPIC.name.encode() + b" 1.0" in metrics.exposition()


def turns_by_signs(loader: Service) -> float:
    sample = 'delta_loader_turns_total{reason="on_marker"} '
    return float(loader.get("/metrics")[1].partition(sample)[2].split()[0])


@pytest.mark.spark
def test_records_are_loaded_by_the_topic_alone_and_without_it_as_well(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, programs: Programs
) -> None:
    control = kafka.create_topic(f"control-{uuid.uuid4().hex[:12]}")
    pipeline = Pipeline(kafka, new_topic(1), tmp_path, programs, control_topic=control)
    loader, writer = pipeline.loader, pipeline.writer
    loader.until(lambda: f"{HEARD} 1.0" in loader.get("/metrics")[1], "the control topic")

    def loads() -> None:
        sent = pipeline.produce()
        loader.until(lambda: pipeline.loaded() == sent, "what was sent")

    def was_slow() -> bool:
        """Whether Kafka did not take a notification within the seconds that a writer gives it."""
        return REFUSED in writer.child.log.read_text("utf-8")

    for _ in range(3):
        loads()
        assert pipeline.signs() == [] or was_slow()
    assert 'stage_writer_news_total{way="stage"}' not in writer.get("/metrics")[1] or was_slow()
    assert 'delta_loader_control_messages_total{kind="news"}' in loader.get("/metrics")[1]
    assert 'delta_loader_turns_total{reason="on_marker"}' in loader.get("/metrics")[1]

    kafka.delete_topic(control)
    before = turns_by_signs(loader)
    loads()
    loader.until(lambda: turns_by_signs(loader) > before, "a sign in the stage")
    writer.until(lambda: "until then, notifications go to the stage" in writer.get("/healthcheck")[1], "a note")
    loader.until(lambda: "finds new markers by listing" in loader.get("/healthcheck")[1], "a word about it")
    assert loader.get("/healthcheck")[0] == writer.get("/healthcheck")[0] == 200
    loads()
    assert f"{REACHED} 0.0" in writer.get("/metrics")[1]

    kafka.create_topic(control, 2)
    loader.until(lambda: f"{HEARD} 1.0" in loader.get("/metrics")[1], "the control topic")
    loader.until(lambda: loads() or f"{REACHED} 1.0" in writer.get("/metrics")[1], "the control topic")  # type: ignore[func-returns-value]
    for service, lost in ((writer, REFUSED), (loader, '"event": "control topic disconnected"')):
        assert service.child.stop(600) == 0
        assert lost in service.child.log.read_text("utf-8")
    kafka.delete_topic(control)
