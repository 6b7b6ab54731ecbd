"""The services' processes end even if a store hangs or standard error is closed."""

import os
import subprocess
import sys

import pytest

_HANGING = """
import importlib, sys, threading
from concurrent.futures import ThreadPoolExecutor
from common import cli

asked, answers = threading.Event(), threading.Event()

def ask():
    asked.set()
    answers.wait()

def run(app):
    ThreadPoolExecutor(1).submit(ask)
    assert asked.wait(300)
    print("stopped")
    return 3

cli.run, cli.EXIT_WITHIN_S = run, 0.5
importlib.import_module(f"{sys.argv[1]}.__main__").main()
"""


@pytest.mark.parametrize("program", ["stage_writer", "delta_loader"])
def test_process_ends_while_a_thread_waits_for_a_hanging_store(program: str) -> None:
    command = [sys.executable, "-c", _HANGING, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (3, "stopped\n"), done.stderr


_LOGGING = """
from common.cli import end_process
from common.logs import set_up_logs
from common.settings import LogSettings

set_up_logs(LogSettings(), "stage-writer").info("a line")
print("went on", flush=True)
end_process(3)
"""


def test_log_lines_that_standard_error_refuses_are_dropped() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-c", _LOGGING], stdout=subprocess.PIPE, stderr=gone, text=True, timeout=300, check=False
        )
    assert (done.returncode, done.stdout) == (3, "went on\n")
