"""The commands' checks of the tables before they change a stage."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from bootstrap.accepting import Accepting
from bootstrap.apply import kafka
from bootstrap.apply import stage as stage_of_bootstrap
from bootstrap.plans.plan import StreamPlan
from bootstrap.plans.repair import RewindPlan, plan_rewind
from bootstrap.plans.restart import Restart
from bootstrap.plans.state import Author, Ends, PartitionState
from bootstrap.work import Work
from common.clock import SystemClock
from common.errors import ConfigError, StoreError, UsageError
from common.kafka.reader import KafkaReader
from common.ports import CreateOutcome, ObjectStore
from common.settings import Settings, StartAt
from common.settings.stores import stage_store
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.leases import Epoch, Grant, LeaseRecord, epoch_path
from common.stage.loading import LoadNote, loading_path
from common.stage.markers import Marker
from common.stage.merged import inputs_at
from common.stage.repair_lock import last_repair, repair_path
from common.stage.topic_owners import owner_path
from common.storage.store import FsspecStore
from common.tables.commit_metadata import Decision
from common.tables.deferred_ranges import DeferredIds
from common.tables.transactions import TxnIds
from tests.builders import instance, required, settings_of, span
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging
from tests.unit.common.stage.test_topic_owners import staged
from tests.unit.common.tables.test_delta_log import METADATA, PROTOCOL, commit, txn

ENDS = Ends(Position(0), Position(10))


def test_rewind_before_a_chain_is_refused_while_a_load_is_between_two_tables(tmp_path: Path) -> None:
    """The dead-letter table has the chain's first records: it would ignore those before them."""
    staging = Staging.below(tmp_path)
    staging.flush(0, 16, 30)
    staging.flush(0, 30, 40)
    settings = settings_for(staging)
    commit(staging.store(staging.dead_letters), 0, PROTOCOL, METADATA, txn("orders-0", 39))

    def inspected() -> tuple[Work, PartitionState]:
        work, ends = Work(settings, SystemClock()), Ends(Position(0), Position(100))
        return work, work._state(settings.streams[0], ends, staging.source(0), None, None)

    before, stage, note = staging.markers(), staging.store(staging.stage_url), loading_path(staging.source(0), "loader")
    stage.create(note, LoadNote(Position(40), 1).to_bytes())
    work, state = inspected()
    with pytest.raises(UsageError, match="a loader has started to load orders/0 up to 40"):
        work.rewind(work._rewind_of(state, Position(0)))
    stage.delete([note])
    work, state = inspected()
    with pytest.raises(UsageError, match="a table of the stream already has orders/0 up to 40"):
        work.rewind(work._rewind_of(state, Position(0)))
    assert staging.markers() == before
    work, state = inspected()
    plan = work._rewind_of(state, Position(30))
    work.rewind(plan)
    assert (plan.position, plan.tables_ahead) == (30, span(30, 40))
    work, state = inspected()
    with pytest.raises(UsageError, match="since the chain was read, a loader has loaded it up to 40"):
        work.rewind(plan_rewind(state, Position(16), Author("operator", 1)))


def test_rewind_names_what_a_loader_passes_over_that_was_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staging, rewind = Staging.below(tmp_path), stage_of_bootstrap.rewind
    staging.flush(0, 16, 30)
    settings = settings_for(staging)

    def loaded_meanwhile(store: ObjectStore, plan: RewindPlan) -> tuple[str, ...]:
        commit(staging.store(staging.table), 0, PROTOCOL, METADATA, txn("orders-0", 29))
        return rewind(store, plan)

    monkeypatch.setattr(stage_of_bootstrap, "rewind", loaded_meanwhile)
    work, ends = Work(settings, SystemClock()), Ends(Position(0), Position(100))
    state = work._state(settings.streams[0], ends, staging.source(0), None, None)
    with pytest.raises(UsageError, match="it will skip what is staged from 0 to there"):
        work.rewind(work._rewind_of(state, Position(0)))


