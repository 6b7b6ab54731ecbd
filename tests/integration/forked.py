"""Programs that are imported before they are run: each run is still a process of its own.

Most of what a short run of a program costs is the import of its libraries. For each program one process does that once,
and forks for each run, and for each service that is started. The fork gets its arguments, environment, folder and
output files, enters `__main__` as ``python -m`` does, and ends as an interpreter ends.

Rules:

1. A process imports one program, so that none finds another one's libraries.
2. It runs nothing of the program and has no threads of Python's, so that a fork is whole.
3. It dies with the tests (Linux: ``PR_SET_PDEATHSIG``), and what it has forked dies with it.
"""

import ctypes
import gc
import importlib
import json
import os
import runpy
import select
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from devservices import processes

# What a program imports only where it needs it, and most runs do: pyarrow looks for pandas with its first array.
_LATER = {
    "stage_writer": ("pandas", "s3fs"),
    "delta_loader": ("s3fs", "delta_loader.wiring", "tests.integration.warm_java"),
}
FLUSHES = "FLUSHES_BEFORE_DEATH"
"""A variable for stage writers: they are killed after so many (dying_writer.py)."""
_POLL_S = 0.02
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(slots=True)
class Forked:
    """The programs that were imported so far, by their modules."""

    folder: Path
    """For the Java that one run of the loader leaves to the next."""
    ready: dict[str, subprocess.Popen[str]] = field(default_factory=dict)
    lock: Lock = field(default_factory=Lock)

    def run(self, module: str, arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; next to another run, which may wait for this one, as a process that imports."""
        if not self.lock.acquire(blocking=False):
            command = [sys.executable, "-m", module, *arguments]
            return subprocess.run(command, check=False, capture_output=True, text=True, timeout=timeout_s)
        try:
            return self._run(module, arguments, timeout_s)
        finally:
            self.lock.release()

    def start(self, module: str, arguments: Sequence[str], log: Path) -> processes.Child:
        """Start a program, and let it run; next to a run, as a process that imports."""
        if not self.lock.acquire(blocking=False):
            return processes.start([sys.executable, "-m", module, *arguments], log)
        try:
            log.touch()  # it may be read before the program opens it
            ended = log.with_name(f"{log.name}.{uuid.uuid4().hex}.ended")
            pid = self._ask(module, arguments, [log, log], ended=ended)
            return processes.Child(Started(pid, ended, self.ready[module]), log)
        finally:
            self.lock.release()

    def _run(self, module: str, arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryDirectory(prefix="forked-") as folder:
            files = [Path(folder, name) for name in ("out", "err")]
            code = self._ask(module, arguments, files, timeout_s)
            return subprocess.CompletedProcess([module, *arguments], code, *(file.read_text("utf-8") for file in files))

    def _ask(
        self,
        module: str,
        arguments: Sequence[str],
        files: Sequence[Path],
        timeout_s: float | None = None,
        ended: Path | None = None,
    ) -> int:
        """The exit code of a run; or the process id of what is started, whose exit code will be in ``ended``."""
        if module not in self.ready or self.ready[module].poll() is not None:
            command = [sys.executable, "-m", __name__, module, str(self.folder)]
            self.ready[module] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        parent = self.ready[module]
        assert parent.stdin is not None
        assert parent.stdout is not None
        asked = {
            "arguments": list(arguments),
            "environ": dict(os.environ),
            "folder": str(Path.cwd()),
            "files": [str(file) for file in files],
            "ended": ended and str(ended),
        }
        parent.stdin.write(json.dumps(asked) + "\n")
        parent.stdin.flush()
        if not select.select([parent.stdout], [], [], timeout_s)[0]:
            self.ready.pop(module).kill()
            raise subprocess.TimeoutExpired([module, *arguments], timeout_s or 0)
        return int(parent.stdout.readline())

    def close(self) -> None:
        for parent in self.ready.values():
            parent.kill()
            parent.communicate()


@dataclass(slots=True)
class Started:
    """A program that runs, as `subprocess.Popen` is one of our own children."""

    pid: int
    ended: Path
    parent: subprocess.Popen[str]
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            parent_died = self.parent.poll() is not None  # and this one with it
            if self.ended.exists():
                self.returncode = int(self.ended.read_text("utf-8"))
            elif parent_died:
                self.returncode = -signal.SIGKILL
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until_s = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until_s is not None and time.monotonic() > until_s:
                raise subprocess.TimeoutExpired(str(self.ended), timeout or 0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, sig)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@contextmanager
def forked_programs(folder: Path) -> Iterator[Forked]:
    """The programs for a whole run of tests."""
    forked = Forked(folder)
    try:
        yield forked
    finally:
        forked.close()


def main(module: str, folder: Path) -> None:
    """Fork for each line of standard input; the answer is an exit code, minus a signal's number, or a process id."""
    _die_with_the_parent()
    for name in (f"{module}.__main__", *_LATER.get(module, ())):
        importlib.import_module(name)
    if module in _LATER:
        importlib.import_module("tests.shared_services").share_services()  # the other program needs no store on S3
    alive, _ = os.pipe()  # the other end is closed when this process and its forks are gone
    gc.freeze()  # a fork looks through none of it again, which would copy it
    started: dict[int, Path] = {}

    def reap(*_: object) -> None:
        for pid, file in list(started.items()):
            with suppress(ChildProcessError):  # this signal came while another one was handled
                ended, status = os.waitpid(pid, os.WNOHANG)
                if ended:
                    making = file.with_suffix(".making")
                    making.write_text(str(os.waitstatus_to_exitcode(status)), "utf-8")
                    making.rename(file)
                    del started[pid]

    signal.signal(signal.SIGCHLD, reap)
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            _become(asked)
            del sys.modules[f"{module}.__main__"]  # runpy makes it again, as `__main__`
            _run(module, folder, alive)
            return
        if asked["ended"]:
            started[child], answer = Path(asked["ended"]), child
            reap()  # it may have ended before it was known here
        else:
            answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


def _run(module: str, folder: Path, alive: int) -> None:
    if module == "stage_writer" and FLUSHES in os.environ:
        importlib.import_module("tests.integration.dying_writer")
    if module != "delta_loader":
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    from tests.integration.warm_java import WarmJava  # of no other program

    warm = WarmJava(folder, alive)
    warm.use()
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit:
        warm.give_back()
        raise
    warm.give_back()


def _become(asked: dict[str, Any]) -> None:
    _die_with_the_parent()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if asked["ended"]:
        os.setsid()
    for number, path in enumerate([os.devnull, *asked["files"]]):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = os.fdopen(0, closefd=False)
    os.environ.clear()
    os.environ.update(asked["environ"])
    time.tzset()
    os.chdir(asked["folder"])
    sys.argv[1:] = asked["arguments"]


def _die_with_the_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
