"""Range readers report config errors as every other client does, and no client waits forever."""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message
from confluent_kafka.admin import AclOperation, AdminClient, TopicDescription

from common.errors import BrokerError, BrokerRefusedError, ConfigError, StoreError
from common.kafka import reader
from common.kafka.client import client_properties, close_within, refused_property, result_of, topic_id
from common.kafka.errors import LastClientError, broker_error, member_error, remedy
from common.kafka.rights import Right, require_right
from common.settings import Settings
from common.settings.section import Option
from common.spans import Partition, Position, Topic, TopicPartition
from delta_loader.inspect.verify.kafka_offsets import KafkaOffsets
from stage_writer.replay.records import ReplayKafka
from tests.builders import settings_of, span

READERS: list[Callable[[Settings], object]] = [KafkaOffsets, lambda settings: ReplayKafka(settings, with_headers=False)]


@pytest.mark.parametrize("made", READERS, ids=["verify", "replay"])
def test_refused_client_property_is_a_config_error(made: Callable[[Settings], object]) -> None:
    settings = settings_of(
        {"table": "/t"}, stage={"url": "/s"}, kafka={"bootstrap.servers": "127.0.0.1:1", "fetch.min.byts": 7}
    )
    with pytest.raises(ConfigError, match=r"fetch\.min\.byts") as error:
        made(settings)
    assert error.value.exit_code == 2


class Silent:
    """A consumer without a broker, and the clock: each reading of it takes a while."""

    code = KafkaError._TRANSPORT

    def __init__(self, reading_s: float) -> None:
        self.asked: list[float] = []
        self._look_s = reading_s
        self._now_s = 0.0

    def monotonic(self) -> float:
        self._now_s += self._look_s
        return self._now_s

    def list_topics(self, topic: str | None, timeout: float) -> None:
        assert topic is None
        self.asked.append(timeout)
        self._now_s += int(timeout * 1000) / 1000  # librdkafka's are whole milliseconds
        raise KafkaException(KafkaError(self.code))

    def poll(self, timeout_s: float) -> None:
        assert timeout_s == 0


@pytest.mark.parametrize("reading_s", [0.0003, 0.0007])
def test_kafka_timeout_is_never_negative(monkeypatch: pytest.MonkeyPatch, reading_s: float) -> None:
    consumer = Silent(reading_s)
    monkeypatch.setattr(reader, "time", consumer)
    with pytest.raises(KafkaException):
        reader.topics_of(cast("Consumer", consumer), 10.0, LastClientError())
    assert min(consumer.asked) > 0
    assert sum(consumer.asked) <= 10.0


def test_refused_client_fails_within_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer, client_error = Silent(0.0003), LastClientError()
    monkeypatch.setattr(reader, "time", consumer)
    client_error.record(KafkaError(KafkaError._AUTHENTICATION))
    client_error.record(KafkaError(KafkaError._TRANSPORT))  # a broker that rejects a client closes the connection
    with pytest.raises(KafkaException):
        reader.topics_of(cast("Consumer", consumer), 10.0, client_error)
    assert 2 <= sum(consumer.asked) < 3


def test_error_that_is_no_missing_connection_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    consumer = Silent(0.0003)
    consumer.code = KafkaError.CLUSTER_AUTHORIZATION_FAILED
    monkeypatch.setattr(reader, "time", consumer)
    with pytest.raises(KafkaException):
        reader.topics_of(cast("Consumer", consumer), 10.0, LastClientError())
    assert len(consumer.asked) == 1