@pytest.fixture
def two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Two streams whose expressions match the topic ``shop.x``, and a Kafka that has it and two other topics."""
    topic = SimpleNamespace(error=None, partitions=[0])
    monkeypatch.setattr(KafkaReader, "topics", lambda _reader: dict.fromkeys(["shop.x", "shop.a", "b.x"], topic))
    monkeypatch.setattr(kafka.KafkaView, "ends", lambda _view, chains: dict.fromkeys(chains, ENDS))
    monkeypatch.setattr(kafka.KafkaView, "topic_ids", lambda _view, topics: dict.fromkeys(topics))
    streams = (("a", "^shop"), ("b", "^.*x$"))
    return settings_of(
        *(
            {"app_id": app_id, "topics": [topics], "table": f"{tmp_path}/{app_id}", "columns": "id INT"}
            for app_id, topics in streams
        ),
        folder=str(tmp_path),
    )


def planned(plans: Sequence[StreamPlan]) -> dict[str, list[str]]:
    return {plan.app_id: sorted(str(partition.partition) for partition in plan.partitions) for plan in plans}


def test_streams_that_match_one_topic_are_planned_into_separate_chains(two: Settings) -> None:
    work = Work(two, SystemClock())
    plans = work.plan(StartAt.EARLIEST, None)
    assert planned(plans) == {"a": ["shop.a/0", "shop.x/0"], "b": ["b.x/0", "shop.x@b/0"]}
    store = stage_store(two)
    assert store.read(owner_path("shop.x")) is None, "a plan decides no owner"
    work.write(plans)
    assert json.loads(store.read(owner_path("shop.x")) or b"")["owner"] == "a"


def test_plan_does_not_overrule_another_program(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work(two, SystemClock())
    plans = work.plan(StartAt.EARLIEST, None)
    stage_store(two).create(owner_path("shop.x"), b'{"version":1,"owner":"b"}')
    with pytest.raises(UsageError, match=r"another program has decided .* 'shop\.x'"):
        work.write(plans)
    monkeypatch.setattr(FsspecStore, "create", FsspecStore.write)
    with pytest.raises(StoreError, match="ignores conditional writes"):
        Work(two, SystemClock()).write(plans)
    assert list(stage_store(two).list("done/")) == []


@pytest.mark.parametrize("requests", range(12))
def test_write_that_was_killed_is_completed_by_the_next(
    requests: int, two: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where Kafka's end has moved since, which is what both are asked for."""
    left, create = [requests], FsspecStore.create

    def mortal(store: FsspecStore, path: str, data: bytes) -> CreateOutcome:
        if path.startswith(("repair/", "done/")):
            left[0] -= 1
            if left[0] < 0:
                raise KeyboardInterrupt
        return create(store, path, data)

    monkeypatch.setattr(FsspecStore, "create", mortal)
    work = Work(two, SystemClock())
    with pytest.raises(KeyboardInterrupt):
        work.write(work.plan(StartAt.LATEST, None))
    monkeypatch.setattr(FsspecStore, "create", create)
    later = Ends(Position(0), Position(15))
    monkeypatch.setattr(kafka.KafkaView, "ends", lambda _view, chains: dict.fromkeys(chains, later))
    work, store = Work(two, SystemClock(), take_over=1), stage_store(two)
    plans = work.plan(StartAt.LATEST, None)
    work.write(plans)
    chains = [planned.partition for plan in plans for planned in plan.partitions]
    assert len(chains) == len(list(store.list("done/"))) == 4
    assert all(last_repair(store, chain).ended for chain in chains)


