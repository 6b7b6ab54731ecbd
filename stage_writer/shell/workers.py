"""Threads for flush jobs: they encode and upload, and release the interpreter while they do."""

from __future__ import annotations

from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Collection

    from stage_writer.ports import Flushing, FlushJob, FlushOutcome


class ThreadWorkers:
    """`stage_writer.ports.Workers` in a thread pool."""

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="flush")

    def start(self, job: FlushJob) -> Future[FlushOutcome]:
        """Run the job in the next free thread."""
        return self._pool.submit(job.run)

    def wait(self, running: Collection[Flushing], timeout_s: float) -> None:
        """Wait until one of them has ended, or the time is over."""
        wait(cast("Collection[Future[FlushOutcome]]", running), timeout_s, return_when=FIRST_COMPLETED)

    def close(self) -> None:
        """Take no more jobs; nobody waits for those that run."""
        self._pool.shutdown(wait=False, cancel_futures=True)
