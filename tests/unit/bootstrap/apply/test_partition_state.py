"""What a repair knows about a Kafka partition: its chain, the tables' positions, and whether they are compatible."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from bootstrap.apply.partition_state import lacking_in_others, partition_state, require_even, table_position
from bootstrap.plans.restart import Restart, plan_restart
from bootstrap.plans.state import Ends, PartitionState
from common.errors import UsageError
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import MarkerName, marker_to_bytes
from common.stage.merged import InputEnd, inputs_at, inputs_of, merged_position
from common.stage.task_files import OutboxName
from common.tables.deferred_ranges import DeferredIds
from common.tables.identity import TableChain, TableIdentity
from common.tables.state import TableState
from common.tables.transactions import TxnIds
from tests.builders import instance, required, span
from tests.fakes.loading import routed_settings_for, settings_for
from tests.fakes.staging import JoinedStaging, Staging

NOTHING = TableIdentity()


def table_with(transactions: Mapping[str, int]) -> TableState:
    return TableState(0, "t", "{}", (), {}, 1, 2, frozenset(), transactions)


def named(staging: Staging, topic: str) -> TopicPartition:
    return replace(staging, topic=topic).source(0)


def state_of(
    staging: Staging,
    *,
    stream: Stream | None = None,
    table: Mapping[str, int] | None = None,
    topic_id: str | None = None,
    identity: TableIdentity = NOTHING,
    others: Mapping[str, TableIdentity] | None = None,
) -> PartitionState:
    """``identity`` is the table's under the stream's app_id, ``others`` under others."""
    stream = stream or settings_for(staging).streams[0]
    by_app_id = {stream.app_id: identity, **(others or {})}
    return partition_state(
        staging.store(staging.stage_url),
        stream,
        staging.source(0),
        ends=Ends(Position(0), Position(100)),
        table=None if table is None else table_with(table),
        topic_id=topic_id,
        identity_of=lambda app_id: by_app_id.get(app_id, NOTHING),
    )


def begin(staging: Staging, chain_origin: ChainOrigin) -> None:
    path = origin_path(staging.source(0), chain_origin.number)
    staging.store(staging.stage_url).create(path, origin_to_bytes(chain_origin))


def routed(staging: Staging) -> tuple[Stream, dict[str, int]]:
    """A stream with two tables of routes, and txn actions by which each lacks something that the main table has."""
    (stream,) = routed_settings_for(staging, ("a", "b"), {}).streams
    ids = TxnIds(stream.app_id, stream.several_topics)
    transactions = {"orders-0": 29}
    for name, missing in (("a", span(12, 20)), ("b", span(5, 9))):
        deferred = DeferredIds.for_table(ids, staging.source(0), staging.route(name))
        transactions |= deferred.written(missing)
    return stream, transactions


def test_repair_starts_before_the_first_range_that_any_table_lacks(staging: Staging) -> None:
    stream, transactions = routed(staging)
    state = state_of(staging, stream=stream, table=transactions)
    assert (state.table, state.deferred_from, state.in_all_tables) == (30, 5, 5)
    assert state_of(staging, stream=stream, table={"orders-0": 29}).in_all_tables == 30


def test_replay_covers_every_range_that_a_table_lacks(staging: Staging) -> None:
    stream, transactions = routed(staging)
    store, partition = staging.store(staging.stage_url), staging.source(0)
    assert lacking_in_others(store, stream, partition, table_with(transactions)) == span(5, 20)
    assert lacking_in_others(store, stream, partition, table_with({"orders-0": 29})) is None
    assert lacking_in_others(store, stream, partition, None) is None


def test_table_s_position_is_of_the_newest_generation(staging: Staging) -> None:
    (stream,), store = settings_for(staging).streams, staging.store(staging.stage_url)
    table = table_with({"orders-0": 29, "orders-0@2": 4})
    assert table_position(store, stream, staging.source(0), table) == 5
    assert table_position(store, stream, staging.source(0), table_with({"orders-0": 29})) == 30
    assert table_position(store, stream, staging.source(0), None) is None
    begin(staging, ChainOrigin(Position(0), generation=3, number=1))
    assert table_position(store, stream, staging.source(0), table) is None


def test_unreadable_marker_belongs_to_the_chain(staging: Staging) -> None:
    """Its content cannot say that it is from before the chain's origin."""
    begin(staging, ChainOrigin(Position(0), generation=1, number=1))
    staging.store(staging.stage_url).create(MarkerName(staging.source(0), Position(5)).path, b"torn")
    state = state_of(staging)
    assert ([staged.name.start for staged in state.staged], state.older) == ([5], ())


@pytest.mark.parametrize(
    ("first", "table", "under"),
    [(5, {}, "theirs"), (5, {"orders-0": 4}, None), (None, {}, None)],
    ids=["settled start, no position", "a position", "the chain's first marker"],
)
def test_app_id_that_loaded_the_settled_start_of_a_chain_is_named(
    staging: Staging, first: int | None, table: Mapping[str, int], under: str | None
) -> None:
    staging.flush(0, 9, 12, previous=first)
    identity = TableIdentity(loaded_under={(staging.source(0), 0): "theirs"})
    state = state_of(staging, table=table, identity=identity)
    assert state.loaded_under == under
    assert state.foreign == (under and "it was loaded under the app_id theirs, and the stream's is orders")


