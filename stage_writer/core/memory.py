"""What each part of a writer may hold of its ``memory``.

    brokers ─► prefetch ─► poll ─► conversion ─► buffers (Arrow, Parquet) ─► flushes under way ─► store

Rules:

1. The parts together stay within ``memory``. What a process needs before its first message (the interpreter, Arrow,
   DuckDB) is beside it, and so is what a single message needs that is larger than a part: it goes through alone.
2. A poll's messages are held several times while they become rows: as librdkafka's, as Python's, joined, as text, and
   as columns. That is what makes a poll's share so small.
3. Messages are counted with their keys, their headers and what each costs by itself, wherever they are held: a topic
   of tombstones has no values.
4. Each part has a least size under which nothing would move, so a very small ``memory`` is passed by these.
"""

from __future__ import annotations

from dataclasses import dataclass

_MIB = 2**20
_QUEUED_BYTES = 512
"""What a message costs at least in librdkafka's queue, with a key."""
_LEAST_QUEUED = 1_000
_MOST_QUEUED = 100_000
"""librdkafka's own."""
_COPIES_OF_A_POLL = 6
_ROW_GROUPS_AT_ONCE = 3
"""Beside the rows themselves, while they are encoded."""
_UPLOADS_BYTES = 64 * _MIB
"""What four upload threads hold beside their files: parts of 5 MiB, several times each."""
_POLL_BYTES = 16 * _MIB
"""The decoder takes no more at a time."""
_ROW_GROUP_BYTES = 64 * _MIB
"""Arrow bytes of a row group that is neither too small for readers nor too large for them."""


@dataclass(frozen=True, slots=True)
class MemoryShares:
    """Sizes in bytes."""

    prefetch: int
    """Messages that librdkafka has fetched ahead."""
    fetch: int
    """One answer of a broker."""
    poll: int
    """Messages that are taken from librdkafka and converted together."""
    row_group: int
    """Arrow that waits in one buffer before it is encoded."""
    buffers: int
    """All buffers, and what is on its way out."""
    kept: int
    """What the C library keeps of freed memory instead of giving it back."""

    @property
    def queued_messages(self) -> int:
        """Messages of one partition at which librdkafka stops fetching ahead: tombstones are no bytes by its count."""
        return _within(self.prefetch // _QUEUED_BYTES, _LEAST_QUEUED, _MOST_QUEUED)

    @classmethod
    def of(cls, memory_bytes: int) -> MemoryShares:
        """The shares of a writer's ``memory``."""
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
