"""How the process requests memory from the system.

Rules:

1. The writer fills and frees the same tens of megabytes several times per second. By default glibc returns them each
   time, and the kernel clears every page again: a quarter of the writer's CPU time, measured on records of 240 bytes.
   So the process keeps freed memory. Free memory is reused before anything new is requested, so the peak does not grow.
2. Large blocks, relative to the writer's ``memory``, are returned immediately: kept, they would add to the next ones.
3. One allocator for everything, so that memory freed by Python, librdkafka and the JSON reader is available to Arrow,
   and the reverse. Arrow's own allocator kept 70 MB for itself with messages of 10 MB, and its C++ code ignores
   `pyarrow.set_memory_pool`: `stage_writer/__init__.py` sets it.
"""

import ctypes
import gc

# mallopt's parameters, from glibc's malloc.h.
_TRIM_THRESHOLD = -1
_MMAP_THRESHOLD = -3
_LARGEST_FROM_HEAP_BYTES = 32 * 2**20  # glibc accepts no more
_POLLS_ALIVE = 10


def rarely_collect(consume_records: int) -> None:
    """Have Python collect cycles between polls rather than during one.

    A poll makes as many objects as it has messages; none is in a cycle, and all are freed before the next one. By
    default Python scans them after every 700, which was a tenth of the writer's CPU time.
    """
    gc.set_threshold(max(_POLLS_ALIVE * consume_records, gc.get_threshold()[0]))


def keep_memory(kept_bytes: int) -> None:
    """Make the C library keep this much freed memory (rule 1); no-op where that is not supported."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:  # glibc; other C libraries differ, or have no such setting
        mallopt(_MMAP_THRESHOLD, min(kept_bytes // 4, _LARGEST_FROM_HEAP_BYTES))
        mallopt(_TRIM_THRESHOLD, kept_bytes)
