"""A topology gains a topic and loses it again, with the restarts that this needs: each record is loaded once."""

import uuid
from dataclasses import replace
from typing import TypeVar

from bootstrap.apply import stage as operator
from bootstrap.apply.partition_state import partition_state
from bootstrap.plans.restart import Restart, plan_restart
from bootstrap.plans.state import Ends
from common.spans import Position
from common.stage.chain_origins import ChainOrigin
from common.tables.identity import identity_of
from common.tables.transactions import TxnIds
from delta_loader.load.report import StreamReport
from tests.builders import instance, required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import JoinedStaging, Staging

AnyStaging = TypeVar("AnyStaging", bound=Staging)


def load(staging: Staging, tables: MemoryDeltaTables) -> StreamReport:
    (report,) = loader_for(staging, tables, settings_for(staging)).run_pass()
    assert report.failure is None
    return report


def restarted(staging: AnyStaging, tables: MemoryDeltaTables, low: Position, high: Position) -> AnyStaging:
    """The chain restarted, as the remedy of its hold says."""
    store, (stream,) = staging.store(staging.stage_url), settings_for(staging).streams
    table = required(tables.state(stream.table))
    ids = TxnIds(stream.app_id, several_topics=stream.several_topics)
    identity = identity_of(tables.history(stream.table, table.version), stream, ids, table.transactions)
    ends = Ends(low, high)
    state = partition_state(
        store, stream, staging.source(0), ends=ends, table=table, topic_id=None, identity_of=lambda _: identity
    )
    plan = instance(Restart, plan_restart(state, give_up=True))
    operator.restart(store, plan)
    origin: ChainOrigin = required(plan.chain_origin)
    return replace(staging, generation=origin.generation, chain_origin=origin.number, previous={})


def test_topics_are_joined_and_single_again_and_each_record_is_loaded_once() -> None:
    """Kafka has payments from 10 on first, and from 20 on when the topics are joined again."""
    root, tables, high = f"memory://{uuid.uuid4().hex}", MemoryDeltaTables(), Position(1000)
    single, joined = Staging(root), JoinedStaging(root)
    single.flush(0, 0, 10)
    assert not load(single, tables).held

    for end, start in ((20, 20), (30, 40)):
        joined.flush(0, end, end + 4)
        assert {held.reason for held in load(joined, tables).held.values()} == {"other_topic"}
        joined = restarted(joined, tables, joined.position(0, start), high)
        joined.flush(0, start, start + 10)
        assert not load(joined, tables).held, "what the single topic's chain has is loaded"
        assert not load(joined, tables).held

        reached = start // 2 + 5
        single.flush(0, reached - 5, reached)
        assert {held.reason for held in load(single, tables).held.values()} == {"other_topic"}
        single = restarted(single, tables, Position(0), high)
        single.flush(0, reached, reached + 5)
        assert not load(single, tables).held
        assert not load(single, tables).held
    assert tables.begun(single.table, "orders-0") == [0, 15, 25]
    assert tables.begun(single.table, "orders+payments-0") == [20, 40]


def test_topics_are_joined_before_anything_is_loaded_and_each_record_is_loaded_once() -> None:
    """Both chains have the orders, and the table has neither. Kafka has payments from 10 on when it is restarted."""
    root, tables = f"memory://{uuid.uuid4().hex}", MemoryDeltaTables()
    single, joined = Staging(root), JoinedStaging(root)
    single.flush(0, 0, 10)
    joined.flush(0, 0, 40)
    assert {held.reason for held in load(joined, tables).held.values()} == {"other_topic"}
    assert tables.begun(single.table, "orders-0") == [0]
    joined = restarted(joined, tables, joined.position(0, 20), Position(1000))
    joined.flush(0, 20, 50)
    assert not load(joined, tables).held
    assert tables.begun(single.table, "orders+payments-0") == [20]
