"""The three programs as a user runs them: processes of their own, told by a YAML file."""

import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from devservices import processes
from tests.integration.forked import FLUSHES, Forked, forked_programs
from tests.session import SMALL_TABLES
from tests.spark_archive import use_spark_archive

_PROGRAMS = ("stage-writer", "delta-loader", "bootstrap")
_RUN_TIMEOUT_S = 900


@dataclass(slots=True)
class Programs:
    """Starts the programs, and ends in the end what still runs."""

    folder: Path
    forked: Forked
    started: list[processes.Child] = field(default_factory=list)

    def config(self, settings: Mapping[str, Any], name: str = "config.yaml", *, small_tables: bool = True) -> Path:
        """Write settings as a user would, with those for small tables where they have a loader; the file's path."""
        path = self.folder / name
        if small_tables and "loader" in settings:
            loader = settings["loader"]
            settings = {**settings, "loader": {**loader, "spark": {**SMALL_TABLES, **loader.get("spark", {})}}}
        path.write_text(yaml.safe_dump(dict(settings), sort_keys=False, allow_unicode=True), "utf-8")
        return path

    def start(self, program: str, *arguments: str | Path) -> processes.Child:
        """Start ``stage-writer``, ``delta-loader``, ``bootstrap`` or a module and let it run."""
        _prepare(program)
        log = self.folder / f"{program}-{len(self.started) + 1}.log"
        module = program.replace("-", "_")
        if program in _PROGRAMS:
            self.started.append(self.forked.start(module, [str(argument) for argument in arguments], log))
        else:
            self.started.append(processes.start([sys.executable, "-m", module, *map(str, arguments)], log))
        return self.started[-1]

    def run(self, program: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a program to its end; its exit code and what it printed are the caller's to judge."""
        _prepare(program)
        return self.forked.run(program.replace("-", "_"), [str(argument) for argument in arguments], _RUN_TIMEOUT_S)

    def succeed(self, program: str, *arguments: str | Path, code: int = 0) -> str:
        """Run a program that must exit with ``code``; what it printed on standard output."""
        done = self.run(program, *arguments)
        assert done.returncode == code, f"{program} ended with {done.returncode}:\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def writer_dies(self, config: Path, *, flushes: int = 0) -> None:
        """A stage writer is killed after so many flushes, when all of the next one but its marker is there.

        It is in a group of its own, so that nothing waits until Kafka knows of its death.
        """
        settings = yaml.safe_load(config.read_text("utf-8"))
        name = f"dies-{uuid.uuid4().hex}"
        own = self.config({**settings, "writer": {**settings["writer"], "group_id": name}}, f"{name}.yaml")
        with pytest.MonkeyPatch.context() as environ:
            environ.setenv(FLUSHES, str(flushes))
            died = self.run("stage-writer", "run", own, "--until-caught-up")
        assert died.returncode == -signal.SIGKILL, died.stderr


def _prepare(program: str) -> None:
    if program == "delta-loader":
        use_spark_archive()


@pytest.fixture(scope="session")
def forked(run_folder: Path) -> Iterator[Forked]:
    """The programs, imported when the first test runs them."""
    with forked_programs(run_folder / "java") as programs:
        yield programs


@pytest.fixture
def programs(tmp_path: Path, forked: Forked) -> Iterator[Programs]:
    """The programs, with a folder of their own for configs and logs."""
    folder = tmp_path / "programs"
    folder.mkdir()
    running = Programs(folder, forked)
    yield running
    for child in running.started:
        child.kill()
