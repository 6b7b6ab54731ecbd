"""The parts of the style that a machine can see and ruff does not."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("common", "stage_writer", "delta_loader", "bootstrap", "devservices", "benchmarks", "demo", "model")
LONGEST_FUNCTION = 70
LONGEST_MODULE = 600
_TEXT = {"", ".py", ".md", ".toml", ".yaml", ".yml", ".json", ".lock", ".txt", ".sh", ".cfg", ".properties"}
_OURS = (*PACKAGES, "tests", "docs", "deploy", ".ci")
# The folders of somebody's machine: a path below one of them works nowhere else.
_A_WORKPLACE = re.compile(r"(?<![\w./~*}])/(?:home/\w+|Users/\w+|root|work|tmp/w)/")

MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text("utf-8"))


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_module_says_what_it_is_and_ends_in_time(path: Path) -> None:
    assert ast.get_docstring(parsed(path)), f"{name(path)} has no docstring"
    lines = len(path.read_text("utf-8").splitlines())
    assert lines <= LONGEST_MODULE, f"{name(path)} has {lines} lines: it has more than one subject"


@pytest.mark.parametrize("path", MODULES, ids=name)
def test_a_function_fits_on_a_screen(path: Path) -> None:
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            assert lines <= LONGEST_FUNCTION, f"{name(path)}:{node.lineno}: {node.name} has {lines} lines"


def test_nothing_names_a_folder_of_somebodys_machine() -> None:
    tops = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    files = [*tops, *(path for folder in _OURS for path in (ROOT / folder).rglob("*") if path.is_file())]
    for path in files:
        hidden = any(part in {"__pycache__", ".run"} for part in path.parts)
        if hidden or path.suffix not in _TEXT:
            continue
        found = _A_WORKPLACE.search(path.read_text("utf-8"))
        assert found is None, f"{name(path)} names {found[0] if found else ''}"


_OF_USERS = [path for path in MODULES if path.relative_to(ROOT).parts[0] in PACKAGES[:4]]
_NAMES_NO_FILE = re.compile(r"(?:stage-writer|delta-loader|bootstrap|kafka-delta-express)[ a-z-]* CONFIG\b")


@pytest.mark.parametrize("path", _OF_USERS, ids=name)
def test_a_remedy_names_the_real_config_file(path: Path) -> None:
    """common/remedies.py; the help of a command and the generated reference speak of no particular file."""
    tree = parsed(path)
    told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            found = _NAMES_NO_FILE.search(node.value)
            assert found is None or name(path) == "common/reference.py", f"{name(path)}:{node.lineno}: {found}"


_WITHOUT_ITS_CONFIG = re.compile(r"`(?:stage-writer|delta-loader|bootstrap)(?: [a-z-]+)+(?![a-z-]| [a-z{])")


def _message(node: ast.JoinedStr | ast.Constant) -> str:
    """A text as it is written, with ``{}`` for what is filled in."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


@pytest.mark.parametrize("path", [one for one in _OF_USERS if "settings" not in one.parts], ids=name)
def test_a_command_in_a_remedy_has_its_arguments(path: Path) -> None:
    """Descriptions of settings, metrics and options speak of no particular file; remedies do."""
    tree = parsed(path)
    general = [node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)]
    general += [
        word.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for word in node.keywords
        if word.arg == "help"
    ]
    passed = {id(inner) for node in general if not isinstance(node, ast.Call) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            found = None if id(node) in passed else _WITHOUT_ITS_CONFIG.search(_message(node))
            if isinstance(node, ast.JoinedStr):
                passed |= {id(inner) for inner in ast.walk(node)}
            assert found is None or name(path) in {"common/metrics.py", "common/reference.py"}, (
                f"{name(path)}:{node.lineno}"
            )


@pytest.mark.parametrize("path", _OF_USERS, ids=name)
def test_what_commands_print_goes_through_one_function(path: Path) -> None:
    """`common.cli.echo` fills the config's path in; what drafts and shows configs has no remedies."""
    if name(path) not in {"common/cli.py", "common/reference.py", "bootstrap/config/commands.py"}:
        assert "typer.echo(" not in path.read_text("utf-8")
