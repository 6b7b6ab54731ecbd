"""Tables that ask something of each row: Delta's own writer gives it to them, in the commit that moves positions."""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.spans import Offset, Partition, Position, Span, Topic, TopicPartition
from common.tables.history import read_history, store_lines
from delta_loader.load.ports import RawRecord, RefusalPorts
from delta_loader.load.report import StreamReport
from delta_loader.spark.constraint_check import ConstraintChecker
from delta_loader.spark.delta import SparkDeltaTables
from tests.fakes.loading import loader_for
from tests.fakes.staging import JoinedStaging, Staging
from tests.integration.mortal import Death, Mortal
from tests.reading import rows_of
from tests.verifier import spark_reader

pytestmark = pytest.mark.spark

_OFFSETS = ((5, 7), (2, 1_700_000_000_456), (2, 1_600_000_000_123), (5, 7), (11, 8))
"""With times: a record of a topic that was deleted had an offset, too; and one letter is there twice."""
ORDERS = "id BIGINT, name STRING, _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, day STRING"

DEFAULTS = "TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"


def create(spark: SparkSession, staging: Staging, columns: str, more: str = "") -> None:
    spark.sql(f"CREATE TABLE delta.`{staging.table}` ({columns}) USING delta {more}")


def load(
    staging: Staging,
    spark: SparkSession,
    kafka: Mapping[int, bytes | None] | None = None,
    tables: SparkDeltaTables | None = None,
) -> StreamReport:
    """One pass; ``kafka`` is what Kafka still has of partition 0."""
    tables = tables or SparkDeltaTables(spark, SystemClock(), staging.stage_url)

    def raw_records(
        partition: TopicPartition, offsets: Collection[Offset], _topic_id: str | None
    ) -> dict[Offset, RawRecord]:
        have = kafka if kafka is not None and partition.partition == 0 else {}
        return {offset: RawRecord(1_767_225_600_123, b"key", have[offset]) for offset in offsets if offset in have}

    refusing = RefusalPorts(ConstraintChecker(spark, staging.stage_url), raw_records)
    (report,) = loader_for(staging, tables, refusing=refusing).run_pass()
    assert report.failure is None
    return report


def offsets(rows: Sequence[dict[str, object]]) -> list[tuple[int, int]]:
    return sorted((int(str(row["_kafka_partition"])), int(str(row["_kafka_offset"]))) for row in rows)


def versions(staging: Staging) -> list[str]:
    """The operations in the table's log, the newest first."""
    store = staging.store(staging.table)
    newest = sum(item.path.endswith(".json") for item in store.list("_delta_log")) - 1
    return [commit.operation for commit in read_history(newest, store_lines(store))]


def test_generated_identity_and_default_columns_are_made_and_the_partitioning_is_the_tables(
    tmp_path: Path, spark: SparkSession
) -> None:
    staging = Staging.below(tmp_path)
    made = (
        "number BIGINT GENERATED ALWAYS AS IDENTITY (START WITH 10 INCREMENT BY 5), "
        "month STRING GENERATED ALWAYS AS (substr(day, 1, 7)), "
        "color STRING DEFAULT 'blue'"
    )
    create(spark, staging, f"{ORDERS}, {made}", f"PARTITIONED BY (month) {DEFAULTS}")
    staging.flush(0, 0, 20, days=["2026-01-01", "2026-02-01"])
    staging.flush(1, 0, 10, days=["2026-02-03"], mixed=True)
    assert not load(staging, spark).held
    staging.flush(0, 20, 30, days=["2026-02-01", None])
    assert not load(staging, spark).held

    rows = rows_of(staging.table)
    assert offsets(rows) == sorted([*((0, offset) for offset in range(30)), *((1, offset) for offset in range(10))])
    numbers = [int(str(row["number"])) for row in rows]
    assert len(set(numbers)) == 40
    assert all(number >= 10 and (number - 10) % 5 == 0 for number in numbers)
    first = {
        int(str(row["number"])) for row in rows if row["_kafka_partition"] == 1 or int(str(row["_kafka_offset"])) < 20
    }
    assert max(first) < min(set(numbers) - first), "the high-water mark moved with the first commit"
    for row in rows:
        assert row["month"] == (None if row["day"] is None else str(row["day"])[:7])
        assert row["color"] == "blue"
        assert row["id"] == int(str(row["_kafka_offset"])) * 10
    assert versions(staging) == ["STREAMING UPDATE", "STREAMING UPDATE", "CREATE TABLE"]
    table = DeltaTable(staging.table)
    assert table.to_pyarrow_dataset().count_rows() == 40
    months = {
        str(path).split("/")[0] for path in table.file_uris() for path in [path.removeprefix(staging.table + "/")]
    }
    assert len(months) == 3


