"""The cost of a message in a topology, compared with Kafka Streams: ``python -m benchmarks.topologies``.

Both read the same topic of a real broker and do the same work, alternately in one run: a stage writer from start to end
(`--until-caught-up`), which writes its rows to Parquet with markers, and a Kafka Streams program from start to end,
which writes its records to a topic with transactions (exactly once). Each is one process, and its CPU time counts; the
broker's does not, although Kafka Streams gives the broker more work. Then both restore states of several sizes, and
flushes' changes are stored in the stage and in a changelog topic. ``--keep`` writes the figures into
docs/internals/performance.md.
"""

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, TypeVar

import pyarrow.dataset as pads
import typer
import yaml
from confluent_kafka import Producer

from benchmarks import measure
from benchmarks.choices import require_known
from benchmarks.measure import Cost
from benchmarks.topologies import plans
from benchmarks.topologies.changes import changes_table, measured_changes
from benchmarks.topologies.report import Measured, keep, table
from benchmarks.topologies.restores import measured_restores, restore_table
from common.downloads import ensure_jars, read_lock
from devservices.java import java
from devservices.kafka import KafkaCluster, KafkaOptions, running_kafka
from devservices.lock_jars import STREAMS_LOCK
from devservices.producing import enqueue
from devservices.s3 import running_s3

_PROGRAM = Path(__file__).parent / "BesideStreams.java"
_JAVA = ("-Xmx1g", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
_MESSAGES, _PARTITIONS, _KEYS = 1_000_000, 4, 10_000
_STEP_MS = 5
_BEGIN_MS = 1_700_000_000_000
_PLANS = ("records", "vectorised", "windowed")
RESTORES, CHANGES = "restores", "changes"
OURS, STREAMS, PLAIN = "ours", "Kafka Streams", "ours without a topology (`where`, `derive`)"

Item = TypeVar("Item")

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    plan: Annotated[
        list[str] | None, typer.Argument(help=f"{', '.join((*_PLANS, RESTORES, CHANGES))}; all when absent")
    ] = None,
    scale: Annotated[float, typer.Option(help="Factor for the number of messages.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="Number of measured rounds.")] = 2,
    to_keep: Annotated[bool, typer.Option("--keep", help="Write the figures into the performance page.")] = False,  # noqa: FBT002
) -> None:
    """Measure each plan and print the figures."""
    known = (*_PLANS, RESTORES, CHANGES)
    require_known(plan, known)
    if plan and to_keep:
        msg = "the page has the figures of all sections: name none with --keep"
        raise typer.BadParameter(msg)
    messages = round(_MESSAGES * scale)
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka(KafkaOptions(properties={"log.segment.bytes": "1073741824"})))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="benchmark-")))
        names = plan or known
        topologies = [name for name in names if name not in {RESTORES, CHANGES}]
        if topologies:
            kafka.create_topic(plans.TOPIC, _PARTITIONS)
            _fill(kafka.bootstrap_servers, messages)
        found = [_measured(name, messages, _sides(name, kafka, folder, messages), rounds) for name in topologies]
        figures = [table(found)] if found else []
        if RESTORES in names:
            restored = measured_restores(kafka, _jars(), _empty(folder / RESTORES), scale)
            figures.append(restore_table(_printed(RESTORES, restored)))
        if CHANGES in names:
            server = stack.enter_context(running_s3("moto"))
            figures.append(changes_table(_printed(CHANGES, measured_changes(kafka, server))))
    _say("\n".join(figures))
    if to_keep:
        keep("\n".join(figures))


def _printed(name: str, measured: Iterable[Item]) -> list[Item]:
    """All of them, each printed as soon as it is measured."""
    items = []
    for item in measured:
        _say(f"  {name} {item}")
        items.append(item)
    return items


