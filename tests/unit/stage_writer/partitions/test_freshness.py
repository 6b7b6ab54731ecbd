"""When a writer may assume that it still owns its partitions, with a clock set by hand."""

from stage_writer.partitions.freshness import Freshness

SESSION_S = 9.0


def test_silence_longer_than_a_session_is_stale_until_the_group_was_heard() -> None:
    freshness = Freshness(SESSION_S)
    freshness.polled(0.0, 0.0)
    assert freshness.is_fresh(9.0)
    assert not freshness.is_fresh(9.3), "no poll for longer than a session"
    freshness.polled(9.3, 9.5)
    assert not freshness.is_fresh(9.5), "this poll may have returned records fetched before the silence"
    freshness.polled(12.5, 12.7)
    assert freshness.is_fresh(12.7)


def test_delayed_poll_does_not_restore_freshness() -> None:
    """The poll served a revoke; the process was suspended, and the flush took longer than a heartbeat."""
    freshness = Freshness(SESSION_S)
    freshness.polled(0.0, 0.2)
    freshness.sign(12.0)
    freshness.sign(16.0)
    freshness.polled(0.2, 16.0)
    assert not freshness.is_fresh(16.0), "nothing that the group sent since 12 was served"
    freshness.polled(16.0, 16.2)
    assert freshness.is_fresh(16.2)


def test_silence_during_the_first_poll_is_stale_too() -> None:
    freshness = Freshness(SESSION_S)
    freshness.polled(0.0, 20.0)
    assert not freshness.is_fresh(20.0), "the group may have expelled the member that it had just assigned"
    freshness.polled(23.0, 23.2)
    assert freshness.is_fresh(23.2)
