"""A topic that was recreated: chain origins, txn ids, the restart's plan, and how the loader treats old markers."""

import json
import re
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bootstrap.apply import stage as operator
from bootstrap.apply.partition_state import require_even
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.restart import Restart, UnchangedPartition, plan_restart
from bootstrap.plans.state import Author, Ends, PartitionState, StagedMarker
from bootstrap.work import from_table
from common.errors import MarkerError, NewerFormatError, StoreError, UsageError
from common.settings import StartAt
from common.spans import MAX_POSITION, Partition, Position, Span, Topic, TopicPartition
from common.stage import chain_origins
from common.stage.chain_origins import (
    SUPERSEDED,
    ChainOrigin,
    listed_origin,
    newest_origin,
    newest_paths,
    origin_from_bytes,
    origin_path,
    origin_to_bytes,
)
from common.stage.idle import IdleFact, facts_to_bytes, idle_path
from common.stage.markers import Marker, MarkerName, manifest_from_bytes, manifest_to_bytes
from common.stage.resolutions import Resolution
from common.stage.task_files import EMPTY_STATE, MarkedState, OutboxName, StateFileName, StateFiles, StateKind
from common.storage.store import FsspecStore
from common.tables.commit_metadata import Decision
from common.tables.deferred_ranges import DeferredIds
from common.tables.identity import NO_IDENTITY, TableIdentity
from common.tables.state import TableState
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.plan.held import staged_from, topic_recreated, unknown_partition
from delta_loader.plan.plan import UnreadableMarker
from delta_loader.ports import in_turn
from delta_loader.stage.generations import put_older_aside
from delta_loader.stage.reading import Stage
from delta_loader.status.collecting import stream_status
from delta_loader.status.values import to_json, to_text
from tests.builders import instance, required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for, status_of
from tests.fakes.markers import ORDERS, chain_of, flush, put
from tests.fakes.staging import Staging
from tests.fakes.stores import TrappedStore, failing


def of(marker: Marker, generation: int = 0, topic_id: str | None = None) -> Marker:
    return replace(marker, manifest=replace(required(marker.manifest), generation=generation, topic_id=topic_id))


OUTBOX = OutboxName(ORDERS, Position(3), 0, "0b4a").path
STATE = StateFiles(None, (StateFileName(ORDERS, Position(3), 0, "0b4a", StateKind.CHANGES).path,))


@given(
    st.builds(
        ChainOrigin,
        st.integers(0, MAX_POSITION).map(Position),
        st.integers(0, 9),
        st.none() | st.text(max_size=30),
        st.sampled_from([(), (OUTBOX,)]),
        st.sampled_from([None, EMPTY_STATE, STATE]),
        loaded_before=st.none() | st.integers(0, MAX_POSITION).map(Position),
    )
)
def test_origin_round_trips(chain_origin: ChainOrigin) -> None:
    assert origin_from_bytes(origin_path(ORDERS), origin_to_bytes(chain_origin)) == chain_origin


@pytest.mark.parametrize("needs", [{"outboxes": (OUTBOX,)}, {"state": STATE}])
def test_writers_that_would_ignore_an_origin_s_outboxes_or_state_refuse_it(needs: dict[str, object]) -> None:
    """Older releases read version 1 and ignore unknown fields."""
    plain = ChainOrigin(Position(10), 1, "id")
    stored = {"version": 1, "position": 10, "generation": 1, "topic_id": "id"}
    assert json.loads(origin_to_bytes(plain)) == stored
    assert json.loads(origin_to_bytes(replace(plain, state=EMPTY_STATE)))["version"] == 1
    assert json.loads(origin_to_bytes(replace(plain, **needs)))["version"] == 2  # type: ignore[arg-type]


def test_origin_may_only_name_files_of_its_partition() -> None:
    elsewhere = TopicPartition(ORDERS.topic, Partition(1))
    for needs in (
        ChainOrigin(Position(10), outboxes=(OutboxName(elsewhere, Position(3), 0, "0b4a").path,)),
        ChainOrigin(Position(10), state=StateFiles(STATE.mark)),
    ):
        with pytest.raises(MarkerError, match=r"begin/orders/0/0{20}\.begin cannot be read"):
            origin_from_bytes(origin_path(ORDERS), origin_to_bytes(needs))


def test_origin_path_names_its_partition_and_number() -> None:
    assert origin_path(ORDERS) == "begin/orders/0/00000000000000000000.begin"
    assert origin_path(ORDERS, 12) == "begin/orders/0/00000000000000000012.begin"
    assert newest_paths([origin_path(ORDERS)]) == {ORDERS: origin_path(ORDERS)}
    assert newest_paths(["done/orders/0/00000000000000000000.done", "begin/orders/0/1.begin", "begin/x"]) == {}


