"""What `delta-loader` does, in this process: for tests that have a Spark session here already, or put traps into it."""

import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import structlog
from pyspark.sql import SparkSession

from common.cli import settings_from
from common.clock import SystemClock
from common.metrics import Metrics
from common.settings import load_settings
from common.settings.stores import table_stores
from common.storage.store import FsspecStore
from delta_loader.inspect.verify.findings import VerifiedStream as Verified
from delta_loader.inspect.verify.kafka_offsets import KafkaOffsets
from delta_loader.inspect.verify.table_offsets import SparkContents
from delta_loader.inspect.verify.verify import Verifier
from delta_loader.load.replace_ranges import Replacements
from delta_loader.load.report import StreamReport
from delta_loader.ports import in_turn
from delta_loader.service import LoaderService
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.spark.replace import SparkReplacer
from delta_loader.wiring import new_id, spark_ports
from tests.conftest import FRESH_SEED
from tests.verifier import reading_faults, spark_reader


def load(
    config: Path, spark: SparkSession, *, tables: SparkDeltaTables | None = None, replacer: SparkReplacer | None = None
) -> StreamReport:
    """One pass of a config's only stream; ``tables`` and ``replacer`` may have traps in them."""
    (report,) = load_all(config, spark, tables=tables, replacer=replacer)
    return report


def load_all(
    config: Path, spark: SparkSession, *, tables: SparkDeltaTables | None = None, replacer: SparkReplacer | None = None
) -> Sequence[StreamReport]:
    settings, log = load_settings(config, os.environ), structlog.get_logger()
    tables = tables or SparkDeltaTables(spark, SystemClock(), settings.stage.url)
    ports = spark_ports(settings, spark, tables, in_turn, log=log, metrics=Metrics())
    if replacer is not None:
        replacements = Replacements(FsspecStore(settings.stage.url), tables, replacer, new_id, log)
        ports = replace(ports, replacements=replacements)
    return LoaderService(settings.streams, settings.loader, ports).run_pass()


def verify(config: Path, spark: SparkSession, app_id: str = "") -> Verified:
    """What `delta-loader verify` finds of one of a config's streams, or of its only one.

    One of its tables, which the seed of the run draws, is the same to Spark, delta-rs and DuckDB.
    """
    settings = settings_from(config)
    kafka = KafkaOffsets(settings)
    try:
        (stream,) = (stream for stream in settings.streams if app_id in {"", stream.app_id})
        verified = Verifier(table_stores(settings), in_turn, SparkContents(spark), kafka).verify(stream)
    finally:
        kafka.close()
    named = {*stream.tables, *(finding.table for finding in verified.findings)}
    tables = [table for table in sorted(named) if next(iter(table_stores(settings)(table).list("_delta_log/")), None)]
    if tables:
        table = random.Random(FRESH_SEED).choice(tables)  # noqa: S311 - the header has the seed
        with TemporaryDirectory() as folder:
            rows = spark_reader(spark)(table)
            assert reading_faults(rows, table, settings.stage.storage_options, Path(folder)) == []
    return verified
