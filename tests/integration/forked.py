"""Programs that are imported before they are run: each run is a process of its own all the same.

Most of what a short run of a program costs is the import of its libraries. For each program one process does that once,
and forks for each run. The fork gets its arguments, environment, folder and output files, enters `__main__` as
``python -m`` does, and ends as an interpreter ends.

Rules:

1. A process imports one program, so that none finds another one's libraries.
2. It runs nothing of the program and has no threads of Python's, so that a fork is whole.
3. It dies with the tests (Linux: ``PR_SET_PDEATHSIG``), and what it has forked dies with it.
"""

from __future__ import annotations

import ctypes
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
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


@dataclass(slots=True)
class Forked:
    """The programs that were imported so far, by their modules."""

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

    def _run(self, module: str, arguments: Sequence[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
        if module not in self.ready:
            command = [sys.executable, "-m", __name__, module]
            self.ready[module] = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        parent = self.ready[module]
        assert parent.stdin is not None
        assert parent.stdout is not None
        with tempfile.TemporaryDirectory(prefix="forked-") as folder:
            files = [Path(folder, name) for name in ("out", "err")]
            asked = {
                "arguments": list(arguments),
                "environ": dict(os.environ),
                "folder": str(Path.cwd()),
                "files": [str(file) for file in files],
            }
            parent.stdin.write(json.dumps(asked) + "\n")
            parent.stdin.flush()
            if not select.select([parent.stdout], [], [], timeout_s)[0]:
                self.ready.pop(module).kill()
                raise subprocess.TimeoutExpired([module, *arguments], timeout_s)
            code = int(parent.stdout.readline())
            return subprocess.CompletedProcess([module, *arguments], code, *(file.read_text("utf-8") for file in files))

    def close(self) -> None:
        """End the processes that wait."""
        for parent in self.ready.values():
            parent.kill()
            parent.communicate()


@contextmanager
def forked_programs() -> Iterator[Forked]:
    """The programs for a whole run of tests."""
    forked = Forked()
    try:
        yield forked
    finally:
        forked.close()


def main(module: str) -> None:
    """Fork for each line of standard input; the answer is the exit code, or minus the signal's number."""
    _die_with_the_parent()
    importlib.import_module(f"{module}.__main__")
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            _become(json.loads(line))
            del sys.modules[f"{module}.__main__"]  # runpy makes it anew, as `__main__`
            runpy.run_module(module, run_name="__main__", alter_sys=True)
            return
        _, status = os.waitpid(child, 0)
        sys.stdout.write(f"{os.waitstatus_to_exitcode(status)}\n")
        sys.stdout.flush()


def _become(asked: dict[str, Any]) -> None:
    _die_with_the_parent()
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
    main(sys.argv[1])