def test_topic_that_this_user_may_not_see_is_an_error_and_a_missing_one_is_empty() -> None:
    def partitions(error: KafkaError | None) -> list[int]:
        topics = {"orders": SimpleNamespace(error=error, partitions={1: None, 0: None})}
        consumer = SimpleNamespace(list_topics=lambda *_, **__: SimpleNamespace(topics=topics))
        return reader.require_allowed(cast("Consumer", consumer), "orders", 1.0)

    assert (partitions(None), partitions(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART))) == ([0, 1], [])
    with pytest.raises(KafkaException):
        partitions(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


class Reading:
    """A consumer of a Kafka that has records up to an offset and is silent then, and the clock."""

    also: Sequence["Record"] = ()

    def __init__(self, properties: dict[str, object], end: int) -> None:
        self._reports_end = properties["enable.partition.eof"]
        self._answers = [Record(offset) for offset in range(end)]
        self._now_s = 0.0

    def monotonic(self) -> float:
        return self._now_s

    def assign(self, _partitions: object) -> None: ...

    def consume(self, _most: int, timeout_s: float) -> list[object]:
        assert self._now_s < 1_000, "the reader waits without a limit"
        self._now_s += timeout_s
        answers: list[object] = [*self.also, *self._answers]
        if self._answers and self._reports_end:
            answers.append(Record(len(self._answers), KafkaError(KafkaError._PARTITION_EOF)))
        self._answers.clear()
        return answers

    def poll(self, timeout_s: float) -> None: ...


@dataclass
class Record:
    own_offset: int
    problem: KafkaError | None = None
    of_topic: str | None = "orders"
    number: int = 0

    def topic(self) -> str | None:
        return self.of_topic

    def partition(self) -> int:
        return self.number

    def offset(self) -> int:
        return self.own_offset

    def error(self) -> KafkaError | None:
        return self.problem


class Slow(Reading):
    """The same, where each answer takes long."""

    def consume(self, _most: int, _timeout_s: float) -> list[object]:
        self._now_s += 20
        end = Record(5, KafkaError(KafkaError._PARTITION_EOF))
        return [self._answers.pop(0) if self._answers else end]


ORDERS = TopicPartition(Topic("orders"), Partition(0))


def reader_of(
    monkeypatch: pytest.MonkeyPatch, records: int, kind: type[Reading] = Reading
) -> tuple[reader.KafkaReader, Reading]:
    made: list[Reading] = []

    def consumer(properties: dict[str, object], **_: object) -> Reading:
        made.append(kind(properties, records))
        return made[0]

    monkeypatch.setattr(reader, "Consumer", consumer)
    not_the_user_s_to_set = {"enable.partition.eof": False}
    kafka = reader.KafkaReader({"bootstrap.servers": "kafka:9092", **not_the_user_s_to_set}, 100)
    monkeypatch.setattr(reader, "time", made[0])
    return kafka, made[0]


def offsets(batches: Iterable[Sequence[Message]]) -> list[int]:
    return [int(message.offset() or 0) for batch in batches for message in batch]


def read(monkeypatch: pytest.MonkeyPatch, records: int, kind: type[Reading] = Reading) -> list[int]:
    """The offsets read of a range that ends at 5, whose last records an aborted transaction may have left out."""
    kafka, _ = reader_of(monkeypatch, records, kind)
    return offsets(kafka.messages(ORDERS, span(0, 5)))


def test_range_ends_where_its_partition_does(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, 3) == [0, 1, 2]
    assert read(monkeypatch, 8) == [0, 1, 2, 3, 4], "and before the next range"


def test_newest_records_end_where_their_partition_does(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka, consumer = reader_of(monkeypatch, 3)
    assert offsets(kafka.newest({ORDERS: span(0, 5)})) == [0, 1, 2]
    assert consumer.monotonic() < 1
    kafka, consumer = reader_of(monkeypatch, 5, Slow)
    assert offsets(kafka.newest({ORDERS: span(0, 5)})) == [0, 1, 2, 3, 4]
    assert consumer.monotonic() == 5 * 20, "nothing is awaited after the last record"


def test_slow_kafka_is_not_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert read(monkeypatch, 5, Slow) == [0, 1, 2, 3, 4]


def test_error_among_the_records_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reading, "also", [Record(0, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))])
    with pytest.raises(BrokerRefusedError, match="cannot read orders/0"):
        read(monkeypatch, 3)


def test_missing_permission_for_the_group_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    refused = Record(0, KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED), None)
    monkeypatch.setattr(Reading, "also", [refused])
    assert read(monkeypatch, 3) == [0, 1, 2]


@pytest.mark.parametrize("left", [{"number": 1}, {"of_topic": "returns"}])
def test_records_of_the_partition_that_was_read_before_are_dropped(
    monkeypatch: pytest.MonkeyPatch, left: dict[str, Any]
) -> None:
    monkeypatch.setattr(Reading, "also", [Record(3, **left), Record(7, **left)])
    assert read(monkeypatch, 3) == [0, 1, 2]


