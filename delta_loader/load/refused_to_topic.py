"""Sends dead letters that the loader makes or replaces to the stream's topic (`dead_letters_topic`), each once.

    dead-letter table ─► those below the tables' position ─► one transaction: the records, and that position

Rules:

1. The dead-letter table is the outbox of these records. Only what all tables have passed is sent. Before that, a load
   may be made again and find more refused records in the same range.
2. A chain's delivered position is committed by the chain's consumer group, in the same transaction as the records
   (`common.kafka.delivering`). The chain's generation is stored with it. A loader first takes the chain's transactional
   id, which aborts what another loader had started, and only then reads the position. A loader that lost its lease
   therefore does no harm. Kafka forgets a position that nothing commits for a week. The position is therefore also
   recorded in the stage after the transaction (common/stage/sent.py), and the higher of the two counts.
3. Kafka is asked only if the dead-letter table's txn action says that something was refused past the position that is
   known here. A stream whose tables refuse nothing therefore never connects.
4. If nothing was delivered yet, everything that the table has is sent. Nothing has to be recorded before the first
   record is refused.
5. In a chain of several topics, each topic has a position of its own. If a table's position does not say what they are
   (common/stage/merged.py), nothing is sent until a later position does.
6. Dead letters of a replay are sent from the request's own files, once the tables have them and before the request is
   deleted. Their position is within the request, and the request's number takes the place of the generation. A loader
   may take the transactional id after another one has sent all of them, perhaps those of later requests too. It then
   finds the request deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from common.errors import BrokerError
from common.kafka.delivering import REFUSED, REPLAYED, DeliveryIdentity, FencedError, StartDelivery, Transactions
from common.ports import ObjectStore
from common.settings import Stream
from common.settings.section import Option
from common.spans import Position, Span, TopicPartition
from common.stage.merged import InputEnd, ends_at, inputs_of
from common.stage.sent import SentTo, read_sent, write_sent
from common.tables.dead_letters import DEAD_LETTER_SCHEMA, dead_letter_headers
from common.tables.transactions import TxnIds
from delta_loader.tables.commits import DeadLetterRow, Target
from delta_loader.tables.load_modes.refused import RefusalIds

if TYPE_CHECKING:
    from delta_loader.load.replace_steps import Request

_AT_A_TIME = 1000
_NO_TIMESTAMP = -1
_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp_ms", pa.int64()),
        ("headers", pa.list_(pa.struct([("name", pa.string()), ("value", pa.binary())]))),
    ]
)

ReadDeadLetters = Callable[[str, TopicPartition, Span, int], list[DeadLetterRow]]
"""The first of the dead letters of a Kafka partition's refused records, by offset, each once. Raises TableError.

