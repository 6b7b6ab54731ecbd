"""The operator's resolution of a rollback: its plan, and its effect on a stage."""

import uuid
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bootstrap.accepting import Accepting, require_whole
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.apply.stage import rewind, staged_markers
from bootstrap.plans.accept import AcceptPlan, RollbackEvent, plan_go_on, plan_replay, require_main_too
from bootstrap.plans.state import Author, Ends, PartitionState
from common.errors import UsageError
from common.settings import StartAt, Stream
from common.spans import Partition, Position, Span, TopicPartition
from common.stage.markers import Marker
from common.stage.repair_lock import ended_path, repair_path
from common.stage.resolutions import Resolution
from common.stage.task_files import OutboxName
from common.storage.store import FsspecStore
from common.tables.commit_metadata import CommitMetadata, Decision
from common.tables.delta_log import read_table_state
from common.tables.history import LoggedCommit
from common.tables.rollback import Rollback, RollbackKind
from common.tables.state import TableState
from common.tables.stream_history import StreamHistory, read_histories
from tests.builders import required
from tests.fakes.loading import settings_for
from tests.fakes.markers import ORDERS, chain_of, flush, put
from tests.fakes.staging import Staging
from tests.unit.bootstrap.plans.test_plans import AUTHOR, state
from tests.unit.common.tables.test_delta_log import METADATA, PROTOCOL, commit, txn


def rollback_event(
    kind: RollbackKind = RollbackKind.RESTORED, position: int = 20, *, lost_from: int | None = None, over: int = 0
) -> RollbackEvent:
    first = position if lost_from is None else lost_from
    cause = LoggedCommit(7, "RESTORE", restored_version=3)
    later = (over,) if over else ()
    back = Rollback(kind, cause, {ORDERS: Position(position)}, {ORDERS: Position(first)}, later)
    return RollbackEvent("/t", "id", back)


def complete(_marker: Marker) -> bool:
    return True


def test_go_on_keeps_the_table_s_positions() -> None:
    (resolution,) = plan_go_on(rollback_event(), [state(chain_of(0, 30, 40), table=30)]).partitions
    assert (resolution.position, resolution.staged_to) == (30, 40)
    (resolution,) = plan_go_on(rollback_event(), [state(table=30)]).partitions
    assert (resolution.position, resolution.staged_to) == (30, 30)
    plan = plan_go_on(rollback_event(RollbackKind.EXPIRED, 25), [state(chain_of(25, 40))])
    assert plan.positions == {ORDERS: 25}
    plan = plan_go_on(rollback_event(RollbackKind.RECREATED, 0), [state(chain_of(25, 40))])
    assert plan.positions == {ORDERS: 25}
    assert plan_go_on(rollback_event(RollbackKind.RECREATED, 0), [state()]).positions == {}


def test_replay_uses_markers_that_still_exist() -> None:
    (resolution,) = plan_replay(
        rollback_event(), [state(chain_of(10, 20, 30, 45), table=30)], AUTHOR, complete
    ).partitions
    assert (resolution.position, resolution.staged_to, resolution.rewind) == (20, 45, None)


def test_replay_into_a_table_that_was_recreated_starts_where_kafka_does() -> None:
    """The positions and the generation of its rollback are about the table that is gone."""
    recreated = rollback_event(RollbackKind.RECREATED, 0)
    now = replace(state(chain_of(5, 9), low=5), generation=1)
    (resolution,) = plan_replay(recreated, [now], AUTHOR, complete).partitions
    assert (resolution.position, resolution.staged_to, resolution.rewind) == (5, 9, None)
    assert (resolution.given_up, resolution.generation) == (None, 1)


def test_replay_rewinds_the_chain_where_its_markers_end() -> None:
    whole = state(chain_of(10, 20, 30, 45, 50), table=45)
    (resolution,) = plan_replay(rollback_event(), [whole], AUTHOR, lambda marker: marker.span.start != 30).partitions
    assert resolution.rewind is not None
    assert (resolution.position, resolution.staged_to, resolution.rewind.position) == (20, 30, 30)
    assert [marker.name.start for marker in resolution.rewind.put_aside] == [45, 30]
    for table in (45, None):  # where it continues is in the resolution
        settled = state(chain_of(30, 45), table=table)
        (resolution,) = plan_replay(rollback_event(), [settled], AUTHOR, complete).partitions
        rewind_plan = required(resolution.rewind)
        assert (resolution.position, rewind_plan.position, rewind_plan.chain_start) == (20, 20, None)
        assert required(rewind_plan.marker).span == Span(Position(19), Position(20))


