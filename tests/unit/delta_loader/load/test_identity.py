"""A position belongs to an app_id, a topic, a topic id and a generation: edits of a config lose and double nothing."""

import itertools
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from bootstrap.apply.partition_state import partition_state
from bootstrap.apply.stage import restart
from bootstrap.plans.restart import Restart, UnchangedPartition, plan_restart
from bootstrap.plans.state import Ends, PartitionState
from common.errors import UsageError
from common.spans import Position, Span, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.tables.commit_metadata import CommitMetadata
from common.tables.identity import TableChain, TableIdentity, identity_of
from common.tables.transactions import TxnIds
from delta_loader.load.report import StreamReport
from delta_loader.plan.held import Held
from delta_loader.tables.commits import CommitOutcome, TableCommit
from tests.builders import instance, required
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import JoinedStaging, Staging


@dataclass
class OtherStage(Staging):
    """Another stage for the same tables: another pipeline's, or another Kafka cluster's."""

    @property
    def stage_url(self) -> str:
        return f"{self.root}/other-stage"


@dataclass
class Pipeline:
    """A loader whose config is edited between its passes."""

    root: str = field(default_factory=lambda: f"memory://{uuid.uuid4().hex}")
    tables: MemoryDeltaTables = field(default_factory=MemoryDeltaTables)

    def staging(self, topic: str = "orders", topic_id: str | None = None) -> Staging:
        return Staging(self.root, topic, topic_id=topic_id)

    def load(self, *topics: str, app_id: str = "orders", staging: Staging | None = None) -> StreamReport:
        staging = staging or self.staging()
        settings = settings_for(staging, {"topics": topics, "app_id": app_id}, marker_retention="1ms")
        (report,) = loader_for(staging, self.tables, settings).run_pass()
        assert report.failure is None, report.failure
        return report

    def begun(self, topic: str) -> list[int]:
        """Where the files of a topic begin that the table has, each as often as it has it."""
        return self.tables.begun(self.staging().table, f"{topic}-0")

    @property
    def identity(self) -> TableIdentity:
        table = self.tables.tables[self.staging().table]
        stream = settings_for(self.staging()).streams[0]
        history = self.tables.history(self.staging().table, len(table.commits))
        return identity_of(history, stream, TxnIds("orders", several_topics=False), table.transactions)

    def forget(self) -> None:
        """Make the table's commits those of a release that did not say what its positions belong to."""
        table = self.tables.tables[self.staging().table]
        table.commits = [replace(commit, metadata=_as_before(commit.metadata)) for commit in table.commits]


def _as_before(metadata: CommitMetadata) -> CommitMetadata:
    moved = {partition: metadata.generation(partition) for partition in metadata.spans}
    generations = {partition: generation for partition, generation in moved.items() if generation}
    return replace(metadata, positions={}, topic_ids={}, plain_topic=None, generations=generations)


def reasons(report: StreamReport) -> dict[str, str]:
    return {str(partition): held.reason for partition, held in report.held.items()}


def flushes(staging: Staging, *edges: int) -> None:
    for start, end in itertools.pairwise(edges):
        staging.flush(0, start, end)


@pytest.fixture
def pipeline() -> Pipeline:
    return Pipeline()


@pytest.mark.parametrize("release", ["this", "the last"])
def test_renamed_topic_is_held_and_its_markers_stay(pipeline: Pipeline, release: str) -> None:
    flushes(pipeline.staging(), 0, 10, 20)
    pipeline.load("orders")
    if release == "the last":
        pipeline.forget()
    renamed = pipeline.staging("orders_v2")
    flushes(renamed, 0, 8, 15, 20, 25)
    for _ in range(2):
        report = pipeline.load("orders_v2")
        assert reasons(report) == {"orders_v2/0": "other_topic"}
    (held,) = report.held.values()
    assert "orders/0 up to 20" in held.problem
    assert "orders_v2" in held.problem
    assert "app_id" in held.remedy
    assert "bootstrap restart" in held.remedy
    assert len([path for path in renamed.markers() if "orders_v2" in path]) == 4
    assert pipeline.begun("orders_v2") == []
    assert report.seen[renamed.source(0)].lag == 20  # as far as the stage tells; not 0
    assert not reasons(pipeline.load("orders"))  # the edit is taken back