def test_origin_with_the_highest_number_wins() -> None:
    """The write of an earlier repair may arrive late or twice: each origin has its own name."""
    store, elsewhere = FsspecStore(f"memory://{uuid.uuid4().hex}", {}), TopicPartition(ORDERS.topic, Partition(1))
    assert newest_origin(store, ORDERS) is None
    later = ChainOrigin(Position(20), number=10)
    for origin in (later, ChainOrigin(Position(100)), ChainOrigin(Position(70), number=9)):
        store.create(origin_path(ORDERS, origin.number), origin_to_bytes(origin))
    store.create(origin_path(elsewhere, 11), b"")
    assert newest_origin(store, ORDERS) == later
    assert newest_origin(store, elsewhere) == ChainOrigin(Position(0), number=11)


def test_origin_replaced_between_listing_and_reading_is_found() -> None:
    store, repaired = FsspecStore(f"memory://{uuid.uuid4().hex}", {}), ChainOrigin(Position(20), number=10)
    store.create(origin_path(ORDERS, 10), origin_to_bytes(repaired))
    store.write(origin_path(ORDERS), SUPERSEDED)
    assert listed_origin(store, ORDERS, origin_path(ORDERS)) == repaired
    assert listed_origin(store, ORDERS, origin_path(ORDERS, 11)) is None, "a missing origin is not one at position 0"


def test_superseded_number_0_names_its_successor_and_older_releases_refuse_it(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}", {})
    store.write(origin_path(ORDERS), SUPERSEDED)
    with pytest.raises(MarkerError, match=r"0{20}\.begin was replaced by an origin with a higher number"):
        newest_origin(store, ORDERS)
    monkeypatch.setattr(chain_origins, "VERSION", 2)  # as in releases before version 3
    with pytest.raises(NewerFormatError, match="has format version 3"):
        origin_from_bytes(origin_path(ORDERS), SUPERSEDED)


def test_empty_origin_is_position_0_and_a_broken_one_is_named() -> None:
    path = origin_path(ORDERS)
    assert origin_from_bytes(path, b"") == ChainOrigin(Position(0))
    for data in (b"{", b'{"version": 4}', b'{"version": 1, "generation": -1}', b'{"version": 1, "position": "7"}'):
        with pytest.raises(MarkerError, match=path):
            origin_from_bytes(path, data)
    with pytest.raises(MarkerError, match="begin/x cannot be read: it is not named like a chain origin"):
        origin_from_bytes("begin/x", b"")


def test_generations_after_0_raise_the_marker_version() -> None:
    for generation, version in ((0, b'"version":1'), (1, b'"version":2')):
        marker = of(flush(0, 10), generation, "id")
        assert marker.manifest is not None
        data = manifest_to_bytes(ORDERS, marker.manifest)
        assert version in data
        assert manifest_from_bytes(marker.name, data) == marker.manifest


def test_each_generation_has_its_own_txn_id() -> None:
    ids = TxnIds("orders", several_topics=False)
    assert ids.of(ORDERS) == "orders-0"
    assert replace(ids, generations={ORDERS: 2}).of(ORDERS) == "orders-0@2"
    transactions = {"orders-0": 99, "orders-0@1": 4, "orders-01@7": 1, "orders-0@x": 1}
    newest = ids.at({}, transactions, [ORDERS])
    assert newest.position(transactions, ORDERS) == 5
    assert ids.at({ORDERS: 2}, transactions, [ORDERS]).position(transactions, ORDERS) is None


# bootstrap restart


def state(
    *markers: Marker, table: int | None = None, now: str | None = "new", ends: tuple[int, int] = (0, 50)
) -> PartitionState:
    return PartitionState(
        partition=ORDERS,
        app_id="orders",
        start=StartAt.EARLIEST,
        ends=Ends(Position(ends[0]), Position(ends[1])),
        table=None if table is None else Position(table),
        staged=tuple(StagedMarker(marker.name.path, marker.name, marker) for marker in markers),
        topic_id=now,
    )


OLD = [of(marker, topic_id="old") for marker in chain_of(0, 10, 20)]


def test_restart_begins_at_the_topic_s_start_and_puts_the_old_chain_aside() -> None:
    plan = instance(Restart, plan_restart(state(*OLD, table=20, ends=(7, 50)), give_up=False))
    assert plan.chain_origin == ChainOrigin(Position(7), 1, "new", number=1, loaded_before=Position(0))
    assert [moved.name.start for moved in plan.put_aside] == [10, 0]
    assert plan.notes == ()


def test_chain_that_replaces_others_has_a_later_generation() -> None:
    joined = replace(state(*OLD), foreign="its topics are joined from now on", replaced_generation=3)
    plan = instance(Restart, plan_restart(joined, give_up=True))
    assert required(plan.chain_origin).generation == 4


def test_records_of_another_topic_are_not_staged_again_by_a_chain_of_its_own() -> None:
    other = replace(state(*OLD), foreign="it is of another topic")
    with pytest.raises(UsageError, match=r"\[0, 20\) of the old orders/0 is staged and not loaded"):
        plan_restart(other, give_up=False)
    with pytest.raises(UsageError, match=r"would start at 51, but Kafka has \[0, 50\)"):
        plan_restart(other, give_up=True, at=Position(51))


