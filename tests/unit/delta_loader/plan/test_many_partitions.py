"""Work done for each Kafka partition costs the same for ten partitions as for ten thousand.

Operations are counted, not seconds: each test does its work once for each of ten thousand partitions, and what it reads
may be read a few times for each of them, and not once for each pair.
"""

import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import structlog

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.idle import IdleFact
from common.tables.deferred_ranges import DeferredIds
from common.tables.transactions import TxnIds
from delta_loader.load.ports import Ports
from delta_loader.load.rollback import RollbackDetector
from delta_loader.load.secondary_tables import SecondaryTables
from delta_loader.load.settle import IdleFacts
from delta_loader.load.stream_tables import StreamTables
from delta_loader.load.vacuum_guard import VacuumGuard
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Target
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging

MANY = 10_000
PARTITIONS = [TopicPartition(Topic("orders"), Partition(number)) for number in range(MANY)]
IDS = TxnIds("orders", several_topics=False)
DEAD_LETTERS = "s3://lake/orders_dead_letters"


class CountedTransactions(dict[str, int]):
    """Txn actions that may be read a few times each, all in all."""

    reads = 0

    def __iter__(self) -> Iterator[str]:
        for name in super().__iter__():
            self._read()
            yield name

    def get(self, name: str, default: int | None = None) -> int | None:  # type: ignore[override]
        self._read()
        return super().get(name, default)

    def _read(self) -> None:
        self.reads += 1
        assert self.reads <= 5 * len(self), "each partition costs a search among all txn actions"


def owing(every: int) -> CountedTransactions:
    """A position of each partition, and a range that the dead-letter table lacks of one in ``every``."""
    transactions = CountedTransactions({IDS.of(partition): 99 for partition in PARTITIONS})
    for partition in PARTITIONS[::every]:
        transactions |= DeferredIds.for_table(IDS, partition, DEAD_LETTERS).written(Span(Position(10), Position(50)))
    return transactions


class KnownIds:
    """Stands in for the rollback detector, of which only the ids are read."""

    ids = IDS


def tables_with(transactions: CountedTransactions) -> tuple[StreamTables, SecondaryTables]:
    staging = Staging(f"memory://{uuid.uuid4().hex}", "orders")
    (stream,) = settings_for(staging).streams
    stream = stream.model_copy(update={"dead_letters": DEAD_LETTERS})
    nothing = cast("VacuumGuard", None)
    rollbacks = cast("RollbackDetector", KnownIds())
    ports = cast("Ports", SimpleNamespace(tables=None, registering=None))
    tables = StreamTables(stream, ports, nothing, rollbacks, structlog.get_logger())
    tables.targets[stream.table] = Target(stream.table, "id", TableShape("{}", ()), transactions)
    return tables, SecondaryTables(stream, tables)


def test_floor_of_each_partition_needs_no_search_of_all_txn_actions() -> None:
    for every in (1, 2, MANY):
        transactions = owing(every)
        _, secondary = tables_with(transactions)
        floors = [secondary.floor(partition, Position(100)) for partition in PARTITIONS]
        assert floors == [Position(10) if number % every == 0 else Position(100) for number in range(MANY)]
        assert [
            missing.partition for partition in PARTITIONS for missing in secondary.deferred([partition])
        ] == PARTITIONS[::every]


def test_deferred_ranges_are_reread_when_the_table_changes() -> None:
    transactions = owing(MANY)
    tables, secondary = tables_with(transactions)
    (missing,) = secondary.deferred(PARTITIONS)
    assert secondary.floor(missing.partition, Position(100)) == 10
    (url,) = tables.targets
    caught_up = {**transactions, **DeferredIds.for_table(IDS, missing.partition, missing.url).caught_up(missing.span)}
    tables.targets[url] = Target(url, "id", TableShape("{}", ()), caught_up)
    assert secondary.deferred(PARTITIONS) == ()
    assert secondary.floor(missing.partition, Position(100)) == 100


def test_newest_generations_are_found_in_one_pass() -> None:
    transactions = CountedTransactions(
        {f"{IDS.of(partition)}@{number}": 9 for partition in PARTITIONS for number in (1, 2)}
    )
    ids = IDS.at({PARTITIONS[0]: 3}, transactions, PARTITIONS)
    assert ids.generations == {**dict.fromkeys(PARTITIONS, 2), PARTITIONS[0]: 3}


def test_idle_fact_of_a_partition_needs_no_search_of_all_facts() -> None:
    class CountedFact(IdleFact):
        reads = 0

        def __getattribute__(self, name: str) -> object:
            CountedFact.reads += 1
            assert CountedFact.reads <= 20 * 2 * MANY, "each partition costs a search among all facts"
            return super().__getattribute__(name)

    facts = [
        CountedFact(partition, Position(position), time_ms=position, generation=0)
        for partition in PARTITIONS
        for position in (5, 9)
    ]
    CountedFact.reads = 0
    idle = IdleFacts(facts)
    assert {idle.through_ms(partition, Position(7), 0) for partition in PARTITIONS} == {5}
    assert {idle.through_ms(partition, Position(9), 0) for partition in PARTITIONS} == {9}
    assert {idle.through_ms(partition, Position(9), 1) for partition in PARTITIONS} == {None}
    assert {idle.through_ms(partition, None, 0) for partition in PARTITIONS} == {None}
