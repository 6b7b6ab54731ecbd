"""The cost of a pass with nothing to load: ``python -m benchmarks.idle --streams 300``.

Each stream has its own table, several Kafka partitions, and markers that are loaded and kept.
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
    streams: Annotated[int, typer.Option(help="Number of streams.")] = 300,
    partitions: Annotated[int, typer.Option(help="Kafka partitions of each stream's topic.")] = 4,
    markers: Annotated[int, typer.Option(help="Kept markers of each stream.")] = 40,
) -> None:
    """Load everything, then measure passes without work."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="idle-")))
        stage = str(folder / "stage")
        backlogs = [
            Backlog(stage, str(folder / f"table{number}"), {}, markers, partitions, 1, topic=f"topic{number}")
            for number in range(streams)
        ]
        for backlog in backlogs:
            build(backlog)
        session = start("127.0.0.1:1", folder)
        stack.callback(session.stop)
        config = _config(backlogs, folder)
        if load_once(session, config) != streams * markers:
            sys.exit("not every marker was loaded")
        for _ in range(_ROUNDS):
            meter = meter_of(session)
            load_once(session, config)
            cost = meter.read()
            each_ms = 1e3 * cost.cpu_s / streams
            sys.stdout.write(f"{cost.cpu_s:.2f} CPU-s, {cost.wall_s:.2f} s; {each_ms:.1f} CPU-ms a stream\n")


def _config(backlogs: list[Backlog], folder: Path) -> Path:
    config = {
        "kafka": {"bootstrap.servers": "127.0.0.1:1"},
        "stage": {"url": backlogs[0].stage_url},
        "loader": {"http": None},
        "streams": [
            {
                "app_id": backlog.topic,
                "topics": [backlog.topic],
                "table": backlog.table_url,
                "partition_by": ["day"],
                **DECLARED,
            }
            for backlog in backlogs
        ],
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(config), "utf-8")
    return path


if __name__ == "__main__":
    app()
