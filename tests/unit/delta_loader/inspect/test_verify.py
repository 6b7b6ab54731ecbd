"""What `verify` finds: of routes, of a table that two streams share, and of rows that do not name their records."""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from common.errors import TableError
from common.settings import Stream
from common.spans import Offset, Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import TableKind
from common.storage.store import FsspecStore
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts
from common.tables.deferred_ranges import DeferredIds
from common.tables.log_files import commit_path
from common.tables.transactions import TxnIds
from delta_loader.inspect.explain.reading import Explainer
from delta_loader.inspect.explain.view import offset_to_text
from delta_loader.inspect.verify.findings import Verdict, VerifiedStream
from delta_loader.inspect.verify.offsets import Bucket
from delta_loader.inspect.verify.verify import Verifier
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from tests.fakes.loading import routed_settings_for, settings_for
from tests.fakes.staging import Staging

SOURCE = TopicPartition(Topic("orders"), Partition(0))


class Contents:
    """Offsets by table, combined for the tables that a verification reads."""

    def __init__(self, **tables: Sequence[int]) -> None:
        self.tables = tables
        self.versions: dict[str, int] = {}

    def offsets(self, *places: tuple[str, int], stamped: bool) -> "Offsets":
        assert not stamped
        self.versions |= {url.rpartition("/")[2]: version for url, version in places}
        return Offsets([offset for url, _ in places for offset in self.tables.get(url.rpartition("/")[2], ())])

    def count(self, url: str, _version: int) -> int:
        return len(self.tables.get(url.rpartition("/")[2], ()))

    def repeated_keys(self, _url: str, _version: int, _keys: Sequence[str], _where: str | None) -> list[str]:
        raise AssertionError


class Offsets:
    def __init__(self, offsets: Sequence[int]) -> None:
        self.all = offsets

    def sources(self) -> list[TopicPartition]:
        return [SOURCE] if self.all else []

    def nameless(self) -> int:
        return 0

    def buckets(self, _source: TopicPartition) -> Iterator[Bucket]:
        if self.all:
            yield Bucket(0, len(self.all), sum(1 << offset for offset in set(self.all)))

    def timestamp_ms(self, _source: TopicPartition, _offset: int) -> int | None:
        return None

    def loaded_twice(self, _source: TopicPartition, _spans: Sequence[Span]) -> list[tuple[int, tuple[str, ...]]]:
        return [(offset, ("f0.parquet",)) for offset in sorted(set(self.all)) if self.all.count(offset) > 1]

    def files(self, _source: TopicPartition, _spans: Sequence[Span]) -> list[str]:
        return []

    def close(self) -> None: ...


class Logs:
    """The logs of a stream with the routes a and b, written by hand."""

    def __init__(self) -> None:
        self.staging = Staging(f"memory://{uuid.uuid4().hex}")
        settings = routed_settings_for(self.staging, ["a", "b"])
        self.stream: Stream = settings.streams[0].model_copy(update={"kafka_columns": True})
        self.versions: dict[str, int] = {}

    def load(
        self,
        url: str,
        start: int,
        end: int,
        here: int,
        rows: int,
        *,
        exploded: int = 0,
        dead: int = 0,
        others: Mapping[str, TableKind] | None = None,
        txns: Mapping[str, int] | None = None,
    ) -> None:
        """A commit of the loader with ``rows`` rows, of which ``here`` are in this table; it names ``others``."""
        span = Span(Position(start), Position(end))
        gone = end - start - (rows - exploded) - dead
        counts = Counts(end - start, rows, gone, dead, exploded=exploded, here=None if here == rows else here)
        metadata = CommitMetadata("c", "orders", {SOURCE: span}, None, {SOURCE: counts}, other_tables=others or {})
        version = self.versions.get(url, 0)
        bounds = {"_kafka_topic": "orders", "_kafka_partition": 0}
        statistics = {
            "numRecords": here,
            "minValues": {**bounds, "_kafka_offset": start},
            "maxValues": {**bounds, "_kafka_offset": end - 1},
        }
        path = f"f{version}.parquet"
        self.write(
            url,
            {"commitInfo": {"operation": "STREAMING UPDATE", "userMetadata": metadata.to_json()}},
            {"add": {"path": path, "partitionValues": {}, "stats": json.dumps(statistics), "dataChange": True}},
            *(_txn(name, last) for name, last in {"orders-0": end - 1, **(txns or {})}.items()),
        )
        FsspecStore(url).write(path, b"rows")

    def write(self, url: str, *actions: dict[str, object]) -> None:
        version = self.versions.get(url, 0)
        self.versions[url] = version + 1
        is_made = any("metaData" in action for action in actions)
        lines = "\n".join(map(json.dumps, actions if version or is_made else (*actions, *_made(url)))).encode()
        FsspecStore(url).write(f"_delta_log/{version:020d}.json", lines)

    def verify(self, contents: Contents) -> VerifiedStream:
        report = Verifier(FsspecStore, in_turn, contents, None).verify(self.stream)
        assert report.failure is None
        return report

    @property
    def own(self) -> str:
        return self.staging.table

    def route(self, name: str) -> str:
        return self.staging.route(name)