def test_new_partition_of_a_renamed_topic_is_held(pipeline: Pipeline) -> None:
    flushes(pipeline.staging(), 0, 10)
    pipeline.load("orders")
    pipeline.staging("orders_v2").flush(5, 0, 10)
    assert reasons(pipeline.load("orders_v2")) == {"orders_v2/5": "other_topic"}


class Meeting(MemoryDeltaTables):
    """Tables to which another program commits just before the very first commit."""

    def __init__(self) -> None:
        super().__init__()
        self.before_first: Callable[[], object] | None = None

    def commit(self, commit: TableCommit) -> CommitOutcome:
        before, self.before_first = self.before_first, None
        if before is not None:
            before()
        return super().commit(commit)


@pytest.mark.parametrize("first", [("orders",), ("orders", "payments")])
def test_configs_of_one_app_id_that_commit_first_at_once_load_no_record_twice(first: tuple[str, ...]) -> None:
    tables = Meeting()
    pipeline = Pipeline(tables=tables)
    other, second = OtherStage(pipeline.root, "orders"), {("orders",), ("orders", "payments")} - {first}
    flushes(pipeline.staging("orders"), 0, 10)
    flushes(other, 0, 10)
    tables.before_first = lambda: pipeline.load(*second.pop(), staging=other)
    pipeline.load(*first, staging=pipeline.staging("orders"))
    assert pipeline.begun("orders") == [0]


def test_two_pipelines_of_one_app_id_do_not_take_each_others_positions(pipeline: Pipeline) -> None:
    payments = OtherStage(pipeline.root, "payments")
    flushes(payments, 0, 20, 40, 60)
    flushes(pipeline.staging(), 0, 100)
    pipeline.load("orders")
    assert reasons(pipeline.load("payments", staging=payments)) == {"payments/0": "other_topic"}
    assert not reasons(pipeline.load("orders"))


@pytest.mark.parametrize("release", ["this", "the last"])
@pytest.mark.parametrize("others", [(), (0, 10, 20, 30, 40, 50, 60), (0, 10)])
def test_stream_moves_from_one_topic_to_several_and_back(
    pipeline: Pipeline, others: Sequence[int], release: str
) -> None:
    orders, renamed = pipeline.staging(), pipeline.staging("orders_v2")
    flushes(orders, 0, 20, 40)
    pipeline.load("orders")
    if release == "the last":
        pipeline.forget()
    flushes(renamed, *others)
    assert not reasons(pipeline.load("orders", "orders_v2"))
    flushes(orders, 40, 50)
    assert not reasons(pipeline.load("orders", "orders_v2"))
    end = others[-1] if others else 0
    if others:
        flushes(renamed, end, end + 10, end + 20)
        assert not reasons(pipeline.load("orders_v2"))
        assert pipeline.begun("orders_v2") == list(range(0, end + 20, 10))
    flushes(orders, 50, 70)
    assert not reasons(pipeline.load("orders"))
    flushes(orders, 70, 80)
    assert not reasons(pipeline.load("orders", "payments"))
    assert pipeline.begun("orders") == [0, 20, 40, 50, 70]


def test_stream_moves_from_several_topics_to_a_new_one(pipeline: Pipeline) -> None:
    orders, payments = pipeline.staging(), pipeline.staging("payments")
    flushes(orders, 0, 20)
    flushes(payments, 0, 10)
    pipeline.load("orders", "payments")
    flushes(orders, 20, 30)
    assert not reasons(pipeline.load("orders"))
    flushes(pipeline.staging("refunds"), 0, 5)
    assert not reasons(pipeline.load("refunds"))
    assert (pipeline.begun("orders"), pipeline.begun("payments"), pipeline.begun("refunds")) == ([0, 20], [0], [0])


def test_staged_markers_of_a_replaced_topic_are_left_alone(pipeline: Pipeline) -> None:
    orders, payments = pipeline.staging(), pipeline.staging("payments")
    flushes(orders, 0, 20)
    flushes(payments, 0, 10)
    pipeline.load("orders", "payments")
    flushes(payments, 10, 20, 30)
    refunds = pipeline.staging("refunds")
    flushes(refunds, 0, 5, 25)
    for _ in range(2):
        assert not reasons(pipeline.load("orders", "refunds"))
    assert pipeline.begun("refunds") == [0, 5]  # from its own beginning, also where it is below what payments had
    assert len([path for path in payments.markers() if "payments" in path]) >= 2  # neither loaded nor settled
    assert not reasons(pipeline.load("orders", "payments", "refunds"))
    assert pipeline.begun("payments") == [0, 10, 20]