WHY = "it was staged for the app_id old, and the stream's is orders"


@pytest.mark.parametrize(
    ("elsewhere", "offset", "now", "begin"),
    [
        (20, None, "new", 20),
        (20, 20, "new", 20),
        (20, 30, "new", 30),
        (20, 50, "new", 50),
        (25, None, "old", 25),
        (None, 3, "old", 3),
        (None, 3, None, 3),
    ],
)
def test_separate_chain_begins_after_what_the_table_has(
    elsewhere: int | None, offset: int | None, now: str | None, begin: int
) -> None:
    first, last = OLD
    left = tuple(StagedMarker(marker.name.path, marker.name, marker) for marker in chain_of(0, 1, 2))
    known = replace(
        state(first, last, now=now, ends=(3, 50)),
        foreign=WHY,
        elsewhere=None if elsewhere is None else Position(elsewhere),
        older=left,
        generation=2,
        replaced_generation=1,
        loaded=Position(9),
        repairs=6,
    )
    plan = instance(
        Restart, plan_restart(known, give_up=elsewhere is None, at=None if offset is None else Position(offset))
    )
    assert plan.chain_origin == ChainOrigin(Position(begin), 3, now, number=7, loaded_before=Position(9))
    assert [moved.name.start for moved in plan.put_aside] == [10, 0, 1, 0]
    lost = () if elsewhere is not None else ("[0, 3) of the old topic is given up: it was staged and never loaded",)
    assert plan.notes == (f"it gets a chain of its own, because {WHY}", *lost)


@pytest.mark.parametrize(
    ("elsewhere", "offset", "now", "problem", "remedy"),
    [
        (20, 2, "new", "would start at 2, but Kafka has [3, 50)", "use --at with an offset of 3 to 50"),
        (60, None, "new", "would start at 60, but Kafka has [3, 50)", "use --at with an offset of 3 to 50"),
        (20, 19, "new", "up to 20: from 19 on its records would be loaded a second time", "use --at 20"),
        (15, None, "new", "[15, 20) of the old orders/0 is staged and not loaded", "use --at 15, or give it up"),
        (None, None, "old", "[0, 3) of the old orders/0 is staged and not loaded", "use --at 0, or give it up"),
        (None, None, None, "[0, 3) of the old orders/0 is staged and not loaded", "use --at 0, or give it up"),
    ],
)
def test_separate_chain_neither_loses_nor_repeats_records(
    elsewhere: int | None, offset: int | None, now: str | None, problem: str, remedy: str
) -> None:
    known = replace(
        state(*OLD, now=now, ends=(3, 50)),
        foreign=WHY,
        elsewhere=None if elsewhere is None else Position(elsewhere),
    )
    with pytest.raises(UsageError, match=re.escape(problem)) as error:
        plan_restart(known, give_up=False, at=None if offset is None else Position(offset))
    assert error.value.remedy.startswith(remedy)


def test_records_of_an_unknown_topic_count_as_those_that_kafka_has() -> None:
    known = replace(state(*chain_of(0, 10, 20), ends=(3, 50)), foreign=WHY)
    with pytest.raises(UsageError, match=r"\[0, 3\) of the old orders/0 is staged and not loaded"):
        plan_restart(known, give_up=False)


def test_chain_of_several_topics_has_no_start_offset() -> None:
    joined = TopicPartition(Topic("orders+payments"), Partition(0))
    for foreign in (WHY, None):
        with pytest.raises(UsageError, match="for which one offset does not say where to start"):
            plan_restart(replace(state(), partition=joined, foreign=foreign), give_up=True, at=Position(3))
    plan = instance(Restart, plan_restart(replace(state(), partition=joined, foreign=WHY), give_up=True))
    assert required(plan.chain_origin).position == 0


def test_start_must_be_given_where_it_is_unknown_what_the_table_has() -> None:
    joined = TopicPartition(Topic("orders+payments"), Partition(0))
    known = replace(state(ends=(3, 50)), foreign=WHY, unknown_inputs=joined)
    with pytest.raises(UsageError, match=r"by the chain orders\+payments/0, and it is no longer known") as error:
        plan_restart(known, give_up=True)
    assert error.value.remedy.startswith("use --at with the first offset that the table lacks")
    plan = instance(Restart, plan_restart(known, give_up=True, at=Position(20)))
    assert required(plan.chain_origin).position == 20


def test_unsent_records_of_the_chain_in_its_place_must_be_given_up_explicitly() -> None:
    joined = TopicPartition(Topic("orders+payments"), Partition(0))
    known = replace(state(ends=(3, 50)), foreign=WHY, unsent=joined)
    with pytest.raises(UsageError, match=r"orders\+payments/0 has unsent records for Kafka topics") as error:
        plan_restart(known, give_up=False)
    assert "set topics: [orders, payments] again, run `stage-writer run" in str(error.value.remedy)
    plan = instance(Restart, plan_restart(known, give_up=True))
    assert any("orders+payments/0 for Kafka topics" in note and "given up" in note for note in plan.notes)


