"""Runs the real loader once in its own process, and measures the process and its JVM."""

import json
import os
import subprocess
import sys
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from benchmarks.measure import cpu_s, peak_resident_bytes

_POLL_INTERVAL_S = 0.05


@dataclass(frozen=True, slots=True)
class LoaderRun:
    wall_s: float
    cpu_s: float
    """CPU seconds of Python and the JVM, all threads."""
    python_bytes: int
    """Peak resident memory of Python."""
    jvm_bytes: int
    log: str
    samples: Sequence[tuple[float, float]] = ()
    """Wall clock time (Unix seconds) and CPU seconds used until then."""

    @property
    def commits_s(self) -> list[float]:
        """Seconds of each commit, from the log."""
        return self.seconds_of("committed")

    def seconds_of(self, event: str) -> list[float]:
        """Seconds of each event with this name in the log."""
        return [seconds for _, seconds in self._ended(event)]

    def cpu_of(self, event: str) -> list[float]:
        """CPU seconds of all threads while each event with this name was in progress."""
        return [self._cpu_until(end) - self._cpu_until(end - seconds) for end, seconds in self._ended(event)]

    def _ended(self, event: str) -> Iterator[tuple[float, float]]:
        for line in self.log.splitlines():
            if line.startswith("{") and (entry := json.loads(line))["event"] == event:
                yield datetime.fromisoformat(entry["timestamp"]).timestamp(), float(entry["seconds"])

    def _cpu_until(self, time_s: float) -> float:
        index = bisect_left(self.samples, (time_s,))
        return self.samples[min(index, len(self.samples) - 1)][1]


def run_loader(config: Path, folder: Path) -> LoaderRun:
    """``delta-loader run CONFIG --once``; raises CalledProcessError if it fails, after printing its log."""
    command = [sys.executable, "-m", "delta_loader", "run", str(config), "--once"]
    began_s = time.monotonic()
    log = folder / "loader.log"
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as process:
        python_bytes = jvm_bytes = 0
        python_s = jvm_s = 0.0
        samples: list[tuple[float, float]] = []
        while True:
            pid, status = os.waitpid(process.pid, os.WNOHANG)
            if pid:
                break
            python_bytes = max(python_bytes, peak_resident_bytes(process.pid))
            python_s = cpu_s(process.pid) or python_s
            below = list(processes_below(process.pid))
            jvm_bytes = max(jvm_bytes, *map(peak_resident_bytes, below), 0)
            jvm_s = sum(map(cpu_s, below)) or jvm_s
            samples.append((time.time(), python_s + jvm_s))
            time.sleep(_POLL_INTERVAL_S)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text("utf-8", errors="replace")
    if process.returncode:
        sys.stderr.write(text)
        raise subprocess.CalledProcessError(process.returncode, command)
    wall_s = time.monotonic() - began_s
    return LoaderRun(wall_s, python_s + jvm_s, python_bytes, jvm_bytes, text, samples)


def processes_below(pid: int) -> Iterator[int]:
    """The process ids of all descendants of a process."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from processes_below(child)
