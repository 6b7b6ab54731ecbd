"""Writes that need different settings of Spark, at the same time and in one JVM."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from delta_loader.spark.gateway import Gateway, Java
from delta_loader.spark.spark_writes import WriteSessions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

OPTIMIZED = "spark.databricks.delta.optimizeWrite.enabled"
CORRUPT = "spark.sql.files.ignoreCorruptFiles"


def active(spark: SparkSession) -> Java:
    """Java's session of this thread: what reads files asks it, and not the data frame's."""
    classic = Gateway(spark).jvm.org.apache.spark.sql.classic
    return getattr(getattr(classic, "SparkSession$"), "MODULE$").active()


def test_none_waits_for_another_and_the_loaders_own_session_stays_as_it_is(spark: SparkSession) -> None:
    sessions = WriteSessions(spark)
    before = {key: spark.conf.get(key, None) for key in (OPTIMIZED, CORRUPT)}
    with sessions.writing(optimized=True) as one, sessions.writing(optimized=False) as other:
        assert (one.spark.conf.get(OPTIMIZED), other.spark.conf.get(OPTIMIZED)) == ("true", "false")
        assert one.spark.conf.get(CORRUPT) == other.spark.conf.get(CORRUPT) == "false"
        assert {key: spark.conf.get(key, None) for key in before} == before
        assert active(spark).equals(other.spark._jsparkSession)
    assert active(spark).equals(spark._jsparkSession)
    options = (
        "spark.sql.session.timeZone",
        "spark.databricks.delta.snapshotPartitions",
        "spark.sql.variable.substitute",
    )
    for key in options:
        assert one.spark.conf.get(key) == spark.conf.get(key)
