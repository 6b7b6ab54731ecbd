"""Writes that need different settings of Spark, at the same time and in one JVM."""

from pathlib import Path

import pytest
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from common.stage.markers import StagedFile
from delta_loader.plan.plan import TableShape
from delta_loader.spark.bridge import Bridge
from delta_loader.spark.spark_writes import WriteSessions

pytestmark = pytest.mark.spark

OPTIMIZED = "spark.databricks.delta.optimizeWrite.enabled"
CORRUPT = "spark.sql.files.ignoreCorruptFiles"


def test_none_waits_for_another_and_the_loaders_own_session_stays_as_it_is(spark: SparkSession) -> None:
    sessions = WriteSessions(spark)
    before = {key: spark.conf.get(key, None) for key in (OPTIMIZED, CORRUPT)}
    first, other = (sessions.writer(optimized=optimized).spark for optimized in (True, False))
    assert (first.conf.get(OPTIMIZED), other.conf.get(OPTIMIZED)) == ("true", "false")
    assert first.conf.get(CORRUPT) == other.conf.get(CORRUPT) == "false"
    assert {key: spark.conf.get(key, None) for key in before} == before
    assert sessions.writer(optimized=True).spark is first
    assert sessions.writer(optimized=True, codec="gzip").spark is not first
    options = (
        "spark.sql.session.timeZone",
        "spark.databricks.delta.snapshotPartitions",
        "spark.sql.variable.substitute",
    )
    for key in options:
        assert first.conf.get(key) == spark.conf.get(key)


def test_reading_files_has_the_session_settings_of_the_write(tmp_path: Path, spark: SparkSession) -> None:
    """Java's session of the thread counts for it: not the loader's, in which a damaged file could be left out."""
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1")
    (tmp_path / "_delta_log").mkdir()
    file = StagedFile("damaged.parquet", {}, 4, 1, "{}")
    columns = StructType.fromDDL("id INT").json()
    spark.conf.set(CORRUPT, "true")
    try:
        writer = WriteSessions(spark).writer(optimized=False)
        rows = writer.rows(str(tmp_path), TableShape(columns, ()), [file])
        with pytest.raises((Py4JError, PySparkException), match="FAILED_READ_FILE"):
            rows.collect()
        assert Bridge(spark).rows(str(tmp_path), TableShape(columns, ()), [file]).collect() == []
    finally:
        spark.conf.unset(CORRUPT)
