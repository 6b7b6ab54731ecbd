"""When to flush, and what to stop reading: one pure decision based on the buffers' sizes.

Rules:

1. A partition is flushed for its age, its Parquet bytes or its records, whichever comes first, by the limits of its
   stream; age counts from the
   buffer's first record and needs no further record. Ages are staggered: each partition has its own share of
   ``flush_after``, between 0.8 and 1, so that a thousand partitions that were assigned at once do not flush at once.
   ``flush_after`` is the maximum.
2. A partition has at most one flush in progress, so its markers follow one another. If its next buffer is due
   meanwhile, it is far ahead of the store: it is paused until the flush has finished; the others are still read.
3. When memory is short, that is above `SHORT_SHARE` of the bound, the largest buffers are flushed, as many as needed
   until the buffers that are not being flushed have spare room, and are paused meanwhile; the small ones are still
   read. Above the bound nothing is read.
4. The decision waits for flushes in progress rather than adding more. A buffer that must be flushed and cannot, because
   a flush of its partition is in progress, counts as flushed: no small buffer is flushed in its place.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from common.settings import Stream
from common.spans import TopicPartition

SHORT_SHARE = 0.8
"""Memory is short above this share of the bound; reading that was stopped at the bound then resumes."""
SPARE_SHARE = 0.6
"""The share that buffers may still hold once all due flushes are done."""
RESUME_SHARE = 0.7
"""Large partitions with a flush in progress are read again below this share of the bound."""
LEAST_AGE_SHARE = 0.8


class FlushReason(StrEnum):
    AGE = "age"
    BYTES = "bytes"
    RECORDS = "records"
    MEMORY = "memory"
    REVOKED = "revoked"
    STOPPING = "stopping"
    CAUGHT_UP = "caught_up"
    REQUESTED = "asked"
    """Requested by the user's code, in a topology; or because the partition is to be held after its buffer."""


@dataclass(frozen=True, slots=True)
class FlushLimits:
    flush_after_s: float
    flush_bytes: int
    flush_records: int
    memory_bytes: int
    """For buffers and flushes in progress; other users of memory have their own shares (memory_shares.py)."""

    def of(self, stream: Stream) -> FlushLimits:
        """The limits of one stream, which may have its own."""
        return FlushLimits(
            self.flush_after_s if stream.pace.flush_after_s is None else stream.pace.flush_after_s,
            self.flush_bytes if stream.pace.flush_bytes is None else stream.pace.flush_bytes,
            self.flush_records if stream.pace.flush_records is None else stream.pace.flush_records,
            self.memory_bytes,
        )


@dataclass(frozen=True, slots=True)
class BufferStats:
    partition: TopicPartition
    first_record_at_s: float | None
    records: int
    parquet_bytes: int
    memory_bytes: int
    flushing: bool
    flushing_bytes: int
    age_fraction: float = 1.0
    """The share of ``flush_after`` after which it is due (`age_fraction_of`)."""
    is_requested: bool = False
    limits: FlushLimits | None = None
    """Its stream's own limits; None for those of the writer. Memory is always the writer's."""


@dataclass(frozen=True, slots=True)
class Flush:
    partition: TopicPartition
    reason: FlushReason


@dataclass(frozen=True, slots=True)
class BackpressureState:
    paused: frozenset[TopicPartition] = frozenset()
    is_full: bool = False
    """Whether that is everything, because the bound is exceeded."""


@dataclass(frozen=True, slots=True)
class FlushDecision:
    flushes: tuple[Flush, ...]
    backpressure: BackpressureState


def decide(
    buffer_stats: Sequence[BufferStats],
    limits: FlushLimits,
    now_s: float,
    before: BackpressureState = BackpressureState(),
) -> FlushDecision:
    """The partitions to flush now, and those not to read from now on; ``before`` is the previous decision."""
    due = {stats.partition: reason for stats in buffer_stats if (reason := _own_reason(stats, limits, now_s))}
    flushes = {
        stats.partition: Flush(stats.partition, due[stats.partition])
        for stats in buffer_stats
        if stats.partition in due and not stats.flushing
    }
    used = sum(stats.memory_bytes + stats.flushing_bytes for stats in buffer_stats)
    is_full = used > limits.memory_bytes * (SHORT_SHARE if before.is_full else 1.0)
    ahead = {
        stats.partition
        for stats in buffer_stats
        if stats.flushing and due.get(stats.partition) in {FlushReason.BYTES, FlushReason.RECORDS}
    }
    if used > limits.memory_bytes * SHORT_SHARE:
        for stats in _largest(buffer_stats, flushes, limits):
            ahead.add(stats.partition)
            if not stats.flushing:
                flushes[stats.partition] = Flush(stats.partition, FlushReason.MEMORY)
    if used > limits.memory_bytes * RESUME_SHARE and not before.is_full:
        ahead |= {stats.partition for stats in buffer_stats if stats.flushing and stats.partition in before.paused}
    paused = frozenset(stats.partition for stats in buffer_stats) if is_full else frozenset(ahead)
    return FlushDecision(tuple(flushes.values()), BackpressureState(paused, is_full))


def age_fraction_of(partition: TopicPartition) -> float:
    """The partition's own share of ``flush_after``; the same in every process."""
    return LEAST_AGE_SHARE + (1 - LEAST_AGE_SHARE) * zlib.crc32(str(partition).encode()) / 2**32


def _largest(
    buffer_stats: Sequence[BufferStats], flushes: dict[TopicPartition, Flush], limits: FlushLimits
) -> list[BufferStats]:
    """The largest buffers, as many as must be flushed until the rest has spare room."""
    held = sum(stats.memory_bytes for stats in buffer_stats if stats.partition not in flushes)
    largest: list[BufferStats] = []
    for largest_stats in sorted(buffer_stats, key=lambda stats: stats.memory_bytes, reverse=True):
        if held <= limits.memory_bytes * SPARE_SHARE:
            break
        if largest_stats.partition not in flushes:
            largest.append(largest_stats)
            held -= largest_stats.memory_bytes
    return largest


def _own_reason(stats: BufferStats, limits: FlushLimits, now_s: float) -> FlushReason | None:
    limits = stats.limits or limits
    if stats.first_record_at_s is None:
        return None
    if stats.parquet_bytes >= limits.flush_bytes:
        return FlushReason.BYTES
    if stats.records >= limits.flush_records:
        return FlushReason.RECORDS
    if now_s - stats.first_record_at_s >= limits.flush_after_s * stats.age_fraction:
        return FlushReason.AGE
    return FlushReason.REQUESTED if stats.is_requested else None