def test_topic_name_and_its_pattern_are_the_same_stream(pipeline: Pipeline) -> None:
    orders = pipeline.staging()
    flushes(orders, 0, 20)
    pipeline.load("orders")
    flushes(orders, 20, 30)
    assert not reasons(pipeline.load("^orders$"))
    flushes(orders, 30, 40)
    assert not reasons(pipeline.load("orders"))
    assert pipeline.begun("orders") == [0, 20, 30]


def test_topic_of_the_same_name_with_another_id_is_held(pipeline: Pipeline) -> None:
    flushes(pipeline.staging(topic_id="A"), 0, 20, 40)
    pipeline.load("orders")
    other = OtherStage(pipeline.root, topic_id="B")
    flushes(other, 0, 10, 20, 30)
    for _ in range(2):
        report = pipeline.load("orders", staging=other)
        assert reasons(report) == {"orders/0": "other_topic"}
        (seen,) = report.seen.values()
        assert (seen.loaded, seen.waiting) == (None, 3), "the table's position is the other topic's"
    (held,) = report.held.values()
    assert "id B" in held.problem
    assert "id A" in held.problem
    assert len(other.markers()) == 3
    flushes(other, 30, 50)  # beyond the table's position by now
    assert reasons(pipeline.load("orders", staging=other)) == {"orders/0": "other_topic"}
    assert pipeline.begun("orders") == [0, 20]


def test_chain_is_loaded_up_to_a_change_of_topic_id(pipeline: Pipeline) -> None:
    orders = pipeline.staging(topic_id="A")
    flushes(orders, 0, 10)
    orders.topic_id = "B"
    flushes(orders, 10, 20)
    assert reasons(pipeline.load("orders")) == {"orders/0": "other_topic"}
    assert pipeline.begun("orders") == [0]


def test_ids_that_become_known_are_recorded_and_those_that_are_not_are_compared_with_nothing(
    pipeline: Pipeline,
) -> None:
    orders = pipeline.staging()
    flushes(orders, 0, 10)
    pipeline.load("orders")
    assert pipeline.identity.chains[orders.source(0)] == TableChain(0, Position(10), None)
    pipeline.forget()
    orders.topic_id = "A"
    flushes(orders, 10, 20)
    assert not reasons(pipeline.load("orders"))
    assert pipeline.identity.chains[orders.source(0)] == TableChain(0, Position(20), "A")
    orders.topic_id = None  # a broker that has no ids took over
    flushes(orders, 20, 30)
    orders.flush(1, 0, 5)
    assert not reasons(pipeline.load("orders"))
    known = {orders.source(0): TableChain(0, Position(30), "A"), orders.source(1): TableChain(0, Position(5))}
    assert pipeline.identity.chains == known  # of all partitions, in each commit
    assert set(pipeline.tables.tables[orders.table].commits[-1].metadata.positions) == set(known)


def test_changed_app_id_is_held_and_loads_nothing_again(pipeline: Pipeline) -> None:
    flushes(pipeline.staging(), 0, 10, 20)
    pipeline.load("orders")
    report = pipeline.load("orders", app_id="orders_prod")
    assert reasons(report) == {"orders/0": "other_stream"}
    (held,) = report.held.values()
    assert "app_id is orders_prod" in held.problem
    assert "orders/0 up to 20 under that app_id" in held.problem
    assert "start a new chain for orders_prod after what its table has" in held.remedy
    assert pipeline.begun("orders") == [0, 10]
    assert not reasons(pipeline.load("orders"))


