"""Runs a pass of the real loader in an existing Spark session, as its service does on a schedule."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from common.clock import SystemClock
from common.logs import set_up_logs
from common.metrics import Metrics
from common.settings import load_settings
from common.settings.model import LogSettings
from delta_loader.service import LoaderService
from delta_loader.spark.delta import SparkDeltaTables
from delta_loader.wiring import spark_ports

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Result = TypeVar("Result")
_THREADS = 32


def load_once(spark: SparkSession, config: Path, *, asks_kafka: bool = False) -> int:
    """Load everything that is staged, and return the number of rows added.

    A new loader that asks Kafka waits three seconds where no broker is, which is not part of a load.
    """
    settings = load_settings(config, os.environ)
    with ThreadPoolExecutor(_THREADS) as pool:

        def parallel(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
            return list(pool.map(function, items))

        log = set_up_logs(LogSettings(level="error"), "delta-loader")  # figures alone are printed
        tables = SparkDeltaTables(spark, SystemClock(), settings.stage.url)
        ports = spark_ports(settings, spark, tables, parallel, log=log, metrics=Metrics())
        if not asks_kafka:
            ports = replace(ports, partitions=lambda _: None)
        reports = LoaderService(settings.streams, settings.loader, ports).run_pass()
    for report in reports:
        if report.failure is not None:
            raise report.failure
    return sum(report.rows for report in reports)
