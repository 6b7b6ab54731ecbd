"""One run of the real loader as a process of its own, and what it and its JVM use."""

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

_LOOK_EVERY_S = 0.05


@dataclass(frozen=True, slots=True)
class Used:
    wall_s: float
    cpu_s: float
    """Of both, all threads."""
    python_bytes: int
    """The peak of resident memory."""
    jvm_bytes: int
    log: str
    samples: Sequence[tuple[float, float]] = ()
    """CPU-seconds until then, by the wall clock."""

    @property
    def commits_s(self) -> list[float]:
        """How long each commit took, by the log."""
        return self.seconds_of("committed")

    def seconds_of(self, event: str) -> list[float]:
        """How long each that the log tells of took."""
        return [seconds for _, seconds in self._ended(event)]

    def cpu_of(self, event: str) -> list[float]:
        """The CPU time that went, for whatever, while each was under way."""
        return [self._cpu_until(end) - self._cpu_until(end - seconds) for end, seconds in self._ended(event)]

    def _ended(self, event: str) -> Iterator[tuple[float, float]]:
        for line in self.log.splitlines():
            if line.startswith("{") and (found := json.loads(line))["event"] == event:
                yield datetime.fromisoformat(found["timestamp"]).timestamp(), float(found["seconds"])

    def _cpu_until(self, time_s: float) -> float:
        place = bisect_left(self.samples, (time_s,))
        return self.samples[min(place, len(self.samples) - 1)][1]


def run_loader(config: Path, folder: Path) -> Used:
    """``delta-loader run CONFIG --once``; raises CalledProcessError when it fails, with what it said."""
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
            time.sleep(_LOOK_EVERY_S)
        process.returncode = os.waitstatus_to_exitcode(status)
    text = log.read_text("utf-8", errors="replace")
    if process.returncode:
        sys.stderr.write(text)
        raise subprocess.CalledProcessError(process.returncode, command)
    wall_s = time.monotonic() - began_s
    return Used(wall_s, python_s + jvm_s, python_bytes, jvm_bytes, text, samples)


def processes_below(pid: int) -> Iterator[int]:
    """The processes that one has started, and those that they have."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text("ascii").split()
    except OSError:
        return
    for child in map(int, children):
        yield child
        yield from processes_below(child)