@pytest.mark.parametrize("begun_by_hand", [True, False])
@pytest.mark.parametrize(("owner", "other"), [("orders", "orders@later"), ("orders@later", "orders")])
def test_stream_does_not_load_into_the_table_of_another_stream_of_its_topic(
    pipeline: Pipeline, owner: str, other: str, *, begun_by_hand: bool
) -> None:
    """As in a new stage, after the tables of two streams were exchanged: no marker says whose the table is."""
    app_ids = {"orders": "orders", "orders@later": "later"}

    def load(staging: Staging, loads: str) -> list[tuple[str, Held]]:
        """The held partitions, where one of the streams has the table."""
        tables = {chain: staging.table if chain == loads else f"{staging.table}_other" for chain in app_ids}
        streams = [{"topics": ["orders"], "app_id": app_ids[chain], "table": tables[chain]} for chain in app_ids]
        settings = settings_for(staging, *streams, marker_retention="1ms")
        settings.owners.add({"orders": "orders"})
        reports = loader_for(staging, pipeline.tables, settings).run_pass()
        assert [report.failure for report in reports] == [None, None]
        return [(str(chain), held) for report in reports for chain, held in report.held.items()]

    first = Staging(pipeline.root, owner, app_id=app_ids[owner])
    restarted(first, 0)
    flushes(first, 0, 10)
    assert not load(first, owner)
    exchanged = OtherStage(pipeline.root, other, app_id=app_ids[other])
    flushes(exchanged, 0, 10)
    ((chain, held),) = load(exchanged, other)
    assert (chain, held.reason, "would be in it twice" in held.problem) == (f"{other}/0", "other_stream", True)
    assert held.remedy.endswith("--at 10 --yes`")
    ((_, held),) = load(exchanged, owner)
    assert "bootstrap rewind" in held.remedy
    assert len(pipeline.tables.tables[first.table].paths) == 1
    flushes(first, 10, 20)
    assert not load(first, owner)
    # A stream with another app_id may go on from there, as by bootstrap or by its restart.
    exchanged.store(exchanged.stage_url).delete(exchanged.markers())
    exchanged.previous.clear()
    if begun_by_hand:
        exchanged.touch(0, 19)
    else:
        restarted(exchanged, 20)
    exchanged.flush(0, 20, 30)
    assert not load(exchanged, other)
    assert len(pipeline.tables.tables[first.table].paths) == 3


def restarted(staging: Staging, position: int) -> None:
    begin = origin_to_bytes(ChainOrigin(Position(position), 1))
    staging.store(staging.stage_url).write(origin_path(staging.source(0)), begin)
    staging.generation = 1


def test_marker_of_another_stream_holds_even_if_its_tables_differ(pipeline: Pipeline) -> None:
    elsewhere = Staging(f"{pipeline.root}/elsewhere", app_id="returns")
    marker = elsewhere.flush(0, 0, 10)
    data = required(elsewhere.store(elsewhere.stage_url).read(marker.name.path))
    pipeline.staging().store(pipeline.staging().stage_url).write(marker.name.path, data)
    assert reasons(pipeline.load("orders")) == {"orders/0": "other_stream"}


def test_table_of_another_program_continues_at_its_txn_actions(pipeline: Pipeline) -> None:
    orders = pipeline.staging(topic_id="A")
    flushes(orders, 0, 10)
    pipeline.load("orders")
    table = pipeline.tables.tables[orders.table]
    table.commits.clear()  # kafka-delta-ingest leaves txn actions and no metadata of ours
    table.transactions |= {"orders-0": 14, "orders-1": 4}
    flushes(orders, 10, 15, 20)
    assert not reasons(pipeline.load("orders"))
    assert pipeline.begun("orders") == [15]
    assert table.commits[-1].metadata.positions == {orders.source(0): 20, orders.source(1): 5}


def test_topics_that_are_joined_from_now_on_are_not_loaded_again(pipeline: Pipeline) -> None:
    flushes(pipeline.staging(), 0, 10)
    pipeline.load("orders")
    joined = JoinedStaging(pipeline.root)
    joined.flush(0, 0, 20)
    settings = settings_for(joined)
    (report,) = loader_for(joined, pipeline.tables, settings).run_pass()
    assert reasons(report)["orders+payments/0"] == "other_topic"
    assert report.held[joined.source(0)].remedy.endswith("--yes` starts it after what the table has of it")
    (other,) = loader_for(JoinedStaging(f"{pipeline.root}/new"), MemoryDeltaTables(), settings).run_pass()
    assert not other.held


