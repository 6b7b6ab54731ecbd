"""Of a group of tests that show the same thing, each run draws one by its seed; the nightly run has them all."""

import pytest

from tests import conftest


def grouped_items(parent: pytest.Collector) -> list[pytest.Item]:
    """Three tests of one group, and one more that is always nightly."""
    made: list[pytest.Item] = [pytest.Function.from_parent(parent, name=name, callobj=lambda: None) for name in "abcd"]
    for item in made:
        item.add_marker(pytest.mark.in_turn("one thing"))
    made[3].add_marker(pytest.mark.nightly)
    return made


def test_each_seed_draws_one_test_of_a_group_and_every_test_is_drawn(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for seed in range(30):
        monkeypatch.setattr(conftest, "FRESH_SEED", seed)
        items = grouped_items(request.node.parent)
        conftest._leave_to_the_night(items, all_of_them=False)
        (by_day,) = [item.name for item in items if item.get_closest_marker("nightly") is None]
        drawn.append(by_day)
    assert set(drawn) == {"a", "b", "c"}
    items = grouped_items(request.node.parent)
    conftest._leave_to_the_night(items, all_of_them=True)
    assert all(item.get_closest_marker("nightly") for item in items)
