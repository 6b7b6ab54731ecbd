"""Which chains a table's txn actions belong to, where no commit names them."""

from dataclasses import replace

import pytest

from common.spans import Offset, Partition, Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.tables.commit_metadata import CommitMetadata
from common.tables.history import LoggedCommit
from common.tables.identity import NO_IDENTITY, TableChain, TableIdentity, identity_of, with_transactions
from common.tables.transactions import TxnIds
from tests.builders import settings_of, span


def test_txn_action_without_a_topic_belongs_to_the_stream_s_own_chain() -> None:
    settings = settings_of(
        *({"app_id": app_id, "topics": ["t"], "table": f"/{app_id}", "columns": "id INT"} for app_id in ("a", "b"))
    )
    settings.owners.add({"t": "a"})
    for stream, chain in zip(settings.streams, ("t", "t@b"), strict=True):
        ids = TxnIds(stream.app_id, several_topics=False)
        identity = with_transactions(NO_IDENTITY, stream, ids, {f"{stream.app_id}-0": Offset(9)})
        assert identity.chains == {TopicPartition(Topic(chain), Partition(0)): TableChain(0, Position(10))}


def test_newest_generation_of_a_chain_is_the_highest_number() -> None:
    orders, ids = TopicPartition(Topic("orders"), Partition(0)), TxnIds("orders", several_topics=False)
    table = dict.fromkeys(("orders-0@9", "orders-0@10", "orders-0@2", "orders-0"), 5)
    assert ids.generation(table, orders) == 10
    assert ids.at({orders: 3}, table, [orders]).generations == {orders: 10}


def test_chain_that_reads_the_partitions_of_others_takes_their_place() -> None:
    orders, other, joined = (
        TopicPartition(Topic(topic), Partition(number))
        for topic, number in (("orders", 0), ("orders", 1), ("orders+payments", 0))
    )
    identity = TableIdentity(chains={orders: TableChain(0, Position(5)), other: TableChain(0, Position(7))})
    moved = identity.with_chains({joined: TableChain(0, Position(9))})
    assert moved == {other: TableChain(0, Position(7)), joined: TableChain(0, Position(9))}


@pytest.mark.parametrize(("generation", "is_instead"), [(0, True), (1, True), (2, False)])
def test_newer_generation_takes_the_place_of_a_chain_that_shares_its_partitions(
    generation: int, *, is_instead: bool
) -> None:
    orders, joined = (TopicPartition(Topic(topic), Partition(0)) for topic in ("orders", "orders+payments"))
    identity = TableIdentity(chains={joined: TableChain(1, Position(5))})
    instead = identity.in_its_place(orders, generation, several_topics=True)
    assert instead == (joined if is_instead else None)


@pytest.mark.parametrize(("before", "is_instead"), [(11, True), (12, False), (None, False)])
def test_chain_that_went_on_to_be_loaded_keeps_the_place_that_a_restart_gave_away(
    before: int | None, *, is_instead: bool
) -> None:
    orders, payments, joined = (
        TopicPartition(Topic(topic), Partition(0)) for topic in ("orders", "payments", "orders+payments")
    )
    identity = TableIdentity(chains={orders: TableChain(1, Position(5)), payments: TableChain(0, Position(7))})
    origin = ChainOrigin(Position(3), 2, loaded_before=None if before is None else Position(before))
    instead = identity.in_its_place(joined, 2, several_topics=True, origin=origin)
    assert (instead is not None) is is_instead
    later = identity.in_its_place(joined, 3, several_topics=True, origin=origin)
    assert later is None, "the origin is of another generation"
    for generation in (0, 2):  # the origin counts what the table had of the chain itself
        known = replace(identity, chains={**identity.chains, joined: TableChain(generation, Position(1))})
        assert known.in_its_place(joined, 2, several_topics=True, origin=origin) is None


def test_chain_was_loaded_under_the_app_id_of_its_newest_commit() -> None:
    partition = TopicPartition(Topic("t"), Partition(0))
    history = [
        LoggedCommit(version, "STREAMING UPDATE", metadata=CommitMetadata("c", app_id, {partition: span(0, end)}, None))
        for version, app_id, end in ((3, "last", 30), (2, "before", 20), (1, "last", 10))
    ]
    (stream,) = settings_of({"app_id": "now", "topics": ["t"]}).streams
    identity = identity_of(history, stream, TxnIds("now", several_topics=False), {})
    assert identity.other_stream(partition, 0) == "last"
    history = [history[1], history[2]]
    assert identity_of(history, stream, TxnIds("now", several_topics=False), {}).other_stream(partition, 0) == "before"


def test_table_with_the_stream_s_positions_is_not_another_stream_s() -> None:
    own, other = (TopicPartition(Topic(name), Partition(0)) for name in ("orders", "orders@later"))
    under = {(other, 0): "later"}
    assert TableIdentity(loaded_under=under).sharing_stream(own) == ("later", other, 0)
    assert TableIdentity(chains={own: TableChain(0, Position(5))}, loaded_under=under).sharing_stream(own) is None
    assert TableIdentity(loaded_under={(own, 0): "later"}).sharing_stream(own) is None
