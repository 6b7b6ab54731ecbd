"""Of tests that show one thing a run has one, another one by another seed, and the nightly run has them all."""

import pytest

from tests import conftest


def items_of_one_thing(parent: pytest.Collector) -> list[pytest.Item]:
    """Three of them, and one that is for the night whatever is drawn."""
    made: list[pytest.Item] = [pytest.Function.from_parent(parent, name=name, callobj=lambda: None) for name in "abcd"]
    for item in made:
        item.add_marker(pytest.mark.in_turn("one thing"))
    made[3].add_marker(pytest.mark.nightly)
    return made


def test_each_is_drawn_by_some_seed_and_only_one_of_them(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    for seed in range(30):
        monkeypatch.setattr(conftest, "FRESH_SEED", seed)
        items = items_of_one_thing(request.node.parent)
        conftest._leave_to_the_night(items, all_of_them=False)
        (by_day,) = [item.name for item in items if item.get_closest_marker("nightly") is None]
        drawn.append(by_day)
    assert set(drawn) == {"a", "b", "c"}
    items = items_of_one_thing(request.node.parent)
    conftest._leave_to_the_night(items, all_of_them=True)
    assert all(item.get_closest_marker("nightly") for item in items)
