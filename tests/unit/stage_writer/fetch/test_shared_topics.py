"""A topic matched by the regular expressions of two streams that cannot share it is read for neither."""

from collections.abc import Collection, Mapping, Sequence

import pytest
import structlog
from structlog.testing import capture_logs

from common.errors import ConfigError
from common.metrics import Metrics
from common.settings import Settings, Stream
from common.settings.overlap import UnsubscribedTopics
from common.spans import Position, TopicPartition
from stage_writer.fetch import connection
from stage_writer.fetch.kafka import KafkaSource
from stage_writer.telemetry import WriterTelemetry
from tests.fakes.group import HandClock


class Consumer:
    topics: tuple[str, ...] = ()

    def subscribe(self, topics: list[str], **_listeners: object) -> None:
        self.topics = tuple(topics)


class Listener:
    def assigned(self, _partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        return {}

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        pass

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        pass


def source_of(
    monkeypatch: pytest.MonkeyPatch, *topics: str, unread: UnsubscribedTopics | None = None
) -> tuple[KafkaSource, Sequence[Stream], Consumer, dict[str, list[int]]]:
    consumer = Consumer()
    monkeypatch.setattr(connection, "Consumer", lambda *_args, **_more: consumer)
    streams = [
        {"app_id": app_id, "topics": [expression], "table": "file:///both", "columns": "id BIGINT"}
        for app_id, expression in (("shop", "^shop-.*"), ("orders", "^.*-orders$"))
    ]
    settings = Settings.model_validate(
        {"kafka": {"bootstrap.servers": "localhost:1"}, "stage": {"url": "file:///stage"}, "streams": streams}
    )
    source = KafkaSource(settings, HandClock(), structlog.get_logger(), unsubscribed=unread)
    there = {topic: [0] for topic in topics}
    monkeypatch.setattr(source.metadata, "topics", lambda: there)
    return source, settings.streams, consumer, there


def test_topic_matched_by_two_expressions_is_refused_at_startup_and_by_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    source, streams, consumer, _ = source_of(monkeypatch, "shop-cart", "shop-orders")
    for ask in (lambda: source.subscribe(streams, Listener()), lambda: source.metadata.end_positions(streams)):
        with pytest.raises(ConfigError, match="'shop' and 'orders' both read the topic 'shop-orders'") as caught:
            ask()
        assert "streams[].topics" in caught.value.remedy
    assert consumer.topics == ()


def test_topic_matched_by_two_expressions_at_runtime_is_not_read_and_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    unread = UnsubscribedTopics()
    telemetry = WriterTelemetry(HandClock(), structlog.get_logger(), Metrics(), unsubscribed=unread)
    source, streams, consumer, there = source_of(monkeypatch, "shop-cart", unread=unread)
    source.subscribe(streams, Listener())
    assert telemetry.notes == ()
    there |= {"shop-orders": [0], "web-orders": [0]}
    with capture_logs() as logs:
        for _ in range(2):
            source._subscription.refresh()
    assert consumer.topics == ("shop-cart", "web-orders")
    assert [(line["event"], line["topic"], line["log_level"]) for line in logs] == [
        ("topic not read", "shop-orders", "error")
    ]
    note = "; ".join(telemetry.notes)
    assert "'shop' and 'orders' both read the topic 'shop-orders', and both load into file:///both" in note
    assert "it is not read → change streams[].topics" in note
    del there["shop-orders"]
    source._subscription.refresh()
    assert telemetry.notes == ()
