"""``python -m devservices.images``: builds the images of `deploy/images`; with ``--check``, runs them as compose does.

The check stands between the Dockerfiles and compose's confinement, which is read from `deploy/compose/compose.yaml`:
both programs check their config, the writer stages, and the loader loads by add and by append from a broker and an S3
server. The loader's check starts Spark as a user that the image does not know.
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
_STRANGER = "1000650000:0"
"""As OpenShift chooses users: of a name space's own range, and of root's group."""
_HOSTS = Path("/etc/hosts")
"""Engines give each container one; Java wants its host's name in it."""
_RUN_S, _BUILD_S, _CI_BUILDS_S = 600.0, 3600.0, 900.0
"""Of one command, of one build, and of both where a whole run has an end: what was built by then is in the cache."""
_COLUMNS = "id BIGINT, name STRING"
_LOADS = {"added": "add", "appended": "append"}
"""The check's streams, and how each is loaded."""


def main(
    *,
    check: Annotated[bool, typer.Option("--check", help="Also run them.")] = False,
    ci: Annotated[bool, typer.Option("--ci", help="Install the engine; exit 0 where that cannot be.")] = False,
) -> None:
    """Build the images, as root on Linux; nothing but a cache is left."""
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
                    typer.echo(f"images: {name} is built ({time.monotonic() - began_s:.0f} s)")
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
class _Stand:
    """Containers under compose's confinement, with one config and one environment."""

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
        said = " ".join((name, command, *arguments))
        typer.echo(f"images: {said}{by} is well ({time.monotonic() - began_s:.0f} s)")
        return text


def confinement(name: str) -> tuple[str, ...]:
    """Compose's tmpfs entries for a service; raises ImageError where it confines less than the check does."""
    text = (ROOT / "deploy/compose/compose.yaml").read_text("utf-8")
    service: Mapping[str, Any] = yaml.safe_load(text)["services"][name]
    confined = service["read_only"], service["cap_drop"], service["security_opt"]
    if confined != (True, ["ALL"], ["no-new-privileges:true"]):
        msg = f"deploy/compose/compose.yaml confines {name} otherwise than the check does: {confined}"
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
            msg = "the check's records do not reach Kafka"
            raise ImageError(msg)
        config = folder / "pipeline.yaml"
        config.write_text(yaml.safe_dump(pipeline(kafka.bootstrap_servers, lake)), "utf-8")
        config.chmod(0o644)
        (folder / "runc").mkdir()
        stand = _Stand(engine, config, s3.environ, runc_template(folder / "runc"))
        with engine.container("stage-writer") as writer:
            stand.run("stage-writer", writer, "check")
            stand.run("stage-writer", writer, "run", "--until-caught-up")
        with engine.container("delta-loader") as loader:
            stand.run("delta-loader", loader, "check", user=_STRANGER)
            stand.run("delta-loader", loader, "run", "--once")
            stand.run("delta-loader", loader, "status")
        for topic in _LOADS:
            _require_table(f"{lake}/tables/{topic}", s3)


def pipeline(servers: str, lake: str) -> dict[str, object]:
    """The check's config: a stream for each way of loading."""
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
    """Each record once, and a checkpoint: Spark has written one for each, whichever way the rows came."""
    options = {**s3.environ, "AWS_ALLOW_HTTP": "true"}
    found = DeltaTable(url, storage_options=options).to_pyarrow_table(columns=["id"])["id"].to_pylist()
    if sorted(found) != list(range(RECORDS)):
        msg = f"{url} has {len(found)} rows, and was sent {RECORDS} records"
        raise ImageError(msg)
    store = FsspecStore(url, s3.storage_options)
    if newest_checkpoint(store, store.list(LOG))[0] is None:
        msg = f"{url} has no checkpoint that can be read"
        raise ImageError(msg)
    typer.echo(f"images: {url} has each record once")


if __name__ == "__main__":
    os.chdir(ROOT)
    typer.run(main)
