"""When to flush, and when to stop reading: pure decisions over what the buffers hold.

Rules:

1. A partition is flushed for its age, its Parquet bytes or its records, whichever comes first; age counts from the
   buffer's first record and needs no other one to come.
2. When everything together passes the memory bound, the largest buffer is flushed, then the next, until what is not on
   its way out has room to spare; reading pauses meanwhile. What is on its way out is waited for, not added to.
3. A partition has at most one flush under way, so its markers follow one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from common.spans import TopicPartition

RESUME_SHARE = 0.8
"""Reading goes on when the buffers hold less than this share of the bound."""


class FlushReason(StrEnum):
    """Why a partition is flushed."""

    AGE = "age"
    BYTES = "bytes"
    RECORDS = "records"
    MEMORY = "memory"
    REVOKED = "revoked"
    STOPPING = "stopping"
    CAUGHT_UP = "caught_up"


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of the settings."""

    flush_after_s: float
    flush_bytes: int
    flush_records: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Filling:
    """How full one partition's buffer is."""

    source: TopicPartition
    first_record_at_s: float | None
    records: int
    parquet_bytes: int
    memory_bytes: int
    flushing: bool
    """Whether a flush of this partition is under way."""
    flushing_bytes: int
    """Memory that the flush under way holds."""


@dataclass(frozen=True, slots=True)
class Flush:
    """A partition to flush now."""

    source: TopicPartition
    reason: FlushReason


def due(fillings: Sequence[Filling], limits: Limits, now_s: float, *, paused: bool) -> tuple[Flush, ...]:
    """Which partitions to flush now, and why; ``paused`` is whether reading is."""
    flushes = {
        filling.source: Flush(filling.source, reason)
        for filling in fillings
        if not filling.flushing and (reason := _own_reason(filling, limits, now_s)) is not None
    }
    held = sum(filling.memory_bytes for filling in fillings if filling.source not in flushes)
    leaving = sum(filling.flushing_bytes for filling in fillings)
    # What keeps reading paused has to go out, or it would stay so until the buffers are old enough.
    if held + leaving <= limits.memory_bytes * (RESUME_SHARE if paused else 1.0):
        return tuple(flushes.values())
    for filling in sorted(fillings, key=lambda one: one.memory_bytes, reverse=True):
        if held <= limits.memory_bytes * RESUME_SHARE or filling.memory_bytes == 0:
            break
        if filling.source not in flushes and not filling.flushing:
            flushes[filling.source] = Flush(filling.source, FlushReason.MEMORY)
            held -= filling.memory_bytes
    return tuple(flushes.values())


def should_pause(fillings: Sequence[Filling], limits: Limits, *, paused: bool) -> bool:
    """Whether reading is to be paused, given whether it is now."""
    used = sum(filling.memory_bytes + filling.flushing_bytes for filling in fillings)
    return used > limits.memory_bytes * (RESUME_SHARE if paused else 1.0)


def _own_reason(filling: Filling, limits: Limits, now_s: float) -> FlushReason | None:
    if filling.first_record_at_s is None:
        return None
    if filling.parquet_bytes >= limits.flush_bytes:
        return FlushReason.BYTES
    if filling.records >= limits.flush_records:
        return FlushReason.RECORDS
    if now_s - filling.first_record_at_s >= limits.flush_after_s:
        return FlushReason.AGE
    return None