def _txn(name: str, last: int) -> dict[str, object]:
    return {"txn": {"appId": name, "version": last}}


@pytest.fixture
def logs() -> Logs:
    """Ten records: four rows in the main table, three in each route's."""
    made = Logs()
    made.load(made.route("a"), 0, 10, here=3, rows=10)
    made.load(made.route("b"), 0, 10, here=3, rows=10)
    made.load(made.own, 0, 10, here=4, rows=10)
    return made


WHOLE: dict[str, Sequence[int]] = {"orders": [0, 1, 2, 3], "orders_a": [4, 5, 6], "orders_b": [7, 8, 9]}


def kinds(report: VerifiedStream, verdict: Verdict) -> list[tuple[str, str]]:
    return [
        (finding.kind, finding.table.rpartition("/")[2]) for finding in report.findings if finding.verdict is verdict
    ]


def test_rows_of_all_tables_add_up_to_the_staged_ones(logs: Logs) -> None:
    report = logs.verify(Contents(**WHOLE))
    assert [(partition.proved, partition.rows) for partition in report.partitions] == [(True, 10)]
    assert (kinds(report, Verdict.FAULT), kinds(report, Verdict.UNPROVED)) == ([], [])
    assert report.routed == {logs.route("a"): 0, logs.route("b"): 0}


def test_missing_file_is_a_fault_of_its_table(logs: Logs) -> None:
    logs.load(logs.staging.dead_letters, 0, 10, here=0, rows=10)
    for url in (logs.route("b"), logs.staging.dead_letters):
        store = FsspecStore(url)
        store.delete(["f0.parquet"])
        report = logs.verify(Contents(**WHOLE))
        assert kinds(report, Verdict.FAULT) == [("files_gone", url.rpartition("/")[2])]
        store.write("f0.parquet", b"rows")


def test_missing_file_of_a_former_table_is_a_fault_of_it(edited: Logs) -> None:
    for url in (edited.route("b"), edited.staging.dead_letters):
        store = FsspecStore(url)
        store.delete(["f0.parquet"])
        assert kinds(edited.verify(contents_of(edited)), Verdict.FAULT) == [("files_gone", url.rpartition("/")[2])]
        store.write("f0.parquet", b"rows")


def test_record_in_two_tables_is_a_fault(logs: Logs) -> None:
    report = logs.verify(Contents(**{**WHOLE, "orders_b": [7, 8, 9, 0]}))
    (twice,) = (finding for finding in report.findings if finding.kind == "rows_twice")
    assert (twice.verdict, twice.table) == (Verdict.FAULT, logs.own)
    assert twice.text.endswith(f"more than once: {logs.own}/f0.parquet (version 0)")


@pytest.fixture
def copies() -> Logs:
    """Ten records, each in the main table and in a route's."""
    made = Logs()
    made.load(made.route("a"), 0, 10, here=10, rows=20, exploded=10)
    made.load(made.own, 0, 10, here=10, rows=20, exploded=10)
    return made


