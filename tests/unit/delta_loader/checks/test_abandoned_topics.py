"""What was staged of a topic that its stream no longer takes is reported until it is loaded or deleted."""

import json
import re
import uuid

import pytest
import yaml

from common.spans import Partition, Position, Topic, TopicPartition
from common.tables.commit_metadata import CommitMetadata
from common.tables.deferred_ranges import DeferredIds
from common.tables.history import LoggedCommit
from common.tables.stream_history import StreamHistory
from common.tables.transactions import TxnIds
from delta_loader.check_result import Check, Level
from delta_loader.checks import abandoned_topics as module
from delta_loader.checks.abandoned_topics import abandoned_topics
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from tests.builders import span
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging


class World:
    """A stage, a table's log as another program may have written it, and configs."""

    def __init__(self) -> None:
        self.root = f"memory://{uuid.uuid4().hex}"

    def staging(self, topic: str = "orders") -> Staging:
        return Staging(self.root, topic)

    def loaded(self, *txns: tuple[str, int], **last: int) -> None:
        table = self.staging().table
        actions: list[object] = [
            {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
            {
                "metaData": {
                    "id": "t",
                    "format": {"provider": "parquet", "options": {}},
                    "schemaString": '{"type":"struct","fields":[]}',
                    "partitionColumns": [],
                    "configuration": {},
                }
            },
            *({"txn": {"appId": f"orders-{name}-0", "version": version}} for name, version in last.items()),
            *({"txn": {"appId": name, "version": version}} for name, version in txns),
        ]
        self.staging().store(table).write(f"_delta_log/{0:020d}.json", "\n".join(map(json.dumps, actions)).encode())

    def checks(self, *topics: str, app_id: str = "orders", only: str | None = None) -> list[Check]:
        staging = self.staging()
        streams = settings_for(staging, {"topics": topics, "app_id": app_id}).streams
        stage = Stage(staging.store(staging.stage_url), in_turn)
        return list(abandoned_topics(stage, streams, staging.store, only))


@pytest.fixture
def world() -> World:
    return World()


def test_topic_removed_before_its_first_load_is_reported(world: World) -> None:
    payments = world.staging("payments")
    payments.flush(0, 0, 10)
    payments.flush(0, 10, 20)
    payments.flush(3, 0, 5)
    world.staging().flush(0, 0, 10)
    (check,) = world.checks("orders", "refunds")
    assert (check.level, check.app_id) == (Level.ERROR, "orders")
    assert (
        "or, if no other config reads payments and its records may be given up, delete done/payments/" in check.remedy
    )
    assert "3 markers of payments/0 and 1 more" in check.message
    assert "topics: [orders, refunds, payments]" in check.remedy
    assert check.remedy.endswith(
        "; or, if no other config reads payments and its records may be given up, delete done/payments/ from the stage"
    )
    assert world.checks("orders", "refunds", only="orders") == [check]
    assert world.checks("orders", "refunds", only="returns") == []
    assert world.checks("orders", "payments") == []


@pytest.mark.parametrize("topics", [["^orders-.*"], ["^eu-.*|^it's"], ["orders", "refunds"]])
def test_remedy_is_a_list_of_topics_that_takes_all_of_them(world: World, topics: list[str]) -> None:
    """A regular expression stands alone in `topics`."""
    world.staging("pay.ments").flush(0, 0, 10)
    (check,) = world.checks(*topics)
    written = check.remedy.removeprefix("set topics: ").partition(" until ")[0]
    (stream,) = settings_for(world.staging(), {"topics": yaml.safe_load(written)}).streams
    formerly_read = ["orders-1", "eu-1", "it's-1"] if topics[0].startswith("^") else topics
    assert [stream.reads(topic) for topic in ["pay.ments", "pay-ments", "pay.ments2"]] == [True, False, False]
    assert all(stream.reads(topic) for topic in formerly_read if any(re.match(former, topic) for former in topics))


@pytest.mark.parametrize(("last", "markers"), [(9, 1), (14, 1), (19, 0)])
def test_only_markers_missing_from_the_table_are_counted(world: World, last: int, markers: int) -> None:
    payments = world.staging("payments")
    payments.flush(0, 0, 10)
    payments.flush(0, 10, 20)
    world.loaded(orders=9, payments=last)
    checks = world.checks("orders", "refunds")
    assert [f"{markers} marker of payments/0 was" in check.message for check in checks] == [True] * markers


def test_markers_that_only_another_table_lacks_are_counted(world: World) -> None:
    payments = world.staging("payments")
    payments.flush(0, 0, 10)
    payments.flush(0, 10, 20)
    ids = DeferredIds.for_table(TxnIds("orders", several_topics=True), payments.source(0), world.staging().dead_letters)
    world.loaded((ids.start, 9), (ids.end, 19), payments=19)
    (check,) = world.checks("orders", "refunds")
    assert "1 marker of payments/0 was staged" in check.message


def test_strays_of_a_deleted_topic_are_ignored(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    payments = world.staging("payments")
    payments.flush(0, 0, 10)
    world.loaded()
    chain = payments.source(0)
    own = CommitMetadata("a", "orders", {chain: span(0, 5)}, None, generations={chain: 1})
    newest = LoggedCommit(0, "WRITE", metadata=own)
    monkeypatch.setattr(module, "read_stream_history", lambda stream, *_: StreamHistory(stream, iter([newest])))
    assert world.checks("orders") == []


@pytest.mark.parametrize("known_by", ["a log without the stream's commits", "the first one after it"])
def test_markers_that_may_already_be_loaded_need_a_manual_check(
    world: World, known_by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A position that names no topic may be theirs: as a new chain they would be loaded again."""
    payments, orders = world.staging("payments"), world.staging()
    payments.flush(0, 0, 10)
    payments.flush(1, 0, 10)
    world.loaded()
    unproved = frozenset({(payments.source(0), 0), (payments.source(1), 0)})
    loaded, positions = {orders.source(0): span(0, 10)}, {orders.source(0): Position(10)}
    own = CommitMetadata("a", "orders", loaded, None, positions=positions, unproved=unproved)
    oldest = LoggedCommit(9, "WRITE", metadata=None if known_by.startswith("a log") else own)
    monkeypatch.setattr(module, "read_stream_history", lambda stream, *_: StreamHistory(stream, iter([oldest])))
    (check,) = world.checks("orders")
    assert "2 markers of payments/0 and 1 more were staged for it and may be in its tables or not" in check.message
    check_first, load = check.remedy.split("; if not, ")
    assert "look for its last records" in check_first
    assert check_first.endswith("if they are there, delete done/payments/ from the stage")
    assert "topics: [orders, payments]" in load
    assert "start it with the command that is shown there" in load


def test_markers_beyond_a_position_of_their_own_topic_are_not_loaded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    payments = world.staging("payments")
    payments.flush(0, 0, 10)
    payments.flush(0, 10, 20)
    world.loaded(payments=9)
    cut = LoggedCommit(9, "WRITE")
    monkeypatch.setattr(module, "read_stream_history", lambda stream, *_: StreamHistory(stream, iter([cut])))
    (check,) = world.checks("orders")
    assert "1 marker of payments/0 was staged for it and is not in its tables yet" in check.message


def test_streams_of_another_config_are_ignored(world: World) -> None:
    world.staging("payments").flush(0, 0, 10)
    assert world.checks("orders", app_id="returns") == []


def test_empty_and_unreadable_markers_are_ignored(world: World) -> None:
    staging = world.staging("payments")
    store = staging.store(staging.stage_url)
    store.write("done/payments/0/41.done", b"")
    store.write("done/payments/1/41.done", b"{")
    assert world.checks("orders") == []
    chain = TopicPartition(Topic("payments"), Partition(0))
    staging.previous[chain.partition] = Position(42)
    staging.flush(0, 42, 50)
    assert len(world.checks("orders")) == 1


def test_table_that_cannot_be_read_is_left_to_its_own_check(world: World) -> None:
    world.staging("clicks").flush(0, 0, 10)
    assert world.checks("orders") != []
    table = world.staging().store(world.staging().table)
    table.write(f"_delta_log/{0:020d}.json", b'{"protocol"')
    assert world.checks("orders") == []
