"""What goes into a commit, and how one ends that raised an exception and is not in the table.

Work done for each Kafka partition costs the same for ten partitions as for ten thousand: operations are counted, not
seconds.
"""

import uuid
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import structlog
from delta.exceptions import ConcurrentAppendException, MetadataChangedException
from py4j.protocol import Py4JError, Py4JNetworkError
from pyspark.errors import AnalysisException, PySparkException

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.idle import IdleFact
from common.stage.markers import Marker, StagedFile, StagedTable, TableKind
from common.tables.changes import MergeBy
from common.tables.commit_metadata import CommitMetadata, Decision, Resolved
from common.tables.counts import Counts
from common.tables.deferred_ranges import DeferredIds
from common.tables.identity import TableChain, TableIdentity
from common.tables.transactions import TxnIds
from delta_loader.load.ports import Ports
from delta_loader.load.rollback import RollbackDetector
from delta_loader.load.secondary_tables import SecondaryTables
from delta_loader.load.settle import IdleFacts
from delta_loader.load.stream_tables import StreamTables
from delta_loader.load.vacuum_guard import VacuumGuard
from delta_loader.plan.plan import Load, Run, TableShape
from delta_loader.spark.delta import _unresolved
from delta_loader.tables.commits import (
    CommitNaming,
    Conflicted,
    Failed,
    LoadedTotals,
    TableCommit,
    Target,
    Unknown,
    needed,
    rows_commit,
    secondary_commit,
)
from delta_loader.tables.file_split import SparkWrite
from tests.builders import required
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging
from tests.unit.delta_loader.plan.test_plan import SOURCE, by_hand, marker

IDS = TxnIds("app", several_topics=False)
NAMING = CommitNaming(IDS, "c1")
ROWS = Target("/t", "id", TableShape("{}", ()), {}, 0)
DEAD = Target("/dead", "id2", TableShape("{}", ()), {}, 0)


def with_dead_letters(original: Marker) -> Marker:
    assert original.manifest is not None
    table = StagedTable(
        "/dead", TableKind.DEAD_LETTERS, "{}", (), (StagedFile(f"d{original.span.start}", {}, 1, 1, "{}"),)
    )
    return replace(original, manifest=replace(original.manifest, tables=(*original.tables, table)))


def test_txn_ids_are_those_of_kafka_delta_ingest() -> None:
    assert IDS.of(SOURCE) == "app-0"
    assert TxnIds("app", several_topics=True).of(SOURCE) == "app-orders-0"
    assert IDS.position({"app-0": 41}, SOURCE) == 42
    assert IDS.position({"app-0": 0}, SOURCE) == 1
    assert IDS.position({"app-1": 41}, SOURCE) is None


def test_each_marker_advances_the_txn_action_of_the_table() -> None:
    load = Load({SOURCE: Run((marker(0, 10), by_hand(10), marker(11, 20, files=0)))})
    commit = rows_commit(ROWS, NAMING, load, 7)
    # No loader has loaded it, as a stream of one topic, as one of several or as the next generation.
    assert commit.expected == {"app-0": None, "app-orders-0": None, "app-0@1": None}
    assert commit.advances == {"app-0": 19}
    assert [file.path for file in commit.files] == ["f0-0"]
    # The position of the handmade marker is not a record.
    counts = Counts(records=0, rows=1, tombstones=0, dead_letters=0, given_up=(Span(Position(10), Position(11)),))
    spans = {SOURCE: Span(Position(0), Position(20))}
    positions = {SOURCE: Position(20)}
    metadata = CommitMetadata("c1", "app", spans, 7, {SOURCE: counts}, positions=positions, plain_topic="orders")
    assert commit.metadata == metadata
    assert ROWS.after(commit, 1).transactions == {"app-0": 19}


def test_dead_letter_commit_covers_only_markers_with_dead_letters() -> None:
    load = Load({SOURCE: Run((marker(0, 10), with_dead_letters(marker(10, 20)), marker(20, 30)))})
    commit = required(secondary_commit(DEAD, NAMING, load))
    assert (commit.advances, [file.path for file in commit.files]) == ({"app-0": 19}, ["d10"])
    assert secondary_commit(DEAD.after(commit, 1), NAMING, load) is None
    assert secondary_commit(DEAD, NAMING, Load({SOURCE: Run((marker(0, 10),))})) is None


def test_dead_letter_table_ahead_of_its_stream_gets_only_missing_files() -> None:
    """The loader died between the two commits, and the next plan brings more."""
    first, second = with_dead_letters(marker(0, 10)), with_dead_letters(marker(10, 20))
    ahead = replace(DEAD, transactions={"app-0": 9})
    commit = required(secondary_commit(ahead, NAMING, Load({SOURCE: Run((first, second))})))
    assert [file.path for file in commit.files] == ["d10"]
    assert commit.expected["app-0"] == 9
    assert needed(ahead, IDS, Load({SOURCE: Run((first, second))}), first).files == ()


@pytest.mark.parametrize(("generation", "added"), [(0, ["d10"]), (1, ["d0", "d10"])])
def test_expired_txn_action_is_replaced_by_the_positions_in_commits(generation: int, added: list[str]) -> None:
    """A position of another generation does not apply to this chain."""
    identity = TableIdentity("t", {SOURCE: TableChain(generation, Position(10))})
    load = Load({SOURCE: Run((with_dead_letters(marker(0, 10)), with_dead_letters(marker(10, 20))))})
    commit = required(secondary_commit(replace(DEAD, transactions={}, identity=identity), NAMING, load))
    assert [file.path for file in commit.files] == added