@pytest.mark.parametrize("mode", ["name", "id"])
def test_column_mapping(tmp_path: Path, spark: SparkSession, mode: str) -> None:
    staging = Staging.below(tmp_path)
    create(
        spark,
        staging,
        ORDERS.replace("name STRING", "label STRING"),
        f"PARTITIONED BY (day) TBLPROPERTIES ('delta.columnMapping.mode' = '{mode}')",
    )
    spark.sql(f"ALTER TABLE delta.`{staging.table}` RENAME COLUMN label TO name")
    staging.flush(0, 0, 10, days=["2026-01-01", None])
    staging.flush(1, 0, 10, mixed=True)
    assert not load(staging, spark).held
    expected = sorted([*((0, offset) for offset in range(10)), *((1, offset) for offset in range(10))])
    rows = spark_reader(spark)(staging.table)
    assert offsets(rows) == expected
    assert all(row["name"] == f"n{row['_kafka_offset']}" for row in rows)


def test_row_that_the_table_refuses_is_a_dead_letter_and_the_rest_is_loaded(
    tmp_path: Path, spark: SparkSession
) -> None:
    staging = Staging.below(tmp_path)
    columns = ORDERS.replace("name STRING", "name VARCHAR(2)").replace("day STRING", "day STRING NOT NULL")
    create(spark, staging, columns, "TBLPROPERTIES ('delta.constraints.odd' = 'id % 40 <> 0 OR id > 100')")
    # 0, 4 and 8 fail the constraint, 10 to 14 are too long (n10), 7 has no day.
    staging.flush(0, 0, 8, days=["a", "b", "c", "d", "e", "f", "g", None], dead=[3])
    staging.flush(0, 8, 15)
    staging.flush(1, 0, 8, days=["a", "b", "c", "d"])
    staging.flush(2, 1, 4)
    sent = {offset: b"sent %d" % offset for offset in range(15)}

    report = load(staging, spark, sent)

    assert {str(partition): held.reason for partition, held in report.held.items()} == {"orders/1": "refused_record"}
    assert "the record at 0 of orders/1" in str(report.held)
    refused = [0, 4, 7, 8, 10, 11, 12, 13, 14]
    rows = rows_of(staging.table)
    expected = [(0, offset) for offset in range(15) if offset not in (*refused, 3)]
    assert offsets(rows) == [*expected, (2, 1), (2, 2), (2, 3)]
    letters = {row["_kafka_offset"]: row for row in rows_of(staging.dead_letters)}
    assert set(letters) == {3, *refused}
    assert {letters[offset]["error_class"] for offset in refused} == {"refused_by_table"}
    assert letters[4]["value"] == b"sent 4"
    assert "odd fails or" in str(letters[4]["error"])
    assert "day is null" in str(letters[7]["error"])
    assert "too long" in str(letters[12]["error"])
    # Once the constraint is gone what was held is loaded, and nothing comes twice.
    spark.sql(f"ALTER TABLE delta.`{staging.table}` DROP CONSTRAINT odd")
    assert not load(staging, spark).held
    assert offsets(rows_of(staging.table)) == sorted(
        [*expected, *((1, offset) for offset in range(8)), (2, 1), (2, 2), (2, 3)]
    )
    assert len(rows_of(staging.dead_letters)) == 10


def test_refused_records_of_two_topics_in_one_chain_are_distinguished(tmp_path: Path, spark: SparkSession) -> None:
    staging = JoinedStaging.below(tmp_path, "orders+payments")
    some = "TBLPROPERTIES ('delta.constraints.some' = 'id NOT IN (20, 30, 110)')"
    create(spark, staging, ORDERS, f"PARTITIONED BY (day) {some}")
    staging.flush(0, 0, 6)
    sent = {offset: b"sent %d" % offset for offset in range(10)}
    assert not load(staging, spark, sent).held
    staging.flush(0, 6, 12)
    tables = Mortal(spark, SystemClock(), staging.stage_url)
    with pytest.raises(Death):
        load(staging, spark, sent, tables)
    spark.sql(f"ALTER TABLE delta.`{staging.table}` DROP CONSTRAINT some")
    assert not load(staging, spark, sent).held

    letters = [(row["_kafka_topic"], row["_kafka_offset"], row["value"]) for row in rows_of(staging.dead_letters)]
    assert sorted(letters) == [("orders", 1, b"sent 1"), ("payments", 1, b"sent 1"), ("payments", 5, b"sent 5")]
    rows = [(row["_kafka_topic"], row["_kafka_offset"]) for row in rows_of(staging.table)]
    assert len(rows) == 9
    assert set(rows) == {(topic, number) for topic in ("orders", "payments") for number in range(6)} - {
        (topic, offset) for topic, offset, _ in letters
    }


