"""Long-lived benchmark processes: ``python -m benchmarks.warm writer|floor`` serves runs, and `Warm` requests them.

A service runs for weeks, and Spark is measured in a JVM that has read the same topic before: its classes are loaded and
compiled, and its heap has been touched. A process that ends after five seconds pays for all of that every time, and
pays most for memory on a machine whose host allocates it page by page. Each side therefore has a long-lived process,
and the cost of a run in it counts; the cost of a new process is measured separately.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from benchmarks.measure import Cost, as_installed, peak_resident_bytes

PROGRAMS = ("writer", "floor")


class Warm:
    """A long-lived process; its first run warms it up."""

    def __init__(self, program: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.warm", program],
            env=as_installed(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, arguments: Sequence[str]) -> Cost:
        """Run the program once. Raises RuntimeError if it fails."""
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            msg = "the process has no pipes"
            raise RuntimeError(msg)
        requests.write(json.dumps(list(arguments)) + "\n")
        requests.flush()
        answer = answers.readline()
        if not answer:
            msg = f"the process that ran {' '.join(arguments)} ended"
            raise RuntimeError(msg)
        cpu_s, wall_s = json.loads(answer)
        return Cost(cpu_s, wall_s, peak_resident_bytes(self._process.pid))

    def close(self) -> None:
        self._process.communicate()


def main() -> None:
    """Run the program for each line of arguments, and answer with its CPU time and wall time in seconds."""
    program = _writer() if sys.argv[1] == "writer" else _floor()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # keeps the program's output apart from the answers
    for line in sys.stdin:
        began_s, used_s = time.monotonic(), time.process_time()
        program(json.loads(line))
        answers.write(json.dumps([time.process_time() - used_s, time.monotonic() - began_s]) + "\n")
        answers.flush()


def _writer() -> Callable[[list[str]], None]:
    from stage_writer.__main__ import app  # noqa: PLC0415 - only here, because it selects Arrow's allocator

    def run(arguments: list[str]) -> None:
        app(arguments, standalone_mode=False)

    return run


def _floor() -> Callable[[list[str]], None]:
    from benchmarks.floor import read_once  # noqa: PLC0415 - without the writer's allocator

    def run(arguments: list[str]) -> None:
        read_once(*arguments)

    return run


if __name__ == "__main__":
    main()
