"""Threads: for flush jobs, which release the GIL while they encode and upload, and for reads of the store."""

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar, cast

from stage_writer.ports import Flushing, FlushOutcome

Item = TypeVar("Item")
Result = TypeVar("Result")
_THREADS = 32


class ThreadWorkers:
    """`stage_writer.ports.Workers` in a thread pool."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="flush")

    def start(self, job: Callable[[], Result]) -> Future[Result]:
        return self._pool.submit(job)

    def wait(self, running: Collection[Flushing], timeout_s: float) -> None:
        wait(cast("Collection[Future[FlushOutcome]]", running), timeout_s, return_when=FIRST_COMPLETED)

    def map(self, function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
        """Apply the function to each item; uses separate threads, because flushes may occupy theirs for a while."""
        with ThreadPoolExecutor(_THREADS, thread_name_prefix="look") as pool:
            return list(pool.map(function, items))

    def close(self) -> None:
        self._pool.shutdown(wait=False, cancel_futures=True)