def test_row_whose_generated_column_or_check_fails_is_a_dead_letter(tmp_path: Path, spark: SparkSession) -> None:
    """It throws where Delta computes or checks it; no other row is held by that."""
    staging = Staging.below(tmp_path)
    checks = (
        "'delta.constraints.ratio' = '1000 DIV (id - 30) < 500', 'delta.constraints.number' = 'CAST(day AS INT) > 0'"
    )
    made = (
        "share BIGINT GENERATED ALWAYS AS (100 DIV (id - 10)), "
        "part BIGINT GENERATED ALWAYS AS (CASE WHEN id <> 20 THEN id * 2 END)"
    )
    create(spark, staging, f"{ORDERS}, {made}", f"TBLPROPERTIES ({checks}, 'delta.constraints.small' = 'share < 500')")
    staging.flush(0, 0, 7, days=["1", "2", "3", "4", "5", "x", "7"])  # ids are ten times the offsets
    assert not load(staging, spark, dict.fromkeys(range(7), b"sent")).held
    rows = rows_of(staging.table)
    assert offsets(rows) == [(0, 0), (0, 2), (0, 4), (0, 6)]
    assert {row["id"]: (row["share"], row["part"]) for row in rows} == {
        0: (-10, 0),
        20: (10, None),  # a null is no failure
        40: (3, 80),
        60: (2, 120),
    }
    letters = {row["_kafka_offset"]: str(row["error"]) for row in rows_of(staging.dead_letters)}
    assert {offset: "cannot be computed" in error for offset, error in letters.items()} == dict.fromkeys(
        (1, 3, 5), True
    )
    assert "the generated column share" in letters[1]
    assert "ratio" in letters[3]
    assert "number" in letters[5]


def test_time_of_the_year_9999_is_read_by_other_readers(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    create(spark, staging, f"{ORDERS}, until TIMESTAMP DEFAULT TIMESTAMP '9999-12-31'", DEFAULTS)
    staging.flush(0, 0, 1, days=["2026-01-01"])
    assert not load(staging, spark).held
    (until,) = DeltaTable(staging.table).to_pyarrow_table()["until"].to_pylist()
    assert until == datetime(9999, 12, 31, tzinfo=UTC)


def test_small_files_become_one(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    create(spark, staging, ORDERS, "TBLPROPERTIES ('delta.constraints.positive' = 'id >= 0')")
    for start in range(0, 40, 4):
        staging.flush(0, start, start + 4, days=["2026-01-01", "2026-01-02"])
    assert not load(staging, spark).held
    assert len(offsets(rows_of(staging.table))) == 40
    assert len(DeltaTable(staging.table).file_uris()) == 1


def test_dead_letters_are_read_in_parts_by_offset_each_once(tmp_path: Path, spark: SparkSession) -> None:
    url = f"{tmp_path}/dead_letters"
    rows = [(topic, 0, offset, ms, "refused_by_table") for topic in ("orders", "others") for offset, ms in _OFFSETS]
    rows += [("orders", 1, 0, 1, "refused_by_table"), ("orders", 0, 3, 4, "wrong_type")]
    values = ", ".join(
        f"('{topic}', {partition}, {offset}, timestamp_millis({ms}), CAST('k' AS BINARY), NULL, '{error}', 'why')"
        for topic, partition, offset, ms, error in rows
    )
    names = "_kafka_topic, _kafka_partition, _kafka_offset, _kafka_timestamp, key, value, error_class, error"
    spark.sql(f"CREATE TABLE delta.`{url}` USING delta AS SELECT * FROM VALUES {values} AS t({names})")  # noqa: S608 - of a test
    reader, orders = ConstraintChecker(spark, str(tmp_path)), TopicPartition(Topic("orders"), Partition(0))

    def read(start: int, end: int, most: int) -> list[tuple[int, int | None]]:
        letters = reader.dead_letters(url, orders, Span(Position(start), Position(end)), most)
        assert {(letter.partition, letter.key, letter.value, letter.error) for letter in letters} <= {
            (orders, b"k", None, "why")
        }
        return [(letter.offset, letter.timestamp_ms) for letter in letters]

    assert read(0, 10, 10) == [(2, 1_600_000_000_123), (2, 1_700_000_000_456), (5, 7)]
    assert read(0, 10, 2) == [(2, 1_600_000_000_123), (2, 1_700_000_000_456)]
    assert read(3, 9, 10) == [(5, 7)]
