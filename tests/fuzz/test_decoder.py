"""A short run of the fuzz target: its seeds, and some seconds of the fuzzer where it is installed.

The fuzzer tries the same inputs each time, as many as there is time for; `make fuzz` tries others.
"""

import subprocess
import sys

import pytest

from tests.fuzz import decoder


@pytest.mark.parametrize("place", range(len(decoder.SEEDS)))
def test_seeds_decode_as_they_do_alone(place: int) -> None:
    decoder.check(decoder.SEEDS[place])


def test_some_seconds_of_fuzzing_find_nothing() -> None:
    pytest.importorskip("atheris", reason="atheris is not installed (the extra `fuzz`)")
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--seconds", "4", "--seed", "1"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
