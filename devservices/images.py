"""``python -m devservices.images``: builds the images of `deploy/images`; with ``--check``, runs them as compose does.

The check tests the Dockerfiles under the confinement that `deploy/compose/compose.yaml` sets: both programs check their
config, the writer stages, and the loader loads by add and by append, with a real broker and S3 server. The loader's
check starts Spark as a user that the image does not know.
"""

import os
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from confluent_kafka import Producer
from deltalake import DeltaTable

from common.storage.store import FsspecStore
from common.tables.log_files import LOG, newest_checkpoint
from devservices import processes
from devservices.image_engine import (
    ROOT,
    Container,
    Engine,
    ImageError,
    TooSlowError,
    Unavailable,
    process_spec,
    require_engine,
    runc_template,
    store_folder,
)
from devservices.java import SHORT_LIVED
from devservices.kafka import running_kafka
from devservices.s3 import S3Server, running_s3

IMAGES = ("stage-writer", "delta-loader")
RECORDS = 500
_CONFIG = "/etc/kafka-delta-express/pipeline.yaml"
_UNKNOWN_USER = "1000650000:0"
"""User id as OpenShift assigns it: from the namespace's own range, in root's group."""
_HOSTS = Path("/etc/hosts")
"""Engines give each container a hosts file; Java needs its host's name in it."""
_RUN_S, _BUILD_S, _CI_BUILDS_S = 600.0, 3600.0, 900.0
"""Time limits of one command, of one build, and of both builds in a CI run, where finished layers stay in the cache."""
_COLUMNS = "id BIGINT, name STRING"
_LOADS = {"added": "add", "appended": "append"}
"""The check's streams, with the load mode of each."""


def main(
    *,
    check: Annotated[bool, typer.Option("--check", help="Also run the images.")] = False,
    ci: Annotated[
        bool, typer.Option("--ci", help="Install missing tools; exit 0 if images cannot be built here.")
    ] = False,
) -> None:
    """Build the images, as root on Linux; only the cache is left behind."""
    processes.end_on_sigterm()
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="images-") as folder:
        try:
            require_engine(install=ci)
            with Engine(store_folder(), Path(folder) / "log") as engine:
                for name in IMAGES:
                    left_s = began_s + _CI_BUILDS_S - time.monotonic()
                    try:
                        engine.build(name, max(1.0, left_s) if ci else _BUILD_S)
                    except TooSlowError as error:
                        raise Unavailable(str(error)) from error
                    typer.echo(f"images: built {name} ({time.monotonic() - began_s:.0f} s)")
                engine.prune()
                if check:
                    _check(engine, Path(folder))
        except Unavailable as reason:
            typer.echo(f"images: skipped: {reason}", err=not ci)
            raise typer.Exit(0 if ci else 1) from None
        except (ImageError, processes.ServiceError) as error:
            typer.echo(f"images: {error}", err=True)
            raise typer.Exit(1) from None


@dataclass(frozen=True)
class _Runner:
    """Runs containers under compose's confinement, with one config and one environment."""

    engine: Engine
    config: Path
    environ: Mapping[str, str]
    template: Mapping[str, Any]

    def run(self, name: str, container: Container, command: str, *arguments: str, user: str | None = None) -> str:
        began_s = time.monotonic()
        spec = process_spec(
            self.template,
            container,
            [command, _CONFIG, *arguments],
            user=user or container.user,
            environ=self.environ,
            tmpfs=confinement(name),
            mounts={self.config: _CONFIG, _HOSTS: str(_HOSTS)},
        )
        text = self.engine.run(spec, _RUN_S)
        by = "" if user is None else f" as user {user}"
        command_line = " ".join((name, command, *arguments))
        typer.echo(f"images: {command_line}{by} passed ({time.monotonic() - began_s:.0f} s)")
        return text


def confinement(name: str) -> tuple[str, ...]:
    """Compose's tmpfs entries for a service; raises ImageError if compose confines the service differently."""
    text = (ROOT / "deploy/compose/compose.yaml").read_text("utf-8")
    service: Mapping[str, Any] = yaml.safe_load(text)["services"][name]
    confined = service["read_only"], service["cap_drop"], service["security_opt"]
    if confined != (True, ["ALL"], ["no-new-privileges:true"]):
        msg = f"deploy/compose/compose.yaml does not confine {name} as the check expects: {confined}"
        raise ImageError(msg)
    return tuple(service["tmpfs"])


def _check(engine: Engine, folder: Path) -> None:
    with ExitStack() as stack:
        kafka = stack.enter_context(running_kafka())
        s3 = stack.enter_context(running_s3("moto"))
        lake = s3.create_bucket("lake")
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "log_level": 0})
        for topic in _LOADS:
            kafka.create_topic(topic)
            for number in range(RECORDS):
                producer.produce(topic, f'{{"id":{number},"name":"n{number}"}}'.encode())
        if producer.flush(60):
            msg = "the check's records did not reach Kafka"
            raise ImageError(msg)
        config = folder / "pipeline.yaml"
        config.write_text(yaml.safe_dump(pipeline(kafka.bootstrap_servers, lake)), "utf-8")
        config.chmod(0o644)
        (folder / "runc").mkdir()
        runner = _Runner(engine, config, s3.environ, runc_template(folder / "runc"))
        with engine.container("stage-writer") as writer:
            runner.run("stage-writer", writer, "check")
            runner.run("stage-writer", writer, "run", "--until-caught-up")
        with engine.container("delta-loader") as loader:
            runner.run("delta-loader", loader, "check", user=_UNKNOWN_USER)
            runner.run("delta-loader", loader, "run", "--once")
            runner.run("delta-loader", loader, "status")
        for topic in _LOADS:
            _require_table(f"{lake}/tables/{topic}", s3)


def pipeline(servers: str, lake: str) -> dict[str, object]:
    """The check's config: one stream per load mode."""
    return {
        "kafka": {"bootstrap.servers": servers},
        "stage": {"url": f"{lake}/stage"},
        "writer": {"http": None},
        "loader": {
            "http": None,
            "lease": "0s",
            "spark": {
                "spark.master": "local[1]",
                "spark.driver.memory": "800m",
                "spark.driver.extraJavaOptions": SHORT_LIVED,
            },
        },
        "streams": [
            {
                "app_id": topic,
                "topics": [topic],
                "table": f"{lake}/tables/{topic}",
                "columns": _COLUMNS,
                "load": load,
                "table_properties": {"delta.checkpointInterval": "1"},
            }
            for topic, load in _LOADS.items()
        ],
    }


def _require_table(url: str, s3: S3Server) -> None:
    """Require each record exactly once, and a checkpoint: Spark writes one in both load modes."""
    options = {**s3.environ, "AWS_ALLOW_HTTP": "true"}
    ids = DeltaTable(url, storage_options=options).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    if sorted(ids) != list(range(RECORDS)):
        msg = f"{url} has {len(ids)} rows instead of {RECORDS}"
        raise ImageError(msg)
    store = FsspecStore(url, s3.storage_options)
    if newest_checkpoint(store, store.list(LOG))[0] is None:
        msg = f"{url} has no readable checkpoint"
        raise ImageError(msg)
    typer.echo(f"images: {url} has each record once")


if __name__ == "__main__":
    os.chdir(ROOT)
    typer.run(main)
