"""Kafka's transactions, with a producer that records its calls."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from common.errors import BrokerError
from common.kafka import transactions
from common.kafka.delivering import Delivered, DeliveryIdentity, FencedError
from common.kafka.transactions import KafkaTransactions
from common.settings.section import Option
from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.decode.batch import NO_TIMESTAMP
from stage_writer.outbox.records import SCHEMA

ORDERS = TopicPartition(Topic("orders"), Partition(0))


class Broker:
    """A producer and its group, of a Kafka that answers about topics with these errors, in turn."""

    def __init__(self, *errors: int | None) -> None:
        self.errors = list(errors)
        self.steps: list[str] = []
        self.times: list[int] = []
        self.failure: int | None = None
        """The error of a commit."""
        self.full = 0
        """How often the producer's queue will be full."""
        identity = DeliveryIdentity({}, "writers", "shop", ORDERS)
        producer, group = cast("Producer", self), cast("Consumer", self)
        self.transactions = KafkaTransactions(identity, lambda _step: None, producer, group, {})

    def commit_transaction(self, _timeout_s: float) -> None:
        self.steps.append("commit_transaction")
        if self.failure is not None:
            raise KafkaException(KafkaError(self.failure))

    def list_topics(self, topic: str, _timeout_s: float) -> object:
        code = self.errors.pop(0)
        error = None if code is None else KafkaError(code)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})

    def produce(self, *_: object, timestamp: int, **__: object) -> None:
        if self.full:
            self.full -= 1
            raise BufferError
        self.steps.append("produce")
        self.times.append(timestamp)

    def __getattr__(self, step: str) -> object:
        return lambda *_, **__: self.steps.append(step)

    def transact(self, *topics: str, timestamp_ms: int = 0) -> None:
        self.steps.clear()
        rows: list[Sequence[object]] = [(topic, None, b"{", timestamp_ms, None, 0, 0) for topic in topics]
        columns = [pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        self.transactions.transact(pa.table(columns, schema=SCHEMA), {ORDERS: Position(1)}, 0)


def test_missing_topic_is_named_before_the_transaction() -> None:
    broker = Broker(None, KafkaError.UNKNOWN_TOPIC_OR_PART, None)
    with pytest.raises(BrokerError, match=r"stream 'shop' .* of orders/0: the topic 'errors' does not exist") as failed:
        broker.transact("totals", "errors")
    assert (failed.value.remedy.startswith("create the topic"), broker.steps) == (True, [])
    broker.transact("totals", "errors", "totals")
    assert broker.steps.count("produce") == 3
    broker.transact("errors")  # each topic is queried once
    assert broker.steps[-1] == "commit_transaction"


@pytest.mark.parametrize("code", [KafkaError._FENCED, KafkaError.INVALID_PRODUCER_EPOCH, KafkaError.PRODUCER_FENCED])
def test_process_whose_id_was_taken_is_fenced(code: int) -> None:
    broker = Broker(None)
    broker.failure = code
    with pytest.raises(FencedError, match=r"\(transactional id writers\.shop\.out\.orders\.0\)"):
        broker.transact("totals")
    assert broker.transactions.delivered == {}


def test_transaction_advances_the_position_and_forgets_what_was_refused_before() -> None:
    broker = Broker(None)
    broker.transactions.refused.append(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    broker.transact("totals")
    assert broker.transactions.delivered == {ORDERS: Delivered(Position(1), 0)}
    assert broker.transactions.refused == []


def test_unknown_topic_state_is_left_to_the_transaction() -> None:
    broker = Broker(KafkaError.LEADER_NOT_AVAILABLE, None)
    broker.transact("totals")
    broker.transact("totals")
    assert (broker.errors, broker.steps[-1]) == ([], "commit_transaction")


def test_record_that_meets_a_full_queue_is_produced_later() -> None:
    broker = Broker(None)
    broker.full = 2
    broker.transact("totals")
    assert broker.steps[:5] == ["begin_transaction", "poll", "poll", "produce", "poll"]


@pytest.mark.parametrize(
    ("stored", "generation"), [("3", 3), ("0", 0), (None, -1), ("", -1), ("-1", -1), ("٣", -1), ("other", -1)]
)
def test_committed_position_without_a_generation_has_none(
    monkeypatch: pytest.MonkeyPatch, stored: str | None, generation: int
) -> None:
    begun = begin(monkeypatch, SimpleNamespace(offset=5, metadata=stored, error=None))
    assert begun.delivered == {ORDERS: Delivered(Position(5), generation)}


def test_unavailable_committed_position_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    error = KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)
    with pytest.raises(BrokerError, match="cannot deliver the records of the stream 'shop'"):
        begin(monkeypatch, SimpleNamespace(offset=-1001, metadata=None, error=error))


def test_settings_choose_the_partitioner_and_nothing_of_a_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    committed = SimpleNamespace(offset=-1001, metadata=None, error=None)
    given: dict[str, Option] = {"enable.idempotence": False, "transactional.id": "x", "linger.ms": 5}
    begun = begin(monkeypatch, committed, **given)
    assert cast("Client", begun.producer).properties == {
        "partitioner": "murmur2_random",
        "linger.ms": 5,
        "transactional.id": "writers.shop.out.orders.0",
        "enable.idempotence": True,
        "delivery.report.only.error": True,
    }
    begun = begin(monkeypatch, committed, partitioner="consistent")
    assert cast("Client", begun.producer).properties["partitioner"] == "consistent"


class Client:
    """A producer or a consumer that keeps its properties."""

    answer: object

    def __init__(self, properties: dict[str, object], **_: object) -> None:
        self.properties = properties

    def init_transactions(self, _timeout_s: float) -> None: ...

    def committed(self, *_: object, **__: object) -> list[object]:
        return [self.answer]


def begin(monkeypatch: pytest.MonkeyPatch, committed: object, **kafka: Option) -> KafkaTransactions:
    """Transactions of a group that has committed this."""
    monkeypatch.setattr(Client, "answer", committed, raising=False)
    monkeypatch.setattr(transactions, "Producer", Client)
    monkeypatch.setattr(transactions, "Consumer", Client)
    return KafkaTransactions.begin(DeliveryIdentity(kafka, "writers", "shop", ORDERS), lambda _step: None)


def test_record_without_a_time_is_produced_with_that_of_kafka() -> None:
    broker = Broker(None)
    broker.transact("totals", timestamp_ms=5)
    broker.transact("totals", timestamp_ms=NO_TIMESTAMP)
    assert broker.times == [5, 0]