def test_txn_action_takes_precedence_over_older_commits() -> None:
    """A tool that knows only txn actions has advanced it."""
    identity = TableIdentity("orders", {SOURCE: TableChain(0, Position(5))})
    load = Load({SOURCE: Run((with_dead_letters(marker(0, 10)), with_dead_letters(marker(10, 20))))})
    commit = required(secondary_commit(replace(DEAD, transactions={"app-0": 9}, identity=identity), NAMING, load))
    assert commit.metadata.spans == {SOURCE: Span(Position(10), Position(20))}


def test_dead_letter_table_inside_a_marker_gets_only_later_offsets() -> None:
    """The same, and the chain was rebuilt: the marker's other table takes all of it."""
    straddled = replace(DEAD, transactions={"app-0": 4})
    load = Load({SOURCE: Run((with_dead_letters(marker(0, 10)), with_dead_letters(marker(10, 20))))})
    commit = required(secondary_commit(straddled, NAMING, load))
    assert [(write.start, [file.path for file in write.files]) for write in commit.written] == [(5, ["d0"])]
    assert [file.path for file in commit.files] == ["d10"]
    assert commit.metadata.spans == {SOURCE: Span(Position(5), Position(20))}
    assert rows_commit(ROWS, NAMING, load, None).written == ()


def test_foreign_commit_metadata_is_ignored() -> None:
    assert CommitMetadata.from_json("") is None
    assert CommitMetadata.from_json('{"x": 1}') is None


def test_commit_merges_when_any_of_its_writes_does() -> None:
    by = MergeBy(("id",), ("_kafka_topic", "_kafka_partition", "_kafka_offset"), None, None)
    added, merged = (SparkWrite(SOURCE, None, TableShape("{}", (), merge), (), None) for merge in (None, by))
    commit = TableCommit(ROWS, "app", (), {}, {}, CommitMetadata("c1", "app", {}, None))
    assert not commit.merges
    assert not replace(commit, written=(added,)).merges
    assert replace(commit, written=(added, merged)).merges


def test_loaded_totals_add_up() -> None:
    assert LoadedTotals(1, 20, 300) + LoadedTotals(4, 50, 600) == LoadedTotals(5, 70, 900)


def test_commit_with_a_resolution_is_marked_as_one() -> None:
    metadata = CommitMetadata("c1", "app", {}, None)
    commit = TableCommit(ROWS, "app", (), {}, {}, metadata)
    assert not commit.is_resolution
    answers = Resolved(1, Decision.REPLAY, {})
    assert replace(commit, metadata=replace(metadata, answers=answers)).is_resolution


def test_only_the_main_tables_commit_names_the_other_tables() -> None:
    load = Load({SOURCE: Run((with_dead_letters(marker(0, 10)), marker(10, 20)))})
    assert rows_commit(ROWS, NAMING, load, None).metadata.other_tables == {"/dead": TableKind.DEAD_LETTERS}
    side = secondary_commit(DEAD, NAMING, load)
    assert side is not None
    assert side.metadata.other_tables == {}
    assert rows_commit(ROWS, NAMING, Load({SOURCE: Run((marker(0, 10),))}), None).metadata.other_tables == {}


MANY = 10_000
PARTITIONS = [TopicPartition(Topic("orders"), Partition(number)) for number in range(MANY)]
TXN_IDS = TxnIds("orders", several_topics=False)
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
    transactions = CountedTransactions({TXN_IDS.of(partition): 99 for partition in PARTITIONS})
    for partition in PARTITIONS[::every]:
        transactions |= DeferredIds.for_table(TXN_IDS, partition, DEAD_LETTERS).written(
            Span(Position(10), Position(50))
        )
    return transactions


class KnownIds:
    """Stands in for the rollback detector, of which only the ids are read."""

    ids = TXN_IDS


def tables_with(transactions: CountedTransactions) -> tuple[StreamTables, SecondaryTables]:
    staging = Staging(f"memory://{uuid.uuid4().hex}", "orders")
    (stream,) = settings_for(staging).streams
    stream = stream.model_copy(update={"dead_letters": DEAD_LETTERS})
    nothing = cast("VacuumGuard", None)
    rollbacks = cast("RollbackDetector", KnownIds())
    ports = cast("Ports", SimpleNamespace(tables=None, registering=None))
    tables = StreamTables(stream, ports, nothing, rollbacks, structlog.get_logger())
    tables.targets[stream.table] = Target(stream.table, "id", TableShape("{}", ()), transactions, 0)
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
    caught_up = {
        **transactions,
        **DeferredIds.for_table(TXN_IDS, missing.partition, missing.url).caught_up(missing.span),
    }
    tables.targets[url] = Target(url, "id", TableShape("{}", ()), caught_up, 1)
    assert secondary.deferred(PARTITIONS) == ()
    assert secondary.floor(missing.partition, Position(100)) == 100


def test_newest_generations_are_found_in_one_pass() -> None:
    transactions = CountedTransactions(
        {f"{TXN_IDS.of(partition)}@{number}": 9 for partition in PARTITIONS for number in (1, 2)}
    )
    ids = TXN_IDS.at({PARTITIONS[0]: 3}, transactions, PARTITIONS)
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


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConcurrentAppendException("a file was added"), Conflicted),
        (MetadataChangedException("a column was added"), Conflicted),
        (AnalysisException("a constraint"), Failed),
        (Py4JError("java.net.SocketTimeoutException: Read timed out"), Unknown),
        (Py4JNetworkError("Answer from Java side is empty"), Unknown),
        (PySparkException("org.apache.spark.SparkException: stopped"), Unknown),
    ],
)
def test_only_errors_raised_by_delta_have_a_known_outcome(
    error: Exception, outcome: type[Conflicted | Failed | Unknown]
) -> None:
    assert type(_unresolved(error)) is outcome