def test_markers_of_another_app_id_are_foreign(staging: Staging) -> None:
    replace(staging, app_id="theirs").flush(0, 0, 12)
    state = state_of(staging, table={"orders-0": 29})
    assert state.foreign == "it was staged for the app_id theirs, and the stream's is orders"
    assert (state.table, state.elsewhere) == (None, None), "a position of the stream says nothing about this chain"


def test_empty_stage_is_foreign_to_nothing(staging: Staging) -> None:
    """Even if another stream has loaded a chain: without a marker there is no settled start."""
    identity = TableIdentity(loaded_under={(staging.source(0), 0): "theirs"})
    assert state_of(staging, table={}, identity=identity).foreign is None


@pytest.mark.parametrize("generation", [0, 2])
def test_new_chain_starts_after_the_most_that_any_of_its_app_ids_has(staging: Staging, generation: int) -> None:
    begin(staging, ChainOrigin(Position(0), generation=generation, number=1))
    suffix = f"@{generation}" if generation else ""
    for start, app_id in ((0, "first"), (10, "second"), (20, "third")):
        replace(staging, app_id=app_id, generation=generation, previous={}).flush(0, start, start + 10)
    table = {f"first-0{suffix}": 9, f"second-0{suffix}": 14, f"third-0{suffix}": 11, "first-0@7": 99}
    assert state_of(staging, table=table).elsewhere == 15


@pytest.mark.parametrize(
    ("known", "topic_id", "elsewhere"),
    [
        (TableChain(0, Position(30), "id"), "id", 30),
        (TableChain(0, Position(30), "id"), "other", None),
        (TableChain(0, Position(30), None), "id", 30),
        (TableChain(0, Position(30), "id"), None, 30),
        (TableChain(1, Position(30), "id"), "id", None),
        (None, "id", None),
    ],
    ids=["its topic", "another topic", "unknown in the table", "unknown in Kafka", "another generation", "no chain"],
)
def test_stream_s_own_position_counts_if_it_may_be_of_this_topic(
    staging: Staging, known: TableChain | None, topic_id: str | None, elsewhere: int | None
) -> None:
    """The chain in the stage was staged for another app_id, which says nothing against what this one has loaded."""
    replace(staging, app_id="theirs").flush(0, 0, 12)
    identity = TableIdentity(chains={} if known is None else {staging.source(0): known})
    state = state_of(staging, table={"orders-0": 29}, topic_id=topic_id, identity=identity)
    assert (state.elsewhere, required(state.foreign)[:16]) == (elsewhere, "it was staged fo")


@pytest.mark.parametrize(
    ("begun", "known", "ids", "foreign"),
    [
        (0, TableChain(2, Position(30)), (None, None), "has generation 2 of it, which this stage has not started"),
        (2, TableChain(2, Position(30)), (None, None), None),
        (3, TableChain(2, Position(30), "old"), (None, "new"), None),
        (2, TableChain(2, Position(30), "old"), ("new", "old"), "its topic has the id new, but the table"),
        (2, TableChain(2, Position(30), "old"), ("old", "new"), None),
        (2, TableChain(2, Position(30), "old"), (None, "new"), "its topic has the id new, but the table"),
        (2, TableChain(2, Position(30), "old"), (None, None), None),
        (2, TableChain(2, Position(30), None), ("new", "new"), None),
    ],
)
def test_table_with_other_records_under_the_chain_s_name_is_recognized(
    staging: Staging, begun: int, known: TableChain, ids: tuple[str | None, str | None], foreign: str | None
) -> None:
    """By generation, and by the ids of the topics where both are known: that of the chain before that of Kafka."""
    staged_id, topic_id = ids
    begin(staging, ChainOrigin(Position(0), generation=begun, topic_id=staged_id, number=1))
    state = state_of(staging, table={}, topic_id=topic_id, identity=TableIdentity(chains={staging.source(0): known}))
    assert state.foreign is None if foreign is None else foreign in required(state.foreign)


def test_chain_in_place_of_several_others_gets_a_later_generation_than_each(staging: Staging) -> None:
    topics = ("orders+payments", "orders+returns", "orders+stock", "payments")
    generations = (1, 3, 2, 9)
    chains = {
        named(staging, topic): TableChain(generation, Position(30))
        for topic, generation in zip(topics, generations, strict=True)
    }
    state = state_of(staging, table={}, identity=TableIdentity(chains=chains))
    assert state.replaced_generation == 3
    assert "has the positions of" in required(state.foreign)


