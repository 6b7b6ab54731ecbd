"""How the commands start where other packages have the same names, or dependencies are missing."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

import kafka_delta_express
from common.cli import stage_writer_command

MISSING = """
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, fullname, path, target=None):
        if fullname.partition(".")[0] in {names!r}:
            raise ModuleNotFoundError(f"No module named {{fullname!r}}", name=fullname)

sys.meta_path.insert(0, Missing())
import kafka_delta_express
sys.argv = [{command!r}, "--help"]
kafka_delta_express.{function}()
"""
OF_WRITERS = ("duckdb", "jmespath", "lmdb", "msgpack", "numpy", "sortedcontainers")
OF_LOADERS = ("apscheduler", "delta", "pyspark", "py4j")


def run(*arguments: str, folder: Path, environ: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder, env={**os.environ, **environ}, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def without(names: tuple[str, ...], command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    function = "tools" if command == "kafka-delta-express" else command.replace("-", "_")
    code = MISSING.format(names=names, command=command, function=function)
    return run("-P", "-c", code, folder=folder, environ={})


@pytest.mark.parametrize(("command", "names"), [("delta-loader", OF_LOADERS), ("stage-writer", OF_WRITERS)])
def test_command_without_its_extra_names_the_one_to_install(
    command: str, names: tuple[str, ...], tmp_path: Path
) -> None:
    done = without(names, command, tmp_path)
    assert done.returncode == 2, done.stderr
    assert f"error: {command} needs the package " in done.stderr
    assert done.stderr.endswith(f"→ pip install 'kafka-delta-express[{command}]'\n")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", ["stage-writer", "delta-loader", "bootstrap", "kafka-delta-express"])
def test_command_starts_with_its_own_extra_only(command: str, tmp_path: Path) -> None:
    others = {"stage-writer": OF_LOADERS, "delta-loader": OF_WRITERS}.get(command, OF_WRITERS + OF_LOADERS)
    done = without(others, command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Usage:" in done.stdout


def test_other_packages_of_the_same_name_are_ignored(tmp_path: Path) -> None:
    for name in ("common", "bootstrap", "stage_writer"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ZeroDivisionError\n")
    here = str(Path(kafka_delta_express.__file__).parent)
    path = {"PYTHONPATH": os.pathsep.join([str(tmp_path), here])}
    _, *arguments = stage_writer_command()
    done = run(*arguments, "--help", folder=tmp_path, environ=path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: stage-writer" in done.stdout


def test_closed_standard_streams_do_not_change_the_exit_code(tmp_path: Path) -> None:
    command = [sys.executable, *stage_writer_command()[1:], "check", str(tmp_path / "none.yaml")]
    closed = ["/bin/sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
    assert subprocess.run(closed, timeout=300, check=False).returncode == 2
