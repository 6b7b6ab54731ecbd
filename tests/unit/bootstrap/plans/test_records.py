"""Repairs as JSON for programs; and where the text is shorter."""

import json

from bootstrap import view
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.restart import Restart, UnchangedPartition
from bootstrap.plans.state import Author, Ends, PartitionState, StagedMarker
from common.settings import StartAt
from common.spans import Position
from common.stage.chain_origins import ChainOrigin
from tests.fakes.markers import ORDERS, chain_of

AUTHOR = Author("test", 1_000)
PLACE = {"topic": "orders", "partition": 0}


def state() -> PartitionState:
    staged = tuple(StagedMarker(marker.name.path, marker.name, marker) for marker in chain_of(0, 10, 25))
    ends = Ends(Position(0), Position(100))
    return PartitionState(ORDERS, "orders", StartAt.EARLIEST, ends, Position(10), staged)


def test_skip_as_json() -> None:
    record = json.loads(view.skip_as_json(plan_skip(state(), Position(40), AUTHOR), done=False))
    assert record == PLACE | {
        "done": False,
        "given_up": {"start": 25, "end": 40, "positions": 15},
        "marker": "done/orders/0/00000000000000000025.done",
        "notes": [],
    }


def test_rewind_as_json() -> None:
    record = json.loads(view.rewind_as_json(plan_rewind(state(), Position(10), AUTHOR), ("late",), done=True))
    assert (record["done"], record["position"], record["put_aside_late"]) == (True, 10, ["late"])
    assert record["put_aside"] == ["done/orders/0/00000000000000000010.done"]


def test_restart_as_json_and_text() -> None:
    plans = (
        Restart(ORDERS, ChainOrigin(Position(0), 1), tuple(state().staged)),
        UnchangedPartition(ORDERS, "it is the same topic"),
    )
    new, left = json.loads(view.restarts_as_json(plans, done=False))["partitions"]
    assert (new["generation"], new["position"], len(new["put_aside"])) == (1, 0, 2)
    assert left == PLACE | {"left": "it is the same topic"}
    assert view.restarts_as_text(plans, done=False).endswith("Nothing was changed; add --yes to do it.")
    assert view.restarts_as_text(plans[1:], done=False) == "orders/0: it is the same topic", (
        "without work, --yes is not mentioned"
    )
