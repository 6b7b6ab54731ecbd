"""The cost of a run in CPU time, wall time and memory: of a process with its children, or of a long-lived process.

Programs run as installed in an image: with compiled modules (the warm-up run compiles them), regardless of the
environment, and without pandas, which only development installs: Arrow would import it for nothing.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_POLL_INTERVAL_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    """CPU seconds of all threads, user and kernel."""
    wall_s: float
    peak_bytes: int = 0
    """Peak resident memory; 0 if not measured."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s, max(self.peak_bytes, other.peak_bytes))


def run(command: Sequence[str]) -> Cost:
    """Run a program until it exits; raises CalledProcessError if it fails."""
    began_s = time.monotonic()
    with subprocess.Popen(command, env=as_installed()) as process:
        peak_bytes = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak_bytes = max(peak_bytes, peak_resident_bytes(process.pid))
            time.sleep(_POLL_INTERVAL_S)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    wall_s = time.monotonic() - began_s
    return Cost(usage.ru_utime + usage.ru_stime, wall_s, peak_bytes)


def as_installed() -> Mapping[str, str]:
    folder = Path(_folder().name)
    environ = {**os.environ, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), environ.get("PYTHONPATH"))))
    return environ


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="as-installed-")
    (Path(folder.name) / "pandas.py").write_text('raise ImportError("there is no pandas in the image")\n', "utf-8")
    return folder


class Meter:
    def __init__(self, *pids: int) -> None:
        """Measure the running processes ``pids`` from now on."""
        self._pids = pids
        self._cpu_s = self._used_s()
        self._began_s = time.monotonic()

    def read(self) -> Cost:
        return Cost(self._used_s() - self._cpu_s, time.monotonic() - self._began_s)

    def _used_s(self) -> float:
        return sum(cpu_s(pid) for pid in self._pids)


def peak_resident_bytes(pid: int) -> int:
    """Peak resident memory of a running process; 0 if it has ended.

    `wait4` is no substitute: it reports at least the memory of the process's parent.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def cpu_s(pid: int) -> float:
    """CPU seconds that a process has used; 0 if it has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
