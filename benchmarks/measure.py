"""What a run costs: CPU time, wall time and memory, of a process with all that it starts, or of one that lives on.

What is run is run as it is installed in an image: its modules compiled, by the run that warms up, whatever the
environment says; and without pandas, which only development has here. Arrow imports it where it is, for nothing.
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

_LOOK_EVERY_S = 0.02
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_s: float
    """Of all threads, in user space and in the kernel."""
    wall_s: float
    peak_bytes: int = 0
    """Of resident memory; 0 where it is not measured."""

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.cpu_s + other.cpu_s, self.wall_s + other.wall_s, max(self.peak_bytes, other.peak_bytes))


def run(command: Sequence[str]) -> Cost:
    """Run a program to its end; raises CalledProcessError when it fails."""
    began_s = time.monotonic()
    with subprocess.Popen(command, env=as_installed()) as process:
        peak_bytes = 0
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            peak_bytes = max(peak_bytes, peak_resident_bytes(process.pid))
            time.sleep(_LOOK_EVERY_S)
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
        """``pids`` of this machine."""
        self._pids = pids
        self._cpu_s = self._used_s()
        self._began_s = time.monotonic()

    def read(self) -> Cost:
        return Cost(self._used_s() - self._cpu_s, time.monotonic() - self._began_s)

    def _used_s(self) -> float:
        return sum(cpu_s(pid) for pid in self._pids)


def peak_resident_bytes(pid: int) -> int:
    """Of a process that runs. What `wait4` says is no less than the memory of who started it."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def cpu_s(pid: int) -> float:
    """What a process has used; 0 of one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8")
    except OSError:
        return 0.0
    fields = text.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
