"""What the commands ask of the tables before they change a stage."""

from pathlib import Path

import pytest

from bootstrap.plans.repair import RewindPlan, plan_rewind
from bootstrap.plans.state import Author, Ends
from bootstrap.work import Work
from common.clock import SystemClock
from common.errors import UsageError
from common.spans import Position
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging
from tests.unit.common.tables.test_delta_log import METADATA, PROTOCOL, commit, txn


def test_a_chain_is_not_staged_from_before_its_start_while_a_load_is_between_two_tables(tmp_path: Path) -> None:
    """The dead-letter table has the first records of the chain: it would pass over those before them."""
    staging = Staging.below(tmp_path)
    staging.flush(0, 16, 40)
    settings = settings_for(staging)
    commit(staging.store(staging.dead_letters), 0, PROTOCOL, METADATA, txn("orders-0", 39))

    def rewind(to: int) -> RewindPlan:
        work = Work(settings, SystemClock())
        state = work._state(settings.streams[0], Ends(Position(0), Position(100)), staging.source(0), None, None)
        plan = plan_rewind(state, Position(to), Author("operator", 1))
        work.rewind(plan)
        return plan

    before = staging.markers()
    with pytest.raises(UsageError, match="a table of the stream has orders/0 up to 40 already"):
        rewind(0)
    assert staging.markers() == before
    assert rewind(16).position == 16
