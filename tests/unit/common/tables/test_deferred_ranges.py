"""Deferred ranges: what a secondary table still lacks, stored in the main table's txn actions."""

import itertools

import pytest

from common.spans import Partition, Position, Topic, TopicPartition
from common.tables.commit_metadata import CommitMetadata
from common.tables.deferred_ranges import DeferredIds, DeferredRange, DeferredRanges, deferred_of
from common.tables.transactions import TxnIds
from delta_loader.load.deferred import with_caught_up
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import TableCommit, Target
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


FORMER = {  # what releases recorded that took gcs and gs, and so on, for two locations
    "gcs://lake/a": "a017161d96bc689d",
    "gs://lake/a/": "5996208f91cd2b79",
    "abfs://c@a.net/t": "61f719f160c840ee",
    "abfss://c@a.net/t": "8c7e0f74aaab86a6",
    "wasb://c@a/t": "e62c46bc01410bff",
    "s3n://lake/a": "f172cbc1be4a5b2d",
    "file:///lake/a": "492aefbe0f1e6a3c",
}


@pytest.mark.parametrize("url", FORMER)
def test_ids_are_those_of_earlier_releases(url: str) -> None:
    assert DeferredIds.for_table(IDS, ORDERS, url).start == f"orders-0:{FORMER[url]}:from"


@pytest.mark.parametrize(("before", "now"), list(itertools.permutations(["gs://lake/a", "gcs://lake/a/"])))
def test_deferred_range_is_found_and_ended_after_an_edit_of_the_scheme(before: str, now: str) -> None:
    former = DeferredIds.for_table(IDS, ORDERS, before)
    transactions = former.written(span(10, 50))
    (missing,) = deferred_of(IDS, transactions, [now], [ORDERS, OTHER])
    assert missing == DeferredRange(now, ORDERS, span(10, 50))
    wider = DeferredIds.for_table(IDS, ORDERS, now).written(span(10, 80))
    assert deferred_of(IDS, transactions | wider, [now], [ORDERS]) == (DeferredRange(now, ORDERS, span(10, 80)),)
    for recorded, end in ((transactions, 50), (transactions | wider, 80)):
        target = Target("gs://lake/main", "id", TableShape("{}", ()), recorded, 0)
        commit = TableCommit(target, "orders", (), {}, {}, CommitMetadata("load", "orders", {}, None))
        advances = with_caught_up(commit, DeferredRange(now, ORDERS, span(10, end)), IDS).advances
        assert deferred_of(IDS, {**recorded, **advances}, [now, before], [ORDERS]) == ()
        assert advances.keys() == {*recorded, *wider}


def test_ids_of_a_spelling_that_recorded_nothing_are_not_written() -> None:
    recorded = DeferredIds.for_table(IDS, ORDERS, "gs://lake/a").written(span(10, 50))
    target = Target("gs://lake/main", "id", TableShape("{}", ()), recorded, 0)
    commit = TableCommit(target, "orders", (), {}, {}, CommitMetadata("load", "orders", {}, None))
    missing = DeferredRange("gs://lake/a", ORDERS, span(10, 50))
    assert with_caught_up(commit, missing, IDS).advances.keys() == recorded.keys()


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
