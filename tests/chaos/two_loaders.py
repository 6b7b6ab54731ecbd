"""``python -m tests.chaos.two_loaders``: two loaders without a lease race for minutes on one table on S3.

Both load the same two streams, in opposite order and as often as they can, while markers arrive all the time. A proxy
holds back a share of the log's writes until both loaders try to write the same version, which makes the race certain.
At the end every commit that either loader logged is in the Delta log, and each staged record is in the table once, by
two readers that share no code with the loaders.
"""

import random
import re
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer
import yaml

from devservices import processes
from devservices.proxy import Pass, Request, Verdict, running_proxy
from devservices.s3 import S3Kind, S3Server, running_s3
from tests.chaos import reported
from tests.chaos.services import Services, bugs, counted
from tests.fakes.staging import DECLARED, Staging
from tests.verifier import delta_rs_reader, duckdb_reader

_COMMIT = re.compile(r"/_delta_log/(\d{20})\.json$")
_HELD_SHARE = 0.5
_HELD_S = 4.0
_ROWS = 5
_PARTITIONS = 3
_STAGE_EVERY_S = 1.0
_LOADED_WITHIN_S = 300
_END_WITHIN_S = 60
_APPS = ("orders", "returns")


@dataclass(slots=True)
class Crossing:
    """Holds back some of the log's writes until another driver tries to write the same version."""

    rng: random.Random
    came: dict[str, set[str]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def __call__(self, request: Request) -> Verdict:
        """Waits for a limited time: the other driver may have nothing to write."""
        if request.method == "PUT" and _COMMIT.search(request.path):
            with self.changed:
                met = self.came.setdefault(request.path, set())
                met.add(request.content_sha256)  # a driver that retries is not the other one
                self.changed.notify_all()
                if self.rng.random() < _HELD_SHARE:
                    self.changed.wait_for(lambda: len(met) > 1, _HELD_S)
        return Pass()

    @property
    def raced(self) -> int:
        """Versions that both drivers wrote, or tried to write."""
        return sum(len(met) > 1 for met in self.came.values())


def main(
    *,
    minutes: Annotated[float, typer.Option(help="How long they race.")] = 5,
    store: Annotated[S3Kind, typer.Option(help="The S3 server.")] = "versitygw",
    seed: Annotated[int, typer.Option(help="Of what is held back.")] = 0,
) -> None:
    """Race, and print the result."""
    processes.end_on_sigterm()
    folder = Path(tempfile.mkdtemp(prefix="two-loaders-"))
    typer.echo(f"two loaders race for {minutes:g} minutes on {store} (seed {seed}, in {folder})")
    faults = ["the run did not come to its end"]
    try:
        faults = race(folder, store, seed, 60 * minutes)
    finally:
        if faults:
            typer.echo(f"the logs and the data are in {folder}")
        else:
            shutil.rmtree(folder)
    if faults:
        typer.echo("\n  ".join([f"{len(faults)} faults", *faults[:30]]))
        sys.exit(1)
    typer.echo("every acknowledged commit in the log, each record once")


def race(folder: Path, store: S3Kind, seed: int, seconds: float) -> list[str]:
    """The faults of the race."""
    with ExitStack() as started:
        (folder / "s3").mkdir()
        server = started.enter_context(running_s3(store, folder / "s3"))
        root = server.create_bucket("race")
        crossing = Crossing(random.Random(seed))  # noqa: S311 - a test's luck
        proxy = started.enter_context(running_proxy(server.endpoint_url, crossing, records_exchanges=False))
        options = dict(server.storage_options)
        streams = [Staging(root, app_id, app_id=app_id, storage_options=options) for app_id in _APPS]
        services = Services(folder)
        started.callback(services.end)
        for number, order in enumerate((streams, streams[::-1]), start=1):
            config = folder / f"config-{number}.yaml"
            config.write_text(yaml.safe_dump(_settings(order, proxy.endpoint_url)), "utf-8")
            services.add(f"loader-{number}", "delta_loader", "run", config)
        staged = _stage(streams, seconds, services)
        faults = [] if _loaded(services, server, streams[0].table, staged) else ["not all is loaded"]
        for service in services.all:
            service.wanted = False
            service.terminate()
            if service.child is not None and service.child.process.wait(_END_WITHIN_S) != 0:
                faults.append(f"{service.name} ended with {service.child.process.returncode}")
        return faults + _books(services, server, streams[0].table, staged, crossing)


def _settings(streams: list[Staging], endpoint_url: str) -> dict[str, object]:
    return {
        "kafka": {"bootstrap.servers": "127.0.0.1:9"},
        "stage": {
            "url": streams[0].stage_url,
            "storage_options": {**streams[0].storage_options, "endpoint_url": endpoint_url},
        },
        # Without a lease: exactly once must hold where it fails to keep two loaders apart.
        "loader": {
            "schedule": "200ms",
            "lease": "0s",
            "marker_retention": "0s",
            "http": None,
            "spark": {"spark.master": "local[1]", "spark.driver.memory": "700m"},
        },
        "logs": {"format": "json"},
        "streams": [
            {"app_id": stream.topic, "topics": [stream.topic], "table": stream.table, **DECLARED} for stream in streams
        ],
    }


def _stage(streams: list[Staging], seconds: float, services: Services) -> dict[tuple[str, int], int]:
    """Stage markers for so long after the first of them was loaded; returns the end of each Kafka partition."""
    ends: dict[tuple[str, int], int] = {}
    first = f"_delta_log/{1:020}.json"
    waiting_until_s = time.monotonic() + _LOADED_WITHIN_S
    deadline_s: float | None = None
    while time.monotonic() < (deadline_s or waiting_until_s):
        for stream in streams:
            for partition in range(_PARTITIONS):
                start = ends.get((stream.topic, partition), 0)
                stream.flush(partition, start, start + _ROWS)
                ends[stream.topic, partition] = start + _ROWS
        services.supervise()
        time.sleep(_STAGE_EVERY_S)
        if deadline_s is None and streams[0].store(streams[0].table).stat(first) is not None:
            deadline_s = time.monotonic() + seconds
    return ends


def _loaded(services: Services, server: S3Server, table: str, staged: dict[tuple[str, int], int]) -> bool:
    deadline_s = time.monotonic() + _LOADED_WITHIN_S
    while True:
        services.supervise()
        if not any(_behind(server, table, app_id, staged) for app_id in _APPS):
            return True
        if time.monotonic() > deadline_s:
            return False
        time.sleep(1)


def _behind(server: S3Server, table: str, app_id: str, staged: dict[tuple[str, int], int]) -> dict[int, int]:
    return reported.behind(
        table, app_id, server, {part: end - 1 for (app, part), end in staged.items() if app == app_id}
    )


def _books(
    services: Services, server: S3Server, table: str, staged: dict[tuple[str, int], int], crossing: Crossing
) -> list[str]:
    acknowledged, faults = reported.commit_faults([table], server, services.all)
    wanted: Counter[tuple[object, ...]] = Counter(
        (topic, part, offset) for (topic, part), end in staged.items() for offset in range(end)
    )
    for name, reader in (
        ("delta-rs", delta_rs_reader(server)),
        ("DuckDB", duckdb_reader(server, server.storage_options)),
    ):
        rows = reader(table)
        offsets: Counter[tuple[object, ...]] = Counter(
            (row["_kafka_topic"], row["_kafka_partition"], row["_kafka_offset"]) for row in rows
        )
        if offsets != wanted:
            faults.append(
                f"read by {name}: missing {list(wanted - offsets)[:5]}, too many {list(offsets - wanted)[:5]}"
            )
    events = counted(services.all)
    typer.echo(
        f"{wanted.total()} records, {len(reported.commits_of(table, server))} versions; "
        f"both loaders tried to write {crossing.raced} of them"
    )
    for service, count in sorted(acknowledged.items()):
        typer.echo(f"  {count:>5}  acknowledged commits of {service}")
    typer.echo(f"  {events['commit not made']:>5}  commits not made, because the other one's was first")
    if crossing.raced == 0 or len(acknowledged) != len(services.all):
        faults.append("there was no race")
    return faults + bugs(services.all)


app = typer.Typer(pretty_exceptions_enable=False)
app.command()(main)
if __name__ == "__main__":
    app()
