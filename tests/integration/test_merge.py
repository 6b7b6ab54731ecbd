"""Change events through the writer's staging and Spark, against a replay of all events in plain Python."""

import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import unquote, urlparse

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.settings import Stream
from delta_loader.spark.bridge import CONFLICTS, Bridge, LoadTransaction
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.commits import AlreadyLoaded, CommitOutcome, Conflicted, TableCommit
from stage_writer.convert import StreamConverter
from tests.conftest import FRESH
from tests.fakes.changes import COLUMNS, NULL, ChangeStream
from tests.fakes.events import Row
from tests.reading import rows_of
from tests.waiting import until

pytestmark = pytest.mark.spark
PATIENCE_S = 600


class Watched(SparkDeltaTables):
    """Tables that another program changes during a merge, and whose outcomes are kept."""

    def __init__(self, spark: SparkSession, stage_url: str) -> None:
        super().__init__(spark, SystemClock(), stage_url)
        self.meanwhile: list[Callable[[], object]] = []
        self.commits: list[tuple[TableCommit, CommitOutcome]] = []

    def commit(self, commit: TableCommit) -> CommitOutcome:
        outcome = super().commit(commit)
        self.commits.append((commit, outcome))
        return outcome

    def _begin(self, url: str) -> LoadTransaction:
        """The transaction begins before the others' change, and merges after it."""
        transaction = super()._begin(url)
        if self.meanwhile:
            self.meanwhile.pop()()
        return transaction


def tables_of(stream: ChangeStream, spark: SparkSession) -> Watched:
    return Watched(spark, stream.settings.stage.url)


def some_events(chance: random.Random, *, sequenced: bool) -> list[tuple[int, str | None, int | None]]:
    events: list[tuple[int, str | None, int | None]] = []
    for _ in range(chance.randrange(1, 9)):
        kind, key = chance.random(), chance.randrange(6)
        if kind < 0.2:
            events.append((key, None, None))
        else:
            events.append(
                (key, None if kind < 0.35 else chance.choice("abc"), chance.randrange(10) if sequenced else 1)
            )
    return events


def create(spark: SparkSession, stream: ChangeStream, properties: str, extra: str = "") -> None:
    gone = "gone BOOLEAN, " if stream.soft else ""
    spark.sql(
        f"CREATE TABLE delta.`{stream.table}` (id INT, name STRING, value STRING, at INT, op STRING, day STRING, "
        f"_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, _kafka_timestamp TIMESTAMP, {gone}"
        f"mine STRING{extra}) USING delta PARTITIONED BY (day) TBLPROPERTIES ({properties})"
    )


BY_VALUE: dict[str, object] = {"derive": {"day": "coalesce(value, 'none')"}, "partition_by": ["day"]}
"""A row's partition changes with its value."""


