"""The sides that take the same topic in turns: ours, two floors, and Spark Structured Streaming.

Ours is a stage writer (one process or several), from its start to its end, and a load by a loader that runs already;
and for comparison the writing alone without its reader in C.
The floors are those of `benchmarks.floor`. Structured Streaming writes Delta in the same warm JVM that our loader has.
"""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import yaml

from benchmarks import measure, spark
from benchmarks.loading import load_once

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from benchmarks.cases import Case
    from benchmarks.measure import Cost
    from devservices.kafka import KafkaCluster

OURS, WRITING, LOADING = "ours", "ours: writing", "ours: loading"
WITHOUT_C = "ours: writing, without the reader in C"
CONSUME, PIPELINE, SPARK = "floor: consume", "floor: parse and write", "Spark"

Costs = dict[str, "Cost"]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the sides run."""

    kafka: KafkaCluster
    spark: SparkSession
    folder: Path

    def sides(self, case: Case) -> dict[str, Callable[[], Costs]]:
        """By name, a run of each, and what it cost by what it consists of."""
        return {
            CONSUME: lambda: {CONSUME: self._floor("consume", case)},
            PIPELINE: lambda: {PIPELINE: self._floor("pipeline", case)},
            OURS: lambda: self._ours(case),
            WITHOUT_C: lambda: {WITHOUT_C: self._written(case, self._empty("without-c"), native="off")[1]},
            SPARK: lambda: {SPARK: self._spark(case)},
        }

    def _ours(self, case: Case) -> Costs:
        path, wrote = self._written(case, self._empty("ours"), native="on")
        meter = spark.meter_of(self.spark)
        loaded = load_once(self.spark, path)
        load = meter.read()
        if loaded != case.messages:
            msg = f"{loaded} of {case.messages} messages are in the tables"
            raise RuntimeError(msg)
        return {OURS: wrote + load, WRITING: wrote, LOADING: load}

    def _written(self, case: Case, folder: Path, *, native: str) -> tuple[Path, Cost]:
        """The config, and what it cost to stage the topic."""
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(_config(self.kafka, case, folder, native)), "utf-8")
        command = [sys.executable, "-m", "stage_writer", "run", str(path), "--until-caught-up"]
        return path, measure.run_together([command] * case.writers)

    def _floor(self, what: str, case: Case) -> Cost:
        arguments = [self.kafka.bootstrap_servers, case.topic, str(case.messages), case.kind.columns]
        file = self._empty("floor") / "rows.parquet"
        return measure.run([sys.executable, "-m", "benchmarks.floor", what, *arguments, str(file)])

    def _spark(self, case: Case) -> Cost:
        return spark.stream_once(self.spark, self.kafka.bootstrap_servers, case.topic, case.kind, self._empty("spark"))

    def _empty(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


def _config(kafka: KafkaCluster, case: Case, folder: Path, native: str) -> dict[str, object]:
    stream = {
        "app_id": "benchmark",
        "topics": [case.topic],
        "table": str(folder / "table"),
        "columns": case.kind.columns,
        "derive": {"date": case.kind.date},
        "partition_by": ["date"],
    }
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": str(folder / "stage")},
        "writer": {"http": None, "native": native},
        "loader": {"http": None, "lease": "0s"},
        "logs": {"level": "error"},
        "streams": [stream],
    }
