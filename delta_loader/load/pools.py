"""Parallel requests, by a thread pool for each calling thread.

Rule: a store that hangs blocks the threads of the stream that uses it, and of no other stream.
"""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, local
from typing import TypeVar
from weakref import WeakSet

Item = TypeVar("Item")
Result = TypeVar("Result")


class OwnPools:
    """A `delta_loader.ports.ParallelMap` with a pool for each thread that calls it."""

    def __init__(self, threads: int) -> None:
        """At most ``threads`` requests at a time for one caller."""
        self._threads = threads
        self._local = local()
        self._lock = Lock()
        self._pools: WeakSet[ThreadPoolExecutor] = WeakSet()
        """A pool whose thread is gone shuts down by itself."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> list[Result]:
        return list(self._pool().map(function, items))

    def close(self) -> None:
        """Shut all pools down without waiting for requests in progress."""
        with self._lock:
            for pool in list(self._pools):
                pool.shutdown(wait=False, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        pool: ThreadPoolExecutor | None = getattr(self._local, "pool", None)
        if pool is None:
            pool = self._local.pool = ThreadPoolExecutor(self._threads)
            with self._lock:
                self._pools.add(pool)
        return pool
