"""The loader's process ends, whatever a store does."""

import subprocess
import sys

_HANGING = """
import threading
import delta_loader.__main__ as program
from delta_loader.load.pools import OwnPools

program._EXIT_WITHIN_S = 0.5
pools, asked, answers = OwnPools(1), threading.Event(), threading.Event()

def ask(_):
    asked.set()
    answers.wait()

threading.Thread(target=lambda: pools(ask, [None]), daemon=True).start()
assert asked.wait(60)
print("stopped")
program._exit(3)
"""


def test_threads_that_wait_for_a_store_that_hangs_do_not_keep_the_process_from_ending() -> None:
    done = subprocess.run([sys.executable, "-c", _HANGING], capture_output=True, text=True, timeout=300, check=False)
    assert (done.returncode, done.stdout) == (3, "stopped\n"), done.stderr
