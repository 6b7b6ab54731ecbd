"""The share of a writer's ``memory`` that each part may hold.

    brokers ─► prefetch ─► poll ─► conversion ─► buffers (Arrow, Parquet) ─► flushes in progress ─► store

Rules:

1. The parts together stay within ``memory``. It excludes what a process needs before its first message (the
   interpreter, Arrow, DuckDB), and what a single message larger than a part needs: it is processed alone.
2. A poll's messages are held several times while they become rows: by librdkafka, in Python, joined, as text, and as
   columns. That is why a poll's share is so small.
3. Messages are counted with their keys, their headers and their own overhead in every part: a topic of tombstones has
   no values.
4. Each part has a minimum size below which nothing would work, so these exceed a very small ``memory``.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20
_QUEUED_BYTES = 512
"""A message's minimum size in librdkafka's queue, with a key."""
_LEAST_QUEUED = 1_000
_MOST_QUEUED = 100_000
"""librdkafka's default."""
_COPIES_OF_A_POLL = 6
_ROW_GROUPS_AT_ONCE = 3
"""In addition to the rows themselves, while they are encoded."""
_UPLOADS_BYTES = 64 * _MIB
"""The memory of four upload threads in addition to their files: parts of 5 MiB, several times each."""
_POLL_BYTES = 16 * _MIB
"""The decoder's largest block."""
_ROW_GROUP_BYTES = 64 * _MIB
"""Arrow bytes of a row group that is neither too small for readers nor too large for them."""


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """Sizes in bytes."""

    prefetch: int
    """Messages that librdkafka has fetched ahead."""
    fetch: int
    """One response of a broker."""
    poll: int
    """Messages that are read from librdkafka and converted together."""
    row_group: int
    """Arrow that waits in one buffer before it is encoded."""
    buffers: int
    """All buffers and flushes in progress."""
    kept: int
    """Freed memory that the C library keeps instead of returning it."""

    @property
    def queued_messages(self) -> int:
        """Messages of one partition at which librdkafka stops fetching ahead: it counts tombstones as no bytes."""
        return _within(self.prefetch // _QUEUED_BYTES, _LEAST_QUEUED, _MOST_QUEUED)

    @classmethod
    def divided(cls, memory_bytes: int) -> MemoryShares:
        prefetch = _within(memory_bytes // 16, _MIB, 64 * _MIB)
        fetch = _within(memory_bytes // 32, _MIB, 50 * _MIB)
        poll = _within(memory_bytes // 32, _MIB, _POLL_BYTES)
        row_group = _within(memory_bytes // 32, _MIB, _ROW_GROUP_BYTES)
        uploads = _within(memory_bytes // 8, _MIB, _UPLOADS_BYTES)
        conversion = _COPIES_OF_A_POLL * poll + _ROW_GROUPS_AT_ONCE * row_group
        rest = memory_bytes - prefetch - fetch - conversion - uploads
        return cls(
            prefetch,
            fetch,
            poll,
            row_group,
            max(rest, memory_bytes // 4),
            _within(memory_bytes // 8, _MIB, 256 * _MIB),
        )


def _within(size: int, least: int, most: int) -> int:
    return max(least, min(size, most))
