"""Small worlds of the model, explored completely, and the rules whose violation shows in them; `make model` checks
larger ones."""

import pytest

from model.checker import BROKEN_RULES, SMALL, SMALL_REWOUND, BrokenRule, Properties, World, check


@pytest.fixture(autouse=True)
def _java_compiles_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the second compiler makes does not pay in worlds that take seconds."""
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")


@pytest.mark.parametrize(
    ("world", "properties"), [(SMALL, Properties.SAFETY_AND_PROGRESS), (SMALL_REWOUND, Properties.SAFETY)], ids=str
)
def test_model_has_no_violation_in_a_small_world(world: World, properties: Properties) -> None:
    result = check(world, properties)
    assert result.violation is None, result.report
    assert result.distinct > 1000


@pytest.mark.parametrize(
    "rule", [rule for rule in BROKEN_RULES if rule.world in (SMALL, SMALL_REWOUND)], ids=lambda rule: rule.rule
)
def test_broken_rule_is_found_by_the_model(rule: BrokenRule) -> None:
    assert check(rule.world, rule.properties, rule.rule).violation is not None
