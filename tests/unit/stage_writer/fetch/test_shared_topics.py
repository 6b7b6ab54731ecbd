"""Two streams whose regular expressions match one topic that they cannot share: read for neither of them."""

import pytest
import structlog
from structlog.testing import capture_logs

from common.errors import ConfigError
from common.metrics import Metrics
from common.settings import Settings
from common.settings.overlap import UnsubscribedTopics
from stage_writer.fetch import kafka
from stage_writer.fetch.kafka import KafkaSource
from stage_writer.telemetry import WriterTelemetry
from tests.fakes.group import HandClock


class Consumer:
    topics: tuple[str, ...] = ()

    def subscribe(self, topics: list[str], **_listeners: object) -> None:
        self.topics = tuple(topics)


def source_of(
    monkeypatch: pytest.MonkeyPatch, *topics: str, unread: UnsubscribedTopics | None = None
) -> tuple[KafkaSource, Consumer, dict[str, list[int]]]:
    consumer = Consumer()
    monkeypatch.setattr(kafka, "Consumer", lambda *_args, **_more: consumer)
    streams = [
        {"app_id": app_id, "topics": [expression], "table": "file:///both", "columns": "id BIGINT"}
        for app_id, expression in (("shop", "^shop-.*"), ("orders", "^.*-orders$"))
    ]
    settings = Settings.model_validate(
        {"kafka": {"bootstrap.servers": "localhost:1"}, "stage": {"url": "file:///stage"}, "streams": streams}
    )
    source = KafkaSource(settings, HandClock(), structlog.get_logger(), unsubscribed=unread)
    source._streams = settings.streams
    there = {topic: [0] for topic in topics}
    monkeypatch.setattr(source, "_metadata", lambda: there)
    return source, consumer, there


def test_a_topic_that_two_expressions_take_is_refused_at_the_start_and_by_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, consumer, _ = source_of(monkeypatch, "shop-cart", "shop-orders")
    for ask in (source._refresh_topics, lambda: source.end_positions(source._streams)):
        with pytest.raises(ConfigError, match="'shop' and 'orders' both read the topic 'shop-orders'") as caught:
            ask()
        assert "streams[].topics" in caught.value.remedy
    assert consumer.topics == ()


def test_one_that_comes_while_a_writer_runs_is_not_read_and_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    unread = UnsubscribedTopics()
    telemetry = WriterTelemetry(HandClock(), structlog.get_logger(), Metrics(), unsubscribed=unread)
    source, consumer, there = source_of(monkeypatch, "shop-cart", unread=unread)
    source._refresh_topics()
    assert telemetry.notes == ()
    there |= {"shop-orders": [0], "web-orders": [0]}
    with capture_logs() as logs:
        for _ in range(2):
            source._refresh_topics()
    assert consumer.topics == ("shop-cart", "web-orders")
    assert [(one["event"], one["topic"], one["log_level"]) for one in logs] == [
        ("topic not read", "shop-orders", "error")
    ]
    note = "; ".join(telemetry.notes)
    assert "'shop' and 'orders' both read the topic 'shop-orders', and both load into file:///both" in note
    assert "it is not read → change streams[].topics" in note
    del there["shop-orders"]
    source._refresh_topics()
    assert telemetry.notes == ()