def _fill(servers: str, messages: int) -> None:
    kept_in_order = {"enable.idempotence": True, "linger.ms": 50, "queue.buffering.max.messages": 500_000}
    producer = Producer({"bootstrap.servers": servers, **kept_in_order})
    for number in range(messages):
        key = f"user-{number * 7919 % _KEYS}"
        value = {
            "session_id": f"7c28bcf9-be26-4d0b-931a-{number * 7919 % 2**40:012x}",
            "status": (200, 404, 204)[number % 3],
            "url": f"http://www.example.com/{number % 1000}",
        }
        text, at_ms = json.dumps(value).encode("utf-8"), _BEGIN_MS + number * _STEP_MS
        partition = number * 7919 % _KEYS % _PARTITIONS
        enqueue(producer, plans.TOPIC, text, key.encode("utf-8"), partition=partition, timestamp_ms=at_ms)
    producer.flush()


def _sides(plan: str, kafka: KafkaCluster, folder: Path, messages: int) -> dict[str, Callable[[], Cost]]:
    sides: dict[str, Callable[[], Cost]] = {OURS: lambda: _written(plan, kafka, folder / "ours", messages)}
    if plan == "vectorised":
        sides[PLAIN] = lambda: _written("", kafka, folder / "ours", messages)
    sides[STREAMS] = lambda: _streamed(plan, kafka, folder / "streams", messages)
    return sides


def _measured(plan: str, messages: int, sides: dict[str, Callable[[], Cost]], rounds: int) -> Measured:
    costs: dict[str, list[Cost]] = {side: [] for side in sides}
    for number in range(rounds):
        for side, run in sides.items():
            cost = run()
            _say(f"  {plan} {number + 1}: {side} {cost.cpu_s:.2f} CPU-s, {cost.wall_s:.2f} s")
            costs[side].append(cost)
    medians = {side: statistics.median(cost.cpu_s for cost in found) for side, found in costs.items()}
    peaks = {side: max(cost.peak_bytes for cost in found) for side, found in costs.items()}
    return Measured(plan, messages, medians, peaks)


def _written(plan: str, kafka: KafkaCluster, folder: Path, messages: int) -> Cost:
    path = _empty(folder) / "config.yaml"
    stream: dict[str, object] = {"app_id": "benchmark", "topics": [plans.TOPIC], "table": str(folder / "table")}
    if plan:
        columns = plans.COUNTED if plan == "windowed" else plans.MAPPED
        stream |= {"topology": f"benchmarks.topologies.plans:{plan}", "columns": columns}
    else:
        path_of = f"substr(url, {plans.SKIPPED + 1})"
        derive = {"class": "status // 100", "path": path_of}
        stream |= {"columns": plans.COLUMNS, "where": "status < 400", "derive": derive}
    config = {
        "kafka": {"bootstrap.servers": kafka.bootstrap_servers},
        "stage": {"url": str(folder / "stage")},
        "writer": {"http": None},
        "logs": {"level": "error"},
        "streams": [stream],
    }
    path.write_text(yaml.safe_dump(config), "utf-8")
    cost = measure.run([sys.executable, "-m", "stage_writer", "run", str(path), "--until-caught-up"])
    rows = pads.dataset(folder / "table", format="parquet").count_rows()
    if rows != (messages if plan == "windowed" else messages - (messages + 1) // 3):
        msg = f"{messages} messages became {rows} rows"
        raise RuntimeError(msg)
    return cost


def _streamed(plan: str, kafka: KafkaCluster, folder: Path, messages: int) -> Cost:
    """Compile the Kafka Streams program, and measure a run of it."""
    jars = _jars()
    subprocess.run([java("javac"), "-cp", jars, "-d", str(_empty(folder)), str(_PROGRAM)], check=True)
    output = "output"
    kafka.create_topic(output, _PARTITIONS)
    arguments = [kafka.bootstrap_servers, plans.TOPIC, output, plan, str(messages), str(folder / "state")]
    try:
        return measure.run([java(), *_JAVA, "-cp", f"{jars}:{folder}", "BesideStreams", *arguments])
    finally:
        kafka.delete_topic(output)


def _jars() -> str:
    return ":".join(str(jar) for jar in ensure_jars(read_lock(STREAMS_LOCK)["kafka-streams"]))


def _empty(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    app()
