"""A few hundred histories of the real services; `make simulate` runs thousands."""

from __future__ import annotations

import pytest

from tests.simulation.history import History

HISTORIES_A_TEST = 25


@pytest.mark.parametrize("first", range(0, 300, HISTORIES_A_TEST))
def test_every_record_once_in_every_history(first: int) -> None:
    for seed in range(first, first + HISTORIES_A_TEST):
        verdict = History(seed).run()
        assert not verdict.problems, f"python -m tests.simulation --seed {seed}: {verdict.problems[:5]}"


def test_a_seed_is_one_history() -> None:
    assert History(7).run() == History(7).run()


def test_the_faults_do_happen() -> None:
    faults = sum((History(seed).run().faults for seed in range(40)), start=History(40).run().faults)
    assert len(faults) == 10, faults
