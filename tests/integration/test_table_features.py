"""Tables made by others, a feature each: files are added to them as they are, and every reader that can sees the rows.

How a feature decides on the way of loading is in tests/unit/delta_loader/tables/test_load_modes.py, for all of them.
What has to go through Delta's writer is in test_append.py.
"""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from common.clock import SystemClock
from common.tables.delta_log import read_table_state
from common.tables.log_files import COMMIT
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.tables.load_modes.load_mode import Add, Append, Refused, choose_load_mode
from tests.fakes.loading import loader_for
from tests.fakes.staging import Staging
from tests.verifier import delta_rs_reader, duckdb_reader, spark_reader

pytestmark = pytest.mark.spark

ORDERS = "id BIGINT, name STRING, _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, day STRING"
BEFORE = "VALUES (-1, 'x', 'other', 9, 0, '2025-01-01'), (-2, 'y', 'other', 9, 1, '2025-01-01')"
FEATURES_OF_WHICH_ONE_IS_DRAWN = 3


@dataclass(frozen=True, slots=True)
class Made:
    properties: str = ""
    clause: str = "PARTITIONED BY (day)"
    columns: str = ORDERS
    after: tuple[str, ...] = ()
    """Statements once it has two rows."""
    feature: str = ""
    rows_before: int = 2
    partition_by: tuple[str, ...] = ("day",)


TABLES = {
    "appendOnly": Made("'delta.appendOnly' = 'true'"),
    "deletionVectors": Made(
        "'delta.enableDeletionVectors' = 'true'", after=("DELETE FROM {table} WHERE id = -2",), rows_before=1
    ),
    "changeDataFeed": Made("'delta.enableChangeDataFeed' = 'true'"),
    "rowTracking": Made("'delta.enableRowTracking' = 'true'"),
    "clustering": Made(clause="CLUSTER BY (name, id)", partition_by=()),
    "inCommitTimestamp": Made("'delta.enableInCommitTimestamps' = 'true'"),
    "v2Checkpoint": Made("'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1'"),
    "typeWidening": Made(
        "'delta.enableTypeWidening' = 'true'",
        columns=ORDERS.replace("id BIGINT", "id INT"),
        after=("ALTER TABLE {table} ALTER COLUMN id TYPE BIGINT",),
    ),
    "timestampNtz": Made(columns=f"{ORDERS}, n TIMESTAMP_NTZ"),
}


@pytest.mark.parametrize(
    "feature",
    [
        pytest.param(feature, marks=pytest.mark.in_turn(f"table features {number // FEATURES_OF_WHICH_ONE_IS_DRAWN}"))
        for number, feature in enumerate(TABLES)
    ],
)
def test_table_with_the_feature_takes_files_as_they_are(tmp_path: Path, spark: SparkSession, feature: str) -> None:
    made, staging = TABLES[feature], Staging.below(tmp_path)
    staging.partition_by = made.partition_by
    table = f"delta.`{staging.table}`"
    properties = f"TBLPROPERTIES ({made.properties})" if made.properties else ""
    spark.sql(f"CREATE TABLE {table} ({made.columns}) USING delta {made.clause} {properties}")
    names = "id, name, _kafka_topic, _kafka_partition, _kafka_offset, day"
    spark.sql(f"INSERT INTO {table} ({names}) {BEFORE}")
    for statement in made.after:
        spark.sql(statement.format(table=table))
    state = read_table_state(staging.store(staging.table))
    assert state is not None
    assert feature in state.features or state.writer_version < 7, state.features
    assert isinstance(choose_load_mode(state), Add)

    staging.flush(0, 0, 10)
    staging.flush(1, 0, 10)
    (report,) = loader_for(staging, SparkDeltaTables(spark, SystemClock(), staging.stage_url)).run_pass()

    assert (report.failure, report.held, report.rows) == (None, {}, 20)
    ids = [*range(0, 100, 10), *range(0, 100, 10), *(-1, -2)[: made.rows_before]]
    rows = spark_reader(spark)(staging.table)
    assert sorted(int(str(row["id"])) for row in rows) == sorted(ids)
    _look_closer(spark, staging, feature)
    try:
        foreign = delta_rs_reader(None)(staging.table)
    except Exception as error:  # noqa: BLE001 - of many kinds
        # Not every reader knows every feature; one that does not has to say so, and not to read something else.
        assert "eature" in str(error) or "nsupported" in str(error), error  # noqa: PT017
    else:
        assert len(foreign) == len(ids)
        if feature != "deletionVectors":  # DuckDB reads the files that the log names, and knows no more
            assert len(duckdb_reader(None, {})(staging.table)) == len(ids)


def _look_closer(spark: SparkSession, staging: Staging, feature: str) -> None:
    table, store = f"delta.`{staging.table}`", staging.store(staging.table)
    version, path = max((int(match[1]), match[0]) for match in _commits(staging))
    actions = [json.loads(line) for line in (store.read(path) or b"").splitlines()]
    rows = spark.read.format("delta").load(staging.table)
    match feature:
        case "rowTracking":
            added = [action["add"] for action in actions if "add" in action]
            assert len({added_file["baseRowId"] for added_file in added}) == 2
            ids = {row[0] for row in rows.select("_metadata.row_id").collect()}
            assert len(ids - {None}) == 22
        case "changeDataFeed":
            feed = spark.read.format("delta").option("readChangeFeed", "true").option("startingVersion", version)
            changes = feed.load(staging.table).groupBy("_change_type").count().collect()
            assert [tuple(row) for row in changes] == [("insert", 20)]
        case "clustering":
            (detail,) = spark.sql(f"DESCRIBE DETAIL {table}").collect()
            assert detail["clusteringColumns"] == ["name", "id"]
            spark.sql(f"OPTIMIZE {table}")
            assert rows.count() == 22
        case "inCommitTimestamp":
            assert actions[0]["commitInfo"]["inCommitTimestamp"] > 0
        case "v2Checkpoint":
            state = read_table_state(store)
            assert state is not None
            assert state.version == version
        case _:
            return


def _commits(staging: Staging) -> list[re.Match[str]]:
    matches = (COMMIT.fullmatch(item.path) for item in staging.store(staging.table).list("_delta_log"))
    return [match for match in matches if match]


def test_icebergs_layout_is_written_by_spark_and_uniform_is_refused(tmp_path: Path, spark: SparkSession) -> None:
    staging = Staging.below(tmp_path)
    table = f"delta.`{staging.table}`"
    spark.sql(
        f"CREATE TABLE {table} ({ORDERS}) USING delta PARTITIONED BY (day) TBLPROPERTIES "
        "('delta.enableIcebergCompatV2' = 'true', 'delta.columnMapping.mode' = 'name')"
    )
    tables = SparkDeltaTables(spark, SystemClock(), staging.stage_url)
    state = tables.state(staging.table)
    assert state is not None
    assert isinstance(choose_load_mode(state), Append)
    staging.flush(0, 0, 10)
    (report,) = loader_for(staging, tables).run_pass()
    assert (report.failure, report.held, report.rows) == (None, {}, 10)
    assert len(spark_reader(spark)(staging.table)) == 10
    uniform = replace(state, properties={**state.properties, "delta.universalFormat.enabledFormats": "iceberg"})
    assert isinstance(choose_load_mode(uniform), Refused)