def test_uneven_tables_are_refused_with_both_positions(staging: Staging) -> None:
    replace(staging, app_id="theirs").flush(0, 0, 12)
    (stream,) = routed_settings_for(staging, ("a",), {}).streams
    state, url = state_of(staging, stream=stream, table={}), staging.route("a")

    def require(main: Mapping[str, int], other: Mapping[str, int]) -> None:
        others = {url: table_with(other)}
        require_even(state, stream, table_with(main), others, lambda _url, _app_id: NOTHING)

    require({"theirs-0": 11}, {"theirs-0": 11})
    require({"theirs-0": 11}, {})
    with pytest.raises(UsageError, match=f"{url} has orders/0 up to 12, and {staging.table} up to 6: a load was"):
        require({"theirs-0": 5}, {"theirs-0": 11})
    with pytest.raises(UsageError, match=r"up to 12, and .+ up to its beginning: a load was interrupted"):
        require({}, {"theirs-0": 11})
    deferred = DeferredIds.for_table(TxnIds("theirs", several_topics=False), staging.source(0), url)
    with pytest.raises(UsageError, match=rf"has \[3, 9\) of orders.0, and {url} lacks its part of that"):
        require({"theirs-0": 11, **deferred.written(span(3, 9))}, {})


def test_single_topic_starts_after_what_the_table_has_of_it_with_others(staging: Staging) -> None:
    joined = JoinedStaging(staging.root)
    joined.flush(0, 0, 20)
    end = joined.flush(0, 20, 30).span.end
    (own,) = [reached.position for reached in inputs_at(end) if reached.partition == staging.source(0)]
    identity = TableIdentity(chains={joined.source(0): TableChain(0, Position(int(end)))})
    state = state_of(staging, table={}, identity=identity)
    assert (state.elsewhere, state.unknown_inputs) == (own, None)
    cut = TableIdentity(chains={joined.source(0): TableChain(0, Position(25))})
    state = state_of(staging, table={}, identity=cut)
    assert (state.elsewhere, state.unknown_inputs) == (None, joined.source(0)), "no marker ends there"


@pytest.mark.parametrize("named_by", ["marker", "origin", None])
@pytest.mark.parametrize("is_sent", [False, True])
def test_chain_in_its_place_is_named_while_its_records_for_topics_wait(
    staging: Staging, named_by: str | None, *, is_sent: bool
) -> None:
    """An outbox that is named by nothing, as that of a lost claim, never had a chance to be sent."""
    joined = JoinedStaging(staging.root)
    store, chain = joined.store(joined.stage_url), joined.source(0)
    path = OutboxName(chain, Position(0), 0, "0b4a").path
    marker = joined.flush(0, 0, 20)
    if named_by == "marker":
        manifest = replace(required(marker.manifest), outboxes=(path,))
        store.write(marker.name.path, marker_to_bytes(replace(marker, manifest=manifest)))
    elif named_by == "origin":
        begin(joined, ChainOrigin(joined.position(0, 0), outboxes=(path,), number=1))
    if not is_sent:
        store.write(path, b"records")
    end = TableChain(0, Position(int(marker.span.end)))
    state = state_of(staging, table={}, identity=TableIdentity(chains={chain: end}))
    assert state.unsent == (None if is_sent or named_by is None else chain)


@pytest.mark.parametrize(("its_id", "begin"), [("A", 9), (None, 9), ("Z", 2)])
def test_joined_topics_start_after_what_the_table_has_of_each(staging: Staging, its_id: str | None, begin: int) -> None:
    """Kafka has both from 2 on, and the table has payments up to 1."""
    joined = JoinedStaging(staging.root)
    orders, payments = inputs_of(joined.source(0))
    low, high = (
        merged_position([InputEnd(orders, Position(end)), InputEnd(payments, Position(end))]) for end in (2, 50)
    )
    chains = {orders: TableChain(0, Position(9), its_id), payments: TableChain(0, Position(1), "B")}
    identity = TableIdentity(chains=chains)
    state = partition_state(
        joined.store(joined.stage_url),
        settings_for(joined).streams[0],
        joined.source(0),
        ends=Ends(low, high),
        table=table_with({}),
        topic_id="A,B",
        identity_of=lambda _app_id: identity,
    )
    plan = instance(Restart, plan_restart(state, give_up=False))
    origin = required(plan.chain_origin)
    assert inputs_at(origin.position) == (InputEnd(orders, Position(begin)), InputEnd(payments, Position(2)))
    assert origin.loaded_before == 10, "a chain that is loaded further holds this one"


def test_topics_that_were_joined_before_start_after_what_the_table_has_of_each(staging: Staging) -> None:
    """The table's commits no longer name the joined chain, its txn action does."""
    joined = JoinedStaging(staging.root)
    end = joined.flush(0, 0, 20).span.end
    orders, payments = inputs_of(joined.source(0))
    zero = merged_position([InputEnd(orders, Position(0)), InputEnd(payments, Position(0))])
    state = partition_state(
        joined.store(joined.stage_url),
        settings_for(joined).streams[0],
        joined.source(0),
        ends=Ends(zero, Position(100)),
        table=table_with({"orders-orders+payments-0": int(end) - 1}),
        topic_id=None,
        identity_of=lambda _app_id: TableIdentity(chains={orders: TableChain(1, Position(40))}),
    )
    reached = {reached.partition: reached.position for reached in inputs_at(required(state.elsewhere))}
    before = {reached.partition: reached.position for reached in inputs_at(end)}
    assert reached == {orders: 40, payments: before[payments]}
