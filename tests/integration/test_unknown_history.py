"""A log that Delta cleaned up beyond a stream's last load: held by name, and the printed command goes on."""

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from devservices.kafka import KafkaCluster
from tests.integration.conftest import Programs
from tests.integration.test_identity import Edited

pytestmark = [pytest.mark.broker, pytest.mark.spark]
_LONG_AGO_S = 40 * 86_400


def clean_up_log(spark: SparkSession, url: str) -> None:
    """Commits of another program, a month in which nothing happens, and Delta's own clean-up by a checkpoint."""
    for number in range(3):
        spark.sql(f"ALTER TABLE delta.`{url}` SET TBLPROPERTIES ('others' = '{number}')")
    for path in Path(url, "_delta_log").iterdir():
        os.utime(path, (time.time() - _LONG_AGO_S,) * 2)
    spark.sql(f"ALTER TABLE delta.`{url}` SET TBLPROPERTIES ('others' = 'the last')")
    jvm = spark._jvm
    assert jvm is not None
    jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, url).checkpoint()


def test_log_cleaned_up_beyond_the_last_load_holds_until_accepted(
    kafka: KafkaCluster, tmp_path: Path, programs: Programs, spark: SparkSession, new_topic: Callable[..., str]
) -> None:
    edited, orders = Edited(kafka, tmp_path, programs, spark), new_topic()
    edited.edit([orders])
    edited.send(orders, 12)
    edited.load()
    clean_up_log(spark, edited.staging.table)
    commits = sorted(Path(edited.staging.table, "_delta_log").glob("*.json"))
    assert int(commits[0].stem) > 1, "Delta has removed the stream's commit"
    edited.load()
    assert edited.held() == {}, "nothing is to be loaded"
    edited.send(orders, 5)
    edited.load()
    assert edited.held() == {orders: "history_unknown"}
    assert edited.rows() != edited.sent
    edited.obey()
    edited.load()
    assert (edited.held(), edited.rows()) == ({}, edited.sent)