def test_old_chain_with_an_unreadable_marker_must_be_given_up_explicitly() -> None:
    old = state(*OLD, table=20)
    broken = replace(old, staged=(*old.staged, StagedMarker("done/x", MarkerName(ORDERS, Position(20)), None)))
    with pytest.raises(UsageError, match="the marker done/x cannot be read") as caught:
        plan_restart(broken, give_up=False)
    assert "--give-up" in caught.value.remedy
    assert isinstance(plan_restart(broken, give_up=True), Restart)


@pytest.mark.parametrize(
    "known", [state(table=20), replace(state(), chain_origin=ChainOrigin(Position(0)))], ids=["position", "origin"]
)
def test_chain_without_markers_gets_a_new_generation(known: PartitionState) -> None:
    plan = instance(Restart, plan_restart(known, give_up=False))
    assert (required(plan.chain_origin).generation, plan.put_aside) == (1, ())
    plan = instance(Restart, plan_restart(known, give_up=False, at=Position(8)))
    assert (required(plan.chain_origin).position, plan.put_aside) == (8, ())


def test_markers_without_a_chain_are_put_aside() -> None:
    last = StagedMarker(OLD[1].name.path, OLD[1].name, OLD[1])
    plan = plan_restart(replace(state(), older=(last,)), give_up=False)
    assert plan == Restart(ORDERS, None, (last,))


def test_markers_that_an_earlier_restart_left_are_put_aside_too() -> None:
    old = state(*OLD, table=20)
    last = StagedMarker(OLD[1].name.path, OLD[1].name, OLD[1])
    plan = instance(Restart, plan_restart(replace(old, staged=old.staged[:1], older=(last,)), give_up=False))
    assert [moved.name.start for moved in plan.put_aside] == [0, 10]


def test_new_chain_carries_the_old_chain_s_undelivered_outboxes() -> None:
    first, last = OLD
    last = replace(last, manifest=replace(required(last.manifest), outboxes=(OUTBOX,)))
    plan = instance(Restart, plan_restart(state(first, last, table=20), give_up=False))
    begun = ChainOrigin(Position(0), 1, "new", (OUTBOX,), number=1, loaded_before=Position(0))
    assert plan.chain_origin == begun


@pytest.mark.parametrize("topic_id", ["old", "new"])
def test_chain_of_another_app_id_keeps_undelivered_outboxes_and_no_state(topic_id: str) -> None:
    first, last = OLD
    later = OutboxName(ORDERS, Position(10), 0, "0b4b").path
    marked = replace(required(last.manifest), outboxes=(OUTBOX, later), state=MarkedState(STATE, STATE))
    known = state(first, replace(last, manifest=marked), now=topic_id)
    plan = plan_restart(replace(known, foreign=WHY, elsewhere=Position(10)), give_up=True)
    begun = required(instance(Restart, plan).chain_origin)
    staged_again = () if topic_id == "new" else (later,)
    assert (begun.position, begun.state) == (10, None)
    assert begun.outboxes == tuple(path for path in (OUTBOX, later) if path not in staged_again)
    assert "its topology is empty there" in "".join(instance(Restart, plan).notes)


def test_ranges_that_one_table_lacks_must_be_given_up_explicitly() -> None:
    behind = replace(state(*OLD, table=20), deferred_from=Position(15))
    with pytest.raises(UsageError, match=r"\[15, 20\) of the old orders/0 is staged and not loaded into every table"):
        plan_restart(behind, give_up=False)


@pytest.mark.parametrize("table", [None, 0, 15])
def test_unloaded_ranges_must_be_given_up_explicitly(table: int | None) -> None:
    with pytest.raises(UsageError, match="staged and not loaded") as caught:
        plan_restart(state(*OLD, table=table), give_up=False)
    assert caught.value.remedy == "load it with `delta-loader run ⟨config⟩ --once`, or give it up with --give-up"
    plan = instance(Restart, plan_restart(state(*OLD, table=table), give_up=True))
    assert "given up" in plan.notes[0]


def test_restart_leaves_a_chain_of_the_current_topic() -> None:
    for high in (20, 50):
        current = state(*OLD, table=20, now="old", ends=(0, high))
        assert isinstance(plan_restart(current, give_up=True), UnchangedPartition)
    assert isinstance(plan_restart(state(), give_up=False), UnchangedPartition)