def test_records_copied_to_several_tables_must_match_their_count(copies: Logs) -> None:
    every = list(range(10))
    report = copies.verify(Contents(orders=every, orders_a=every))
    assert [(partition.proved, partition.rows) for partition in report.partitions] == [(True, 20)]
    assert (kinds(report, Verdict.FAULT), kinds(report, Verdict.UNPROVED)) == ([], [])
    more = copies.verify(Contents(orders=[*every, 3], orders_a=every))
    assert kinds(more, Verdict.FAULT) == [("rows_twice", "orders")]
    fewer = copies.verify(Contents(orders=every, orders_a=every[1:]))
    assert kinds(fewer, Verdict.FAULT) == [("rows_missing", "orders")]


def test_record_refused_by_one_of_its_tables_is_unproved(copies: Logs) -> None:
    every = list(range(10))
    dead = copies.staging.dead_letters
    copies.write(dead, {"commitInfo": {"operation": "WRITE"}})
    contents = Contents(orders=every, orders_a=every, **{dead.rpartition("/")[2]: [3]})
    report = copies.verify(contents)
    assert ("row_and_dead_letter", "orders") in kinds(report, Verdict.UNPROVED)


def test_rows_of_a_table_that_is_gone_are_not_excused_by_a_former_table() -> None:
    logs = Logs()
    logs.load(logs.route("a"), 0, 10, here=3, rows=10)
    logs.load(logs.own, 0, 10, here=4, rows=10)
    report = logs.verify(Contents(orders=[0, 1, 2, 3], orders_a=[4, 5, 6]))
    assert kinds(report, Verdict.FAULT) == [("rows_missing", "orders")]


def test_record_lost_from_one_table_is_a_fault(logs: Logs) -> None:
    report = logs.verify(Contents(**{**WHOLE, "orders_b": [7, 8]}))
    assert kinds(report, Verdict.FAULT) == [("rows_missing", "orders")]
    (fault,) = (each for each in report.findings if each.verdict is Verdict.FAULT)
    assert " of orders/0 is missing: " in fault.text  # one row
    assert fault.text.endswith("counted all, and no later commit removed any")


def test_delete_from_a_routes_table_is_noted(logs: Logs) -> None:
    gone = {"path": "f0.parquet", "dataChange": True, "deletionTimestamp": 0}
    kept = {"path": "f1.parquet", "partitionValues": {}, "stats": '{"numRecords":2}', "dataChange": True}
    logs.write(logs.route("b"), {"commitInfo": {"operation": "DELETE"}}, {"remove": gone}, {"add": kept})
    FsspecStore(logs.route("b")).write("f1.parquet", b"rows")
    report = logs.verify(Contents(**{**WHOLE, "orders_b": [7, 8]}))
    assert kinds(report, Verdict.FAULT) == []
    (deleted,) = [finding for finding in report.findings if finding.kind == "deleted"]
    assert "DELETE" in deleted.text


def test_deferred_range_is_unproved_and_not_a_fault(logs: Logs) -> None:
    ids = DeferredIds.for_table(TxnIds("orders", several_topics=False), SOURCE, logs.route("b"))
    logs.load(logs.own, 10, 20, here=5, rows=10, txns={ids.start: 9, ids.end: 19})
    rows = {**WHOLE, "orders": [0, 1, 2, 3, 10, 11, 12, 13, 14]}
    report = logs.verify(Contents(**rows))
    assert kinds(report, Verdict.FAULT) == []
    assert kinds(report, Verdict.UNPROVED) == [("owed", "orders_b"), ("table_waits", "orders_b")]
    # Rows that were never deferred are a fault.
    report = logs.verify(Contents(**{**rows, "orders_a": [4, 5]}))
    assert kinds(report, Verdict.FAULT) == [("rows_missing", "orders")]


