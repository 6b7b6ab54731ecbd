"""The sides that read the same topic in turn: ours, two floors, and Spark Structured Streaming.

Ours is the writing by one or more stage writers, and a load. Its writing is also measured alone, without the reader in
C, and in a new process from start to end. The floors are in `benchmarks.floor`. Structured Streaming writes Delta in
the same JVM as our loader. Except for the new process, every side runs in a process that has done the same work before
(`benchmarks.warm`).
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from benchmarks import measure, spark
from benchmarks.cases import Case
from benchmarks.loading import load_once
from benchmarks.measure import Cost
from benchmarks.warm import Warm
from devservices.kafka import KafkaCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OURS, WRITING, LOADING = "ours", "ours: writing", "ours: loading"
WITHOUT_C = "ours: writing, without the reader in C"
FROM_START = "ours: writing, by a new process"
CONSUME, PIPELINE, SPARK = "floor: consume", "floor: parse and write", "Spark"

Costs = dict[str, Cost]


@dataclass(frozen=True, slots=True)
class Bench:
    kafka: KafkaCluster
    spark: SparkSession
    folder: Path
    _running: ExitStack = field(default_factory=ExitStack)
    _warm: dict[tuple[str, str, int], Warm] = field(default_factory=dict)

    def close(self) -> None:
        self._running.close()

    def _warm_process(self, program: str, side: str, index: int = 0) -> Warm:
        key = (program, side, index)
        if key not in self._warm:
            self._warm[key] = Warm(program)
            self._running.callback(self._warm[key].close)
        return self._warm[key]

    def sides(self, case: Case) -> dict[str, Callable[[], Costs]]:
        """Each side's run by name; a run returns its cost by part."""
        return {
            CONSUME: lambda: {CONSUME: self._floor("consume", case)},
            PIPELINE: lambda: {PIPELINE: self._floor("pipeline", case)},
            OURS: lambda: self._ours(case),
            WRITING: lambda: {WRITING: self._ours(case)[WRITING]},
            WITHOUT_C: lambda: {WITHOUT_C: self._written(case, self._empty("without-c"), native="off")[1]},
            FROM_START: lambda: {FROM_START: self._written_by_new_process(case)},
            SPARK: lambda: {SPARK: self._spark(case)},
        }

    def _ours(self, case: Case) -> Costs:
        path, wrote = self._written(case, self._empty("ours"), native="on")
        meter = spark.meter_of(self.spark)
        loaded = load_once(self.spark, path, asks_kafka=True)
        load = meter.read()
        if loaded != case.messages:
            msg = f"{loaded} of {case.messages} messages are in the tables"
            raise RuntimeError(msg)
        return {OURS: wrote + load, WRITING: wrote, LOADING: load}

    def _written(self, case: Case, folder: Path, *, native: str) -> tuple[Path, Cost]:
        """Stage the topic; returns the config and the cost."""
        path = self._config(case, folder, native)
        writers = [self._warm_process("writer", native, index) for index in range(case.writers)]
        with ThreadPoolExecutor(len(writers)) as pool:
            costs = list(pool.map(lambda writer: writer.run(["run", str(path), "--until-caught-up"]), writers))
        together = reduce(add, costs)
        peak_bytes = sum(cost.peak_bytes for cost in costs)
        return path, Cost(together.cpu_s, max(cost.wall_s for cost in costs), peak_bytes)

    def _written_by_new_process(self, case: Case) -> Cost:
        """Stage the topic in a new process, from its start to its end."""
        path = self._config(case, self._empty("new"), "on")
        return measure.run([sys.executable, "-m", "stage_writer", "run", str(path), "--until-caught-up"])

    def _config(self, case: Case, folder: Path, native: str) -> Path:
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(_config(self.kafka, case, folder, native)), "utf-8")
        return path

    def _floor(self, program: str, case: Case) -> Cost:
        arguments = [self.kafka.bootstrap_servers, case.topic, str(case.messages), case.kind.columns]
        file = self._empty("floor") / "rows.parquet"
        return self._warm_process("floor", program).run([program, *arguments, str(file)])

    def _spark(self, case: Case) -> Cost:
        return spark.stream_once(self.spark, self.kafka.bootstrap_servers, case.topic, case.kind, self._empty("spark"))

    def _empty(self, name: str) -> Path:
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder


def _config(kafka: KafkaCluster, case: Case, folder: Path, native: str) -> dict[str, object]:
    stream: dict[str, object] = {
        "app_id": "benchmark",
        "topics": [case.topic],
        "table": str(folder / "table"),
        "columns": case.kind.columns,
        "derive": {"date": case.kind.date},
        "partition_by": ["date"],
        "envelope": case.kind.envelope,
    }
    if case.kind.avro is not None:
        schema = folder / "record.avsc"
        schema.write_text(case.kind.avro, "utf-8")
        stream |= {"format": "avro", "schema_file": str(schema)}
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": str(folder / "stage")},
        "writer": {"http": None, "native": native},
        "loader": {"http": None, "lease": "0s"},
        "logs": {"level": "error"},
        "streams": [stream],
    }