def test_command_that_was_overtaken_makes_no_more_markers(two: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    work, store, make = Work(two, SystemClock()), stage_store(two), stage_of_bootstrap.make
    plans = work.plan(StartAt.LATEST, None)

    def overtaken(guarded: ObjectStore, marker: Marker) -> None:
        make(guarded, marker)
        for plan in plans:
            for planned in plan.partitions:
                store.create(repair_path(planned.partition, 2), b"{}")

    monkeypatch.setattr(stage_of_bootstrap, "make", overtaken)
    with pytest.raises(UsageError, match=r"; created before it: done/shop\.a/0/"):
        work.write(plans)
    assert len(list(store.list("done/"))) == 1


def test_repair_of_a_shared_topic_belongs_to_its_owner(two: Settings) -> None:
    def inspected(topic: str) -> list[tuple[str, TopicPartition]]:
        work = Work(two, SystemClock())
        return [(state.app_id, state.partition) for state in work._inspect(topic, None)]

    store = stage_store(two)
    assert [(app_id, str(chain)) for app_id, chain in inspected("shop.x@b")] == [("b", "shop.x@b/0")]
    store.create("done/shop.x/0/00000000000000000000.done", b"")
    with pytest.raises(ConfigError, match="they do not name their stream"):
        inspected("shop.x")
    staged(store, "b", "shop.x", partition=1)
    assert [(app_id, str(chain)) for app_id, chain in inspected("shop.x")] == [("b", "shop.x/0")]
    for unowned in ("shop.x@b", "shop.a@a"):
        with pytest.raises(UsageError):
            inspected(unowned)


def test_accepted_rollback_of_a_shared_topic_decides_its_owner_first(
    two: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, owners = stage_store(two), []
    monkeypatch.setattr(Accepting, "plan", lambda *_, **__: ())
    monkeypatch.setattr(Accepting, "carry_out", lambda *_: owners.append(store.read(owner_path("shop.x"))))
    Work(two, SystemClock()).accept("b", Decision.GO_ON, give_up=False, do_it=False)
    assert store.read(owner_path("shop.x")) is None
    Work(two, SystemClock()).accept("b", Decision.GO_ON, give_up=False, do_it=True)
    assert [json.loads(owner or b"")["owner"] for owner in owners] == ["a"]


@pytest.fixture
def orders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Staging:
    """A chain of [0, 30) that Kafka has, and that the main table has up to 10."""
    staging = Staging.below(tmp_path)
    for start in (0, 10, 20):
        staging.flush(0, start, start + 10)
    monkeypatch.setattr(KafkaReader, "topics", lambda _reader: {"orders": SimpleNamespace(error=None, partitions=[0])})
    monkeypatch.setattr(
        kafka.KafkaView, "ends", lambda _view, chains: dict.fromkeys(chains, Ends(Position(0), Position(30)))
    )
    monkeypatch.setattr(kafka.KafkaView, "topic_ids", lambda _view, topics: dict.fromkeys(topics))
    commit(staging.store(staging.table), 0, PROTOCOL, METADATA, txn("orders-0", 9))
    return staging


def test_rewind_names_records_that_only_another_table_has(orders: Staging) -> None:
    """The main table may once have been a route's, whose position is that of its own last record."""

    def notes(to: int, **more: bool) -> str:
        return " ".join(Work(settings_for(orders), SystemClock()).plan_rewind("orders", 0, Position(to), **more).notes)

    assert "another table" not in notes(10)
    commit(orders.store(orders.dead_letters), 0, PROTOCOL, METADATA, txn("orders-0", 19))
    assert "another table of the stream has records of [10, 20) that the main table lacks" in notes(10)
    assert "stage-writer replay" in notes(10)
    assert "--from 10 --to 20" in notes(10)
    assert "has records of [10, 20)" in notes(0, below_table=True)
    assert "another table" not in notes(20)
    ids = DeferredIds.for_table(TxnIds("orders", several_topics=False), orders.source(0), orders.dead_letters)
    deferred = ids.written(span(0, 10))
    commit(orders.store(orders.table), 1, *(txn(name, last) for name, last in deferred.items()))
    assert "another table of the stream lacks records of [0, 10)" in notes(0, below_table=True)


def test_held_partition_is_rewound_to_its_table_s_position_at_most(orders: Staging) -> None:
    """A marker that overlaps the table's position begins below it."""
    (plan,) = Work(settings_for(orders), SystemClock()).plan_rewinds({orders.source(0): Position(0)})
    assert plan.position == 10


def test_new_chain_begins_after_what_the_former_stream_s_loader_has_loaded(orders: Staging) -> None:
    """That loader may still run: its lease is waited for, and what it has added counts."""
    grant = Grant("loader-1", frozenset({"orders"}), 0.01, Epoch(1), {})
    record = LeaseRecord("loader-1", released=False, lease_s=0.01, created_ms=0, grants=(grant,))
    orders.store(orders.stage_url).create(epoch_path(Epoch(1)), record.to_bytes())
    settings = settings_for(orders, {"app_id": "renamed"})

    def restart(say: Callable[[str], None] = lambda _line: None) -> Position:
        (plan,) = Work(settings, SystemClock()).plan_restart("orders", None, give_up=False, say=say)
        return required(instance(Restart, plan).chain_origin).position

    assert restart(lambda _line: commit(orders.store(orders.table), 1, txn("orders-0", 19))) == 20
    commit(orders.store(orders.dead_letters), 0, PROTOCOL, METADATA, txn("orders-0", 29))
    with pytest.raises(UsageError, match="a load was interrupted between the two"):
        restart()


def test_ends_of_a_chain_of_several_topics_have_those_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    ends = {"orders": (Position(3), Position(10)), "payments": (Position(4), Position(20))}
    monkeypatch.setattr(KafkaReader, "ends", lambda _reader, partition: ends[partition.topic])
    view = kafka.KafkaView(settings_of({"topics": ["orders", "payments"]}), lambda _topics: None)
    orders, both = (TopicPartition(Topic(name), Partition(0)) for name in ("orders", "orders+payments"))
    (alone, together) = view.ends([orders, both]).values()
    assert (alone, together) == (Ends(Position(3), Position(10)), Ends(Position(7), Position(30)))
    assert [[end.position for end in inputs_at(position)] for position in (together.low, together.high)] == [
        [3, 4],
        [10, 20],
    ]
    view.close()
