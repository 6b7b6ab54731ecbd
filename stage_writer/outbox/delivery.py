"""Delivers the outboxes of one chain to Kafka, each record once for who reads what is committed.

    outbox ─► begin ─► produce ─► commit the chain's position, with the records ─► delete the outbox

Rules:

1. How far a chain is delivered is what its consumer group has committed (``<group_id>.<app_id>.out``), for each topic
   of the chain; it is committed in the transaction that brings the records, so that both are there or neither. The
   generation of the chain is noted beside it: positions of a topic that is no more say nothing.
2. A chain has one transactional id. Whoever begins with it ends what another one had begun, and only then asks how far
   the chain is delivered. So a process that was given up does no harm: it is refused, or has done what there was to do.
3. Only what a sealed marker names is delivered, in the chain's order, without what is delivered already, message by
   message. A large outbox is parted into transactions between messages. What is delivered never goes back.
4. An outbox that is gone was delivered: it is deleted after its last transaction, and by nobody else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from common.errors import BrokerError
from common.spans import Position
from common.stage.merged import inputs_of
from stage_writer.outbox.ports import FencedError
from stage_writer.outbox.records import outgoing_from_bytes, undelivered
from stage_writer.outbox.transactions import KafkaTransactions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from common.ports import ObjectStore
    from common.spans import TopicPartition
    from stage_writer.outbox.ports import Begins, Place, Transactions
    from stage_writer.outbox.records import Outgoing

_MOST_RECORDS = 50_000
_MOST_BYTES = 32 * 2**20


def _nothing(_step: str) -> None:
    """Where a process may end; a test ends it there."""


@dataclass(slots=True)
class Delivery:
    """One chain's. Used by one thread at a time; contacts nobody before something is delivered."""

    place: Place
    store: ObjectStore
    at: Callable[[str], None] = _nothing
    begin: Begins = KafkaTransactions.begin
    _turn: Transactions | None = field(init=False, default=None)

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
        except (BrokerError, FencedError):
            self.close()  # whatever is under way is ended when the next turn begins
            raise
        self.at("committed")
        self.store.delete([path])
        return count

    def close(self) -> None:
        """Let go of the connections."""
        turn, self._turn = self._turn, None
        if turn is not None:
            turn.close()

    def _produce_all(self, outgoing: Outgoing) -> int:
        turn = self._turn or self.begin(self.place, self.at)
        self._turn = turn
        known = {
            one: found.position for one, found in turn.delivered.items() if found.generation == outgoing.generation
        }
        if all(end.position <= known.get(end.source, -1) for end in outgoing.ends):
            return 0
        left = undelivered(outgoing, [known.get(one) for one in inputs_of(outgoing.source)])
        parts = list(_parts(left))
        for part in parts[:-1]:
            turn.transact(part, _ends_of(part, outgoing), outgoing.generation)
        last = parts[-1] if parts else left
        # After a rewind a chain of several topics may have come less far in one of them, and further in another.
        ends = {end.source: max(end.position, known.get(end.source, end.position)) for end in outgoing.ends}
        turn.transact(last, ends, outgoing.generation)
        return int(left.num_rows)


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
