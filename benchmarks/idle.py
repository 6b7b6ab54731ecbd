"""What a pass costs in which there is nothing to load: ``python -m benchmarks.idle --streams 300``.

Each stream has a table of its own, some Kafka partitions, and markers that are all loaded and kept.
"""

import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
import yaml

from benchmarks.loading import load_once
from benchmarks.spark import meter_of, start
from benchmarks.staged import DECLARED, Backlog, build

_ROUNDS = 3
app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)


@app.command()
def main(
    *,
    streams: Annotated[int, typer.Option(help="How many.")] = 300,
    partitions: Annotated[int, typer.Option(help="Of each stream's topic.")] = 4,
    markers: Annotated[int, typer.Option(help="That are kept of each stream.")] = 40,
) -> None:
    """Load all, then measure passes that load nothing."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idle-")))
        stage = str(folder / "stage")
        found = [
            Backlog(stage, str(folder / f"table{number}"), {}, markers, partitions, 1, topic=f"topic{number}")
            for number in range(streams)
        ]
        for backlog in found:
            build(backlog)
        session = start("127.0.0.1:1", folder)
        stack.callback(session.stop)
        config = _config(found, folder)
        if load_once(session, config, asks_kafka=False) != streams * markers:
            sys.exit("not all was loaded")
        for _ in range(_ROUNDS):
            meter = meter_of(session)
            load_once(session, config, asks_kafka=False)
            cost = meter.read()
            each_ms = 1e3 * cost.cpu_s / streams
            sys.stdout.write(f"{cost.cpu_s:.2f} CPU-s, {cost.wall_s:.2f} s; {each_ms:.1f} CPU-ms a stream\n")


def _config(found: list[Backlog], folder: Path) -> Path:
    config = {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "stage": {"url": found[0].stage_url},
        "loader": {"http": None},
        "logs": {"level": "error"},
        "streams": [
            {
                "app_id": one.topic,
                "topics": [one.topic],
                "table": one.table_url,
                "partition_by": ["day"],
                **DECLARED,
            }
            for one in found
        ],
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


if __name__ == "__main__":
    app()