def test_refusal_is_named_regardless_of_what_the_client_reported_before() -> None:
    client_error = LastClientError()
    client_error.record(KafkaError(KafkaError._RESOLVE))
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    error = broker_error("read", "kafka:9092", refused, client_error, user_of="orders")
    assert (type(error), error.remedy) == (BrokerRefusedError, "allow this user to READ the topic orders")
    error = broker_error("read", "kafka:9092", KafkaError(KafkaError._TIMED_OUT), client_error)
    assert (type(error), "Host resolution failure" in error.problem) == (BrokerError, True)


@pytest.mark.parametrize(("offset", "position"), [(4, 4), (-1, 9)])
def test_position_by_time_is_the_end_without_a_later_record(
    monkeypatch: pytest.MonkeyPatch, offset: int, position: int
) -> None:
    answers = [SimpleNamespace(error=None, offset=offset)]
    consumer = SimpleNamespace(offsets_for_times=lambda *_, **__: answers, poll=lambda _timeout_s: None)
    monkeypatch.setattr(reader, "Consumer", lambda *_, **__: consumer)
    kafka, orders = (
        reader.KafkaReader({"bootstrap.servers": "kafka:9092"}),
        TopicPartition(Topic("orders"), Partition(0)),
    )
    assert kafka.position_at(orders, 1_000, Position(9)) == position
    answers[0].error = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
    with pytest.raises(BrokerError, match="cannot look up orders/0 by time"):
        kafka.position_at(orders, 1_000, Position(9))


def test_cause_of_a_missing_connection_is_kept() -> None:
    client_error = LastClientError()
    client_error.record(KafkaError(KafkaError._RESOLVE))
    client_error.record(KafkaError(KafkaError._ALL_BROKERS_DOWN))
    assert client_error.name == "_RESOLVE"


def test_certificate_that_the_brokers_reject_is_a_refusal() -> None:
    fault = KafkaError(
        KafkaError._TRANSPORT, "ssl://kafka:9092: SSL alert number 42 (after 3ms in state SSL_HANDSHAKE)"
    )
    error = broker_error("read", "kafka:9092", fault)
    assert (type(error), "kafka.ssl.certificate.location" in error.remedy) == (BrokerRefusedError, True)
    assert "3ms" not in error.problem, "so that a repeated problem has the same text"


@pytest.mark.parametrize(
    ("code", "right"),
    [
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, "READ the topic orders"),
        (KafkaError.GROUP_AUTHORIZATION_FAILED, "READ the consumer group writers"),
    ],
)
def test_refused_member_of_a_group_names_the_missing_right(code: int, right: str) -> None:
    error = member_error("kafka:9092", "writers", "orders", KafkaError(code))
    assert (type(error), error.remedy) == (BrokerRefusedError, f"allow this user to {right}")


def test_brokers_without_the_new_group_protocol_name_its_setting() -> None:
    text = "ConsumerGroupHeartbeat is not supported by broker"
    assert remedy("_UNSUPPORTED_FEATURE", text).startswith("remove kafka.group.protocol")
    assert not remedy("_TRANSPORT", "Connection refused").startswith("remove kafka.group.protocol")


def test_clients_other_than_consumers_have_no_properties_of_consumers() -> None:
    kafka: dict[str, Option] = {"group.id": "writers", "fetch.min.bytes": 1, "check.crcs": True}
    kafka["bootstrap.servers"] = "kafka:9092"
    assert client_properties(kafka) == {"bootstrap.servers": "kafka:9092"}


def test_file_that_librdkafka_cannot_read_is_named_with_what_opens_it() -> None:
    remedies = [refused_property(f"ssl.{name}.location failed: error:05880020").remedy for name in ("key", "ca")]
    assert ["kafka.ssl.key.password" in text for text in remedies] == [True, False]


@pytest.mark.parametrize(("text", "known"), [("AAAAAAAAAAAAAAAAAAAAAA", None), (None, None), ("Ab3-", "Ab3-")])
def test_zero_is_no_topic_id(text: str | None, known: str | None) -> None:
    assert topic_id(cast("TopicDescription", SimpleNamespace(topic_id=text))) == known