@pytest.mark.parametrize("table", [30, 45, None])
def test_replay_gives_a_marker_no_outbox_with_records_that_are_staged_again(table: int | None) -> None:
    """The table's position is that of before the rollback."""
    outboxes = [OutboxName(ORDERS, Position(start), 0, "0b4a").path for start in (10, 15)]
    aside = [replace(required(flush(10, 20).manifest), outboxes=(outboxes[0],))]
    aside.append(replace(required(flush(15, 30).manifest), outboxes=(outboxes[1],)))
    rolled_back = replace(state(chain_of(0, 10), table=table), put_aside=aside)
    (resolution,) = plan_replay(rollback_event(), [rolled_back], AUTHOR, complete).partitions
    assert required(required(required(resolution.rewind).marker).manifest).outboxes == (outboxes[0],)


def test_replay_names_the_records_that_kafka_no_longer_has() -> None:
    settled = state(chain_of(30, 45), table=45, low=26)
    with pytest.raises(UsageError, match=r"no longer has \[20, 26\) of orders/0: 6 positions"):
        plan_replay(rollback_event(), [settled], AUTHOR, complete)
    (plan,) = plan_replay(rollback_event(), [settled], AUTHOR, complete, give_up=True).partitions
    assert plan.rewind is not None
    assert (plan.position, plan.rewind.position, plan.given_up) == (26, 26, Span(Position(20), Position(26)))
    (plan,) = plan_replay(rollback_event(position=26), [settled], AUTHOR, complete).partitions
    assert (plan.position, plan.given_up) == (26, None)


def test_replay_that_would_load_rows_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="--go-on") as error:
        plan_replay(rollback_event(RollbackKind.EXPIRED), [state(chain_of(20, 30))], AUTHOR, complete)
    unknown = rollback_event(RollbackKind.UNKNOWN)
    positions = {TopicPartition(ORDERS.topic, Partition(1)): Position(20), **unknown.back.positions}
    unknown = replace(unknown, back=replace(unknown.back, positions=positions))
    with pytest.raises(UsageError, match="does not show whether it lost rows") as error:
        plan_replay(unknown, [state(chain_of(20, 30))], AUTHOR, complete)
    assert "--topic orders --partition 0 --at OFFSET" in error.value.remedy
    with pytest.raises(UsageError, match="loaded over version 7, so a replay would load its rows twice") as error:
        plan_replay(rollback_event(over=9), [state(chain_of(20, 30))], AUTHOR, complete)
    assert "RESTORE the table to version 8" in error.value.remedy


def test_dead_letters_are_replayed_together_with_their_rows() -> None:
    dead = plan_replay(rollback_event(position=8, lost_from=22), [state(chain_of(0, 30), table=30)], AUTHOR, complete)
    require_main_too(dead, "orders", {ORDERS: Position(20)})
    with pytest.raises(UsageError, match="never into one alone") as error:
        require_main_too(dead, "orders", {ORDERS: Position(30)})
    with pytest.raises(UsageError, match="never into one alone"):
        require_main_too(dead, "orders", {ORDERS: Position(23)})
    require_main_too(dead, "orders", {ORDERS: Position(22)})
    assert "replay ⟨config⟩ --topic orders --partition 0 --from 22 --to 30 --yes" in error.value.remedy


