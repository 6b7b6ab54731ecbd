"""What `make` passes on to benchmarks, checks and servers: an unknown argument ends them with 2 and names the choices.

It is refused before any server or session is started.
"""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import backlog, loader, memory, writer
from benchmarks.staged import Backlog
from benchmarks.topologies import __main__ as topologies
from demo import __main__ as demo
from devservices import __main__ as servers
from tests.chaos import __main__ as chaos
from tests.chaos import two_loaders
from tests.mutants import __main__ as mutants


def _app(command: object) -> typer.Typer:
    app = typer.Typer()
    app.command()(command)  # type: ignore[type-var]
    return app


@pytest.mark.parametrize(
    ("app", "arguments", "choices"),
    [
        (writer.app, ["typo"], ["kinds", "avro", "envelopes", "partitions", "bad", "writers"]),
        (loader.app, ["typo"], ["files", "bytes", "merges", "explodes"]),
        (topologies.app, ["typo"], ["records", "vectorised", "windowed", "restores", "changes"]),
        (memory.app, ["typo"], ["partitions", "large", "larger", "explode", "values"]),
        (memory.app, ["--store", "typo"], ["file", "moto", "versitygw", "minio"]),
        (backlog.app, ["--store", "typo"], ["file", "moto"]),
        (_app(mutants.main), ["typo"], ["common.stage.chain"]),
        (two_loaders.app, ["--store", "typo"], ["moto", "versitygw", "minio"]),
        (chaos.app, ["--store", "typo"], ["versitygw", "minio"]),
        (servers.app, ["up", "--s3", "typo"], ["moto", "versitygw", "minio", "none"]),
        (_app(demo.main), ["--store", "typo"], ["file", "s3", "moto", "versitygw"]),
    ],
)
def test_unknown_argument_is_refused_with_the_choices(
    app: typer.Typer, arguments: list[str], choices: list[str]
) -> None:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "1000"})
    assert result.exit_code == 2, result.output
    assert "'typo'" in result.stderr
    assert [choice for choice in choices if choice not in result.stderr] == []


def test_part_of_the_figures_of_topologies_never_replaces_all() -> None:
    result = CliRunner().invoke(topologies.app, ["changes", "--keep"], env={"COLUMNS": "1000"})
    assert result.exit_code == 2
    assert "name none with --keep" in result.stderr


@pytest.mark.parametrize("argument", ["SEED=x", "SEED=1.5", "ROUNDS=x"])
def test_make_refuses_what_is_no_whole_number(argument: str) -> None:
    command = ["make", "--dry-run", "native-fuzz", argument]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], check=False, capture_output=True, text=True)
    assert done.returncode == 2
    assert f"{argument} is no whole number" in done.stderr


def test_backlog_on_s3_is_below_the_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def server(_: object) -> Iterator[object]:
        yield SimpleNamespace(create_bucket=lambda name: f"s3://{name}", storage_options={})

    def stop(built: Backlog) -> NoReturn:
        raise ValueError(built.stage_url, built.table_url)

    monkeypatch.setattr(backlog, "running_s3", server)
    monkeypatch.setattr(backlog, "build", stop)
    with pytest.raises(ValueError, match=r"^\('s3://backlog/stage', 's3://backlog/table'\)$"):
        CliRunner().invoke(backlog.app, ["--store", "moto"], catch_exceptions=False)