def test_restart_of_a_truncated_topic_needs_a_start_position() -> None:
    """From the topic's first record on, the remaining records would be loaded a second time."""
    short = state(*OLD, table=20, now="old", ends=(3, 12))
    with pytest.raises(UsageError, match="ends at 12 in Kafka, before its chain's end 20") as caught:
        plan_restart(short, give_up=True)
    assert "if it names none, it is 12): --partition 0 --at OFFSET" in caught.value.remedy
    joined = replace(short, partition=TopicPartition(Topic("orders+payments"), Partition(0)))
    with pytest.raises(UsageError, match="ends at 12 in Kafka") as caught:
        plan_restart(joined, give_up=True)
    assert caught.value.remedy.startswith("start the stream again under another app_id")
    for kafka in ((3, 12), (3, 50)):  # also once new records have taken the lost offsets
        plan = instance(
            Restart,
            plan_restart(
                replace(short, ends=Ends(Position(kafka[0]), Position(kafka[1]))), give_up=False, at=Position(8)
            ),
        )
        assert plan.chain_origin == ChainOrigin(Position(8), 1, "old", number=1, loaded_before=Position(0))
        assert plan.notes[-1].startswith("records of Kafka from 8 on are loaded as new ones")
        assert [moved.name.start for moved in plan.put_aside] == [10, 0]
    for position, low, high, remedy in (
        (2, 3, 12, "use an offset of 3 to 12"),
        (13, 3, 12, "use an offset of 3 to 12"),
        (21, 3, 50, "use an offset of 3 to 20"),
        (21, 20, 50, "use an offset of 20 to 20"),
        (21, 21, 50, "remove --at"),
    ):
        ends = Ends(Position(low), Position(high))
        with pytest.raises(
            UsageError, match=rf"Kafka has \[{low}, {high}\) of orders/0, and its chain ends at 20"
        ) as caught:
            plan_restart(replace(short, ends=ends), give_up=True, at=Position(position))
        assert caught.value.remedy == remedy
    for begin in (Position(3), Position(12)):
        plan = instance(Restart, plan_restart(short, give_up=False, at=begin))
        assert required(plan.chain_origin).position == begin
    waiting = replace(short, ends=Ends(Position(3), Position(50)), table=Position(15))
    with pytest.raises(UsageError, match="staged and not loaded"):
        plan_restart(waiting, give_up=False, at=Position(8))
    again = "Kafka's records of these offsets are loaded instead"
    for begins, note in ((8, again), (15, again), (16, "is given up")):
        assert note in instance(Restart, plan_restart(waiting, give_up=True, at=Position(begins))).notes[0]


def test_restart_with_unknown_topic_ids_warns_of_a_second_load() -> None:
    plan = instance(Restart, plan_restart(state(*chain_of(0, 10), table=10, now=None), give_up=False))
    assert "a second time" in plan.notes[0]
    for old, now in ((OLD, None), (chain_of(0, 10, 20), "new")):
        plan = instance(Restart, plan_restart(state(*old, table=20, now=now), give_up=False))
        assert "a second time" in plan.notes[0]


def test_next_restart_completes_an_interrupted_one() -> None:
    leftover = StagedMarker(OLD[1].name.path, OLD[1].name, OLD[1])
    cut = replace(state(), older=(leftover,), generation=1, chain_origin=ChainOrigin(Position(0), 1, "new"))
    plan = plan_restart(cut, give_up=False)
    assert plan == Restart(ORDERS, None, (leftover,), plan.notes if isinstance(plan, Restart) else ())


def test_new_generation_ignores_the_old_topic_s_table_position() -> None:
    stream = settings_for(Staging(f"memory://{uuid.uuid4().hex}")).streams[0]
    table = TableState(1, "id", "", (), {}, 1, 2, frozenset(), {"orders-0": 19, "orders-1": 5})
    other = TopicPartition(ORDERS.topic, Partition(1))
    assert from_table(table, stream, [ORDERS, other], {}).positions == {ORDERS: 20, other: 6}
    assert from_table(table, stream, [ORDERS, other], {ORDERS: 1}).positions == {other: 6}


def test_load_that_reached_one_table_is_completed_under_its_app_id() -> None:
    stream = settings_for(Staging("memory://lake")).streams[0].model_copy(update={"app_id": "orders2"})

    def table(**transactions: int) -> TableState:
        named = {name.replace("_", "-"): last for name, last in transactions.items()}
        return TableState(1, "id", "", (), {}, 1, 2, frozenset(), named)

    def check(main: TableState | None, letters: TableState, app_id: str = "orders2") -> None:
        named = stream.model_copy(update={"app_id": app_id})
        require_even(state(*OLD), named, main, {stream.dead_letters: letters}, lambda _url, _app_id: NO_IDENTITY)

    for position, main in ((10, table(orders_0=9)), ("its beginning", None), ("its beginning", table(orders2_0=50))):
        with pytest.raises(UsageError, match=f"has orders/0 up to 16, and .*/tables/orders up to {position}") as error:
            check(main, table(orders_0=15))
        assert "restore the app_id orders" in error.value.remedy
    check(table(orders_0=15), table(orders_0=15))
    check(table(orders_0=19), table(orders_0=15))
    check(table(orders_0=9), table(orders2_0=15, orders_1=30))
    check(table(orders_0=9), table(orders_0=15), app_id="orders")  # its own loader completes it


