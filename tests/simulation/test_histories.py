"""A few hundred histories of the real services; `make nightly` runs more, and `make simulate` thousands."""

from __future__ import annotations

from contextlib import suppress

import pytest

from common.errors import StoreError
from tests.conftest import FRESH_SEED
from tests.simulation.editing import EditedHistory
from tests.simulation.mutation import CEILING, Mutation
from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import run
from tests.simulation.sweep import counts_of_page
from tests.simulation.world import Chances, Fault, Process
from tests.simulation.worlds import Worlds

HISTORIES_A_TEST = 75
HISTORIES_OF_OTHERS = 12
HISTORIES_OF_SOME = 24
MOST_HISTORIES_OF_OTHERS = 100
HISTORIES_THAT_ARE_NEW = 4
RULES_OF_WHICH_ONE_IS_DRAWN = 3

_OF_ONE_WORLD = {
    Worlds.DISKS: {Fault.MACHINE},
    Worlds.REFUSING: {Fault.ALTERED},
    Worlds.JOINED: {Fault.UNDELIVERED},
    Worlds.NOTIFIED: {Fault.SIGN_LOST, Fault.NO_CONTROL},
    Worlds.REPLAYED: {Fault.REPLAYED},
    Worlds.ROUTED: {Fault.BROKEN_TABLE, Fault.RECREATED, Fault.REGISTRY, Fault.FOREIGN_COMMIT},
    Worlds.EDITED: {Fault.EDITED, Fault.RESTARTED, Fault.WEEKEND, Fault.CLEANED, Fault.EXPIRED},
}
_RULES_TAKE_MORE = {Worlds.EDITED, Worlds.HOSTILE, Worlds.ROUTED}
"""Worlds of which the second dozen of histories finds more of the rules that are broken on purpose."""
_RARE_FAULTS = {Worlds.HOSTILE: range(79, 86)}
"""Seeds that have the faults which few histories of their kind have; they come before others."""
_FAULTS_OF = {**_OF_ONE_WORLD, Worlds.HOSTILE: set(Fault).difference(*_OF_ONE_WORLD.values())}


@pytest.mark.in_turn("plain histories")
@pytest.mark.parametrize("first", range(0, 150, HISTORIES_A_TEST))
def test_every_record_once_in_every_history(first: int) -> None:
    for seed in range(first, first + HISTORIES_A_TEST):
        verdict = run(seed)
        assert not verdict.problems, f"python -m tests.simulation --worlds plain --seed {seed}: {verdict.problems[:5]}"


@pytest.mark.parametrize("worlds", [worlds for worlds in Worlds if worlds is not Worlds.PLAIN])
def test_every_record_once_in_worlds_with_more(worlds: Worlds) -> None:
    """Tasks with state, change events, tables that refuse records, joined topics, lost notifications, edited configs.

    Each kind has to have its faults: where some histories had none of them, more are run.
    """
    missing = set(_FAULTS_OF.get(worlds, ()))
    enough = HISTORIES_OF_SOME if worlds in _RULES_TAKE_MORE else HISTORIES_OF_OTHERS
    seeds = dict.fromkeys([*range(enough), *_RARE_FAULTS.get(worlds, ()), *range(MOST_HISTORIES_OF_OTHERS)])
    for number, seed in enumerate(seeds):
        if number >= enough and not missing:
            break
        verdict = run(seed, worlds)
        problems = verdict.problems
        assert not problems, f"python -m tests.simulation --worlds {worlds} --seed {seed}: {problems[:5]}"
        missing -= verdict.faults.keys()
    assert not missing


@pytest.mark.nightly
@pytest.mark.parametrize("worlds", Worlds)
def test_every_record_once_in_histories_that_no_run_had_before(worlds: Worlds) -> None:
    """New seeds still find a failure in some hundred histories: they are for ``make nightly`` until they are clean."""
    for seed in range(FRESH_SEED, FRESH_SEED + HISTORIES_THAT_ARE_NEW):
        problems = run(seed, worlds).problems
        assert not problems, f"python -m tests.simulation --worlds {worlds} --seed {seed}: {problems[:5]}"


@pytest.mark.parametrize(
    "mutation",
    [
        pytest.param(rule, marks=pytest.mark.in_turn(f"broken rules {number // RULES_OF_WHICH_ONE_IS_DRAWN}"))
        for number, rule in enumerate(MUTATIONS)
    ],
    ids=lambda mutation: mutation.rule,
)
def test_broken_rule_is_found_by_the_simulation(mutation: Mutation) -> None:
    """The last of the counted histories in the docs' table shows it; another one, where that table is older.

    ``python -m tests.simulation.sweep`` counts again, and asks for fewer.
    """
    last_seed = counts_of_page()[mutation.rule] - 1
    assert mutation.is_caught(last_seed) or mutation.search(most=8 * CEILING).is_found


def test_each_rule_is_still_there_to_be_broken_and_has_its_histories_counted() -> None:
    """Of three rules a run breaks one; all of them fit the code, and the table in the docs."""
    for mutation in MUTATIONS:
        with mutation.breaking():
            pass
    assert counts_of_page().keys() == {mutation.rule for mutation in MUTATIONS}


def test_request_arrives_within_an_hour_even_if_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Days later a table has forgotten what would refuse it; no pending request lives that long."""
    history, arrived_ms = EditedHistory(0), list[int]()
    world, begun_ms = history.world, history.world.now_ms

    def ask() -> None:
        with suppress(StoreError):
            world.effect("write x", lambda: arrived_ms.append(world.now_ms), changes=True)

    world.spawn(Process("loader", last_heartbeat_ms=begun_ms), ask)
    world.chances = Chances(given_up=1.0, crash=0.0, pause=0.0, stall=0.0, refused=0.0)
    while not world.has_late_requests:
        world.step()
    monkeypatch.setattr(EditedHistory, "_tend", lambda *_: None)
    history._weekend("memory://orders")
    assert begun_ms <= arrived_ms[0] <= begun_ms + 3_700_000 < world.now_ms


def test_app_id_is_not_edited_while_an_operator_works() -> None:
    history = EditedHistory(0, Chances(edits=("app_id",)))
    (pipeline, *_), operator = history._pipelines, Process("operator")
    history._operators.append(operator)
    history._edit(pipeline)
    assert len(pipeline.configs) == 1
    operator.alive = False
    history._edit(pipeline)
    assert [config.app_id for config in pipeline.configs] == ["loads", "loads2"]


def test_seed_determines_the_history() -> None:
    for worlds in (Worlds.PLAIN, Worlds.HOSTILE, Worlds.EDITED):
        assert run(7, worlds) == run(7, worlds)
