"""What a message costs, from Kafka to the table: ``python -m benchmarks.writer`` (`make benchmark`).

Four sides take the same topic in turns, on one machine in one run: ours (a stage writer, from its start to its end, and
a load by a loader that runs already), the two floors (benchmarks/floor.py) and Spark Structured Streaming to Delta in
the same warm JVM. Each kind of record is read once to warm up, then `--rounds` times; the median counts. What is
printed is CPU time, of all threads: two cores are two CPU-seconds a second. The ratios hold elsewhere, the figures not.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
import yaml
from confluent_kafka import Producer

from benchmarks import measure, spark
from benchmarks.loading import load_once
from benchmarks.messages import KINDS, Kind
from devservices.kafka import KafkaOptions, running_kafka

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from benchmarks.measure import Cost
    from devservices.kafka import KafkaCluster

OURS, CONSUME, PIPELINE, SPARK, START = "ours", "floor: consume", "floor: parse and write", "Spark", "ours, no messages"
_PRODUCE_BUFFER = 500_000
_PARTITIONS = 16

app = typer.Typer(add_completion=False)


@dataclass(frozen=True, slots=True)
class Case:
    """One topic that all sides take."""

    kind: Kind
    topic: str
    partitions: int
    messages: int
    size_bytes: int
    """Of all values."""


@dataclass(frozen=True, slots=True)
class Bench:
    """Where the sides run."""

    kafka: KafkaCluster
    spark: SparkSession
    folder: Path

    def sides(self, case: Case) -> dict[str, Callable[[], Cost]]:
        """By name, a run of each."""
        return {
            CONSUME: lambda: self._floor("consume", case),
            PIPELINE: lambda: self._floor("pipeline", case),
            OURS: lambda: self._ours(case),
            SPARK: lambda: self._spark(case),
        }

    def _ours(self, case: Case) -> Cost:
        folder = self._empty("ours")
        config = _config(self.kafka, case, folder)
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config), "utf-8")
        wrote = measure.run([sys.executable, "-m", "stage_writer", "run", str(path), "--until-caught-up"])
        meter = spark.meter_of(self.spark)
        loaded = load_once(self.spark, path)
        if loaded != case.messages:
            msg = f"{loaded} of {case.messages} rows were loaded"
            raise RuntimeError(msg)
        return wrote + meter.read()

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


def _config(kafka: KafkaCluster, case: Case, folder: Path) -> dict[str, object]:
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
        "writer": {"http": None},
        "loader": {"http": None, "lease": "0s"},
        "logs": {"level": "error"},
        "streams": [stream],
    }


def _fill(kafka: KafkaCluster, kind: Kind, topic: str, partitions: int, messages: int) -> Case:
    kafka.create_topic(topic, partitions)
    producer = Producer(
        {"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 50, "queue.buffering.max.messages": _PRODUCE_BUFFER}
    )
    size_bytes = 0
    for number in range(messages):
        value = kind.make(number)
        size_bytes += len(value)
        while True:
            try:
                producer.produce(topic, value, partition=number % partitions)
                break
            except BufferError:
                producer.poll(0.1)
    if producer.flush(300):
        msg = "the broker did not take all messages"
        raise RuntimeError(msg)
    return Case(kind, topic, partitions, messages, size_bytes)


def _measure(bench: Bench, case: Case, rounds: int) -> dict[str, list[Cost]]:
    """The costs of each side, the sides in turns; the first round only warms up."""
    found: dict[str, list[Cost]] = {name: [] for name in bench.sides(case)}
    for number in range(rounds + 1):
        for name, side in bench.sides(case).items():
            cost = side()
            _say(f"  {case.topic} {'warm-up' if number == 0 else number}: {name} {cost.cpu_s:.2f} CPU-s")
            if number:
                found[name].append(cost)
    return found


def _table(case: Case, costs: dict[str, list[Cost]]) -> list[str]:
    cpu_s = {name: statistics.median(cost.cpu_s for cost in found) for name, found in costs.items()}
    size = case.size_bytes // case.messages
    lines = [
        f"{case.kind.name}: {case.messages:,} messages of {size:,} bytes, {case.partitions} partitions",
        f"  {'side':24} {'messages/CPU-s':>15} {'MB/CPU-s':>9} {'peak MB':>8} {'× Spark':>8} {'of the floor':>13}",
    ]
    for name, used_s in cpu_s.items():
        peak = max(cost.peak_bytes for cost in costs[name]) / 2**20
        lines.append(
            f"  {name:24} {case.messages / used_s:15,.0f} {case.size_bytes / 1e6 / used_s:9.1f} "
            f"{peak or float('nan'):8.0f} {cpu_s[SPARK] / used_s:8.2f} {cpu_s[PIPELINE] / used_s:13.2f}"
        )
    return lines


@app.command()
def main(
    kinds: Annotated[list[str] | None, typer.Argument(help="small, 1.2 KB, nested, wide; all when absent")] = None,
    scale: Annotated[float, typer.Option(help="Of the number of messages.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Measured rounds.")] = 3,
    partitions: Annotated[list[int] | None, typer.Option(help="Numbers of Kafka partitions; 16 when absent.")] = None,
) -> None:
    """Measure and print."""
    report: list[str] = []
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(KafkaOptions(properties={"log.segment.bytes": "1073741824"})))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        session = spark.start(kafka.bootstrap_servers, folder)
        stack.callback(session.stop)
        bench = Bench(kafka, session, folder)
        for kind in _chosen(kinds):
            for count in partitions or [_PARTITIONS]:
                topic = f"{kind.name.replace(' ', '-')}-{count}"
                case = _fill(kafka, kind, topic, count, max(count, int(kind.messages * scale)))
                report += [*_table(case, _measure(bench, case, rounds)), ""]
                kafka.delete_topic(topic)
    _say("\n".join(report))


def _chosen(names: Sequence[str] | None) -> Iterable[Kind]:
    return [KINDS[name] for name in names] if names else KINDS.values()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