def test_partial_load_of_a_replaced_topic_is_completed_before_a_new_chain() -> None:
    """Each table has its own first commit, which says which topic its txn actions without a topic belong to."""
    (stream,) = settings_for(Staging("memory://lake")).streams
    table = TableState(1, "id", "", (), {}, 1, 2, frozenset(), {"orders-0": 15})
    first = {stream.table: "payments", stream.dead_letters: "orders"}

    def check(chain: PartitionState) -> None:
        identity_of = {url: TableIdentity(plain_topic=topic) for url, topic in first.items()}
        require_even(chain, stream, table, {stream.dead_letters: table}, lambda url, _app_id: identity_of[url])

    check(state(*OLD))  # its loader completes it
    with pytest.raises(UsageError, match=r"has orders/0 up to 16, and .*/tables/orders up to its b") as error:
        check(replace(state(*OLD), foreign="the table has payments in its place"))
    assert "let one config read all topics of its table until its loader has completed that" in error.value.remedy


def test_deferred_ranges_are_loaded_under_the_app_id_that_noted_them() -> None:
    stream = settings_for(Staging("memory://lake")).streams[0]
    ids = DeferredIds.for_table(TxnIds("orders", several_topics=False), ORDERS, stream.dead_letters)

    def check(app_id: str, noted: dict[str, int]) -> None:
        named = stream.model_copy(update={"app_id": app_id})
        main = TableState(1, "id", "", (), {}, 1, 2, frozenset(), {"orders-0": 19, **noted})
        require_even(state(*OLD), named, main, {}, lambda _url, _app_id: NO_IDENTITY)

    lacking = ids.written(Span(Position(10), Position(20)))
    with pytest.raises(UsageError, match=r"has \[10, 20\) of orders/0, and .*_dead_letters lacks its part") as error:
        check("orders2", lacking)
    assert "restore the app_id orders" in error.value.remedy
    check("orders2", ids.caught_up(Span(Position(10), Position(20))))
    check("orders", lacking)  # `plan_restart` handles it


def test_restart_that_cannot_record_its_origin_removes_no_marker() -> None:
    away = failing("create", StoreError("no answer"), below="begin")
    store = TrappedStore(f"memory://{uuid.uuid4().hex}", before=away)
    put(store, *OLD)
    with pytest.raises(StoreError, match="no answer"):
        operator.restart(store, instance(Restart, plan_restart(state(*OLD, table=20), give_up=False)))
    assert [item.path for item in store.list("done")] == [marker.name.path for marker in OLD]


def test_restart_keeps_copies_and_records_an_origin() -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    put(store, *OLD)
    plan = instance(Restart, plan_restart(state(*OLD, table=20), give_up=False))
    operator.restart(store, plan)
    assert list(store.list("done")) == []
    assert newest_origin(store, ORDERS) == ChainOrigin(Position(0), 1, "new", number=1, loaded_before=Position(0))
    assert len(list(store.list("stray/done/orders/0"))) == 2


# The loader.


def begin_again(staging: Staging, generation: int) -> None:
    path = origin_path(staging.source(0))
    staging.store(staging.stage_url).write(path, origin_to_bytes(ChainOrigin(Position(0), generation, "new")))


def stage_again(staging: Staging, start: int, end: int, previous: int | None, generation: int) -> None:
    """Stages a flush of another generation, as a writer does."""
    other = Staging(staging.root, staging.topic, previous={} if previous is None else {0: Position(previous)})
    marker = of(other.flush(0, start, end), generation)
    put(staging.store(staging.stage_url), marker)


def test_both_generations_are_loaded_and_an_old_marker_blocks_nothing() -> None:
    staging, tables = Staging(f"memory://{uuid.uuid4().hex}"), MemoryDeltaTables()
    staging.flush(0, 0, 10)
    staging.flush(0, 10, 20)
    loader_for(staging, tables).run_pass()
    store = staging.store(staging.stage_url)
    store.delete([f"done/orders/0/{0:020d}.done"])  # the other marker is left: a late claim, or an interrupted restart
    begin_again(staging, 1)
    stage_again(staging, 0, 7, None, 1)
    (report,) = loader_for(staging, tables).run_pass()
    table = tables.tables[staging.table]
    assert table.transactions == {"orders-0": 19, "orders-0@1": 6}
    assert (report.strays, dict(report.held)) == (1, {})
    assert staging.markers() == [f"done/orders/0/{0:020d}.done"]
    stage_again(staging, 7, 12, 0, 1)
    loader_for(staging, tables).run_pass()
    assert table.transactions == {"orders-0": 19, "orders-0@1": 11}


