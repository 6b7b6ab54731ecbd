"""Merges into tables that refuse rows: such events are dead letters, and the table is that of a replay without them."""

import random
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from delta_loader.spark.delta import SparkDeltaTables
from tests.conftest import FRESH, FRESH_SEED
from tests.fakes.changes import ChangeStream
from tests.integration.mortal import Death, Mortal

pytestmark = pytest.mark.spark

COLUMNS = (
    "id INT NOT NULL, name STRING, value STRING, at INT, op STRING, _kafka_topic STRING, _kafka_partition INT, "
    "_kafka_offset BIGINT, _kafka_timestamp TIMESTAMP"
)


def events_of(chance: random.Random) -> list[tuple[int, str | None, int | None]]:
    kinds = [chance.choice("uuuuudt") for _ in range(chance.randrange(3, 12))]
    return [
        (
            chance.randrange(5),
            chance.choice(["a", "b", "far too long"]) if kind == "u" else None,
            None if kind == "t" else chance.randrange(6),
        )
        for kind in kinds
    ]


@pytest.mark.parametrize("seed", [pytest.param(5, marks=pytest.mark.in_turn("histories of merges in Spark")), FRESH])
def test_histories_of_which_a_check_a_generated_column_and_not_null_refuse_events(
    tmp_path: Path, spark: SparkSession, seed: int
) -> None:
    """In a table with soft deletes that takes no row of a key alone, and no sequence of zero."""
    stream = ChangeStream(tmp_path, sequenced=True, soft=True)
    spark.sql(
        f"CREATE TABLE delta.`{stream.table}` ({COLUMNS}, gone BOOLEAN, mine STRING, "
        "width INT GENERATED ALWAYS AS (length(value))) USING delta TBLPROPERTIES "
        "('delta.constraints.narrow' = 'width < 5', 'delta.constraints.at' = 'at <> 0', "
        "'delta.enableDeletionVectors' = 'true')"
    )
    stream.forbids = lambda row: row.sequence in (None, 0) or len(row.value or "far too long") > 5
    tables, chance = Mortal(spark, SystemClock(), stream.settings.stage.url), random.Random(seed)  # noqa: S311 - printed
    for number in range(2):
        for partition in (0, 1):
            # A delete of sequence zero is refused for any row, which the replay does not know.
            stream.flush(partition, [event for event in events_of(chance) if event[1:] != (None, 0)])
        stream.flush(0, [(9, "a", 1), (9, None, 0)] if number else [(9, "b", 1)])
        if tables.dies:
            with pytest.raises(Death):
                stream.loader(tables, spark).run_pass()
            tables.dies = False
        stream.load(tables, spark)
        assert stream.rows() == stream.expected, f"after load {number}"
        last = max(offset for topic_partition, offset in stream.sent if topic_partition.partition == 0)
        assert stream.letters().keys() == stream.refused | ({("orders", 0, last)} if number else set())
    assert len(stream.refused) > 3 or seed == FRESH_SEED


def test_check_of_the_flag_and_other_columns_holds_deletes_and_its_remedy_loads_them(
    tmp_path: Path, spark: SparkSession
) -> None:
    """What it says of a delete depends on the row."""
    stream = ChangeStream(tmp_path, sequenced=True, soft=True)
    table = f"delta.`{stream.table}`"
    spark.sql(
        f"CREATE TABLE {table} ({COLUMNS}, gone BOOLEAN) USING delta TBLPROPERTIES "
        "('delta.constraints.kept' = 'NOT gone OR value <> \\'zz\\' OR value IS NULL')"
    )
    tables = SparkDeltaTables(spark, SystemClock(), stream.settings.stage.url)
    stream.flush(0, [(8, "zz", 5), (8, None, 5)])
    (held,) = stream.loader(tables, spark).run_pass()[0].held.values()
    assert (held.reason, "kept" in held.problem) == ("not_written", True), held
    assert "ADD CONSTRAINT … CHECK (gone OR (…))" in held.remedy
    spark.sql(f"ALTER TABLE {table} DROP CONSTRAINT kept")
    spark.sql(f"ALTER TABLE {table} ADD CONSTRAINT kept CHECK (gone OR value <> 'none')")
    stream.load(tables, spark)
    assert stream.rows() == stream.expected


def test_checks_of_columns_that_the_stream_has_not_in_a_table_without_kafkas_columns(
    tmp_path: Path, spark: SparkSession
) -> None:
    stream = ChangeStream(tmp_path, more={"kafka_columns": False})
    spark.sql(
        f"CREATE TABLE delta.`{stream.table}` (id INT, name STRING, value STRING, at INT, op STRING, "
        "mine STRING DEFAULT 'd') USING delta TBLPROPERTIES ('delta.feature.allowColumnDefaults' = 'supported')"
    )
    spark.sql(f"ALTER TABLE delta.`{stream.table}` ADD CONSTRAINT other CHECK (value <> `mine`)")
    tables = SparkDeltaTables(spark, SystemClock(), stream.settings.stage.url)
    stream.flush(0, [(1, "a", 1), (2, "a", 1), (3, "d", 1), (3, "x", 1), (3, "d", 1)])
    stream.load(tables, spark)
    spark.sql(f"UPDATE delta.`{stream.table}` SET mine = 'b' WHERE id = 1")  # noqa: S608 - our own path
    stream.flush(1, [(1, "d", 1), (1, "b", 1), (2, "b", 1), (2, "d", 1), (4, "d", 1), (4, "c", 1), (3, None, None)])
    stream.load(tables, spark)
    assert stream.letters().keys() == {("orders", 0, 2), ("orders", 0, 4), *(("orders", 1, n) for n in (1, 3, 4))}
    rows = {key[0]: row.value for key, row in stream.rows().items()}
    assert rows == {1: "d", 2: "b", 4: "c"}
    (report,) = stream.loader(tables, spark).run_pass()
    assert (report.commits, report.held) == (0, {})
