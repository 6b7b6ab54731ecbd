"""One warm Spark session for both sides: Structured Streaming from Kafka to Delta, and our loader's passes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql import functions
from pyspark.sql.avro.functions import from_avro

from benchmarks.measure import Cost, Meter
from benchmarks.messages import Kind
from common.downloads import ensure_jars, read_lock
from common.settings import Settings
from delta_loader.spark.session import build_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LOCK = Path(__file__).parent / "jars.lock"
_THREADS = 2


def start(servers: str, folder: Path) -> SparkSession:
    """A session like the loader's, with Spark's Kafka source and Avro functions added."""
    lock = read_lock(LOCK)
    jars = [*ensure_jars(lock["spark-kafka"]), *ensure_jars(lock["spark-avro"])]
    spark = {
        "spark.master": f"local[{_THREADS}]",
        "spark.driver.memory": "4g",
        "spark.jars": ",".join(jar.as_uri() for jar in jars),
    }
    stream = {"app_id": "none", "topics": ["none"], "table": str(folder / "none"), "columns": "id INT"}
    settings = {
        "kafka": {"bootstrap.servers": servers},
        "stage": {"url": str(folder / "none-stage")},
        "loader": {"spark": spark},
        "streams": [stream],
    }
    return build_session(Settings.model_validate(settings))


def stream_once(spark: SparkSession, servers: str, topic: str, kind: Kind, folder: Path) -> Cost:
    """Read a whole topic into a new Delta table in one Structured Streaming batch, as Spark's guide shows."""
    meter = meter_of(spark)
    source = (
        spark.readStream.format("kafka")
        .option("kafka.bootstrap.servers", servers)
        .option("subscribe", topic)
        .option("startingOffsets", "earliest")
        .load()
    )
    value = functions.col("value")
    record = from_avro(value, kind.avro) if kind.avro else functions.from_json(value.cast("string"), kind.columns)
    rows: DataFrame = source.select(
        record.alias("record"),
        "topic",
        "partition",
        "offset",
        "timestamp",
    ).select("record.*", "topic", "partition", "offset", "timestamp")
    query = (
        rows.withColumn("date", functions.expr(kind.date))
        .writeStream.format("delta")
        .partitionBy("date")
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "table"))
    )
    query.awaitTermination()
    return meter.read()


def meter_of(spark: SparkSession) -> Meter:
    gateway = spark.sparkContext._gateway  # noqa: SLF001 - PySpark exposes its JVM's process in no other way
    return Meter(gateway.proc.pid, os.getpid())