def test_unfinished_restart_holds_the_chain_whose_old_markers_it_moves() -> None:
    staging, tables = Staging(f"memory://{uuid.uuid4().hex}"), MemoryDeltaTables()
    staging.flush(0, 0, 10)
    loader_for(staging, tables).run_pass()
    begin_again(staging, 1)
    locks = RepairLocks(staging.store(staging.stage_url), Author("operator", 1_000), "0b4a")
    locks.read_last(staging.source(0))
    with locks.locked(staging.source(0), "bootstrap restart"):
        (report,) = loader_for(staging, tables).run_pass()
        (partition,) = status_of(staging).partitions
        for held in (report.held[staging.source(0)], required(partition.held)):
            assert (held.reason, "--partition 0 --take-over 1 --yes`" in held.remedy) == ("under_repair", True)
        assert (report.strays, len(staging.markers())) == (0, 1)
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.strays, report.held, staging.markers()) == (1, {}, [])


@pytest.mark.parametrize("is_begun", [True, False])
def test_old_markers_at_both_ends_of_a_chain_are_moved_unread(*, is_begun: bool) -> None:
    """Writers continue from the highest marker, and the lowest one keeps all above it."""
    staging = Staging(f"memory://{uuid.uuid4().hex}")
    for start in (0, 10, 20, 30):
        staging.flush(0, start, start + 10)
    begin_again(staging, 1)
    if is_begun:
        stage_again(staging, 12, 15, None, 1)
    store, partition = staging.store(staging.stage_url), staging.source(0)
    stage, (stream,) = Stage(store, in_turn), settings_for(staging).streams
    tables = {comparable(url): url for url in stream.tables}
    locks = RepairLocks(store, Author("operator", 1_000), "0b4a")
    locks.read_last(partition)
    with locks.locked(partition, "restart"):  # the repair moves them; its deletion may arrive after a name is reused
        _, moved, held = put_older_aside(stage, stage.listing(stream), stage.origins(stream), (), tables)
    assert (moved, [reason.reason for reason in held.values()]) == ((), ["under_repair"])
    listing, moved, held = put_older_aside(stage, stage.listing(stream), stage.origins(stream), (), tables)
    assert (sorted(marker.name.start for marker in moved), held) == ([0, 10, 20, 30], {})
    assert [moved[0].name.start, moved[1].name.start] == [30, 0], "of the two ends, the highest is moved first"
    left = [f"done/orders/0/{12:020d}.done"] if is_begun else []
    assert staging.markers() == left
    assert [name.path for listed in listing.values() for name in listed.names] == left


@pytest.mark.parametrize(
    ("ids", "now", "shown"),
    [
        (("old", "old"), "new", True),
        (("old", "new"), "new", False),  # the last marker counts
        (("old", None), "new", True),  # an operator's marker came last
        ((None, None), "new", False),
        (("old", "old"), None, False),
        (("old", "old"), "old", False),
    ],
)
def test_recreated_topic_is_reported_by_its_id(
    ids: tuple[str | None, str | None], now: str | None, *, shown: bool
) -> None:
    chain = [of(marker, topic_id=topic_id) for marker, topic_id in zip(chain_of(0, 10, 20), ids, strict=True)]
    held = topic_recreated(ORDERS, staged_from([UnreadableMarker(chain[0].name, "torn"), *reversed(chain)]), now)
    assert (held is not None) is shown
    if held is not None:
        assert held.reason == "topic_recreated"
        assert "its id is new, but the staged records of orders/0 came from old" in held.problem
        assert "`bootstrap restart ⟨config⟩ --topic orders --yes`" in held.remedy


def test_recreated_topic_is_named_as_in_kafka_and_the_command_names_the_chain() -> None:
    chain = TopicPartition(Topic("orders@audit"), Partition(0))
    held = required(topic_recreated(chain, "old", "new"))
    assert held.problem.startswith("the topic orders was deleted and created again")
    assert "the staged records of orders@audit/0 came from old" in held.problem
    assert "`bootstrap restart ⟨config⟩ --topic orders@audit --yes`" in held.remedy
    assert "the topic orders has no partition 0" in unknown_partition(chain, ["done/a"]).problem
    assert unknown_partition(chain, "abcdef").remedy.startswith("delete a, b, c and 3 more from")


def test_status_reports_a_recreated_topic_until_its_chain_restarts() -> None:
    staging = Staging(f"memory://{uuid.uuid4().hex}")
    store = staging.store(staging.stage_url)
    put(store, of(staging.flush(0, 0, 10), topic_id="old"))
    (stream,) = settings_for(staging).streams

    def shown(ends: dict[TopicPartition, Position]) -> tuple[str, str]:
        status = stream_status(
            stream, Stage(store, in_turn), staging.store, lambda _: ends, lambda topics: dict.fromkeys(topics, "new")
        )
        return to_text([status]), str(to_json([status]))

    partition = staging.source(0)
    text, document = shown({partition: Position(3)})
    assert "writers hold it (topic_recreated): the topic orders was deleted and created again" in text
    assert "'writers_hold': {'reason': 'topic_recreated'" in document
    assert "topic_recreated" not in "".join(shown({}))  # Kafka does not respond
    other = TopicPartition(partition.topic, Partition(1))
    assert "topic_recreated" not in "".join(shown({other: Position(3)}))  # the new topic has fewer
    begin_again(staging, 1)
    assert "topic_recreated" not in "".join(shown({partition: Position(3)}))