@pytest.mark.parametrize("seed", [pytest.param(7, marks=pytest.mark.in_turn("histories of merges in Spark")), FRESH])
def test_histories_with_rows_that_move_between_partitions_and_their_change_feed(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    stream = ChangeStream(tmp_path, more=BY_VALUE)
    create(spark, stream, "'delta.enableChangeDataFeed' = 'true'")
    tables, chance = tables_of(stream, spark), random.Random(seed)  # noqa: S311 - printed
    for number in range(2):
        for partition in (0, 1, 0):
            stream.flush(partition, some_events(chance, sequenced=False))
        before = stream.rows()
        stream.load(tables)
        assert stream.rows() == stream.expected, f"after load {number}"
        _, outcome = tables.commits[-1]
        assert changed(spark, stream, before, outcome) == stream.expected, "what the change feed says"
    assert len(tables.commits) == 2, "one commit for each load"
    assert rows_of(stream.table, sql="day != coalesce(value, 'none')") == []


@pytest.mark.in_turn("a null leaves the row's value")
@pytest.mark.parametrize(("sequenced", "soft"), [(True, True), (False, False)])
def test_null_leaves_the_row_s_value_also_where_the_table_has_more_columns(
    tmp_path: Path, spark: SparkSession, *, sequenced: bool, soft: bool
) -> None:
    stream = ChangeStream(tmp_path, sequenced=sequenced, soft=soft, patches=True, more=BY_VALUE)
    create(spark, stream, "'delta.enableDeletionVectors' = 'true'", extra=", parts MAP<STRING, ARRAY<INT>>")
    old = "(id, name, value, mine, parts) VALUES (9, 'k', 'old', 'x', map('a', array(1)))"
    spark.sql(f"INSERT INTO delta.`{stream.table}` {old}")
    stream.expected[9, "k"] = Row("old")
    tables, chance = tables_of(stream, spark), random.Random(5)  # noqa: S311 - a test's dice
    for number in range(2):
        for partition in (0, 1, 0):
            drawn = some_events(chance, sequenced=sequenced)
            events = [(key, NULL if value == "c" else value, sequence) for key, value, sequence in drawn]
            stream.flush(partition, [*events, (9, NULL, number)])
        stream.load(tables)
        assert stream.rows() == stream.expected, f"after load {number}"
    (kept,) = rows_of(stream.table, sql="id = 9")
    assert [kept[name] for name in ("value", "op", "mine", "parts")] == ["old", "u", "x", {"a": [1]}]


def test_each_of_several_tables_of_an_event_merges_its_own_copy(tmp_path: Path, spark: SparkSession) -> None:
    copy, even = f"{tmp_path.as_uri()}/tables/copy", f"{tmp_path.as_uri()}/tables/even"
    route = "CASE WHEN id % 2 = 0 THEN ['copy', 'even', 'own'] ELSE ['copy', 'own'] END"
    stream = ChangeStream(tmp_path, more={"route": route, "routes": {"copy": copy, "even": even}})
    tables, chance = tables_of(stream, spark), random.Random(11)  # noqa: S311 - a test's dice
    for number in range(2):
        for partition in (0, 1, 0):
            stream.flush(partition, [(2, "a", 1), (3, "b", 1), *some_events(chance, sequenced=False)])
        stream.load(tables)
        assert stream.rows() == stream.expected, f"after load {number}"
        assert stream.rows(copy) == stream.expected, f"the copy after load {number}"
        assert stream.rows(even) == {key: row for key, row in stream.expected.items() if key[0] in {0, 2, 4}}


def test_value_that_is_too_long_for_a_folder_is_merged_and_copied(tmp_path: Path, spark: SparkSession) -> None:
    """By events that have it, and by those that only touch a file of it; the table is what it was but for its rows."""
    stream = ChangeStream(tmp_path, more=BY_VALUE)
    create(spark, stream, "'delta.enableChangeDataFeed' = 'true'")
    tables, long = tables_of(stream, spark), "x" * 300
    state = tables.state(stream.table)
    for events in (
        [(1, long, 1), (2, long, 1), (3, "a", 1)],
        [(1, "b", 1)],
        [(2, long + "/", 1), (4, long, 1), (3, None, 1)],
    ):
        before = stream.rows()
        stream.flush(0, events)
        stream.load(tables)
        assert stream.rows() == stream.expected
        assert changed(spark, stream, before, tables.commits[-1][1]) == stream.expected, "what the change feed says"
    assert rows_of(stream.table, sql="day != coalesce(value, 'none')") == []
    after = tables.state(stream.table)
    assert state is not None
    assert after is not None
    assert (after.properties, after.features) == (state.properties, state.features)
    assert len(tables.commits) == 3


def changed(
    spark: SparkSession, stream: ChangeStream, before: dict[tuple[object, ...], Row], outcome: CommitOutcome
) -> dict[tuple[object, ...], Row]:
    """The rows before, as the change feed of one version changes them."""
    version = outcome.version if not isinstance(outcome, Conflicted) and hasattr(outcome, "version") else -1
    feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
    rows = feed.option("endingVersion", version).load(stream.table)
    table = dict(before)
    changes = rows.select("_change_type", "id", "name", "value", "_kafka_offset").collect()
    for kind, *key, value, offset in changes:
        if kind in ("delete", "update_preimage"):
            assert table[tuple(key)] == Row(value, offset=offset)
    for kind, *key, _, _ in changes:
        if kind == "delete":
            del table[tuple(key)]
    for kind, *key, value, offset in changes:
        if kind in ("insert", "update_postimage"):
            table[tuple(key)] = Row(value, offset=offset)
    return table


@pytest.mark.parametrize("seed", [pytest.param(11, marks=pytest.mark.in_turn("histories of merges in Spark")), FRESH])
def test_histories_of_late_events_and_soft_deletes_in_a_table_with_deletion_vectors(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    stream = ChangeStream(tmp_path, sequenced=True, soft=True, more=BY_VALUE)
    check = ", generated INT GENERATED ALWAYS AS (id + 1)"
    create(spark, stream, "'delta.enableDeletionVectors' = 'true', 'delta.enableRowTracking' = 'true'", check)
    spark.sql(f"ALTER TABLE delta.`{stream.table}` ADD CONSTRAINT known CHECK (id >= 0)")
    tables, chance = tables_of(stream, spark), random.Random(seed)  # noqa: S311 - printed
    for number in range(2):
        for partition in (0, 1):
            stream.flush(partition, some_events(chance, sequenced=True))
        stream.load(tables)
        assert stream.rows() == stream.expected, f"after load {number}"
        spark.sql(f"UPDATE delta.`{stream.table}` SET mine = 'kept' WHERE mine IS NULL")  # noqa: S608 - our own path
    # A loader that died after its commit, and one that had planned the same: nothing changes.
    (commit, _), held = tables.commits[-1], stream.rows()
    assert isinstance(tables.commit(commit), AlreadyLoaded)
    (report,) = stream.loader(tables).run_pass()
    assert (report.commits, report.failure) == (0, None)
    assert stream.rows() == held
    assert rows_of(stream.table, sql="generated != id + 1 OR generated IS NULL") == []
    stream.flush(0, [(0, "z", 99), (1, "z", 99)])
    stream.load(tables)
    assert stream.rows() == stream.expected
    kept = rows_of(stream.table, sql="mine = 'kept' AND value = 'z'")
    assert len(kept) == len({0, 1} & {key[0] for key in held})


def test_older_file_keeps_no_newer_value_in_a_row_and_lossy_numbers_are_dead_letters(
    tmp_path: Path, spark: SparkSession
) -> None:
    """Two writers of two configs: the events of one lack a column, and a field of a STRUCT, that the table has."""
    newer = {"late": "value", "inside": "{'b': id, 'a': \"at\"}"}
    stream = ChangeStream(tmp_path, more={"derive": newer, "evolution": "add"})
    stream.flush(0, [(1, "a", 1), (2, "a", 1)])
    tables = tables_of(stream, spark)
    stream.load(tables, spark)
    spark.sql(f"ALTER TABLE delta.`{stream.table}` ADD COLUMNS (mine STRING)")
    DeltaTable(stream.table).update(new_values={"mine": "kept"})
    settings = stream.settings.streams[0].model_dump(mode="json", exclude_defaults=True)
    columns = COLUMNS.replace("at INT", "at BIGINT")
    older = {**settings, "derive": {"inside": "{'a': \"at\"}"}, "columns": columns}
    stream.converter = StreamConverter(Stream.model_validate(older))
    stream.flush(0, [(1, "b", 1 << 40), (1, "b", 2), (2, None, 1 << 40), (3, "c", 7)])
    (report,) = stream.loader(tables, spark).run_pass()
    assert (report.failure, report.held) == (None, {})
    names = ("id", "value", "at", "late", "inside", "mine")
    assert sorted([row[name] for name in names] for row in rows_of(stream.table)) == [
        [1, "b", 2, None, {"b": None, "a": 2}, "kept"],
        [3, "c", 7, None, {"b": None, "a": 7}, None],
    ]
    (problem,) = (error for _, _, error in stream.letters().values())
    assert "a value of at, staged as BIGINT, is out of range for the column's type INT" in problem


def test_what_others_do_to_the_table_meanwhile_is_a_conflict_and_then_merged(
    tmp_path: Path, spark: SparkSession
) -> None:
    stream = ChangeStream(tmp_path)
    tables = tables_of(stream, spark)
    stream.flush(0, [(1, "a", 1), (2, "a", 1)])
    stream.flush(1, [(3, "a", 1)])
    stream.load(tables)
    stream.flush(0, [(1, "b", 1)])
    delete = f"DELETE FROM delta.`{stream.table}` WHERE id = 1"  # noqa: S608 - our own path
    tables.meanwhile.append(lambda: spark.sql(delete))
    stream.load(tables)
    assert [type(outcome).__name__ for _, outcome in tables.commits[-2:]] == ["Conflicted", "Committed"]
    assert stream.rows() == stream.expected, "the update came after the DELETE, and so made the row again"
    # Another loader is faster: the same events are not merged a second time.
    stream.flush(1, [(3, None, None)])
    other = tables_of(stream, spark)
    tables.meanwhile.append(lambda: stream.loader(other).run_pass())
    stream.load(tables)
    assert stream.rows() == stream.expected
    assert [type(outcome).__name__ for _, outcome in other.commits] == ["Committed"]


def test_changed_rows_and_the_positions_of_all_partitions_are_one_commit(tmp_path: Path, spark: SparkSession) -> None:
    """No crash can come between them."""
    stream = ChangeStream(tmp_path)
    tables = tables_of(stream, spark)
    stream.flush(0, [(1, "a", 1), (2, "a", 1)])
    stream.load(tables)
    stream.flush(0, [(1, "b", 1), (2, None, None)])
    stream.flush(1, [(3, "a", 1)])
    before = tables.state(stream.table)
    stream.load(tables)
    after = tables.state(stream.table)
    assert before is not None
    assert after is not None
    assert after.version == before.version + 1
    log = (Path(urlparse(stream.table).path) / f"_delta_log/{after.version:020}.json").read_text()
    lines = [json.loads(line) for line in log.splitlines()]
    kinds = Counter(kind for line in lines for kind in line)
    assert (kinds["txn"], kinds["remove"]) == (2, 1)
    (information,) = (line["commitInfo"] for line in lines if "commitInfo" in line)
    assert information["operation"] == "STREAMING UPDATE"
    assert information["operationParameters"]["outputMode"] == "Update"
    assert stream.rows() == stream.expected


def test_statement_that_commits_nothing_here_is_no_load(tmp_path: Path, spark: SparkSession) -> None:
    """Delta's commands ask for their transaction: one that does not would move no position."""
    stream = ChangeStream(tmp_path)
    tables = tables_of(stream, spark)
    stream.flush(0, [(1, "a", 1)])
    stream.load(tables)
    before = tables.state(stream.table)
    transaction = tables._begin(stream.table)
    with pytest.raises(Exception, match="did not commit in the transaction of the load"):
        transaction.merge(spark.range(1), "SELECT 1", {})
    assert not transaction.is_committing()
    assert tables.state(stream.table) == before


def _load_of(app_id: str, last_offset: int, *, merges: bool) -> dict[str, object]:
    """A load that moves the position of one Kafka partition and has no staged files."""
    moved = {"txn": {"appId": app_id, "version": last_offset, "lastUpdated": 1}}
    inside = {"files": [], "replaced": [], "transactions": [moved], "merges": merges, "app_id": "orders"}
    return {**inside, "metadata": "{}", "escaped": "", "longest_bytes": 255}


@pytest.mark.in_turn("a merge loses its copy of the source")
@pytest.mark.parametrize("other_loads", [False, True])
def test_merge_that_lost_its_copy_of_the_source_begins_again_as_the_same_load(
    tmp_path: Path,
    spark: SparkSession,
    monkeypatch: pytest.MonkeyPatch,
    other_loads: bool,  # noqa: FBT001 - a case
) -> None:
    """Spark drops the copy between the two reads of it, of which the first one waits for that in the condition."""
    url, asked, lost = f"{tmp_path}/table", tmp_path / "asked", tmp_path / "lost"
    session, bridge = spark.newSession(), Bridge(spark)
    session.range(4).selectExpr("id", "'a' AS value").write.format("delta").save(url)
    session.conf.set("spark.databricks.delta.merge.materializeSource", "all")
    monkeypatch.setattr(spark.sparkContext, "pythonExec", sys.executable)

    def waits(_key: object) -> bool:
        if not lost.exists():
            asked.touch()
        while not lost.exists():
            time.sleep(0.01)
        return True

    def lose() -> None:
        until(asked.exists, within_s=PATIENCE_S)
        try:
            if other_loads:
                other = bridge.begin(url, defers_checkpoint=False)
                other.state(["orders-0"])
                other.commit(_load_of("orders-0", 5, merges=False))
            copies = spark.sparkContext._jsc.getPersistentRDDs()
            copied = [key for key in copies if copies[key].name() == "mergeMaterializedSource"]
            assert copied
            for key in copied:
                copies[key].unpersist(True)  # noqa: FBT003 - of Java: and wait
        finally:
            lost.touch()

    session.udf.register("waits", waits, "boolean")
    source = session.range(2, 6).coalesce(1).selectExpr("id", "'b' AS value")
    source.createOrReplaceTempView("events")
    transaction = bridge.begin(url, defers_checkpoint=False)
    transaction.state(["orders-0"])
    statement = (
        f"MERGE INTO delta.`{url}` t USING events s ON t.id = s.id AND waits(s.id) "
        "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
    )
    with ThreadPoolExecutor(1) as pool:
        losing = pool.submit(lose)
        if other_loads:
            with pytest.raises(CONFLICTS):
                transaction.merge(source, statement, _load_of("orders-0", 7, merges=True))
        else:
            assert transaction.merge(source, statement, _load_of("orders-0", 7, merges=True)) == 1
        losing.result()
    values = {row["id"]: row["value"] for row in rows_of(url)}
    state = bridge.state(url)
    assert state is not None
    assert state.transactions == {"orders-0": 5 if other_loads else 7}
    if other_loads:
        assert (values, state.version) == (dict.fromkeys(range(4), "a"), 1)
    else:
        assert (values, state.version) == ({0: "a", 1: "a", 2: "b", 3: "b", 4: "b", 5: "b"}, 1)
        assert transaction.merged().rows == 4


def test_commit_outside_of_the_load_s_transaction_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    """A command that did not ask for its transaction would commit rows without positions."""
    url, bridge = f"{tmp_path}/table", Bridge(spark)
    spark.range(1).selectExpr("id").write.format("delta").save(url)
    given = bridge.begin(url, defers_checkpoint=False)
    kind = given._java.getClass()
    (handover,) = (declared for declared in kind.getDeclaredClasses() if declared.getSimpleName() == "Handover")
    (constructor,) = handover.getDeclaredConstructors()
    constructor.setAccessible(True)
    arguments = spark.sparkContext._gateway.new_array(spark.sparkContext._jvm.Object, 1)
    arguments[0] = given._java
    companion = getattr(spark.sparkContext._jvm, "org.apache.spark.sql.delta.TransactionExecutionObserver$")
    observers = getattr(companion, "MODULE$")
    before = observers.getObserver()
    observers.setObserver(constructor.newInstance(arguments))
    try:
        with pytest.raises(Exception, match="Delta would commit outside of the transaction that it was given"):
            bridge.begin(url, defers_checkpoint=False).commit(_load_of("orders-0", 7, merges=False))
        assert bridge.version(url) == 0
        given.commit(_load_of("orders-0", 7, merges=False))
        bridge.begin(url, defers_checkpoint=False).commit(_load_of("orders-1", 3, merges=False))
    finally:
        observers.setObserver(before)
    state = bridge.state(url)
    assert state is not None
    assert state.transactions == {"orders-0": 7, "orders-1": 3}


def test_files_without_a_key_of_the_load_are_not_read(tmp_path: Path, spark: SparkSession) -> None:
    stream = ChangeStream(tmp_path)
    tables = tables_of(stream, spark)
    stream.flush(0, [(key, "a", 1) for key in range(10)])
    stream.load(tables)
    (first,) = DeltaTable(stream.table).file_uris()
    stream.flush(0, [(key, "a", 1) for key in range(100, 110)])
    stream.load(tables)
    Path(unquote(urlparse(first).path)).unlink()
    stream.flush(0, [(105, "b", 1), (104, None, None)])
    stream.load(tables)
    assert {row["id"]: row["value"] for row in rows_of(stream.table, sql="id >= 100")} == {
        key: "b" if key == 105 else "a" for key in range(100, 110) if key != 104
    }


def test_what_is_staged_twice_after_a_loss_is_merged_from_the_position_on(tmp_path: Path, spark: SparkSession) -> None:
    stream = ChangeStream(tmp_path)
    tables = tables_of(stream, spark)
    stream.flush(0, [(1, "a", 1), (1, "b", 1)])
    stream.load(tables)
    store = stream.loader(tables)._ports.stage.store
    store.delete([item.path for item in store.list("")])
    stream.flush(0, [(1, "old", 1), (2, "old", 1), (3, "new", 1)])
    stream.load(tables)
    rows = {key[0]: row.value for key, row in stream.rows().items()}
    assert rows == {1: "b", 3: "new"}, "events below the table's position are not merged again"
