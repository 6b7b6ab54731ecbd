"""How the process asks the system for memory.

Rules:

1. The writer fills and frees the same tens of megabytes several times a second. By default glibc returns them each
   time, and the kernel clears every page again: a quarter of the writer's CPU time, measured on records of 240 bytes.
   So it keeps what it has. What is free is used again before anything new is asked for, so the peak does not grow.
2. What is large, by the measure of the writer's ``memory``, is given back at once: kept, it would lie beside the next.
3. One allocator for all, so that what Python, librdkafka and the JSON reader let go of is there for Arrow, and the
   other way round. Arrow's own kept 70 MB for itself beside messages of 10 MB, and its C++ takes no notice of
   `pyarrow.set_memory_pool`: `stage_writer/__init__.py` tells it.
"""

from __future__ import annotations

import ctypes
import gc

# mallopt's parameters, from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_FROM_HEAP_BYTES = 32 * 2**20  # glibc takes no more
_POLLS_ALIVE = 10


def rarely_collect(consume_records: int) -> None:
    """Have Python look for cycles between polls and not while one comes in.

    A poll makes as many objects as it brings messages; none is in a cycle, and all are freed before the next one. By
    default Python looks through them after every 700, which was a tenth of the writer's CPU time.
    """
    gc.set_threshold(max(_POLLS_ALIVE * consume_records, gc.get_threshold()[0]))


def keep_memory(kept_bytes: int) -> None:
    """Have the C library keep so much of freed memory (rule 1); does nothing where that cannot be had."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; other C libraries have other ways, or none
        mallopt(_MMAP_THRESHOLD, min(kept_bytes // 4, _LARGEST_FROM_HEAP_BYTES))
        mallopt(_TRIM_THRESHOLD, kept_bytes)