def test_deferred_range_of_a_cleaned_up_commit_is_not_a_fault(logs: Logs) -> None:
    ids = DeferredIds.for_table(TxnIds("orders", several_topics=False), SOURCE, logs.route("b"))
    owed = {ids.start: 9, ids.end: 19}
    logs.load(logs.own, 10, 20, here=5, rows=10, txns=owed)
    logs.load(logs.own, 20, 30, here=10, rows=10)
    store, txns = FsspecStore(logs.own), (_txn(name, last) for name, last in {"orders-0": 19, **owed}.items())
    checkpoint = "\n".join(map(json.dumps, ({"checkpointMetadata": {}}, *_made(logs.own), *txns))).encode()
    store.write(f"_delta_log/{1:020d}.checkpoint.0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11.json", checkpoint)
    store.delete([f"_delta_log/{version:020d}.json" for version in (0, 1)])
    report = logs.verify(Contents(**{**WHOLE, "orders": [0, 1, 2, 3, *range(10, 15), *range(20, 30)]}))
    assert (kinds(report, Verdict.FAULT), report.first_version) == ([], 2)
    assert ("owed", "orders_b") in kinds(report, Verdict.UNPROVED)


def test_rows_ahead_of_the_main_table_are_ignored(logs: Logs) -> None:
    logs.load(logs.route("a"), 10, 20, here=3, rows=10)
    contents = Contents(**WHOLE)
    report = logs.verify(contents)
    assert (kinds(report, Verdict.FAULT), contents.versions["orders_a"]) == ([], 0)


def test_routes_table_may_lack_rows_of_many_spans(logs: Logs) -> None:
    logs.load(logs.own, 10, 30, here=20, rows=20)
    logs.load(logs.route("a"), 30, 40, here=1, rows=1)
    logs.load(logs.own, 30, 40, here=0, rows=1)
    own = [0, 1, 2, 3, *range(10, 30)]
    report = logs.verify(Contents(**{**WHOLE, "orders": own, "orders_a": [4, 5, 6, 33]}))
    assert (kinds(report, Verdict.FAULT), report.partitions[0].proved) == ([], True)


def test_files_with_more_rows_than_their_commit_counts_are_a_fault(logs: Logs) -> None:
    span = Span(Position(10), Position(20))
    counts = {SOURCE: Counts(10, 10, 0, 0, here=2)}
    metadata = CommitMetadata("c", "orders", {SOURCE: span}, None, counts)
    logs.write(
        logs.route("a"),
        {"commitInfo": {"operation": "STREAMING UPDATE", "userMetadata": metadata.to_json()}},
        {"add": {"path": "g.parquet", "partitionValues": {}, "stats": '{"numRecords":3}', "dataChange": True}},
        {"txn": {"appId": "orders-0", "version": 19}},
    )
    FsspecStore(logs.route("a")).write("g.parquet", b"rows")
    logs.load(logs.own, 10, 20, here=8, rows=10)
    rows = {**WHOLE, "orders": [0, 1, 2, 3, *range(10, 18)], "orders_a": [4, 5, 6, 18, 19]}
    assert kinds(logs.verify(Contents(**rows)), Verdict.FAULT) == [("files_differ_from_counts", "orders_a")]


def without(logs: Logs, *gone: str) -> Logs:
    """The same logs with settings that drop the routes ``gone`` and name another dead-letter table."""
    kept = {name: table for name, table in logs.stream.routing.route_settings.items() if name not in gone}
    update = {"route_settings": kept, "dead_letters": f"{logs.staging.dead_letters}_new"}
    logs.stream = logs.stream.model_copy(update=update)
    return logs


@pytest.fixture
def edited() -> Logs:
    """Ten records: four rows in the main table, three in a's, two in b's, a dead letter; b is no longer configured."""
    made = Logs()
    dead, routes = made.staging.dead_letters, {name: made.route(name) for name in ("a", "b")}
    made.load(routes["a"], 0, 10, here=3, rows=9, dead=1)
    made.load(routes["b"], 0, 10, here=2, rows=9, dead=1)
    made.load(dead, 0, 10, here=1, rows=9, dead=1)
    others = {**dict.fromkeys(routes.values(), TableKind.ROWS), dead: TableKind.DEAD_LETTERS}
    made.load(made.own, 0, 10, here=4, rows=9, dead=1, others=others)
    return without(made, "b")


