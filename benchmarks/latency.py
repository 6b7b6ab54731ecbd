"""The time until a record is readable: ``python -m benchmarks.latency`` (`make benchmark-latency`).

Records arrive at an even rate. A record's latency is the time from its Kafka timestamp until the commit that contains
it is in the table's log. The sides run one after the other, on the same machine with the same cores: a stage writer and
a loader with ``schedule: on-marker``, with the notifications in the stage and then with a control topic; then Spark
Structured Streaming with a trigger interval equal to our writer's ``flush_after``. Records of the first seconds, in
which all sides warm up, do not count. ``--keep`` puts the figures on the performance page.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Self

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq
import typer
import yaml
from confluent_kafka import Producer
from pyspark.sql import functions

from benchmarks.loader_process import processes_below
from benchmarks.measure import Cost, Meter
from benchmarks.page import put
from benchmarks.spark import meter_of, start
from devservices import processes
from devservices.kafka import KafkaCluster, running_kafka

_PARTITIONS = 4
_TICK_S = 0.01
_POLL_S = 0.005
_START_S = 300  # a cold Spark on a busy machine
_TAIL_S = 60
_SLOW_INTERVAL_S = 0.5
_BEGIN, _END = "<!-- latency: made by `python -m benchmarks.latency --keep` -->", "<!-- end of the latency -->"
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@dataclass(frozen=True, slots=True)
class Pace:
    rate: int
    """Records per second."""
    warm_up_s: int
    measured_s: int

    @property
    def records(self) -> int:
        return self.rate * (self.warm_up_s + self.measured_s)


@dataclass(frozen=True, slots=True)
class Latencies:
    latencies_s: np.ndarray
    """Latency of each record that counts, in seconds."""
    commits: int
    """Commits that contain these records."""
    cost: Cost
    """Cost while records arrived."""


@dataclass(slots=True)
class Watch:
    """Polls a table every few milliseconds and notes when each version appears (Unix seconds)."""

    table: Path
    appeared_s: dict[int, float] = field(default_factory=dict)
    _ended: Event = field(default_factory=Event)
    _thread: Thread | None = None

    def __enter__(self) -> Self:
        self._thread = Thread(target=self._poll)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def _poll(self) -> None:
        version = 0
        while not self._ended.wait(_POLL_S):
            while self._commit(version).exists():
                self.appeared_s[version] = time.time()
                version += 1

    def _commit(self, version: int) -> Path:
        return self.table / "_delta_log" / f"{version:020d}.json"

    def added(self) -> list[tuple[float, Path]]:
        """The data files, each with the time at which it became readable."""
        return [
            (appeared_s, self.table / json.loads(line)["add"]["path"])
            for version, appeared_s in sorted(self.appeared_s.copy().items())
            for line in self._commit(version).read_text("utf-8").splitlines()
            if line.startswith('{"add":')
        ]


@app.command()
def main(
    rate: Annotated[int, typer.Option(help="Records per second.")] = 1_000,
    seconds: Annotated[int, typer.Option(help="Measured seconds per side.")] = 60,
    warm_up: Annotated[int, typer.Option(help="Seconds of warm-up before them.")] = 40,
    every: Annotated[float, typer.Option(help="flush_after and Spark's trigger interval, in seconds.")] = 1.0,
    keep: Annotated[bool, typer.Option("--keep", help="Put the figures on the page.")] = False,  # noqa: FBT002
) -> None:
    """Measure each side and print the figures."""
    pace = Pace(rate, warm_up, seconds)
    sides: dict[str, Callable[[KafkaCluster, Pace, Path, float], Latencies]] = {
        "ours, signs in the stage": partial(_ours, control=False),
        "ours, a control topic": partial(_ours, control=True),
        "Structured Streaming": _spark,
    }
    lines = ["| side | p50 s | p99 s | highest s | commits | CPU-s a minute |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: |"]
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="latency-")))
        kafka = stack.enter_context(running_kafka())
        _say("\n".join(lines))
        for name, side in sides.items():
            place = folder / name.replace(",", "").replace(" ", "-")
            place.mkdir()
            lines.append(_line(name, side(kafka, pace, place, every)))
            _say(lines[-1])
    if keep:
        put(_BEGIN, _END, "\n".join([*lines, ""]))


def _line(name: str, measured: Latencies) -> str:
    p50, p99 = np.percentile(measured.latencies_s, [50, 99])
    minute = 60 * measured.cost.cpu_s / measured.cost.wall_s
    return f"| {name} | {p50:.2f} | {p99:.2f} | {measured.latencies_s.max():.2f} | {measured.commits} | {minute:.1f} |"


def _ours(kafka: KafkaCluster, pace: Pace, folder: Path, every_s: float, *, control: bool) -> Latencies:
    topic = kafka.create_topic(folder.name, _PARTITIONS)
    settings = _config(kafka, topic, folder, every_s, kafka.create_topic("control") if control else None)
    config = folder / "config.yaml"
    config.write_text(yaml.safe_dump(settings), "utf-8")
    with ExitStack() as stack:
        watch = stack.enter_context(Watch(folder / "table"))
        pids: list[int] = []
        for name in ("delta_loader", "stage_writer"):
            command = [sys.executable, "-m", name, "run", str(config)]
            child = processes.start(command, folder / f"{name}.log")
            stack.callback(child.stop)
            pids.append(child.process.pid)
        feed = Feed(kafka, topic)
        feed.until(lambda: bool(watch.added()))
        pids += [below for pid in pids for below in processes_below(pid)]
        return _measured(feed, pace, watch, Meter(*pids), "_kafka_timestamp")


def _spark(kafka: KafkaCluster, pace: Pace, folder: Path, every_s: float) -> Latencies:
    topic, session = kafka.create_topic("spark", _PARTITIONS), start(kafka.bootstrap_servers, folder)
    source = session.readStream.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap_servers)
    record = functions.from_json(functions.col("value").cast("string"), "id BIGINT, name STRING").alias("record")
    rows = source.option("subscribe", topic).load().select(record, "topic", "partition", "offset", "timestamp")
    written = rows.select("record.*", "topic", "partition", "offset", "timestamp").writeStream.format("delta")
    written = written.option("checkpointLocation", str(folder / "checkpoint"))
    with ExitStack() as stack:
        stack.callback(session.stop)
        watch = stack.enter_context(Watch(folder / "table"))
        query = written.trigger(processingTime=f"{every_s} seconds").start(str(folder / "table"))
        stack.callback(query.stop)
        feed = Feed(kafka, topic)
        feed.until(lambda: bool(watch.added()))
        return _measured(feed, pace, watch, meter_of(session), "timestamp")


def _measured(feed: Feed, pace: Pace, watch: Watch, meter: Meter, column: str) -> Latencies:
    began_s = feed.evenly(pace)
    cost = meter.read()
    deadline_s = time.monotonic() + _TAIL_S
    while True:
        waited = [(appeared_s, appeared_s - made_s[made_s >= began_s]) for appeared_s, made_s in _made(watch, column)]
        found = sum(len(ages) for _, ages in waited)
        if found >= pace.records:
            break
        if time.monotonic() > deadline_s:
            msg = f"only {found:,} of {pace.records:,} records became readable"
            raise RuntimeError(msg)
        time.sleep(1)
    counted_s = began_s + pace.warm_up_s
    counted = [ages[appeared_s - ages >= counted_s] for appeared_s, ages in waited]
    commits = {appeared_s for (appeared_s, _), ages in zip(waited, counted, strict=True) if len(ages)}
    return Latencies(np.concatenate(counted), len(commits), cost)


def _made(watch: Watch, column: str) -> Iterator[tuple[float, np.ndarray]]:
    """For each file, when it became readable and when its records were produced (Unix seconds)."""
    for appeared_s, path in watch.added():
        times = pq.read_table(path, columns=[column])[column]
        yield appeared_s, pc.cast(times.cast("timestamp[us]"), "int64").to_numpy() / 1e6


@dataclass(frozen=True, slots=True)
class Feed:
    kafka: KafkaCluster
    topic: str

    def until(self, condition: Callable[[], bool]) -> None:
        """Produce a record every half second until the condition is true."""
        producer, deadline_s = self._producer(), time.monotonic() + _START_S
        while not condition():
            if time.monotonic() > deadline_s:
                msg = f"no record of {self.topic} became readable"
                raise RuntimeError(msg)
            producer.produce(self.topic, b'{"id": -1}', partition=0)
            producer.flush(_TAIL_S)
            time.sleep(_SLOW_INTERVAL_S)

    def evenly(self, pace: Pace) -> float:
        time.sleep(_SLOW_INTERVAL_S)
        producer, sent = self._producer(), 0
        began_s = int(time.time() * 1000) / 1000
        while sent < pace.records:
            due = min(pace.records, int((time.time() - began_s) * pace.rate))
            for number in range(sent, due):
                value = b'{"id": %d, "name": "the name of %d"}' % (number, number)
                producer.produce(self.topic, value, partition=number % _PARTITIONS)
            sent = due
            producer.poll(0)
            time.sleep(_TICK_S)
        producer.flush(_TAIL_S)
        return began_s

    def _producer(self) -> Producer:
        return Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "linger.ms": 5})


def _config(kafka: KafkaCluster, topic: str, folder: Path, every_s: float, control: str | None) -> dict[str, object]:
    columns = "id BIGINT, name STRING"
    stream = {"app_id": "latency", "topics": [topic], "table": str(folder / "table"), "columns": columns}
    return {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": str(folder / "stage")},
        "writer": {"http": None, "flush_after": f"{round(every_s * 1000)}ms"},
        "loader": {
            "http": None,
            "schedule": "on-marker",
            "control_topic": control,
            "max_commits_per_minute": round(60 / every_s),
            "spark": {"spark.master": f"local[{os.cpu_count()}]"},
        },
        "logs": {"format": "json"},
        "streams": [stream],
    }


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    app()
