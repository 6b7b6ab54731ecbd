"""One command, several writers: ``writer.workers`` processes, each a member of the consumer group.

Rules:

1. The parent reads no records and has no state: a worker is an ordinary writer, so what holds for several writers holds
   for several workers. Each gets its share of ``memory``, and its own ``group.instance.id``.
2. SIGTERM is passed to all workers, and so is a second one. Workers that lose their parent (their standard input ends)
   stop as if they had received a SIGTERM.
3. A failed worker is not restarted silently. When a worker ends that should not, the others are stopped, which seals
   what they hold, and the command exits with 1 (or 2, for a config that cannot work); the service manager restarts the
   command.
4. With ``--until-caught-up`` the command exits with 0 once all workers have, and with 3 when one of them has.
5. The parent serves everyone's pages at ``writer.http``: unhealthy or not ready when any worker is, and metrics with a
   label ``worker``. Workers report their ports on standard output.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import IO

from structlog.typing import FilteringBoundLogger

from common.errors import ConfigError, ExitCode, HeldError, KafkaDeltaExpressError
from common.settings import Settings
from common.settings.values import AUTO

LEAST_MEMORY_BYTES = 2**20
_LOOK_EVERY_S = 0.1
_STANDARD_INPUT = 0


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    index: int
    count: int

    def __str__(self) -> str:
        """The form that the parent passes to the worker."""
        return f"{self.index}/{self.count}"

    @classmethod
    def parse(cls, text: str) -> WorkerSlot:
        """The inverse of ``str``."""
        index, _, count = text.partition("/")
        return cls(int(index), int(count))


def workers_of(settings: Settings) -> int:
    """How many processes the settings ask for."""
    if settings.writer.workers != AUTO:
        return settings.writer.workers
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def settings_of(settings: Settings, slot: WorkerSlot) -> Settings:
    """The settings of one worker (rules 1 and 5). Raises ConfigError."""
    memory_bytes = settings.writer.memory_bytes // slot.count
    if memory_bytes < LEAST_MEMORY_BYTES:
        msg = f"writer.memory is {settings.writer.memory_bytes} bytes for {slot.count} writer.workers"
        raise ConfigError(msg, "set it to at least 1MiB per worker")
    http = None if settings.writer.http is None else "127.0.0.1:0"
    writer = settings.writer.model_copy(update={"memory_bytes": memory_bytes, "http": http, "workers": 1})
    kafka = dict(settings.kafka)
    if kafka.get("group.instance.id"):
        kafka["group.instance.id"] = f"{kafka['group.instance.id']}-{slot.index}"
    return settings.model_copy(update={"writer": writer, "kafka": kafka})


def stop_without_parent(stop: Callable[[], None]) -> None:
    """Call ``stop`` when the parent is gone (rule 2); returns immediately."""

    def wait() -> None:
        # Bypasses Python's own buffer, whose lock would still be held when the interpreter exits.
        while os.read(_STANDARD_INPUT, 1):
            pass
        stop()

    threading.Thread(target=wait, name="parent", daemon=True).start()


def report_port(port: int) -> None:
    """Report to the parent which port this worker serves on."""
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()


@dataclass(slots=True)
class Worker:
    slot: WorkerSlot
    process: subprocess.Popen[bytes]
    port: int | None = None
    """The worker's port, once it has reported it."""

    def listen(self, output: IO[bytes]) -> None:
        """Wait for the port, and keep reading so that the worker never blocks on its output."""
        for line in output:
            if line.strip().isdigit():
                self.port = int(line)


@dataclass(slots=True)
class WorkerPool:
    command: Sequence[str]
    """The program and its arguments, without `--worker`."""
    count: int
    log: FilteringBoundLogger
    ends_by_itself: bool
    """Whether a worker may exit with 0 while others still work (rule 4)."""
    workers: list[Worker] = field(default_factory=list)
    _stopping: bool = False

    def start(self) -> None:
        """Start all workers, and install the signal handlers that stop them."""
        signal.signal(signal.SIGTERM, self._pass_on)
        signal.signal(signal.SIGINT, self._pass_on)
        for index in range(self.count):
            slot = WorkerSlot(index, self.count)
            # A session of its own, so that Ctrl+C reaches only the parent, which passes one signal on.
            process = subprocess.Popen(  # noqa: S603 - this very program
                [*self.command, "--worker", str(slot)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
            )
            worker = Worker(slot, process)
            self.workers.append(worker)
            threading.Thread(target=worker.listen, args=(process.stdout,), daemon=True).start()
        self.log.info("workers started", workers=self.count)
        if self._stopping:  # the signal came before the last worker was registered
            self._stop_all()

    def run(self) -> None:
        """Wait until all have ended; raises when one of them failed (rule 3)."""
        failed: Worker | None = None
        while any(worker.process.poll() is None for worker in self.workers):
            failed = failed or self._first_failed()
            if failed is not None and not self._stopping:
                self.log.error("worker ended", worker=str(failed.slot), code=failed.process.returncode)
                self._stop_all()
            time.sleep(_LOOK_EVERY_S)
        failed = failed or self._first_failed()
        if failed is not None:
            code = failed.process.returncode
            msg = f"worker {failed.slot} ended with {code}, and the others were stopped"
            remedy = "its log says why; nothing is lost, run the command again"
            raise ConfigError(msg, remedy) if code == ExitCode.USAGE else KafkaDeltaExpressError(msg, remedy)
        if any(worker.process.returncode == ExitCode.HELD for worker in self.workers):
            msg = "some of the staged records have problems, or some Kafka partitions are held"
            raise HeldError(msg, "the workers' logs name each problem and its remedy")

    def _first_failed(self) -> Worker | None:
        may_end = self.ends_by_itself or self._stopping
        ended = [worker for worker in self.workers if worker.process.poll() is not None]
        done: set[int] = {ExitCode.DONE, ExitCode.HELD} if may_end else set()
        if self._stopping:
            done.add(-signal.SIGTERM)  # the interpreter was still starting: the worker had done nothing yet
        return next((worker for worker in ended if worker.process.returncode not in done), None)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - a handler's signature
        self._stop_all()

    def _stop_all(self) -> None:
        self._stopping = True
        for worker in self.workers:
            if worker.process.poll() is None:
                worker.process.send_signal(signal.SIGTERM)
