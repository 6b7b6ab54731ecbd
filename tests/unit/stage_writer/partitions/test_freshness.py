"""When a writer may believe that its partitions are still its own, by hand-made times."""

from stage_writer.partitions.freshness import Freshness

SESSION_S = 9.0


def test_a_silence_longer_than_the_session_is_doubted_until_the_group_was_heard() -> None:
    freshness = Freshness(SESSION_S)
    freshness.polled(0.0, 0.0)
    assert freshness.is_fresh(9.0)
    assert not freshness.is_fresh(9.3), "nobody came round"
    freshness.polled(9.3, 9.5)
    assert not freshness.is_fresh(9.5), "this poll may have returned what was fetched before"
    freshness.polled(12.5, 12.7)
    assert freshness.is_fresh(12.7)


def test_a_poll_that_was_held_up_ends_no_doubt() -> None:
    """It served a revoke; the process was stopped meanwhile, and the flush went on for longer than a heartbeat."""
    freshness = Freshness(SESSION_S)
    freshness.polled(0.0, 0.2)
    freshness.sign(12.0)
    freshness.sign(16.0)
    freshness.polled(0.2, 16.0)
    assert not freshness.is_fresh(16.0), "what the group has said since 12 was not served"
    freshness.polled(16.0, 16.2)
    assert freshness.is_fresh(16.2)


def test_a_silence_during_the_first_poll_is_doubted_too() -> None:
    freshness = Freshness(SESSION_S)
    freshness.polled(0.0, 20.0)
    assert not freshness.is_fresh(20.0), "the group may have expelled the member that it had just assigned"
    freshness.polled(23.0, 23.2)
    assert freshness.is_fresh(23.2)
