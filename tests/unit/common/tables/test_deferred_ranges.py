"""Deferred ranges: what a secondary table still lacks, stored in the main table's txn actions."""

from common.spans import Partition, Position, Topic, TopicPartition
from common.tables.deferred_ranges import DeferredIds, DeferredRange, DeferredRanges, deferred_of
from common.tables.transactions import TxnIds
from tests.builders import span

ORDERS = TopicPartition(Topic("orders"), Partition(0))
OTHER = TopicPartition(Topic("orders"), Partition(1))
IDS = TxnIds("orders", several_topics=False)
A, B = "s3://lake/a", "s3://lake/b"


def test_deferred_range_round_trips_until_the_table_has_caught_up() -> None:
    ids = DeferredIds.for_table(IDS, ORDERS, A)
    for missing in (span(0, 1), span(5, 90)):
        assert ids.read(ids.written(missing)) == missing
        assert ids.read(ids.caught_up(missing)) is None
    assert ids.read({}) is None


def test_deferred_range_is_independent_of_the_url_s_spelling() -> None:
    assert DeferredIds.for_table(IDS, ORDERS, A) == DeferredIds.for_table(IDS, ORDERS, "s3a://lake/a/")
    assert len({DeferredIds.for_table(IDS, partition, url) for partition in (ORDERS, OTHER) for url in (A, B)}) == 4


def test_deferred_ranges_are_found_among_other_txn_actions() -> None:
    transactions = {
        "orders-0": 99,
        "orders-1": 99,
        **DeferredIds.for_table(IDS, ORDERS, A).written(span(10, 50)),
        **DeferredIds.for_table(IDS, OTHER, A).caught_up(span(10, 50)),
        **DeferredIds.for_table(IDS, OTHER, B).written(span(7, 9)),
    }
    deferred = deferred_of(IDS, transactions, [A, B], [ORDERS, OTHER])
    assert deferred == (DeferredRange(A, ORDERS, span(10, 50)), DeferredRange(B, OTHER, span(7, 9)))
    assert IDS.position(transactions, ORDERS) == 100
    assert IDS.at({}, transactions, [ORDERS, OTHER]).generations == {ORDERS: 0, OTHER: 0}
    assert deferred_of(IDS, {"orders-0": 99}, [A, B], [ORDERS, OTHER]) == ()


def test_floor_is_the_start_of_the_lowest_deferred_range() -> None:
    transactions = {
        **DeferredIds.for_table(IDS, ORDERS, A).written(span(10, 50)),
        **DeferredIds.for_table(IDS, ORDERS, B).written(span(30, 40)),
        **DeferredIds.for_table(IDS, OTHER, B).written(span(1, 2)),
    }
    deferred = DeferredRanges.read(transactions)
    assert deferred.floor(IDS, [A, B], ORDERS, Position(100)) == 10
    assert deferred.floor(IDS, [B], ORDERS, Position(100)) == 30
    assert deferred.floor(IDS, [A, B], OTHER, Position(100)) == 1
    assert deferred.floor(IDS, [A], OTHER, Position(100)) == 100
    assert DeferredRanges.read({}).floor(IDS, [A, B], ORDERS, Position(100)) == 100