One offset may have several, of topics that were deleted.
"""


def _nothing(_step: str) -> None:
    """A point where a process may end; a test ends it there."""


@dataclass(slots=True)
class RefusedToTopic:
    """A `delta_loader.load.ports.SendRefused`, for the streams of one loader."""

    kafka: Mapping[str, Option]
    group_id: str
    read: ReadDeadLetters
    begin: StartDelivery
    store: ObjectStore
    """The stage."""
    _delivered: dict[tuple[str, TopicPartition, int], Position] = field(default_factory=dict)
    """Deliveries known here; other loaders may have delivered more."""

    def __call__(
        self, stream: Stream, dead_letters: Target, ids: TxnIds, finished: Mapping[TopicPartition, Position]
    ) -> int:
        count = 0
        for chain, end in sorted(finished.items()):
            key = stream.app_id, chain, ids.generation_of(chain)
            refused_end = dead_letters.transactions.get(RefusalIds.for_chain(ids, chain).highest, -1) + 1
            ends = ends_at(chain, end)
            if not ends or min(refused_end, end) <= self._delivered.get(key, 0):
                continue
            count += self._deliver(stream, chain, ids.generation_of(chain), ends)
            self._delivered[key] = end
        return count

    def _deliver(self, stream: Stream, chain: TopicPartition, generation: int, ends: Sequence[InputEnd]) -> int:
        sent = read_sent(self.store, stream.app_id)
        with self._transactions(stream, chain, REFUSED) as transactions:
            count = sum(
                self._deliver_input(stream, transactions, generation, end, sent.get(end.partition)) for end in ends
            )
        now = sent | {end.partition: _sent_to(end, sent.get(end.partition), generation) for end in ends}
        if now != sent:
            write_sent(self.store, stream.app_id, now.values())
        return count

    def _deliver_input(
        self, stream: Stream, transactions: Transactions, generation: int, goal: InputEnd, sent: SentTo | None
    ) -> int:
        partition, end, count = goal.partition, goal.position, 0
        known = (transactions.delivered.get(partition), sent)
        starts = [each.position for each in known if each is not None and each.generation == generation]
        start = max(starts, default=Position(0))
        while start < end:
            dead_letters = self.read(stream.dead_letters, partition, Span(start, end), _AT_A_TIME)
            start = end
            if len(dead_letters) == _AT_A_TIME:
                start = _end_of_whole(dead_letters)
                dead_letters = [dead_letter for dead_letter in dead_letters if dead_letter.offset < start]
            transactions.transact(_records(stream, dead_letters), {partition: start}, generation)
            count += len(dead_letters)
        return count

    def replayed(self, stream: Stream, request: Request) -> int:
        """A `delta_loader.load.replace_ranges.SendReplayed` (rule 6)."""
        table = request.content.of(stream.dead_letters)
        if stream.dead_letters_topic is None or table is None or not table.files:
            return 0
        (partition,), number = inputs_of(request.name.topic_partition), int(request.name.request, 16)
        count = 0
        with self._transactions(stream, request.name.topic_partition, REPLAYED) as transactions:
            if self.store.stat(request.name.path) is None:
                return 0
            known = transactions.delivered.get(partition)
            start = known.position if known is not None and known.generation == number else 0
            for file in table.files:
                with self.store.open(file.path) as data:
                    for batch in pq.ParquetFile(data).iter_batches(_AT_A_TIME):
                        dead_letters = [row for row in _rows(partition, batch) if row.offset >= start]
                        if dead_letters:
                            end = Position(dead_letters[-1].offset + 1)
                            transactions.transact(_records(stream, dead_letters), {partition: end}, number)
                            count += len(dead_letters)
        return count

    @contextmanager
    def _transactions(self, stream: Stream, chain: TopicPartition, kind: str) -> Iterator[Transactions]:
        identity = DeliveryIdentity(self.kafka, self.group_id, stream.app_id, chain, kind)
        try:
            transactions = self.begin(identity, _nothing)
            try:
                yield transactions
            finally:
                transactions.close()
        except FencedError as error:
            msg = f"another process sends the dead letters of {chain} to {stream.dead_letters_topic}: {error}"
            remedy = "if this continues, make sure that no copy of this config uses this Kafka cluster"
            raise BrokerError(msg, remedy) from error


def _rows(partition: TopicPartition, dead_letters: pa.RecordBatch) -> list[DeadLetterRow]:
    """Rows of a replay's file, in the order of their offsets."""
    columns = [dead_letters[field.name] for field in DEAD_LETTER_SCHEMA]
    times = columns[3].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    rest = zip(*(column.to_pylist() for column in (columns[2], times, *columns[4:])), strict=True)
    return [DeadLetterRow(partition, *row) for row in rest]


def _sent_to(end: InputEnd, before: SentTo | None, generation: int) -> SentTo:
    """The record of having sent everything below ``end``: never less than before, also where a table is behind."""
    if before is not None and before.generation == generation and before.position > end.position:
        return before
    return SentTo(end.partition, end.position, generation)


def _end_of_whole(dead_letters: Sequence[DeadLetterRow]) -> Position:
    """Up to where all are among these, of which more may follow."""
    first, last = dead_letters[0].offset, dead_letters[-1].offset
    return Position(last if first < last else last + 1)


def _records(stream: Stream, dead_letters: Sequence[DeadLetterRow]) -> pa.Table:
    records = [
        {
            "topic": stream.dead_letters_topic,
            "key": dead_letter.key,
            "value": dead_letter.value,
            "timestamp_ms": _NO_TIMESTAMP if dead_letter.timestamp_ms is None else dead_letter.timestamp_ms,
            "headers": dead_letter_headers(
                stream.app_id,
                (dead_letter.error_class, dead_letter.error),
                (dead_letter.partition.topic, dead_letter.partition.partition, dead_letter.offset),
            ),
        }
        for dead_letter in dead_letters
    ]
    return pa.Table.from_pylist(records, _SCHEMA)