def test_positions_of_an_older_topic_are_not_applied_to_the_new_one() -> None:
    older = rollback_event(position=20)
    now = replace(state(chain_of(0, 5, 9), table=9), generation=1)
    with pytest.raises(UsageError, match="deleted and created again"):
        plan_replay(older, [now], AUTHOR, complete)
    plan = plan_replay(older, [now], AUTHOR, complete, give_up=True)
    assert (plan.positions, plan.generations) == ({ORDERS: 9}, {ORDERS: 1})
    require_main_too(plan, "orders", {ORDERS: Position(90)})
    for markers, table, staged_to in ((chain_of(0, 5, 9), 5, 9), ((), 9, 9)):
        some = replace(state(markers, table=table), generation=1)
        (resolution,) = plan_replay(older, [some], AUTHOR, complete, give_up=True).partitions
        assert (resolution.position, resolution.staged_to, resolution.rewind) == (table, staged_to, None)
    assert plan_replay(older, [replace(now, table=None)], AUTHOR, complete, give_up=True).positions == {}
    plan = plan_go_on(older, [now])
    assert (plan.positions, plan.generations) == ({ORDERS: 9}, {ORDERS: 1})
    newest = replace(older, back=replace(older.back, positions={ORDERS: Position(5)}, generations={ORDERS: 1}))
    plan = plan_replay(newest, [now], AUTHOR, complete)
    assert (plan.positions, plan.generations) == ({ORDERS: 5}, {ORDERS: 1})
    both = replace(newest, back=replace(newest.back, gone=((ORDERS, Span(Position(10), Position(20))),)))
    with pytest.raises(UsageError, match=r"lost \[10, 20\)"):
        plan_replay(both, [now], AUTHOR, complete)
    assert plan_replay(both, [now], AUTHOR, complete, give_up=True).positions == {ORDERS: 5}


class Restored:
    """An in-memory stream whose table was loaded up to 30 and restored to 10."""

    def __init__(self) -> None:
        self.root = f"memory://{uuid.uuid4().hex}"
        staging = Staging(self.root)
        self.stream = settings_for(staging).streams[0]
        self.stage = FsspecStore(staging.stage_url)
        self.table = self.roll_back(self.stream.table)
        put(self.stage, *chain_of(0, 10, 30, 40))

    def roll_back(self, url: str) -> FsspecStore:
        table = FsspecStore(url)
        commit(table, 0, PROTOCOL, METADATA)
        for version, start, end in ((1, 0, 10), (2, 10, 30)):
            mine = CommitMetadata("c", "orders", {ORDERS: Span(Position(start), Position(end))}, None).to_json()
            commit(table, version, {"commitInfo": {"operation": "W", "userMetadata": mine}}, txn("orders-0", end - 1))
        commit(table, 3, {"commitInfo": {"operation": "RESTORE", "operationParameters": {"version": 1}}})
        return table

    @property
    def accepting(self) -> Accepting:
        def state_of(partition: TopicPartition, table: TableState) -> PartitionState:
            last = table.transactions.get("orders-0")
            return PartitionState(
                partition,
                "orders",
                StartAt.EARLIEST,
                Ends(Position(5), Position(99)),
                None if last is None else Position(last + 1),
                staged_markers(self.stage, partition),
            )

        return Accepting(self.stream, FsspecStore, state_of, [ORDERS], Author("eve", 5), self.stage.url)

    def carry_out(self, plans: Sequence[AcceptPlan]) -> None:
        locks = RepairLocks(self.stage, AUTHOR, uuid.uuid4().hex)
        locks.read_last(ORDERS)
        self.accepting.carry_out(self.stage, locks, plans)

    def tables(self) -> dict[str, TableState]:
        states = {url: read_table_state(FsspecStore(url)) for url in self.stream.tables}
        return {url: state for url, state in states.items() if state is not None}


def test_resolution_can_be_repeated_but_not_changed() -> None:
    restored = Restored()
    plans = restored.accepting.plan(restored.tables(), Decision.REPLAY, give_up=False)
    assert [dict(plan.positions) for plan in plans] == [{ORDERS: 10}]
    assert list(restored.stage.list("accept")) == []
    restored.carry_out(plans)
    restored.carry_out(plans)
    (stored,) = restored.stage.list("accept")
    assert stored.path == "accept/orders/the-table/00000000000000000003.json"
    answer = Resolution.from_bytes(stored.path, restored.stage.read(stored.path) or b"")
    assert (answer.decision, answer.positions, answer.author) == (Decision.REPLAY, {ORDERS: 10}, "eve")
    elsewhere = [replace(part, position=Position(9)) for part in plans[0].partitions]
    for other in (
        restored.accepting.plan(restored.tables(), Decision.GO_ON, give_up=False),
        [replace(plans[0], partitions=tuple(elsewhere))],
    ):
        with pytest.raises(UsageError, match="there is another resolution"):
            restored.carry_out(other)