@pytest.mark.parametrize("ids", [(None, None), ("A", "A,B"), ("A", "C,B")])
def test_chain_that_was_loaded_before_another_came_in_its_place_needs_no_one(
    pipeline: Pipeline, ids: tuple[str | None, str | None]
) -> None:
    flushes(pipeline.staging(topic_id=ids[0]), 0, 10)
    pipeline.load("orders")
    joined = JoinedStaging(pipeline.root, topic_id=ids[1], generation=1)
    begin = ChainOrigin(joined.position(0, 20), 1, ids[1], loaded_before=Position(10))
    joined.store(joined.stage_url).create(origin_path(joined.source(0)), origin_to_bytes(begin))
    joined.flush(0, 20, 30)
    loader = loader_for(joined, pipeline.tables, settings_for(joined))
    loader.run_pass()
    (report,) = loader.run_pass()
    assert pipeline.tables.tables[joined.table].commits[-1].metadata.positions == {joined.source(0): 30}
    assert reasons(report) == ({"orders/0": "other_topic"} if ids[1] == "C,B" else {})
    flushes(pipeline.staging(topic_id=ids[0]), 10, 15)
    (report,) = loader.run_pass()
    assert reasons(report) == {"orders/0": "other_topic"}


def test_stage_without_the_generation_of_the_table_is_held(pipeline: Pipeline) -> None:
    """A new stage, for a topic that was recreated before: its markers are no strays."""
    orders = pipeline.staging()
    flushes(orders, 0, 10)
    pipeline.load("orders")
    begin_again(pipeline, orders, give_up=False, position=Position(10))
    other = OtherStage(pipeline.root)
    flushes(other, 0, 10)
    table = pipeline.tables.tables[orders.table]
    moved = CommitMetadata("x", "orders", {orders.source(0): Span(Position(10), Position(12))}, None)
    named = replace(moved, generations={orders.source(0): 1})
    table.commits.append(TableCommit(None, "orders", (), {}, {}, named))  # type: ignore[arg-type]
    table.transactions["orders-0@1"] = 11
    assert reasons(pipeline.load("orders", staging=other)) == {"orders/0": "other_topic"}
    assert len(other.markers()) == 1


# The remedy: bootstrap restart.


def state_of(
    pipeline: Pipeline, staging: Staging, topics: Sequence[str], app_id: str = "orders", high: int = 100
) -> PartitionState:
    (stream,) = settings_for(staging, {"topics": topics, "app_id": app_id}).streams
    url = staging.table
    state = required(pipeline.tables.state(url))

    def known_of(owner: str) -> TableIdentity:
        ids = TxnIds(owner, stream.several_topics)
        return identity_of(pipeline.tables.history(url, state.version), stream, ids, state.transactions)

    return partition_state(
        staging.store(staging.stage_url),
        stream,
        staging.source(0),
        ends=Ends(Position(0), Position(high)),
        table=state,
        topic_id=staging.topic_id,
        identity_of=known_of,
    )


def begin_again(
    pipeline: Pipeline, staging: Staging, app_id: str = "orders", *, give_up: bool, position: Position | None = None
) -> Restart:
    plan = instance(
        Restart, plan_restart(state_of(pipeline, staging, [staging.topic], app_id), give_up=give_up, at=position)
    )
    restart(staging.store(staging.stage_url), plan)
    return plan


def stage_again(staging: Staging, *edges: int, generation: int = 1) -> None:
    """What writers stage once a chain was begun again."""
    staging.previous.clear()
    staging.generation = generation
    flushes(staging, *edges)


def test_renamed_topic_is_loaded_after_a_restart(pipeline: Pipeline) -> None:
    flushes(pipeline.staging(), 0, 10, 20)
    pipeline.load("orders")
    renamed = pipeline.staging("orders_v2")
    flushes(renamed, 0, 8, 25)
    plan = begin_again(pipeline, renamed, give_up=False)
    assert plan.chain_origin is not None
    assert (plan.chain_origin.position, plan.chain_origin.generation, len(plan.put_aside)) == (0, 1, 2)
    stage_again(renamed, 0, 12, 25)
    assert not reasons(pipeline.load("orders_v2"))
    assert pipeline.begun("orders_v2") == [0, 12]
    assert not reasons(pipeline.load("orders", "orders_v2"))
    assert (pipeline.begun("orders"), pipeline.begun("orders_v2")) == ([0, 10], [0, 12])


