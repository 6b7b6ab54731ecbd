"""Requests side by side, by threads of each turn's own.

Rule: a store that hangs takes the threads of the stream that asks it, and nobody else's.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock, local
from typing import TYPE_CHECKING, TypeVar
from weakref import WeakSet

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

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
        """One that has lost its thread ends by itself."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> list[Result]:
        """The results in the items' order."""
        return list(self._pool().map(function, items))

    def close(self) -> None:
        """End them; what is under way is not waited for."""
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
