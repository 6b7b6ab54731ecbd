"""What ``check`` and ``status`` ask of a real broker: once for all streams, with a deadline for each request."""

from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient

from common.lagging import watch
from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from delta_loader.status import kafka as status_kafka
from delta_loader.status.kafka import BrokerEnds
from devservices.kafka import KafkaCluster
from tests.producing import produce

pytestmark = pytest.mark.broker

STREAMS = 24
RECORDS = 3


def settings_for(servers: str, topics: list[str]) -> Settings:
    streams = [
        {"app_id": topic, "topics": [topic], "table": f"memory://lake/{topic}", "columns": "id BIGINT"}
        for topic in topics
    ]
    return Settings.model_validate(
        {"kafka": {"bootstrap.servers": servers}, "stage": {"url": "memory://stage"}, "streams": streams}
    )


def counted(asked: Callable[..., object], name: str, requests: Counter[str]) -> Callable[..., object]:
    def ask(*given: object, **named: object) -> object:
        requests[name] += 1
        return asked(*given, **named)

    return ask


def test_ends_of_all_streams_need_one_client_and_three_requests(
    kafka: KafkaCluster, new_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topics = [new_topic(2) for _ in range(STREAMS)]
    requests: Counter[str] = Counter()
    for name in ("__init__", "list_topics", "list_offsets"):
        monkeypatch.setattr(AdminClient, name, counted(getattr(AdminClient, name), name, requests))
    for topic in topics:
        produce(kafka.bootstrap_servers, topic, *[b"{}"] * RECORDS, partition=1)
    settings = settings_for(kafka.bootstrap_servers, [*topics, "no-such-topic"])

    monkeypatch.setattr(watch, "_TIMEOUT_S", 300.0)
    monkeypatch.setattr(status_kafka, "_IDS_TIMEOUT_S", 300.0)
    ends = BrokerEnds(settings, 300.0)

    for stream in settings.streams[:-1]:
        empty, filled = (TopicPartition(Topic(stream.topics[0]), Partition(number)) for number in range(2))
        assert ends(stream) == {empty: Position(0), filled: Position(RECORDS)}
        assert ends.firsts([filled]) == {filled: Position(0)}
    assert ends(settings.streams[-1]) == {}
    assert ends.topic_ids([Topic(topics[0])])[Topic(topics[0])]
    assert requests == {"__init__": 1, "list_topics": 1, "list_offsets": 2}
    produce(kafka.bootstrap_servers, topics[0], b"{}", partition=1)
    grown = TopicPartition(Topic(topics[0]), Partition(1))
    assert ends(settings.streams[0]) == {**ends.now(settings.streams[0]), grown: Position(RECORDS)}, "as it was read"
    assert ends.now(settings.streams[0])[grown] == RECORDS + 1
    assert requests == {"__init__": 1, "list_topics": 1, "list_offsets": 4}


def test_unreachable_broker_has_no_ends() -> None:
    ends = BrokerEnds(settings := settings_for("127.0.0.1:1", ["orders", "returns"]), timeout_s=0.5)
    assert [ends(stream) for stream in settings.streams] == [None, None]
    assert ends.now(settings.streams[0]) == {}
    assert ends.firsts([TopicPartition(Topic("orders"), Partition(0))]) == {}
