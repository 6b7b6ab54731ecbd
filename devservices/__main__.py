"""``python -m devservices up``: a Kafka broker and an S3 server in the foreground, until Ctrl+C or SIGTERM.

Prints the clients' environment as shell `export` lines, ready to paste into another terminal.
"""

import shlex
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Annotated, cast, get_args

import typer

from devservices import processes
from devservices.kafka import KafkaOptions, running_kafka
from devservices.s3 import S3Kind, running_s3, unavailable_reason

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def devservices() -> None:
    """Kafka and S3 servers for development."""


@app.command()
def up(
    *,
    s3: Annotated[str, typer.Option(help="moto, versitygw, minio, or none.")] = "moto",
    brokers: Annotated[int, typer.Option(min=1, help="Number of Kafka brokers.")] = 1,
    kafka_port: Annotated[int, typer.Option(help="Port of the first broker; 0: a free one.")] = 9092,
    s3_port: Annotated[int, typer.Option(help="Port of the S3 server; 0: a free one.")] = 9000,
    bucket: Annotated[str, typer.Option(help="Bucket to create.")] = "lake",
    folder: Annotated[
        Path | None, typer.Option(help="Folder that keeps the data; without it, the data is deleted at the end.")
    ] = None,
) -> None:
    """Run a broker and an S3 server until this command ends."""
    if s3 not in {*get_args(S3Kind), "none"}:
        msg = f"{s3!r} is not one of moto, versitygw, minio, none"
        raise typer.BadParameter(msg, param_hint="--s3")
    processes.end_on_sigterm()
    with ExitStack() as started:
        options = KafkaOptions(brokers=brokers, partitions=4, port=kafka_port or None)
        kafka = started.enter_context(running_kafka(options, folder and folder / "kafka"))
        environ = {"KAFKA_BOOTSTRAP_SERVERS": kafka.bootstrap_servers}
        if s3 != "none":
            kind = cast("S3Kind", s3)
            if reason := unavailable_reason(kind):
                raise typer.BadParameter(reason, param_hint="--s3")
            server = started.enter_context(running_s3(kind, folder and folder / "s3", s3_port or None))
            with suppress(FileExistsError):  # exists already in a folder that was kept
                server.create_bucket(bucket)
            environ |= server.environ
        for name, value in environ.items():
            typer.echo(f"export {name}={shlex.quote(value)}")
        bucket_url = "" if s3 == "none" else f" with the bucket s3://{bucket}"
        typer.echo(f"# ready{bucket_url}; stop with Ctrl+C")
        signal.pause()


def main() -> None:
    try:
        app()
    except (KeyboardInterrupt, processes.ServiceError) as error:
        raise SystemExit(str(error) or 130) from None


if __name__ == "__main__":
    main()
