"""A few hundred histories of the real services; `make simulate` runs thousands."""

from __future__ import annotations

import pytest

from tests.simulation.history import History
from tests.simulation.mutations import MOST_HISTORIES, MUTATIONS, Mutation
from tests.simulation.world import Fault

HISTORIES_A_TEST = 25


@pytest.mark.parametrize("first", range(0, 300, HISTORIES_A_TEST))
def test_every_record_once_in_every_history(first: int) -> None:
    for seed in range(first, first + HISTORIES_A_TEST):
        verdict = History(seed).run()
        assert not verdict.problems, f"python -m tests.simulation --seed {seed}: {verdict.problems[:5]}"


@pytest.mark.parametrize("first", range(0, 100, HISTORIES_A_TEST))
def test_every_count_is_right_in_every_history(first: int) -> None:
    """Worlds with stateful tasks (counting.py)."""
    for seed in range(first, first + HISTORIES_A_TEST):
        verdict = History(seed, counting=True).run()
        assert not verdict.problems, f"python -m tests.simulation --tasks --seed {seed}: {verdict.problems[:5]}"


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.rule)
def test_a_broken_rule_is_noticed(mutation: Mutation) -> None:
    """``python -m tests.simulation.mutations`` prints which history notices each."""
    assert mutation.first_failure(range(MOST_HISTORIES)) is not None


def test_a_seed_is_one_history() -> None:
    assert History(7).run() == History(7).run()


def test_the_faults_do_happen() -> None:
    faults = sum((History(seed).run().faults for seed in range(60)), start=History(60).run().faults)
    assert faults.keys() == set(Fault)
