"""The delivered records of an outbox and the position of its chain, with Kafka's transactions in memory."""

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import pyarrow as pa
import pytest

from common.errors import BrokerError
from common.kafka.delivering import Delivered, DeliveryIdentity
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.merged import InputEnd, ends_at, inputs_of, merged_position
from common.stage.task_files import OutboxName
from common.storage.store import FsspecStore
from common.tables.dead_letters import dead_letter_headers
from stage_writer.outbox.delivery import Delivery
from stage_writer.outbox.records import SCHEMA, Outgoing, outgoing_to_chunks

BOTH = TopicPartition(Topic("orders+payments"), Partition(0))
ORDERS, PAYMENTS = inputs_of(BOTH)
CHAIN = DeliveryIdentity({}, "writers", "shop", BOTH)


@dataclass
class Kafka:
    delivered: dict[TopicPartition, Delivered] = field(default_factory=dict)
    records: list[tuple[int, int]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    """The number of records of each transaction."""
    lives_for: int = 100
    """The number of transactions before it is unavailable."""
    begun: int = 0
    closed: int = 0

    def begin(self, _place: DeliveryIdentity, _at: Callable[[str], None]) -> "Kafka":
        self.begun += 1
        return self

    def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
        if not self.lives_for:
            msg = "it is away"
            raise BrokerError(msg)
        self.lives_for -= 1
        self.sizes.append(records.num_rows)
        self.records += zip(records["input"].to_pylist(), records["offset"].to_pylist(), strict=True)
        self.delivered |= {chain: Delivered(position, generation) for chain, position in ends.items()}

    def close(self) -> None:
        self.closed += 1


def deliver(kafka: Kafka, made: Sequence[tuple[int, int]], orders: int, payments: int, generation: int = 0) -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    Delivery(CHAIN, store, begin=kafka.begin).deliver(outbox(store, made, orders, payments, generation))


def outbox(store: FsspecStore, made: Sequence[tuple[int, int]], orders: int, payments: int, generation: int = 0) -> str:
    """An outbox with a record for each message, given by its input and its offset, and where its flush ends."""
    inputs, offsets = zip(*made, strict=True) if made else ((), ())
    blank = [None] * len(made)
    columns = [["to"] * len(made), blank, blank, [0] * len(made), blank, inputs, offsets]
    table = pa.table([pa.array(values, kind.type) for values, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    end = merged_position([InputEnd(ORDERS, Position(orders)), InputEnd(PAYMENTS, Position(payments))])
    name = OutboxName(BOTH, Position(0), generation, "1")
    store.upload(name.path, outgoing_to_chunks(Outgoing(BOTH, generation, ends_at(BOTH, end), table)))
    return name.path


def test_rewound_chain_in_another_order_delivers_each_message_once() -> None:
    kafka = Kafka()
    deliver(kafka, [(0, 0), (0, 1), (0, 2)], 3, 0)
    deliver(kafka, [(0, 0), (1, 0), (1, 1)], 1, 2)  # the same messages, after a rewind, in another order
    assert kafka.delivered[ORDERS].position == 3, "a delivered position does not move back"
    deliver(kafka, [(0, 1), (0, 2), (1, 2)], 3, 3)
    assert sorted(kafka.records) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert {chain: end.position for chain, end in kafka.delivered.items()} == {ORDERS: 3, PAYMENTS: 3}


def test_pending_dead_letters_go_to_the_currently_configured_topic() -> None:
    store, sent, lives = FsspecStore(f"memory://{uuid.uuid4().hex}"), list[tuple[str, int]](), [0, 1]

    class Broken(Kafka):
        def transact(self, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int) -> None:
            if not lives.pop(0):
                msg = "the topic does not exist"
                raise BrokerError(msg)
            super().transact(records, ends, generation)
            sent.extend(zip(records["topic"].to_pylist(), records["offset"].to_pylist(), strict=True))

    partition, topic = ORDERS.partition, ORDERS.topic
    headers = [
        dead_letter_headers("shop", ("wrong_type", "no number"), (topic, partition, 0)),
        # forwarded from another message
        dead_letter_headers("shop", ("wrong_type", "no number"), (topic, partition, 7)),
        dead_letter_headers("other", ("wrong_type", "no number"), (topic, partition, 2)),
        None,
    ]
    columns = [["typo"] * 4, [None] * 4, [None] * 4, [0] * 4, headers, [0] * 4, [0, 1, 2, 3]]
    table = pa.table([pa.array(each, kind.type) for each, kind in zip(columns, SCHEMA, strict=True)], schema=SCHEMA)
    path = OutboxName(ORDERS, Position(0), 0, "1").path
    kafka, chain = Broken(), DeliveryIdentity({}, "writers", "shop", ORDERS)
    store.upload(path, outgoing_to_chunks(Outgoing(ORDERS, 0, (InputEnd(ORDERS, Position(4)),), table)))
    with pytest.raises(BrokerError):
        Delivery(chain, store, begin=kafka.begin, dead_letters_topic="typo").deliver(path)
    assert Delivery(chain, store, begin=kafka.begin, dead_letters_topic="errors").deliver(path) == 4
    assert sent == [("errors", 0), ("typo", 1), ("typo", 2), ("typo", 3)]
    store.upload(path, outgoing_to_chunks(Outgoing(ORDERS, 0, (InputEnd(ORDERS, Position(4)),), table)))
    assert Delivery(chain, store, begin=kafka.begin, dead_letters_topic="again").deliver(path) == 0, "each once"
    lives, kafka.delivered, other = [1], {}, Delivery(chain, store, begin=kafka.begin)
    sent.clear()
    store.upload(path, outgoing_to_chunks(Outgoing(ORDERS, 0, (InputEnd(ORDERS, Position(4)),), table)))
    assert other.deliver(path) == 4
    assert sent == [("typo", offset) for offset in range(4)], "the topic for which they were staged"


def test_process_that_ends_before_its_outbox_is_deleted_sends_nothing_twice() -> None:
    kafka, steps = Kafka(), list[tuple[str, list[int]]]()
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    path = outbox(store, [(0, 0)], 1, 0)

    def ends(step: str) -> None:
        steps.append((step, [*kafka.sizes]))
        raise SystemExit

    with pytest.raises(SystemExit):
        Delivery(CHAIN, store, ends, kafka.begin).deliver(path)
    assert (steps, store.stat(path) is None) == ([("committed", [1])], False)
    delivery = Delivery(CHAIN, store, begin=kafka.begin)
    assert (delivery.deliver(path), store.stat(path)) == (0, None)
    assert (delivery.deliver(path), kafka.records) == (0, [(0, 0)]), "a missing outbox was delivered"


def test_one_connection_delivers_until_kafka_is_unavailable() -> None:
    kafka, store = Kafka(lives_for=2), FsspecStore(f"memory://{uuid.uuid4().hex}")
    delivery = Delivery(CHAIN, store, begin=kafka.begin)
    delivery.close()
    assert delivery.deliver("outbox/gone") == 0
    assert (kafka.begun, kafka.closed) == (0, 0), "nothing to deliver"
    for end in 1, 2:
        assert delivery.deliver(outbox(store, [(0, end - 1)], end, 0)) == 1
    assert (kafka.begun, kafka.closed) == (1, 0)
    path = outbox(store, [(0, 2)], 3, 0)
    with pytest.raises(BrokerError):
        delivery.deliver(path)
    kafka.lives_for = 1
    assert (kafka.begun, kafka.closed, delivery.deliver(path)) == (1, 1, 1)
    delivery.close()
    delivery.close()
    assert (kafka.begun, kafka.closed) == (2, 2)


def test_outbox_without_records_advances_its_chain() -> None:
    kafka = Kafka()
    deliver(kafka, [], 2, 2)
    assert kafka.delivered == {ORDERS: Delivered(Position(2), 0), PAYMENTS: Delivered(Position(2), 0)}


def test_positions_of_a_deleted_topic_do_not_count_as_delivered() -> None:
    kafka = Kafka()
    deliver(kafka, [(0, 0), (0, 1), (0, 2)], 3, 0)
    deliver(kafka, [(0, 0), (0, 1)], 2, 0, generation=1)  # in the recreated topic
    assert sorted(kafka.records) == [(0, 0), (0, 0), (0, 1), (0, 1), (0, 2)]
    assert kafka.delivered[ORDERS] == Delivered(Position(2), 1)


@pytest.mark.parametrize(
    ("limit", "most", "sizes"),
    [
        ("_MOST_RECORDS", 2, [4, 3]),
        ("_MOST_RECORDS", 1, [1, 3, 1, 2]),
        ("_MOST_BYTES", 1, [1, 3, 1, 2]),
        ("_MOST_BYTES", 2**20, [7]),
    ],
)
def test_large_outbox_is_split_between_messages(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int, sizes: list[int]
) -> None:
    monkeypatch.setattr(f"stage_writer.outbox.delivery.{limit}", most)
    made = [(0, 0), (0, 1), (0, 1), (0, 1), (0, 2), (1, 2), (1, 2)]
    kafka = Kafka()
    deliver(kafka, made, 3, 3)
    assert kafka.sizes == sizes
    for transactions in range(len(sizes)):
        kafka = Kafka(lives_for=transactions)
        with suppress(BrokerError):
            deliver(kafka, made, 3, 3)
        kafka.lives_for = 100
        deliver(kafka, made, 3, 3)
        assert sorted(kafka.records) == made, "each once, no matter where the first process ends"
