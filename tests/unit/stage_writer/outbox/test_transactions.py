"""Kafka's transactions over a producer that says what it is asked."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from confluent_kafka import Consumer, KafkaError, Producer

from common.errors import BrokerError
from common.kafka.delivering import DeliveryIdentity
from common.kafka.transactions import KafkaTransactions
from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.outbox.records import SCHEMA

ORDERS = TopicPartition(Topic("orders"), Partition(0))


class Broker:
    """A producer and its group, of a Kafka that answers about topics with these errors, in turn."""

    def __init__(self, *errors: int | None) -> None:
        self.errors = list(errors)
        self.steps: list[str] = []
        identity = DeliveryIdentity({}, "writers", "shop", ORDERS)
        producer, group = cast("Producer", self), cast("Consumer", self)
        self.transactions = KafkaTransactions(identity, lambda _step: None, producer, group, {})

    def list_topics(self, topic: str, _timeout_s: float) -> object:
        code = self.errors.pop(0)
        error = None if code is None else KafkaError(code)
        return SimpleNamespace(topics={topic: SimpleNamespace(error=error)})

    def __getattr__(self, step: str) -> object:
        return lambda *_, **__: self.steps.append(step)

    def transact(self, *topics: str) -> None:
        self.steps.clear()
        rows: list[Sequence[object]] = [(topic, None, b"{", 0, None, 0, 0) for topic in topics]
        columns = [pa.array(column, kind.type) for column, kind in zip(zip(*rows, strict=True), SCHEMA, strict=True)]
        self.transactions.transact(pa.table(columns, schema=SCHEMA), {ORDERS: Position(1)}, 0)


def test_a_missing_topic_is_named_before_a_transaction_waits_for_it() -> None:
    broker = Broker(None, KafkaError.UNKNOWN_TOPIC_OR_PART, None)
    with pytest.raises(BrokerError, match=r"stream 'shop' .* of orders/0: the topic 'errors' does not exist") as failed:
        broker.transact("totals", "errors")
    assert (failed.value.remedy.startswith("create the topic"), broker.steps) == (True, [])
    broker.transact("totals", "errors", "totals")
    assert broker.steps.count("produce") == 3
    broker.transact("errors")  # asked about once
    assert broker.steps[-1] == "commit_transaction"


def test_what_kafka_cannot_say_of_a_topic_is_left_to_the_transaction() -> None:
    broker = Broker(KafkaError.LEADER_NOT_AVAILABLE, None)
    broker.transact("totals")
    broker.transact("totals")
    assert (broker.errors, broker.steps[-1]) == ([], "commit_transaction")