def test_chain_is_held_where_another_stage_has_loaded_further(pipeline: Pipeline) -> None:
    """Two configs of one app_id and table read a topic by two stages, and one of them starts a new chain of it."""
    flushes(pipeline.staging(), 0, 10)
    pipeline.load("orders")
    payments, other = pipeline.staging("payments", "P"), OtherStage(pipeline.root, "payments", topic_id="P")
    plan = begin_again(pipeline, payments, give_up=False)
    assert required(plan.chain_origin).loaded_before == 0
    stage_again(payments, 0, 10, 40)
    flushes(other, 0, 20)
    assert not reasons(pipeline.load("orders", "payments", staging=other))
    (held,) = pipeline.load("orders", "payments").held.values()
    assert held.reason == "other_topic"
    assert "has got records of it up to 20 by generation 0, from another stage" in held.problem
    with pytest.raises(UsageError, match="a second time"):
        begin_again(pipeline, payments, give_up=False, position=Position(10))
    plan = begin_again(pipeline, payments, give_up=False)  # as the remedy says
    assert required(plan.chain_origin) == ChainOrigin(Position(20), 2, "P", number=2, loaded_before=Position(20))
    flushes(other, 20, 30)
    assert not reasons(pipeline.load("orders", "payments", staging=other))
    stage_again(payments, 20, 40, generation=2)
    assert reasons(pipeline.load("orders", "payments")) == {"payments/0": "other_topic"}  # the loader went on
    begin_again(pipeline, payments, give_up=False)
    stage_again(payments, 30, 40, generation=3)
    assert not reasons(pipeline.load("orders", "payments"))
    flushes(other, 30, 40)
    assert reasons(pipeline.load("orders", "payments", staging=other)) == {"payments/0": "other_topic"}
    assert pipeline.begun("payments") == [0, 20, 30]


@pytest.mark.parametrize("first", [0, 1])
def test_one_of_two_generations_committed_at_once_is_planned_again(first: int) -> None:
    tables = Meeting()
    pipeline = Pipeline(tables=tables)
    flushes(pipeline.staging(), 0, 10)
    pipeline.load("orders")
    payments, other = pipeline.staging("payments", "P"), OtherStage(pipeline.root, "payments", topic_id="P")
    begin_again(pipeline, payments, give_up=False)
    stage_again(payments, 0, 10)
    flushes(other, 0, 20)
    stages: list[Staging] = [other, payments]
    tables.before_first = lambda: pipeline.load("orders", "payments", staging=stages[1 - first])
    assert reasons(pipeline.load("orders", "payments", staging=stages[first])) == {"payments/0": "other_topic"}
    assert pipeline.begun("payments") == [0]


def test_restart_under_another_app_id_begins_after_the_loaded_records(pipeline: Pipeline) -> None:
    orders = pipeline.staging()
    flushes(orders, 0, 10, 20, 30)
    pipeline.load("orders")
    flushes(orders, 30, 40)
    with pytest.raises(UsageError, match="a second time"):
        begin_again(pipeline, orders, "orders_prod", give_up=False, position=Position(20))
    with pytest.raises(UsageError, match=r"\[30, 35\)"):
        begin_again(pipeline, orders, "orders_prod", give_up=False, position=Position(35))
    plan = begin_again(pipeline, orders, "orders_prod", give_up=False)
    assert required(plan.chain_origin).position == 30
    orders.app_id = "orders_prod"
    stage_again(orders, 30, 40)
    assert not reasons(pipeline.load("orders", app_id="orders_prod"))
    assert pipeline.begun("orders") == [0, 10, 20, 30]


def test_table_that_another_program_makes_again_under_a_running_loader_gets_all(pipeline: Pipeline) -> None:
    """It has as many versions as the one before."""
    orders = pipeline.staging()
    loader = loader_for(orders, pipeline.tables, settings_for(orders))
    flushes(orders, 0, 10)
    loader.run_pass()
    made = pipeline.tables.tables[orders.table]
    commits = [replace(commit, files=(), metadata=CommitMetadata("x", "other", {}, None)) for commit in made.commits]
    pipeline.tables.tables[orders.table] = replace(made, table_id="new", commits=commits, transactions={})
    flushes(orders, 10, 20)
    (report,) = loader.run_pass()
    assert (report.failure, report.held, pipeline.begun("orders")) == (None, {}, [0, 10])