def test_tables_that_were_rolled_back_together_are_replayed_together() -> None:
    restored = Restored()
    restored.roll_back(restored.stream.dead_letters)
    plans = restored.accepting.plan(restored.tables(), Decision.REPLAY, give_up=False)
    assert [plan.event.url for plan in plans] == [restored.stream.dead_letters, restored.stream.table]
    assert [plan.positions for plan in plans] == [{ORDERS: 10}] * 2


def test_lost_records_of_a_partition_that_kafka_lacks_are_refused() -> None:
    restored = Restored()
    with pytest.raises(UsageError, match="lost records of orders/0, which no longer exists in Kafka"):
        replace(restored.accepting, partitions=()).plan(restored.tables(), Decision.GO_ON, give_up=False)


@pytest.mark.parametrize(("lost", "staged_to"), [(False, 40), (True, 10)])
def test_replay_uses_files_that_wait_for_spark(*, lost: bool, staged_to: int) -> None:
    restored = Restored()
    staging = Staging(restored.root)
    restored.stage.delete([f"done/orders/0/{10:020d}.done"])
    waiting = staging.flush(0, 10, 30, mixed=True, previous=0)
    if lost:
        restored.stage.delete([file.path for table in waiting.tables for file in table.files])
    (plan,) = restored.accepting.plan(restored.tables(), Decision.REPLAY, give_up=False)
    assert [partition.staged_to for partition in plan.partitions] == [staged_to]


def test_repeated_command_completes_a_crashed_resolution() -> None:
    restored = Restored()
    restored.stage.delete([f"done/orders/0/{10:020d}.done"])
    accepting = restored.accepting
    (plan,) = accepting.plan(restored.tables(), Decision.REPLAY, give_up=False)
    (partition,) = plan.partitions
    restored.stage.create(repair_path(ORDERS, 1), b"")
    with pytest.raises(UsageError, match="still running"):
        restored.carry_out([plan])
    assert list(restored.stage.list("accept")) == [], "the stream waits until its chain is rewound"
    restored.stage.create(ended_path(ORDERS, 1), b"")
    rewind(restored.stage, required(partition.rewind))
    (again,) = accepting.plan(restored.tables(), Decision.REPLAY, give_up=False)
    restored.carry_out([again])
    assert again.positions == plan.positions
    assert len(list(restored.stage.list("accept"))) == 1


def test_chain_with_an_unresolved_rollback_is_not_dropped() -> None:
    """`bootstrap restart`: the txn action says that the table has all staged records, and their rows are gone."""
    restored = Restored()
    renamed = restored.stream.model_copy(update={"app_id": "orders2"})

    def histories(stream: Stream) -> dict[str, StreamHistory]:
        return read_histories(stream, restored.tables(), FsspecStore)

    with pytest.raises(UsageError, match="put it back to version 1") as error:
        require_whole(restored.stream, histories, [])
    assert error.value.remedy.startswith("decide with `bootstrap accept ⟨config⟩ --stream orders` first")
    # Under another app_id, the records are those of a former stream that no loader serves.
    with pytest.raises(UsageError, match="put it back to version 1") as error:
        require_whole(renamed, histories, ["orders"])
    assert "restore the app_id orders and decide with `bootstrap accept ⟨config⟩ --stream orders`" in (
        error.value.remedy
    )
    require_whole(renamed, histories, [])
    restored.table.delete([f"_delta_log/{3:020d}.json"])
    require_whole(restored.stream, histories, [])
    require_whole(renamed, histories, ["orders"])


def test_table_without_a_rollback_needs_no_resolution() -> None:
    restored = Restored()
    restored.table.delete([f"_delta_log/{3:020d}.json"])
    with pytest.raises(UsageError, match="no table of stream"):
        restored.accepting.plan(restored.tables(), Decision.REPLAY, give_up=False)
