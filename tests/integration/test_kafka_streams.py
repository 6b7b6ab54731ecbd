"""The DSL next to Kafka Streams itself: the same plans on the same inputs, in both test drivers, input by input."""

from collections import Counter
from collections.abc import Mapping
from functools import cache
from typing import Any

import pytest

from common.errors import DownloadError
from tests.conftest import FRESH_SEED
from tests.kafka_streams import ours, theirs
from tests.kafka_streams.cases import DIFFERENCES, PLANS, UNMATCHED_LATER, cases

SEEDS = range(6)
OTHER_SEEDS = range(FRESH_SEED, FRESH_SEED + 60)
Shown = list[list[list[Any]]]


def theirs_of(given: Mapping[str, dict[str, Any]]) -> dict[str, Shown]:
    """What Kafka Streams gives for cases, in one run of Java."""
    if theirs.java() is None:
        pytest.skip("there is no java: install a JDK 17, or set JAVA_HOME")
    try:
        return dict(zip(given, theirs.run(list(given.values())), strict=True))
    except DownloadError as error:
        pytest.skip(f"the jars of Kafka Streams cannot be had: {error}")


@cache
def compared(seeds: range) -> tuple[dict[str, dict[str, Any]], dict[str, Shown]]:
    """Each plan on the inputs of the seeds, and what Kafka Streams gives."""
    given = cases(seeds)
    return given, theirs_of(given)


@pytest.mark.parametrize("plan", sorted(PLANS))
@pytest.mark.parametrize("seeds", [SEEDS, pytest.param(OTHER_SEEDS, marks=pytest.mark.nightly)], ids=["same", "fresh"])
def test_operator_gives_the_results_of_kafka_streams(seeds: range, plan: str) -> None:
    given, answers = compared(seeds)
    something = 0
    for name in (f"{plan}-{seed}" for seed in seeds):
        mine, other = ours.run(given[name]), answers[name]
        something += sum(map(len, other))
        if plan in UNMATCHED_LATER:
            _assert_same_but_for_the_time_of_unmatched(name, given[name], mine, other)
            continue
        for put, came, wanted in zip(given[name]["inputs"], mine, other, strict=True):
            assert came == wanted, f"{name}: after {put}"
    assert something > len(seeds)


@pytest.fixture(scope="module")
def answers() -> dict[str, Shown]:
    return theirs_of({name: case for name, (case, _, _) in DIFFERENCES.items()})


@pytest.mark.parametrize("difference", sorted(DIFFERENCES))
def test_differences_from_kafka_streams_are_as_documented(answers: dict[str, Shown], difference: str) -> None:
    case, mine, other = DIFFERENCES[difference]
    assert ours.run(case)[-1] == mine
    assert answers[difference][-1] == other, "Kafka Streams gives something else now: look at docs/internals/peers.md"


def _assert_same_but_for_the_time_of_unmatched(name: str, case: dict[str, Any], mine: Shown, other: Shown) -> None:
    """Pairs are the same after each input; what has no match comes from us as early as from them or earlier."""
    given_on: Counter[str] = Counter()
    for given, came, wanted in zip(case["inputs"], mine, other, strict=True):
        pairs = [[row for row in side if "null" not in row[2]] for side in (came, wanted)]
        assert pairs[0] == pairs[1], f"{name}: after {given}"
        given_on.update(str(row) for row in came if "null" in row[2])
        given_on.subtract(str(row) for row in wanted if "null" in row[2])
        assert min(given_on.values(), default=0) >= 0, f"{name}: after {given}: {-given_on}"
    paired = {row[1] for side in other for row in side if "null" not in row[2]}
    assert all(any(f"'{key}'" in row for key in paired) for row in +given_on), f"{name}: {+given_on}"
