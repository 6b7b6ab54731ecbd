"""Delivers the outboxes of one chain to Kafka, each record once for who reads what is committed.

    outbox ─► begin ─► produce ─► commit the chain's position, with the records ─► delete the outbox

Rules:

1. How far a chain is delivered is what its consumer group has committed (``<group_id>.<app_id>.out``), for each topic
   of the chain; it is committed in the transaction that brings the records, so that both are there or neither. The
   generation of the chain is noted beside it: positions of a topic that is no more say nothing.
2. A chain has one transactional id. Whoever begins with it ends what another one had begun, and only then asks how far
   the chain is delivered. So a process that was given up does no harm: it is refused, or has done what there was to do.
3. Only what a sealed marker names is delivered, in the chain's order, without what is delivered already, message by
   message. A large outbox is parted into transactions between messages.
4. An outbox that is gone was delivered: it is deleted after its last transaction, and by nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka import TopicPartition as KafkaPartition

from common.errors import BrokerError
from common.kafka import QUIET, client_properties
from common.merged import inputs_of
from common.spans import Position
from stage_writer.outbox.records import outgoing_from_bytes, undelivered

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from common.ports import ObjectStore
    from common.settings.section import Option
    from common.spans import TopicPartition
    from stage_writer.outbox.records import Outgoing

_TIMEOUT_S = 30.0
_MOST_RECORDS = 50_000
_MOST_BYTES = 32 * 2**20
_FENCED = {
    KafkaError._FENCED,  # noqa: SLF001 - librdkafka's own code
    KafkaError.INVALID_PRODUCER_EPOCH,
    KafkaError.PRODUCER_FENCED,
}


class FencedError(Exception):
    """Another process has begun with the chain's deliveries (rule 2)."""


def _nothing(_step: str) -> None:
    """Where a process may end; a test ends it there."""


@dataclass(frozen=True, slots=True)
class Place:
    """Whose deliveries these are."""

    kafka: Mapping[str, Option]
    group_id: str
    """The writers'."""
    app_id: str
    source: TopicPartition

    @property
    def out_group(self) -> str:
        """The group that has the delivered positions."""
        return f"{self.group_id}.{self.app_id}.out"

    @property
    def transactional_id(self) -> str:
        """The chain's (rule 2)."""
        return f"{self.out_group}.{self.source.topic}.{self.source.partition}"


@dataclass(frozen=True, slots=True)
class Delivered:
    """How far one input of a chain is delivered."""

    position: Position
    generation: int


@dataclass(frozen=True, slots=True)
class _Turn:
    """From the moment that the chain's id was taken, until somebody else takes it, or something fails."""

    producer: Producer
    group: Consumer
    delivered: dict[TopicPartition, Delivered]


