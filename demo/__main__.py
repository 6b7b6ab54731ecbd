"""``make demo``: real flights through a real broker and the real programs into a Delta table, and a check of the table.

It runs what a user would run: two ``stage-writer run`` and one ``delta-loader run``, configured by demo/pipeline.yaml.
The demo only starts a broker, produces the flights, watches, and compares at the end. It exits with 1 when the table
does not hold exactly what was produced.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from confluent_kafka import KafkaError, Message, Producer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from common.errors import KafkaDeltaExpressError
from common.settings import load_settings
from demo.flights import messages, read_flights
from demo.report import Produced, report
from demo.watch import Watch
from devservices import processes
from devservices.kafka import KafkaOptions, running_kafka
from devservices.producing import enqueue
from devservices.s3 import S3Server, running_s3, unavailable_reason

HERE = Path(__file__).parent
RUN = HERE / ".run"
TOPIC = "flights"
PARTITIONS = 4
WRITERS = 2
TIMEOUT_S = 600
CHECK_EVERY_S = 0.5
# At the pace of a busy topic, and not all at once: so there is something to watch, and more than one commit.
RECORDS_PER_S = 15_000

_terminal = Console()
console = _terminal if _terminal.is_terminal else Console(width=120)


def main(
    *,
    store: Annotated[str, typer.Option(help="file, s3 (moto), moto or versitygw.")] = "file",
    keep: Annotated[bool, typer.Option("--keep", help="Leave everything running in the end, until Ctrl+C.")] = False,
) -> None:
    """336,776 flights from Kafka into a Delta table."""
    processes.end_on_sigterm()
    shutil.rmtree(RUN, ignore_errors=True)
    RUN.mkdir(parents=True)
    with ExitStack() as started:
        server = _server(store, started)
        console.print(
            f"[bold]Starting[/] Apache Kafka, {WRITERS} stage writers and the delta loader; logs in {_short(RUN)}"
        )
        kafka = started.enter_context(running_kafka(KafkaOptions(partitions=PARTITIONS)))
        kafka.create_topic(TOPIC, PARTITIONS)
        lake = RUN.as_uri() + "/lake" if server is None else server.create_bucket("lake")
        config = HERE / ("pipeline.yaml" if server is None else "pipeline-s3.yaml")
        environ = {"DEMO_KAFKA": kafka.bootstrap_servers, "DEMO_LAKE": lake, **(server.environ if server else {})}
        programs = list(_programs(config, environ, started))
        settings = load_settings(config, {**os.environ, **environ})
        produced = _run(kafka.bootstrap_servers, Watch(settings), programs)
        _stop(programs if not keep else [])
        is_right = report(console, settings, produced)
        _where_to_look(lake, config, environ, is_local=server is None)
        if keep:
            console.print("\nEverything still runs. Ctrl+C ends it.")
            signal.pause()
    raise typer.Exit(0 if is_right else 1)


def _server(store: str, started: ExitStack) -> S3Server | None:
    match store:
        case "file":
            return None
        case "s3" | "moto":
            return started.enter_context(running_s3("moto"))
        case "versitygw":
            if reason := unavailable_reason("versitygw"):
                raise typer.BadParameter(reason, param_hint="--store")
            return started.enter_context(running_s3("versitygw", RUN / "versitygw"))
        case _:
            msg = f"{store!r} is none of file, s3, moto, versitygw"
            raise typer.BadParameter(msg, param_hint="--store")


def _programs(config: Path, environ: Mapping[str, str], started: ExitStack) -> Iterator[processes.Child]:
    commands = [*(("stage_writer", f"stage-writer-{number}") for number in range(1, WRITERS + 1))]
    commands.append(("delta_loader", "delta-loader"))
    for module, name in commands:
        command = [sys.executable, "-m", module, "run", str(config)]
        child = processes.start(command, RUN / f"{name}.log", environ, RUN)
        started.callback(child.stop)
        yield child


def _run(servers: str, watch: Watch, programs: list[processes.Child]) -> Produced:
    """Produce all flights and watch until all are loaded."""
    flights = read_flights()
    total = flights.num_rows
    counts: dict[int, int] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            raise processes.ServiceError(str(error))
        counts[message.partition()] = counts.get(message.partition(), 0) + 1

    producer = Producer({"bootstrap.servers": servers, "linger.ms": 50, "compression.type": "lz4", "acks": "all"})
    with _bars() as progress:
        bars = {name: progress.add_task(name, total=total) for name in ("produced", "staged", "loaded")}
        begin = looked = time.monotonic()
        sent = 0
        for chunk in messages(flights):
            for key, value in chunk:
                enqueue(producer, TOPIC, value, key, on_delivery=delivered)
            sent += len(chunk)
            while (ahead_s := sent / RECORDS_PER_S - (time.monotonic() - begin)) > 0:
                producer.poll(ahead_s)
            progress.update(bars["produced"], completed=sum(counts.values()))
            if time.monotonic() - looked > CHECK_EVERY_S:
                _look(watch, progress, bars)
                looked = time.monotonic()
        producer.flush()
        progress.update(bars["produced"], completed=sum(counts.values()))
        loaded, changed = 0, time.monotonic()
        while loaded < total:
            if (newest := _look(watch, progress, bars)) > loaded:
                loaded, changed = newest, time.monotonic()
            _check_alive(programs, changed)
            time.sleep(CHECK_EVERY_S)
    return Produced(flights, counts, time.monotonic() - begin)


def _bars() -> Progress:
    columns = (SpinnerColumn(), TextColumn("{task.description:>9}"), BarColumn(), MofNCompleteColumn())
    # Without a terminal, the final state of the bars is printed once.
    return Progress(*columns, TimeElapsedColumn(), console=console)


def _look(watch: Watch, progress: Progress, bars: Mapping[str, TaskID]) -> int:
    loaded = sum(watch.loaded().values())
    progress.update(bars["staged"], completed=sum(watch.staged().values()))
    progress.update(bars["loaded"], completed=loaded)
    return loaded


def _check_alive(programs: list[processes.Child], changed: float) -> None:
    for child in programs:
        if not child.is_running:
            msg = f"{child.log.name} ends with code {child.process.returncode}:\n{child.log_tail()}"
            raise processes.ServiceError(msg)
    if time.monotonic() - changed > TIMEOUT_S:
        tails = "\n".join(f"--- {child.log.name}\n{child.log_tail()}" for child in programs)
        msg = f"no more flights were loaded for {TIMEOUT_S} s; the logs end with\n{tails}"
        raise processes.ServiceError(msg)


def _stop(programs: list[processes.Child]) -> None:
    """SIGTERM to all, then wait: they end concurrently."""
    for child in programs:
        child.signal(signal.SIGTERM)
    for child in programs:
        child.stop()


def _where_to_look(lake: str, config: Path, environ: Mapping[str, str], *, is_local: bool) -> None:
    console.print("\n[bold]Where to look next[/]")
    console.print(f"  the pipeline       {_short(config)}")
    console.print(f"  the logs           {_short(RUN)}/*.log")
    if is_local:
        folder = Path(lake.removeprefix("file://"))
        console.print(f"  the markers        find {_short(folder / 'stage' / 'done')} -type f")
        console.print(f"  the table's log    {_short(folder / 'tables' / 'flights' / '_delta_log')}")
    console.print("  what is promised   docs/internals/guarantees.md")
    console.print("  every setting      docs/configuration.md")
    exports = " ".join(f"{name}={value}" for name, value in environ.items())
    console.print("  with everything left running (make demo KEEP=1), in another terminal:")
    console.print(f"    env {exports} .venv/bin/delta-loader status {_short(config)}", soft_wrap=True)


def _short(path: Path) -> str:
    return os.path.relpath(path)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except (processes.ServiceError, KafkaDeltaExpressError) as error:
        sys.exit(f"error: {error}")