def contents_of(logs: Logs, **changed: Sequence[int]) -> Contents:
    dead = logs.staging.dead_letters.rpartition("/")[2]
    return Contents(**{**WHOLE, "orders_b": [7, 8], dead: [9], **changed})


def test_former_tables_named_by_commits_are_read(edited: Logs) -> None:
    report = edited.verify(contents_of(edited))
    assert (kinds(report, Verdict.FAULT), kinds(report, Verdict.UNPROVED)) == ([], [])
    assert [finding.kind for finding in report.findings if finding.verdict is Verdict.NOTED] == ["former_table"] * 2
    assert report.partitions[0].proved
    report = edited.verify(contents_of(edited, orders_b=[7]))
    assert kinds(report, Verdict.FAULT) == [("rows_missing", "orders")]
    report = edited.verify(contents_of(edited, orders_b=[7, 8, 8]))
    assert ("rows_twice", "orders") in kinds(report, Verdict.FAULT)
    dead = edited.staging.dead_letters.rpartition("/")[2]
    report = edited.verify(contents_of(edited, **{dead: []}))
    assert [kind for kind, _ in kinds(report, Verdict.FAULT)] == ["rows_missing"]


def test_unreadable_former_table_is_unproved_and_not_a_fault(edited: Logs) -> None:
    for url in (edited.route("b"), edited.staging.dead_letters):
        FsspecStore(url).delete([f"_delta_log/{0:020d}.json"])
    report = edited.verify(Contents(**WHOLE))
    assert kinds(report, Verdict.FAULT) == []
    assert sorted(kind for kind, _ in kinds(report, Verdict.UNPROVED)) == [
        "former_table",
        "former_table",
        "in_other_tables",
        "in_other_tables",
    ]


def test_rows_of_an_older_release_are_unproved_only_in_unknown_tables(logs: Logs) -> None:
    report = without(logs, "b").verify(Contents(**{**WHOLE, "orders_b": []}))
    assert (kinds(report, Verdict.FAULT), kinds(report, Verdict.UNPROVED)) == ([], [("in_other_tables", "orders")])
    report = logs.verify(Contents(**{**WHOLE, "orders_a": [4, 5], "orders_b": []}))
    assert kinds(report, Verdict.FAULT) == [("rows_missing", "orders")]


def _made(table_id: str) -> tuple[dict[str, object], ...]:
    made = {
        "id": table_id,
        "schemaString": '{"type":"struct","fields":[]}',
        "partitionColumns": [],
        "configuration": {},
    }
    return {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}, {"metaData": made}


def test_table_copied_to_another_location_is_read_once() -> None:
    made = Logs()
    dead, copy = made.staging.dead_letters, f"{made.staging.dead_letters}_copy"
    for url in (dead, copy):
        made.write(url, {"commitInfo": {"operation": "CREATE TABLE"}}, *_made("the dead letters"))
        made.load(url, 0, 10, here=1, rows=9, dead=1)
    made.load(made.own, 0, 10, here=9, rows=9, dead=1, others={dead: TableKind.DEAD_LETTERS})
    made.stream = made.stream.model_copy(update={"dead_letters": copy})
    names = {url.rpartition("/")[2]: [9] for url in (dead, copy)}
    report = made.verify(Contents(orders=range(9), **names))
    assert (report.findings, report.partitions[0].proved) == ((), True)
    # Once the original is gone, what the copy lacks is missing.
    FsspecStore(dead).delete([f"_delta_log/{version:020d}.json" for version in (0, 1)])
    report = made.verify(Contents(orders=range(9), **{copy.rpartition("/")[2]: []}))
    assert kinds(report, Verdict.FAULT) == [("rows_missing", copy.rpartition("/")[2])]


MINE = TopicPartition(Topic("orders"), Partition(0))
OTHERS = TopicPartition(Topic("payments"), Partition(0))


