"""Whether Kafka still has the records that were read of each partition.

Rules:

1. An unclean leader election, or a broker that is restored from a copy, removes records that were read. New records get
   their offsets, under the same topic id, and librdkafka continues after them as if nothing had happened.
2. Reading starts with the last record that was read. The record must have the same timestamp and leader epoch, and is
   then skipped. This is done for every new position, and for all positions after all brokers were unreachable: a
   cluster that was restored as a whole continues its leader epochs from its copy, so they repeat.
3. librdkafka compares leader epochs with the broker's in two cases: when a partition's leader epoch rises, and for a
   position that it seeks (observed in 2.16: not for one that a group member is assigned). It also reports the offset
   from which the records differ. If rule 2 finds a different record, or none, a seek therefore triggers that
   comparison.
4. librdkafka treats a leader epoch lower than the one it has seen as stale, and stops reading the partition. If a
   record exists and does not arrive for a while, the process ends: the next one starts without that epoch.
5. If the last record that was read is gone (retention, compaction), only rule 3 detects a loss. These cases are not
   detected: a cluster that was restored from a copy while no record of a partition is left, or with another record of
   the same millisecond and epoch in its place; and a cluster that was replaced so quickly that the client saw at least
   one broker at all times.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from common.remedies import new_chain_where_different
from common.spans import Position, TopicPartition
from common.stage.markers import LastRecord
from stage_writer.decode.batch import MessageBatch
from stage_writer.ports import TRUNCATED, PartitionFault

OVERDUE_S = 60.0
"""How often a source looks for checks that wait (`TruncationChecks.overdue`): the second look finds one overdue."""


@dataclass(frozen=True, slots=True)
class TruncationCheck:
    """A partition whose next record must be the last one that was read."""

    last: LastRecord
    position: Position
    """Where reading continues after it."""
    is_requested: bool = False
    """Whether librdkafka was made to compare its leader epoch with the broker's (rule 3)."""


class Mismatch(Enum):
    """Why a batch does not confirm the expected record."""

    ASK = "ask"  # it is missing: librdkafka must compare epochs
    OTHER = "other"  # a different one is in its place


class TruncationChecks:
    def __init__(self) -> None:
        self._expected: dict[TopicPartition, LastRecord] = {}
        self._open: dict[TopicPartition, TruncationCheck] = {}
        self._last: dict[TopicPartition, LastRecord] = {}
        self._waiting: dict[TopicPartition, TruncationCheck] = {}

    def expect(self, last: Mapping[TopicPartition, LastRecord]) -> None:
        """The record before the position that each of these starts at next."""
        self._expected |= last

    def begin(self, partition: TopicPartition, position: Position) -> tuple[int, int | None]:
        """The offset to read from instead of ``position``, and the leader epoch to pass with it."""
        self.forget([partition])
        last = self._expected.pop(partition, None)
        if last is None or last.offset >= position:
            return position, None
        self._open[partition] = TruncationCheck(last, position)
        return last.offset, last.leader_epoch

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Forget partitions that are read from elsewhere, or by another member."""
        for partition in partitions:
            self._open.pop(partition, None)
            self._last.pop(partition, None)

    def open(self, partition: TopicPartition) -> TruncationCheck | None:
        """The check that waits for a partition's next record."""
        return self._open.get(partition)

    def overdue(self, paused: Collection[TopicPartition]) -> dict[TopicPartition, TruncationCheck]:
        """The checks that have waited since the previous call, except those of paused partitions."""
        waiting = {partition: check for partition, check in self._open.items() if partition not in paused}
        overdue = {partition: check for partition, check in waiting.items() if self._waiting.get(partition) is check}
        self._waiting = waiting
        return overdue

    def last(self, partition: TopicPartition) -> LastRecord | None:
        check = self._open.get(partition)
        return self._last.get(partition) if check is None else check.last

    def completed(self, partition: TopicPartition) -> None:
        """The check of the expected record is over."""
        check = self._open.pop(partition, None)
        if check is not None:
            self._last[partition] = check.last

    def ask(self, partition: TopicPartition) -> tuple[int, int | None]:
        """The offset to read from once more, and the leader epoch to pass with it."""
        check = self._open[partition] = replace(self._open[partition], is_requested=True)
        return check.last.offset, check.last.leader_epoch

    def take(self, batch: MessageBatch) -> MessageBatch | Mismatch:
        """The messages after the expected record, or why they cannot be used."""
        check = self._open.get(batch.partition)
        if check is None or len(batch) == 0:
            return batch
        index = int(np.searchsorted(batch.offsets, check.last.offset))
        if index < len(batch) and batch.offsets[index] == check.last.offset:
            last_record = batch.record_at(index)
            if last_record is not None and not _is_same(last_record, check.last):
                return Mismatch.OTHER if check.is_requested else Mismatch.ASK
        elif index == len(batch):
            return batch.part(0, 0)  # older ones, which a client may repeat: it is still to come
        elif not check.is_requested:
            return Mismatch.ASK
        self.completed(batch.partition)
        return batch.after(check.position)

    def read(self, batches: Iterable[MessageBatch]) -> None:
        for batch in batches:
            if len(batch) and (last := batch.record_at(-1)) is not None:
                self._last[batch.partition] = last

    def again(self) -> dict[TopicPartition, Position]:
        """Expect the last record of every partition once more; returns the positions to seek to."""
        self.expect(self._last)
        return {partition: Position(last.offset + 1) for partition, last in self._last.items()}


def _is_same(record: LastRecord, last: LastRecord) -> bool:
    """Whether two records at one offset may be the same; an unknown leader epoch matches any."""
    known = record.leader_epoch is not None and last.leader_epoch is not None
    return record.timestamp_ms == last.timestamp_ms and (not known or record.leader_epoch == last.leader_epoch)


def ends_before(partition: TopicPartition, end: Position, position: Position) -> PartitionFault:
    """The fault of a partition whose end in Kafka is before its position."""
    problem = (
        f"{partition} ends at {end} in Kafka, before position {position}: its brokers lost its last records, or "
        "it is not the topic that was staged, or a hand-made marker or the stream's `start` is ahead of it"
    )
    remedy = (
        f"{new_chain_where_different(partition, end)}; if `start` was too high, correct it, and give that command the "
        "offset where the stream has to begin; if Kafka will still get the position, reading continues then: by itself "
        "after an empty hand-made marker in a chain of one topic, otherwise once the writer is started again"
    )
    return PartitionFault(partition, problem, remedy, TRUNCATED)


def truncated(partition: TopicPartition, last: LastRecord | None, differs_at: int | None) -> PartitionFault:
    """The fault of different records in Kafka than were read; from which offset on, where that is known."""
    what = "records" if last is None else f"the record at {last.offset}"
    since = "" if differs_at is None else f", and has different ones from {differs_at} on"
    problem = (
        f"Kafka lost {what} of {partition} which {'were' if last is None else 'was'} staged{since}: an unclean "
        "leader election, or brokers that were restored from a copy"
    )
    return PartitionFault(partition, problem, new_chain_where_different(partition, differs_at), TRUNCATED)
