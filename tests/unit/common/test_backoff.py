"""Pauses between attempts."""

from itertools import islice

from common.backoff import Backoff


def test_pauses_double_up_to_the_maximum_and_restart_after_a_reset() -> None:
    backoff = Backoff(0.5, 3.0)
    assert list(islice(iter(backoff.next_s, None), 5)) == [0.5, 1.0, 2.0, 3.0, 3.0]
    backoff.reset()
    assert backoff.next_s() == 0.5