class Rows:
    """Ten rows of each of some Kafka partitions, as offset columns and as the contents of every table."""

    def __init__(self, *partitions: TopicPartition) -> None:
        self._sources = partitions

    def offsets(self, *_places: tuple[str, int], stamped: bool) -> "Rows":
        assert not stamped
        return self

    def count(self, _url: str, _version: int) -> int:
        return 10 * len(self._sources)

    def repeated_keys(self, _url: str, _version: int, _keys: Sequence[str], _where: str | None) -> list[str]:
        return []

    def sources(self) -> list[TopicPartition]:
        return list(self._sources)

    def nameless(self) -> int:
        return 0

    def buckets(self, partition: TopicPartition) -> Iterator[Bucket]:
        if partition in self._sources:
            yield Bucket(0, 10, (1 << 10) - 1)

    def timestamp_ms(self, _source: TopicPartition, _offset: int) -> int | None:
        return None

    def loaded_twice(self, _source: TopicPartition, _spans: Sequence[Span]) -> list[tuple[int, tuple[str, ...]]]:
        return []

    def files(self, _source: TopicPartition, _spans: Sequence[Span]) -> list[str]:
        return []

    def close(self) -> None: ...


def load(version: int, app_id: str, partition: TopicPartition) -> bytes:
    span = Span(Position(0), Position(10))
    metadata = CommitMetadata(f"c{version}", app_id, {partition: span}, None, {partition: Counts(10, 10, 0, 0)})
    return "\n".join(
        json.dumps(action)
        for action in (
            {"commitInfo": {"operation": "STREAMING UPDATE", "userMetadata": metadata.to_json()}},
            {"add": {"path": f"{version}.parquet", "stats": '{"numRecords":10}', "dataChange": True}},
            {"txn": {"appId": f"{app_id}-0", "version": 9}},
        )
    ).encode()


def test_rows_of_the_other_stream_are_noted_and_not_a_fault() -> None:
    stream = settings_for(Staging(f"memory://{uuid.uuid4().hex}")).streams[0]
    log = FsspecStore(stream.table)
    log.write(f"_delta_log/{0:020d}.json", load(0, "orders", MINE))
    log.write(f"_delta_log/{1:020d}.json", load(1, "payments", OTHERS))
    for version in (0, 1):
        log.write(f"{version}.parquet", b"rows")
    report = Verifier(FsspecStore, in_turn, Rows(MINE, OTHERS), None).verify(stream)
    assert report.failure is None
    assert [finding.kind for finding in report.findings if finding.verdict is Verdict.FAULT] == []
    assert [(partition.partition, partition.proved) for partition in report.partitions] == [(MINE, True)]
    assert [finding.partition for finding in report.findings if finding.kind == "rows_of_other_topics"] == [OTHERS]


def test_chain_of_several_topics_is_verified_by_the_log() -> None:
    plain = settings_for(Staging(f"memory://{uuid.uuid4().hex}")).streams[0]
    stream = plain.model_copy(update={"topics": ("orders", "payments"), "topology": "shop:build"})
    chain = TopicPartition(Topic("orders+payments"), Partition(0))
    log = FsspecStore(stream.table)
    data = load(0, "orders", chain).replace(b'"orders-0"', b'"orders-orders+payments-0"')
    log.write(f"_delta_log/{0:020d}.json", data)
    log.write("0.parquet", b"rows")
    report = Verifier(FsspecStore, in_turn, Rows(MINE), None).verify(stream)
    assert report.failure is None
    assert [finding.kind for finding in report.findings if finding.verdict is Verdict.FAULT] == []
    assert [str(partition.partition) for partition in report.partitions] == ["orders+payments/0"]
    assert "several_topics" in {finding.kind for finding in report.findings}


