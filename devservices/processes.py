"""Child processes that do not outlive their parent.

Rules:

1. A child is signaled by its process id and never by a name.
2. A child leads its own session, so Ctrl+C reaches only the parent, and the parent decides the order of shutdown.
3. When the parent dies for any reason, the operating system kills the child (Linux: ``PR_SET_PDEATHSIG``).
4. A child's output goes to a log file; if the child does not come up, the error has the end of that log.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from devservices.ports import is_open

_PR_SET_PDEATHSIG = 1
_TAIL_BYTES = 3000
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


class ServiceError(RuntimeError):
    """A development server could not be started."""


class Process(Protocol):
    """The part of `subprocess.Popen` that a `Child` needs."""

    @property
    def pid(self) -> int: ...

    @property
    def returncode(self) -> int | None:
        """Exit code as of the last `poll` or `wait`."""

    def poll(self) -> int | None:
        """The exit code; None while the process runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; raises subprocess.TimeoutExpired."""

    def send_signal(self, sig: int) -> None:
        """Send a signal, unless the process has ended."""

    def kill(self) -> None:
        """Send SIGKILL, unless the process has ended."""


@dataclass(frozen=True, slots=True)
class Child:
    process: Process
    log: Path

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: signal.Signals) -> None:
        if self.is_running:
            self.process.send_signal(number)

    def pause(self) -> None:
        """Suspend the process, as a long garbage collection or a suspended machine would."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def stop(self, grace_s: float = 600) -> int:
        """Send SIGTERM, then SIGKILL after the grace period; returns the exit code."""
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        try:
            return self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return self.kill()

    def kill(self) -> int:
        """Send SIGKILL; returns the exit code."""
        self.signal(signal.SIGKILL)
        return self.process.wait()

    def wait_until(self, is_ready: Callable[[], bool], name: str, timeout_s: float = 600) -> None:
        """Wait until the process is ready; raises ServiceError with the end of its log on exit or timeout."""
        deadline = time.monotonic() + timeout_s
        while not is_ready():
            if not self.is_running or time.monotonic() > deadline:
                state = "does not answer" if self.is_running else f"ended with code {self.process.returncode}"
                self.kill()
                msg = f"{name} {state}; the end of {self.log}:\n{self.log_tail()}"
                raise ServiceError(msg)
            time.sleep(0.05)

    def log_tail(self) -> str:
        return self.log.read_bytes()[-_TAIL_BYTES:].decode("utf-8", "replace")


def start(
    arguments: Sequence[str], log: Path, environ: Mapping[str, str] | None = None, folder: Path | None = None
) -> Child:
    """Start a process that ends with this one; ``environ`` is added to this process's environment."""
    parent = os.getpid()

    def die_with_parent() -> None:
        if _LIBC is not None:
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != parent:  # the parent died before the line above
                os._exit(1)

    with log.open("ab") as output:
        process = subprocess.Popen(
            list(arguments),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environ or {})},
            cwd=folder,
            start_new_session=True,
            preexec_fn=die_with_parent,  # noqa: PLW1509 - makes one system call and takes no lock
        )
    return Child(process, log)


def require_free(port: int) -> None:
    """Raise ServiceError if a program listens on the port: its answers would be taken for the server's."""
    if is_open(port):
        msg = f"port {port} is in use by another program → stop that program, or choose another port"
        raise ServiceError(msg)


def end_on_sigterm() -> None:
    """Make SIGTERM unwind the stack as Ctrl+C does, so every context manager stops the processes that it started."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    signal.signal(signal.SIGTERM, end)
