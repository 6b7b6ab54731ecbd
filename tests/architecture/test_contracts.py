"""Import rules that import-linter does not cover, and consistency of the locked packages."""

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from importlib.metadata import version
from pathlib import Path

import pytest

from common.downloads import read_lock
from delta_loader.spark.pairs import LOCK
from tests.mutants.equivalent import EQUIVALENT
from tests.mutants.table import TESTS

ROOT = Path(__file__).parent.parent.parent


def _run(*arguments: str) -> None:
    done = subprocess.run([sys.executable, *arguments], cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("program", "needless"),
    [
        ("bootstrap", {"pyspark", "py4j", "delta", "stage_writer", "delta_loader", "duckdb", "structlog"}),
        ("delta_loader", {"pyspark", "py4j", "delta", "stage_writer", "bootstrap", "duckdb", "tenacity"}),
    ],
)
def test_program_starts_without_modules_that_few_commands_need(program: str, needless: set[str]) -> None:
    loaded_modules = f"sorted({needless} & set(sys.modules))"
    _run(
        "-c", f"import sys, {program}.__main__; found = {loaded_modules}; sys.exit(f'{{found}} loaded' if found else 0)"
    )


_PLAIN_WRITER = """
import sys
from common.settings import Settings
import stage_writer.__main__ as writer
settings = Settings.model_validate({
    "kafka": {"bootstrap.servers": "localhost:1"},
    "stage": {"url": "memory://plain"},
    "streams": [{"app_id": "plain", "topics": ["t"], "table": "memory://table", "columns": "id INT"}],
})
writer.converters_of(settings)
needless = ("pyspark", "py4j", "delta.", "delta_loader", "stage_writer.topologies", "stage_writer.tasks",
            "stage_writer.web.state_pages", "stage_writer.web.worker_pool_pages", "stage_writer.fetch.merged.source",
            "msgpack", "sortedcontainers", "tenacity")
found = [name for name in sys.modules if name.startswith(needless)]
sys.exit(f"{found} loaded" if found else 0)
"""


def test_plain_writer_imports_no_java_topologies_or_workers() -> None:
    _run("-c", _PLAIN_WRITER)


_BORDER = {f"delta_loader/spark/{name}.py" for name in ("bridge", "launch", "log_store", "session", "trust")}
"""The files that may use Java objects: the bridge to Delta, and the code that starts Java and proves its log stores."""


def test_java_is_used_only_behind_the_bridge() -> None:
    handles = re.compile(r"\._(jvm|jdf|jsc|jsparkSession|jconf|gateway)\b|org\.apache\.spark\.sql\.delta")
    files = (
        file
        for package in ("common", "stage_writer", "delta_loader", "bootstrap")
        for file in (ROOT / package).rglob("*.py")
    )
    users = {file.relative_to(ROOT).as_posix() for file in files if handles.search(file.read_text("utf-8"))}
    assert users <= _BORDER


def test_verifiers_of_real_runs_share_no_code_with_the_product() -> None:
    judges = "tests.verifier, tests.chaos.records, tests.chaos.events, tests.chaos.history"
    ours = "{'common', 'stage_writer', 'delta_loader', 'bootstrap', 'devservices', 'kafka_delta_express'}"
    script = f"import sys, {judges}; found = {ours} & {{name.partition('.')[0] for name in sys.modules}}"
    _run("-c", f"{script}; sys.exit(f'{{found}} loaded' if found else 0)")


def _pure_modules() -> list[str]:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (pure,) = (contract for contract in contracts if contract["name"].startswith("modules that decide"))
    return [str(module) for module in pure["source_modules"]]


@pytest.mark.parametrize("module", _pure_modules())
def test_pure_modules_read_no_clock_and_no_files(module: str) -> None:
    # The import contract excludes clocks, chance and I/O libraries; these calls come with types and builtins.
    forbidden = re.compile(
        r"\b(?:now|utcnow|today|getpid)\(|(?<![.\w])(?:open|print|input)\(|\.(?:read|write)_(?:text|bytes)\("
    )
    place = ROOT / module.replace(".", "/")
    files = sorted(place.rglob("*.py")) if place.is_dir() else [place.with_suffix(".py")]
    for path in files:
        for number, line in enumerate(path.read_text("utf-8").splitlines(), start=1):
            code = line.partition("#")[0]
            assert not forbidden.search(re.sub(r"\"[^\"]*\"", '""', code)), f"{path}:{number}: {line.strip()}"


def test_jars_match_the_locked_pyspark_and_delta() -> None:
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"][
        "delta-loader"
    ]
    highest = {
        requirement.partition(">=")[0]: requirement.split(",")[1] for requirement in extra if "spark" in requirement
    }
    assert highest == {name: f"<={version(name)}" for name in ("pyspark", "delta-spark")}
    spark = ".".join(version("pyspark").split(".")[:2])
    jars = {(jar.artifact, jar.version) for group in read_lock(LOCK).values() for jar in group}
    assert (f"delta-spark_{spark}_2.13", version("delta-spark")) in jars
    import pyspark

    [hadoop] = (Path(pyspark.__file__).parent / "jars").glob("hadoop-client-api-*.jar")
    assert ("hadoop-aws", hadoop.stem.removeprefix("hadoop-client-api-")) in jars


def test_lock_pins_every_package_by_hash_and_names_no_index() -> None:
    lock = (ROOT / "requirements.lock").read_text("utf-8")
    assert "://" not in lock
    for requirement in re.split(r"\n(?=\S)", lock.replace("\\\n", "")):
        if not requirement.startswith("#"):
            assert re.match(r"[a-z0-9._-]+==\S+", requirement), requirement
            assert "--hash=sha256:" in requirement, requirement


@pytest.mark.parametrize("module", TESTS)
def test_critical_module_and_its_tests_exist(module: str) -> None:
    importlib.import_module("tests.mutants.__main__")  # it can be imported
    files = [f"{module.replace('.', '/')}.py", *(path.partition("::")[0] for path in TESTS[module])]
    assert [file for file in files if not (ROOT / file).is_file()] == []


@pytest.mark.parametrize("module", EQUIVALENT)
def test_equivalent_mutants_are_of_code_that_exists(module: str) -> None:
    tree = ast.parse((ROOT / f"{module.replace('.', '/')}.py").read_text("utf-8"))
    scopes: dict[str, str] = defaultdict(str)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            scopes[node.name] += ast.unparse(node)  # several classes may have a method of that name
    changes = [name.partition(" → ")[0].partition(": ") for name in EQUIVALENT[module]]
    scopes_of = [(scope.rpartition(".")[2], old.removesuffix(":")) for scope, _, old in changes]
    assert [(scope, old) for scope, old in scopes_of if old not in scopes[scope]] == []