class Counted(Rows):
    """A table that gives only its number of rows."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self._rows = rows

    def offsets(self, *_places: tuple[str, int], stamped: bool) -> Rows:
        raise AssertionError(stamped)

    def count(self, _url: str, _version: int) -> int:
        return self._rows


@pytest.fixture
def stream() -> Stream:
    """A table with ten rows that one commit loaded."""
    settings = settings_for(Staging(f"memory://{uuid.uuid4().hex}")).streams[0]
    plain = settings.model_copy(update={"kafka_columns": False})
    store = FsspecStore(plain.table)
    store.write(f"_delta_log/{0:020d}.json", load(0, "orders", MINE))
    store.write("0.parquet", b"rows")
    return plain


def verified(stream: Stream, rows: int) -> VerifiedStream:
    return Verifier(FsspecStore, in_turn, Counted(rows), None).verify(stream)


def findings(report: VerifiedStream) -> list[tuple[str, Verdict]]:
    return [(finding.kind, finding.verdict) for finding in report.findings if finding.kind != "no_offset_columns"]


def test_matching_row_count_is_proved_but_no_partition_is(stream: Stream) -> None:
    report = verified(stream, 10)
    assert (report.failure, report.is_clean, findings(report)) == (None, True, [("rows_reconciled", Verdict.PROVED)])
    assert [
        (partition.partition, partition.position, partition.rows, partition.proved) for partition in report.partitions
    ] == [(MINE, 10, None, False)]
    (unproved,) = [finding for finding in report.findings if finding.kind == "no_offset_columns"]
    assert unproved.verdict is Verdict.UNPROVED


def test_row_count_that_differs_from_the_commits_is_a_fault(stream: Stream) -> None:
    for rows in (9, 11):
        report = verified(stream, rows)
        assert (findings(report), report.is_clean) == ([("rows_differ", Verdict.FAULT)], False)
        assert f"the table has {rows} rows, but the commits loaded 10" in report.faults[0].text


def test_row_count_is_unproved_after_another_program_changed_rows(stream: Stream) -> None:
    actions = (
        {"commitInfo": {"operation": "DELETE"}},
        {"remove": {"path": "0.parquet", "dataChange": True}},
        {"add": {"path": "rest.parquet", "stats": '{"numRecords":7}', "dataChange": True}},
    )
    store = FsspecStore(stream.table)
    store.write(f"_delta_log/{1:020d}.json", "\n".join(map(json.dumps, actions)).encode())
    store.write("rest.parquet", b"rows")
    report = verified(stream, 7)
    assert (findings(report), report.is_clean) == ([("rows_differ", Verdict.UNPROVED)], True)
    assert "another program has added or deleted rows since" in report.findings[-1].text


def test_missing_file_is_named_even_though_the_log_counts_its_rows(stream: Stream) -> None:
    FsspecStore(stream.table).delete(["0.parquet"])
    report = verified(stream, 10)
    assert [(fault.kind, fault.version, fault.files) for fault in report.faults] == [("files_gone", 0, ("0.parquet",))]


@pytest.mark.parametrize(
    ("content", "problem"),
    [(None, "its rows do not name their records"), (b"no Parquet", "it cannot be read: ")],
    ids=["no offset column", "garbled"],
)
def test_file_whose_rows_cannot_be_identified_is_named(tmp_path: Path, content: bytes | None, problem: str) -> None:
    staging = Staging.below(tmp_path)
    (table,) = {stream.table for stream in settings_for(staging).streams}
    write_deltalake(table, pa.table({"id": [1]}))
    (file,) = Path(table.removeprefix("file://")).glob("*.parquet")
    if content is not None:
        file.write_bytes(content)

    def ends(_stream: Stream) -> Mapping[TopicPartition, Position]:
        return {staging.source(0): Position(100)}

    explainer = Explainer(Stage(staging.store(staging.stage_url), in_turn), staging.store, in_turn, ends)
    story = explainer.offset(settings_for(staging).streams[0], staging.source(0), Offset(5))
    assert f"may be in {file.name} of {table}: {problem}" in offset_to_text(story)


def test_damaged_commit_of_a_version_is_an_error(tmp_path: Path) -> None:
    staging = Staging.below(tmp_path)
    write_deltalake(staging.table, pa.table({"id": [1]}))
    staging.store(staging.table).write(commit_path(0), b"{")
    explainer = Explainer(Stage(staging.store(staging.stage_url), in_turn), staging.store, in_turn, lambda _: {})
    with pytest.raises(TableError, match=f"{commit_path(0)} of the table's log cannot be read"):
        explainer.version(staging.table, 0)
