"""How the process asks the system for memory.

The writer fills and frees the same tens of megabytes several times a second. By default Arrow's allocator and glibc's
give them back each time, and the kernel clears every page anew: a quarter of the writer's CPU time, measured on records
of 240 bytes. So both keep what they have for a while. What is free in them is used again before anything new is asked
for, so the peak does not grow.
"""

from __future__ import annotations

import ctypes
import gc
from contextlib import suppress

import pyarrow as pa

# mallopt's parameters, from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_FROM_HEAP_BYTES = 32 * 2**20  # glibc takes no more
_KEPT_MS = 10_000
_POLLS_ALIVE = 10


def rarely_collect(consume_records: int) -> None:
    """Have Python look for cycles between polls and not while one comes in.

    A poll makes as many objects as it brings messages; none is in a cycle, and all are freed before the next one. By
    default Python looks through them after every 700, which was a tenth of the writer's CPU time.
    """
    gc.set_threshold(max(_POLLS_ALIVE * consume_records, gc.get_threshold()[0]))


def keep_memory(kept_bytes: int) -> None:
    """Have Arrow and the C library keep freed memory, the latter so much; does nothing where that cannot be had."""
    with suppress(NotImplementedError):  # a build of Arrow without it
        pa.set_memory_pool(pa.jemalloc_memory_pool())
        pa.jemalloc_set_decay_ms(_KEPT_MS)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; other C libraries have other ways, or none
        mallopt(_MMAP_THRESHOLD, min(kept_bytes // 4, _LARGEST_FROM_HEAP_BYTES))
        mallopt(_TRIM_THRESHOLD, kept_bytes)