@pytest.mark.parametrize(
    ("ends", "shown"), [((7, 7), True), ((7, 10), False), ((10, 7), False), ((7, None), False)], ids=str
)
def test_status_reports_a_topic_that_lost_staged_records(ends: tuple[int, int | None], *, shown: bool) -> None:
    """Kafka is asked again after the markers were read: records staged meanwhile are not ahead of it."""
    staging = Staging(f"memory://{uuid.uuid4().hex}")
    staging.flush(0, 0, 10)
    (stream,) = settings_for(staging).streams
    partition, stage = staging.source(0), Stage(staging.store(staging.stage_url), in_turn)
    answers = iter([{partition: Position(end)} if end is not None else None for end in ends])
    text = to_text([stream_status(stream, stage, staging.store, lambda _: next(answers))])
    assert ("writers hold it (topic_truncated): orders/0 ends at 7 in Kafka, but is staged up to 10" in text) is shown
    assert ("names it; if it names none, it is 7), and start a new chain there" in text) is shown
    assert ("`bootstrap restart ⟨config⟩ --topic orders --partition 0 --at OFFSET --yes`" in text) is shown


@pytest.mark.parametrize(("first", "shown"), [(0, False), (10, False), (25, True)])
def test_status_reports_records_that_retention_removed_unstaged(first: int, *, shown: bool) -> None:
    staging = Staging(f"memory://{uuid.uuid4().hex}")
    staging.flush(0, 0, 10)
    (stream,) = settings_for(staging).streams
    partition, stage = staging.source(0), Stage(staging.store(staging.stage_url), in_turn)
    status = stream_status(
        stream,
        stage,
        staging.store,
        lambda _: {partition: Position(40)},
        firsts=lambda sources: dict.fromkeys(sources, Position(first)),
    )
    text = to_text([status])
    assert ("writers hold it (gone_from_kafka): Kafka no longer has [10, 25) of orders/0" in text) is shown
    assert ("`bootstrap skip ⟨config⟩ --topic orders --partition 0 --to 25 --yes`" in text) is shown


def test_expired_position_of_a_new_generation_is_recognized_and_restored() -> None:
    staging, tables = Staging(f"memory://{uuid.uuid4().hex}"), MemoryDeltaTables()
    staging.flush(0, 0, 20)
    loader_for(staging, tables).run_pass()
    staging.store(staging.stage_url).delete([f"done/orders/0/{0:020d}.done"])
    begin_again(staging, 1)
    stage_again(staging, 0, 7, None, 1)
    loader_for(staging, tables).run_pass()
    table = tables.tables[staging.table]
    assert table.commits[-1].metadata.generations == {staging.source(0): 1}
    del table.transactions["orders-0@1"]  # as delta.setTransactionRetentionDuration does
    (report,) = loader_for(staging, tables).run_pass()
    assert {held.reason for held in report.held.values()} == {"txn_expired"}
    assert [held.problem.endswith("it has the records of orders/0 up to 7") for held in report.held.values()] == [True]
    cause = len(table.commits)
    answer = Resolution(
        "orders",
        staging.table,
        table.table_id,
        cause,
        Decision.GO_ON,
        {staging.source(0): Position(7)},
        "eve",
        5,
        {staging.source(0): 1},
    )
    staging.store(staging.stage_url).create(answer.path, answer.to_bytes())
    (report,) = loader_for(staging, tables).run_pass()
    assert dict(report.held) == {}
    assert table.transactions == {"orders-0": 19, "orders-0@1": 6}


def test_old_marker_at_the_new_position_is_a_stray() -> None:
    staging, tables = Staging(f"memory://{uuid.uuid4().hex}"), MemoryDeltaTables()
    begin_again(staging, 1)
    stage_again(staging, 0, 10, None, 1)
    loader_for(staging, tables).run_pass()
    staging.flush(0, 10, 20, previous=0)  # of generation 0
    (report,) = loader_for(staging, tables).run_pass()
    assert tables.tables[staging.table].transactions == {"orders-0@1": 9}
    assert report.strays == 1


def test_idle_time_of_a_recreated_topic_is_that_of_its_own_chain() -> None:
    staging, tables = Staging(f"memory://{uuid.uuid4().hex}"), MemoryDeltaTables()
    begin_again(staging, 1)
    stage_again(staging, 0, 10, None, 1)
    facts = [
        IdleFact(staging.source(0), Position(10), staging.created_ms + after_ms, generation)
        for after_ms, generation in ((900, 0), (500, 1))
    ]
    staging.store(staging.stage_url).write(idle_path("one"), facts_to_bytes(facts))
    loader_for(staging, tables).run_pass()
    assert tables.tables[staging.table].commits[-1].metadata.valid_through_ms == staging.created_ms + 500