@dataclass(slots=True)
class Delivery:
    """One chain's. Used by one thread at a time; contacts nobody before something is delivered."""

    place: Place
    store: ObjectStore
    at: Callable[[str], None] = _nothing
    _turn: _Turn | None = field(init=False, default=None)

    def deliver(self, path: str) -> int:
        """Deliver an outbox, and delete it; how many records that were.

        After a BrokerError or a StoreError it may be called again. Raises FencedError when somebody else does it, and
        StateError for an outbox that cannot be read.
        """
        data = self.store.read(path)
        if data is None:
            return 0  # rule 4
        outgoing = outgoing_from_bytes(path, data)
        try:
            count = self._produce_all(outgoing)
        except KafkaException as error:
            self.close()  # whatever is under way is ended when the next turn begins
            raise _failed(self.place, error) from error
        self.at("committed")
        self.store.delete([path])
        return count

    def close(self) -> None:
        """Let go of the connections."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.group.close()

    def _produce_all(self, outgoing: Outgoing) -> int:
        turn = self._turn or self._begin()
        self._turn = turn
        known = {
            one: found.position for one, found in turn.delivered.items() if found.generation == outgoing.generation
        }
        if all(end.position <= known.get(end.source, -1) for end in outgoing.ends):
            return 0
        left = undelivered(outgoing, [known.get(one) for one in inputs_of(outgoing.source)])
        parts = list(_parts(left))
        for part in parts[:-1]:
            self._transact(turn, part, _ends_of(part, outgoing), outgoing.generation)
        last = parts[-1] if parts else left
        self._transact(turn, last, {end.source: end.position for end in outgoing.ends}, outgoing.generation)
        return int(left.num_rows)

    def _begin(self) -> _Turn:
        """Take the chain's id, and then ask how far it is delivered (rule 2)."""
        given = client_properties(self.place.kafka)
        fixed: dict[str, Option] = {"transactional.id": self.place.transactional_id, "enable.idempotence": True}
        # Kafka's own clients choose partitions by this one; librdkafka's default would send a key elsewhere.
        producer = Producer({"partitioner": "murmur2_random", **given, **fixed}, logger=QUIET)
        producer.init_transactions(_TIMEOUT_S)
        of_group: dict[str, Option] = {
            "group.id": self.place.out_group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
        group = Consumer({**given, **of_group}, logger=QUIET)
        inputs = inputs_of(self.place.source)
        found = group.committed([KafkaPartition(one.topic, one.partition) for one in inputs], timeout=_TIMEOUT_S)
        for answer in found:
            if answer.error is not None:
                raise KafkaException(answer.error)
        delivered = {
            one: Delivered(Position(answer.offset), _generation_of(answer.metadata))
            for one, answer in zip(inputs, found, strict=True)
            if answer.offset >= 0
        }
        return _Turn(producer, group, delivered)

    def _transact(
        self, turn: _Turn, records: pa.Table, ends: Mapping[TopicPartition, Position], generation: int
    ) -> None:
        turn.producer.begin_transaction()
        for batch in records.to_batches():
            _produce(turn.producer, batch)
        self.at("produced")
        offsets = [
            KafkaPartition(one.topic, one.partition, position, metadata=str(generation))
            for one, position in ends.items()
        ]
        turn.producer.send_offsets_to_transaction(offsets, turn.group.consumer_group_metadata(), _TIMEOUT_S)
        self.at("sent")
        turn.producer.commit_transaction(_TIMEOUT_S)
        turn.delivered.update({one: Delivered(position, generation) for one, position in ends.items()})


def _parts(records: pa.Table) -> Iterator[pa.Table]:
    """Records in transactions of a bounded size, parted between messages (rule 3)."""
    start = 0
    inputs, offsets = records["input"].to_numpy(), records["offset"].to_numpy()
    edges = np.flatnonzero((np.diff(inputs) != 0) | (np.diff(offsets) != 0)) + 1
    rows = max(1, min(_MOST_RECORDS, records.num_rows * _MOST_BYTES // max(1, records.nbytes)))
    while start < records.num_rows:
        later = edges[edges >= start + rows]
        end = int(later[0]) if len(later) else records.num_rows
        yield records.slice(start, end - start)
        start = end


def _ends_of(part: pa.Table, outgoing: Outgoing) -> dict[TopicPartition, Position]:
    """How far each input is with the messages of a part; inputs that it has none of are where they were."""
    inputs, offsets = part["input"].to_numpy(), part["offset"].to_numpy()
    return {
        one: Position(int(offsets[inputs == number].max()) + 1)
        for number, one in enumerate(inputs_of(outgoing.source))
        if (inputs == number).any()
    }


def _produce(producer: Producer, batch: pa.RecordBatch) -> None:
    for record in batch.select(["topic", "key", "value", "timestamp_ms", "headers"]).to_pylist():
        headers = [(one["name"], one["value"]) for one in record["headers"] or ()]
        while True:
            try:
                producer.produce(
                    record["topic"],
                    record["value"],
                    record["key"],
                    timestamp=max(0, record["timestamp_ms"]),
                    headers=headers,
                )
                break
            except BufferError:
                producer.poll(0.1)
    producer.poll(0)


def _generation_of(metadata: str | None) -> int:
    """What was noted beside a position; -1, which no chain has, for anything else."""
    return int(metadata) if metadata is not None and metadata.isascii() and metadata.isdigit() else -1


def _failed(place: Place, error: KafkaException) -> BrokerError | FencedError:
    cause = error.args[0]
    if cause.code() in _FENCED:
        return FencedError(cause.str())
    msg = f"cannot deliver what the topology of {place.app_id!r} has for Kafka topics, of {place.source}: {cause.str()}"
    remedy = (
        f"see that the topics are there, and that this user may write to them, use the transactional id "
        f"{place.transactional_id} and commit for the group {place.out_group}; it is tried again"
    )
    return BrokerError(msg, remedy)