def test_refused_token_names_its_settings() -> None:
    text = "Failed to acquire SASL OAUTHBEARER token: 401"
    assert remedy("_AUTHENTICATION", text).startswith("check kafka.sasl.oauthbearer.token.endpoint.url")
    assert remedy("_AUTHENTICATION", "wrong password").startswith("check kafka.sasl.mechanism")


def test_silence_of_kafka_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BrokerError, match="sent nothing of orders/0 for 30 seconds"):
        read(monkeypatch, 0)


class Closing:
    """A consumer that closes once it may, or never."""

    def __init__(self, error: Exception | None = None) -> None:
        self.may_close = threading.Event()
        self._error = error

    def close(self) -> None:
        self.may_close.wait()
        if self._error is not None:
            raise self._error


def test_consumer_that_does_not_close_is_abandoned() -> None:
    consumer = Closing()
    assert not close_within(cast("Consumer", consumer), 0.01)
    consumer.may_close.set()
    assert close_within(cast("Consumer", consumer), 600.0)


def test_error_raised_by_a_callback_during_close_is_raised() -> None:
    consumer = Closing(StoreError("gone", "wait"))
    consumer.may_close.set()
    with pytest.raises(StoreError, match="gone"):
        close_within(cast("Consumer", consumer), 600.0)


def test_missing_response_is_a_kafka_timeout_error() -> None:
    with pytest.raises(KafkaException) as error:
        result_of(Future(), -1.0)
    assert error.value.args[0].code() == KafkaError._TIMED_OUT


def ids(*outcomes: KafkaError | None) -> dict[Topic, str | None]:
    """The ids of topics, each of which Kafka describes, or refuses so."""
    futures: dict[str, Future[object]] = {f"t{number}": Future() for number in range(len(outcomes))}
    for future, problem in zip(futures.values(), outcomes, strict=True):
        if problem is None:
            future.set_result(SimpleNamespace(topic_id="an-id"))
        else:
            future.set_exception(KafkaException(problem))
    admin = SimpleNamespace(describe_topics=lambda *_, **__: futures)
    return reader.topic_ids(cast("AdminClient", admin), [Topic(name) for name in futures], 1.0)


def test_only_topics_that_exist_have_ids() -> None:
    assert ids(None, KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)) == {"t0": "an-id"}
    with pytest.raises(KafkaException):
        ids(None, KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))


@pytest.mark.parametrize(
    ("code", "is_known"), [(KafkaError._UNSUPPORTED_FEATURE, True), (KafkaError._TRANSPORT, False)]
)
def test_topics_of_an_old_broker_have_no_ids(code: int, *, is_known: bool) -> None:
    def refuse(*_: object, **__: object) -> object:
        raise KafkaException(KafkaError(code))

    admin = cast("AdminClient", SimpleNamespace(describe_topics=refuse))
    if is_known:
        assert reader.topic_ids(admin, [Topic("orders")], 1.0) == {"orders": None}
        return
    with pytest.raises(KafkaException):
        reader.topic_ids(admin, [Topic("orders")], 1.0)


def test_group_has_positions_only_where_it_has_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = [SimpleNamespace(error=None, offset=offset) for offset in (5, -1001, 0)]
    consumer = SimpleNamespace(committed=lambda *_: answers, poll=lambda _timeout_s: None)
    monkeypatch.setattr(reader, "Consumer", lambda *_, **__: consumer)
    kafka = reader.KafkaReader({"bootstrap.servers": "kafka:9092"})
    first, second, third = (TopicPartition(Topic("orders"), Partition(number)) for number in range(3))
    assert kafka.committed([first, second, third], "writers") == {first: Position(5), third: Position(0)}
    answers[1].error = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerRefusedError, match="cannot look up the offsets of the group writers"):
        kafka.committed([first, second, third], "writers")


@pytest.mark.parametrize(
    ("allowed", "is_refused"),
    [(None, False), ([], False), ([AclOperation.READ, AclOperation.WRITE], False), ([AclOperation.READ], True)],
)
def test_topic_without_the_right_is_refused(allowed: list[AclOperation] | None, *, is_refused: bool) -> None:
    """A broker without an authorizer tells none, which grants all."""
    described = cast("TopicDescription", SimpleNamespace(authorized_operations=allowed))
    with pytest.raises(ConfigError, match="may not write the topic 'errors'") if is_refused else nullcontext():
        require_right(described, "dead_letters_topic", "errors", Right.WRITE)
