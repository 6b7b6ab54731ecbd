"""Conflicts in a row: tried again at once, then with growing pauses, and a failure only after a long time."""

import itertools

import pytest

from delta_loader.load.committer import CONFLICTS_TO_FAILURE, SECONDS_TO_FAILURE, ConflictBackoff
from tests.fakes.clock import IdleClock


def never() -> bool:
    return False


@pytest.fixture
def clock() -> IdleClock:
    return IdleClock()


@pytest.fixture
def patience(clock: IdleClock) -> ConflictBackoff:
    numbers = itertools.count()
    return ConflictBackoff(clock, lambda: f"load-{next(numbers)}")


def test_first_conflict_retries_at_once_and_later_ones_back_off(patience: ConflictBackoff, clock: IdleClock) -> None:
    pauses = []
    for _ in range(9):
        before_s = clock.monotonic_s()
        assert patience.wait(never)
        pauses.append(clock.monotonic_s() - before_s)
    assert pauses[0] == 0
    assert 0.2 <= pauses[1] <= 0.5
    assert all(2.4 <= pause <= 5.1 for pause in pauses[6:])
    assert len(set(pauses)) == len(pauses)


def test_backoff_gives_up_only_after_many_conflicts_and_a_long_time(
    patience: ConflictBackoff, clock: IdleClock
) -> None:
    while patience.wait(never):
        assert patience.conflicts <= 100
    assert clock.monotonic_s() >= SECONDS_TO_FAILURE
    assert patience.conflicts > CONFLICTS_TO_FAILURE


def test_successful_commit_resets_the_count(patience: ConflictBackoff, clock: IdleClock) -> None:
    for _ in range(CONFLICTS_TO_FAILURE):
        patience.wait(never)
    clock.sleep_s(2 * SECONDS_TO_FAILURE)
    patience.reset()
    assert all(patience.wait(never) for _ in range(CONFLICTS_TO_FAILURE + 1))


def test_requested_stop_ends_the_wait(patience: ConflictBackoff, clock: IdleClock) -> None:
    for _ in range(8):
        assert patience.wait(lambda: True)
    assert clock.monotonic_s() == 0
    patience.wait(lambda: clock.monotonic_s() > 0.15)
    assert clock.monotonic_s() < 0.35
