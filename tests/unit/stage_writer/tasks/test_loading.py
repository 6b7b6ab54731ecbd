"""`topology: package.module:build`: how it is found, and the errors for invalid ones."""

import builtins
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from common.errors import ConfigError
from stage_writer.tasks import own_packages
from stage_writer.tasks.loading import topology_of
from stage_writer.topologies import BuiltTopology
from tests.unit.common.settings.test_settings import parse, with_stream

GOOD = """
from stage_writer.topologies import Processor, Topology

class Pass(Processor):
    def process(self, record):
        self.context.forward(record)

def build():
    topology = Topology()
    topology.add_source("orders", {topics})
    topology.add_processor("pass", Pass, "orders")
    topology.add_sink("rows", "pass", table={table!r})
    return topology
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; its modules are removed from ``sys.modules`` afterward."""
    known = set(sys.modules)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(builtins, "__import__", builtins.__import__)
    monkeypatch.setattr(own_packages, "_own", set())
    yield tmp_path
    for name in set(sys.modules) - known:
        del sys.modules[name]


def load(folder: Path, text: str, name: str = "shop:build", **stream: object) -> BuiltTopology:
    (folder / "shop.py").write_text(text)
    sys.modules.pop("shop", None)
    return topology_of(parse(with_stream(topology=name, **stream)).streams[0])


def refusal(folder: Path, text: str, name: str = "shop:build", **stream: object) -> ConfigError:
    with pytest.raises(ConfigError) as refused:
        load(folder, text, name, **stream)
    return refused.value


def good(topics: str = "'orders'", table: str = "") -> str:
    return GOOD.format(topics=topics, table=table)


def test_topology_in_the_current_folder_is_found(folder: Path) -> None:
    assert list(load(folder, good()).sources) == ["orders"]


def test_missing_module_is_refused(folder: Path) -> None:
    error = refusal(folder, good(), "shop.sessions.of:build")
    assert error.problem == "topology names the module 'shop.sessions.of', but there is no module 'shop.sessions'"
    error = refusal(folder, good(), "nowhere:build")
    assert "install its package, or start the writer in the folder that contains it" in error.remedy
    assert str(folder) in error.remedy


def test_failing_import_in_the_module_is_not_reported_as_a_missing_module(folder: Path) -> None:
    error = refusal(folder, "import numpi\n")
    assert "cannot be imported: ModuleNotFoundError: No module named 'numpi'" in error.problem
    assert f"({folder}/shop.py, line 1)" in error.problem


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("def build(:\n", "SyntaxError"),
        ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero"),
        ("def build():\n    return undefined\n", "cannot be built: NameError: name 'undefined' is not defined"),
    ],
)
def test_error_in_user_code_is_reported_with_its_line(folder: Path, text: str, problem: str) -> None:
    error = refusal(folder, text)
    assert problem in error.problem
    assert f"{folder}/shop.py, line " in error.problem


def test_missing_function_is_refused(folder: Path) -> None:
    assert refusal(folder, "def built(): ...\n").remedy == "did you mean 'built'?"
    assert "which is an int, not a function" in refusal(folder, "build = 5\n").problem


def test_wrong_return_type_is_refused(folder: Path) -> None:
    assert refusal(folder, "def build(): pass\n").problem == "topology 'shop:build' returns a NoneType"


def test_invalid_topology_is_refused_by_name(folder: Path) -> None:
    text = "from stage_writer.topologies import Topology\ndef build(): return Topology()\n"
    assert refusal(folder, text).problem == "topology 'shop:build': the topology has no source"


def test_topology_topics_must_match_the_stream(folder: Path) -> None:
    error = refusal(folder, good("'orders', 'payments'"))
    assert "a source for the topic 'payments', which the stream does not read" in error.problem
    error = refusal(folder, good(), topics=["orders", "payments"])
    assert "reads the topic 'payments', but topology 'shop:build' has no source for it" in error.problem


def test_topology_tables_must_be_routes_of_the_stream(folder: Path) -> None:
    error = refusal(folder, good(table="lat"), routes={"late": "/data/late"})
    assert "a sink for the table 'lat', which is not in the stream's routes" in error.problem
    assert error.remedy == "did you mean 'late'?"


def with_own_common(folder: Path) -> None:
    (folder / "common" / "deep").mkdir(parents=True)
    (folder / "common" / "__init__.py").write_text("NAME = 'of the user'\n")
    (folder / "common" / "errors.py").write_text("from common.deep import pricing\nfrom .deep.pricing import TABLE\n")
    (folder / "common" / "deep" / "pricing.py").write_text("import common\nTABLE = 'late'\nassert common.NAME\n")


OWN_COMMON = """
import common.errors
import common.errors as errors
from common import errors as again, NAME
from common.errors import TABLE
assert common.errors is errors is again and errors.pricing.TABLE == TABLE
from stage_writer.decode.batch import NO_TIMESTAMP
from stage_writer.tasks.loading import ConfigError
"""


@pytest.mark.parametrize("line", ["from common import NAME", "from common.deep.pricing import TABLE"])
def test_user_package_hidden_by_the_program_is_refused_with_the_setting(folder: Path, line: str) -> None:
    with_own_common(folder)
    error = refusal(folder, line)
    assert f"'common' is a package of this program: yours in {folder}/common is not visible" in error.problem
    assert error.remedy == "set topology_packages: [common] in the stream, or rename the package"


def test_topology_packages_gives_user_modules_their_own_package(folder: Path) -> None:
    with_own_common(folder)
    text = OWN_COMMON + good(table="late") + "    import common.deep.pricing\n    return topology\n"
    built = load(folder, text, routes={"late": "/data/late"}, topology_packages=["common"])
    assert list(built.sources) == ["orders"]
    (folder / "common" / "shop.py").write_text(OWN_COMMON + good() + "    return topology\n")
    built = load(folder, "", "common.shop:build", topology_packages=["common"])
    assert list(built.sources) == ["orders"]
    with pytest.raises(ImportError, match="NAME"):
        exec("from common import NAME", {"__package__": "stage_writer.tasks"})  # noqa: S102 - as this program's modules do


def test_unknown_or_unneeded_topology_package_is_refused(folder: Path) -> None:
    error = refusal(folder, good(), topology_packages=["common"])
    assert "names 'common', but you have no such package" in error.problem
    with pytest.raises(ConfigError, match="topology_packages names 'pricing', which needs no entry"):
        load(folder, good(), topology_packages=["pricing"])