def test_app_id_edited_under_a_running_loader_is_not_a_recreated_table(pipeline: Pipeline) -> None:
    """The old loader settles its last marker once a writer with the new app_id has staged more."""
    orders = pipeline.staging(topic_id="A")
    flushes(orders, 0, 10, 20)
    pipeline.load("orders")
    orders.app_id = "orders_prod"
    flushes(orders, 20, 30)
    while len(orders.markers()) > 1:
        assert reasons(pipeline.load("orders")) == {"orders/0": "other_stream"}
    (held,) = pipeline.load("orders", app_id="orders_prod").held.values()
    assert held.reason == "other_stream"
    assert "loaded under the app_id orders, but this stream's app_id is orders_prod" in held.problem
    assert "orders/0 up to 20 under that app_id" in held.problem
    plan = begin_again(pipeline, orders, "orders_prod", give_up=False)
    assert required(plan.chain_origin).position == 20
    stage_again(orders, 20, 30)
    assert not reasons(pipeline.load("orders", app_id="orders_prod"))
    assert pipeline.begun("orders") == [0, 10, 20]


@pytest.mark.parametrize("topic_id", ["A", None])
def test_restart_above_the_marker_of_another_stream_begins_after_the_loaded_records(
    pipeline: Pipeline, topic_id: str | None
) -> None:
    """Another config staged into the chain for a while: what came before that is loaded already."""
    orders = pipeline.staging(topic_id=topic_id)
    flushes(orders, 0, 10, 20, 30)
    pipeline.load("orders")
    orders.app_id = "returns"
    flushes(orders, 30, 40)
    assert reasons(pipeline.load("orders")) == {"orders/0": "other_stream"}
    plan = begin_again(pipeline, orders, give_up=False)
    assert plan.chain_origin is not None
    assert plan.chain_origin.position == 30
    orders.app_id = "orders"
    stage_again(orders, 30, 40)
    assert not reasons(pipeline.load("orders"))
    assert pipeline.begun("orders") == [0, 10, 20, 30]


def test_restart_under_the_app_id_of_another_topic_begins_after_the_loaded_records(pipeline: Pipeline) -> None:
    """The ids of an app_id leave out its first topic: which one differs between two app_ids of one table."""
    orders, payments = pipeline.staging(topic_id="A"), pipeline.staging("payments", topic_id="P")
    flushes(orders, 0, 10, 20)
    pipeline.load("orders")
    payments.app_id = "shared"
    flushes(payments, 0, 5)
    assert not reasons(pipeline.load("payments", app_id="shared", staging=payments))
    flushes(orders, 20, 30)
    assert reasons(pipeline.load("orders", app_id="shared")) == {"orders/0": "other_stream"}
    plan = begin_again(pipeline, orders, "shared", give_up=False)
    assert required(plan.chain_origin).position == 20
    orders.app_id = "shared"
    stage_again(orders, 20, 30)
    assert not reasons(pipeline.load("orders", app_id="shared"))
    assert pipeline.begun("orders") == [0, 10, 20]


def test_topic_of_another_cluster_is_loaded_after_a_restart_at_a_stated_offset(pipeline: Pipeline) -> None:
    flushes(pipeline.staging(topic_id="A"), 0, 20, 40)
    pipeline.load("orders")
    other = OtherStage(pipeline.root, topic_id="B")
    flushes(other, 0, 10, 20, 30)
    with pytest.raises(UsageError, match=r"\[0, 25\)"):
        begin_again(pipeline, other, give_up=False, position=Position(25))
    begin_again(pipeline, other, give_up=False, position=Position(0))
    stage_again(other, 0, 30)
    assert not reasons(pipeline.load("orders", staging=other))
    assert pipeline.begun("orders") == [0, 0, 20]


def test_restart_leaves_the_own_chain_of_the_table_unchanged(pipeline: Pipeline) -> None:
    orders = pipeline.staging(topic_id="A")
    flushes(orders, 0, 10)
    pipeline.load("orders")
    assert isinstance(plan_restart(state_of(pipeline, orders, ["orders"]), give_up=False), UnchangedPartition)


def test_txn_id_names_its_chain_and_generation() -> None:
    ids = TxnIds("orders", several_topics=True, plain_topic="orders")

    def place(chain: tuple[TopicPartition, int] | None) -> tuple[str, int] | None:
        return None if chain is None else (str(chain[0]), chain[1])

    assert place(ids.chain_of("orders-3@2", "orders")) == ("orders/3", 2)
    assert place(ids.chain_of("orders-a-b-3", "orders")) == ("a-b/3", 0)
    for other in ("orders-orders-3", "orders-03", "orders-3:from", "ordersx-3", "orders-3@0", "orders"):
        assert ids.chain_of(other, "orders") is None
