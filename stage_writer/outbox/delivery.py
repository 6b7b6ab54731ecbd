"""Delivers the outboxes of one chain to Kafka, each record once for read_committed consumers.

    outbox ─► begin ─► produce ─► commit the chain's position, with the records ─► delete the outbox

Rules:

1. A chain's delivered position is the one that its consumer group has committed (``<group_id>.<app_id>.out``), for each
   topic of the chain; it is committed in the transaction with the records, so both exist or neither. The generation of
   the chain is stored with it: positions of a topic that no longer exists are ignored.
2. A chain has one transactional id. A process that takes it aborts what another one had started, and only then reads
   the delivered position. So a zombie process does no harm: it is refused, or has completed its work.
3. Only what a sealed marker names is delivered, in the chain's order, without records that are delivered already,
   message by message. A large outbox is split into transactions between messages. The delivered position never
   decreases.
4. A missing outbox was delivered: it is deleted only after its last transaction.
5. The stream's dead letters go to the topic that its settings name now, so those that wait for a missing topic follow a
   corrected name. The position counts whichever topic they went to, so none is sent twice.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from common.errors import BrokerError
from common.kafka.delivering import DeliveryIdentity, FencedError, StartDelivery, Transactions
from common.kafka.transactions import KafkaTransactions
from common.ports import ObjectStore
from common.spans import Position, TopicPartition
from common.stage.merged import inputs_of
from stage_writer.outbox.records import Outgoing, outgoing_from_bytes, undelivered, with_dead_letters_to

_MOST_RECORDS = 50_000
_MOST_BYTES = 32 * 2**20


def _nothing(_step: str) -> None:
    """A point where a process may end; a test ends it there."""


@dataclass(slots=True)
class Delivery:
    """One chain's delivery. Used by one thread at a time; connects when something is delivered."""

    identity: DeliveryIdentity
    store: ObjectStore
    reached: Callable[[str], None] = _nothing
    begin: StartDelivery = KafkaTransactions.begin
    dead_letters_topic: str | None = None
    """Where the stream's dead letters go; None leaves them to the topic for which they were staged."""
    _transactions: Transactions | None = field(init=False, default=None)

    def deliver(self, path: str) -> int:
        """Deliver an outbox, and delete it. Returns the number of records.

        After a BrokerError or a StoreError it may be called again. Raises FencedError when another process does it, and
        StateError for an unreadable outbox.
        """
        data = self.store.read(path)
        if data is None:
            return 0  # rule 4
        outgoing = outgoing_from_bytes(path, data)
        try:
            count = self._produce_all(outgoing)
        except (BrokerError, FencedError):
            self.close()  # taking the id again aborts any transaction in progress
            raise
        self.reached("committed")
        self.store.delete([path])
        return count

    def close(self) -> None:
        transactions, self._transactions = self._transactions, None
        if transactions is not None:
            transactions.close()

    def _produce_all(self, outgoing: Outgoing) -> int:
        transactions = self._transactions or self.begin(self.identity, self.reached)
        self._transactions = transactions
        known = {
            partition: delivered.position
            for partition, delivered in transactions.delivered.items()
            if delivered.generation == outgoing.generation
        }
        if all(end.position <= known.get(end.partition, -1) for end in outgoing.ends):
            return 0
        left = undelivered(outgoing, [known.get(partition) for partition in inputs_of(outgoing.partition)])
        if self.dead_letters_topic is not None:  # rule 5
            left = with_dead_letters_to(left, self.dead_letters_topic, self.identity)
        parts = list(_parts(left))
        for part in parts[:-1]:
            transactions.transact(part, _ends_of(part, outgoing), outgoing.generation)
        last = parts[-1] if parts else left
        # After a rewind a chain of several topics may be behind in one of them, and ahead in another.
        ends = {end.partition: max(end.position, known.get(end.partition, end.position)) for end in outgoing.ends}
        transactions.transact(last, ends, outgoing.generation)
        return int(left.num_rows)


def _parts(records: pa.Table) -> Iterator[pa.Table]:
    """Records in transactions of a bounded size, split between messages (rule 3)."""
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
    """Each input's position after the messages of a part; inputs without messages in it keep theirs."""
    inputs, offsets = part["input"].to_numpy(), part["offset"].to_numpy()
    return {
        partition: Position(int(offsets[inputs == number].max()) + 1)
        for number, partition in enumerate(inputs_of(outgoing.partition))
        if (inputs == number).any()
    }
