"""Style rules that a machine can check and ruff does not."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
PACKAGES = ("common", "stage_writer", "delta_loader", "bootstrap", "devservices", "benchmarks", "demo", "model")
LONGEST_FUNCTION = 70
LONGEST_MODULE = 600
# In the four packages that users install; the public DSL has as many verbs as Kafka Streams has.
PRODUCT = {"lines": 60, "parameters": 8, "methods": 20}
_PUBLIC_DSL = "stage_writer/topologies/dsl/"
_TEXT = {"", ".py", ".md", ".toml", ".yaml", ".yml", ".json", ".lock", ".txt", ".sh", ".cfg", ".properties"}
_OURS = (*PACKAGES, "tests", "docs", "deploy", ".ci")
# Home folders of developers' machines: a path below one of them works nowhere else.
_A_WORKPLACE = re.compile(r"(?<![\w./~*}])/(?:home/\w+|Users/\w+|root|work|tmp/w)/")

MODULES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
_OF_USERS = [path for path in MODULES if path.relative_to(ROOT).parts[0] in PACKAGES[:4]]
LAWS: list[tuple["Callable[[Module], Iterator[str]]", list[Path]]] = []


@dataclass(frozen=True, slots=True)
class Module:
    """A Python file, read and parsed once for all laws."""

    name: str
    text: str
    nodes: tuple[ast.AST, ...]
    """All of its tree, the module itself first."""


@cache
def parsed(path: Path) -> Module:
    text = path.read_text("utf-8")
    return Module(str(path.relative_to(ROOT)), text, tuple(ast.walk(ast.parse(text))))


def law(paths: list[Path]) -> Callable[[Callable[[Module], Iterator[str]]], Callable[[Module], Iterator[str]]]:
    """A rule for each of these modules: the function yields the violations."""

    def known(breaches: Callable[[Module], Iterator[str]]) -> Callable[[Module], Iterator[str]]:
        LAWS.append((breaches, paths))
        return breaches

    return known


@law(MODULES)
def a_module_has_a_docstring_and_stays_short(module: Module) -> Iterator[str]:
    tree = module.nodes[0]
    if not isinstance(tree, ast.Module) or not ast.get_docstring(tree):
        yield "it has no docstring"
    lines = len(module.text.splitlines())
    if lines > LONGEST_MODULE:
        yield f"{lines} lines: it has more than one subject"


@law(MODULES)
def a_function_fits_on_a_screen(module: Module) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > LONGEST_FUNCTION:
                yield f"{node.lineno}: {node.name} has {lines} lines"


def _sizes(node: ast.AST) -> Iterator[tuple[str, str, int]]:
    """The measures of a node: the limit of ``PRODUCT``, the name, and the size."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield "lines", node.name, (node.end_lineno or node.lineno) - node.lineno + 1
    if isinstance(node, ast.ClassDef):
        methods = [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]
        yield "methods", node.name, len(methods)
        for method in methods:
            if method.name == "__init__":
                given = method.args
                parameters = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
                yield "parameters", node.name, sum(parameter is not None for parameter in parameters[1:])  # after self


def test_product_functions_constructors_and_classes_are_small() -> None:
    over = {
        f"{module.name}: {measure} of {name}": size
        for module in map(parsed, _OF_USERS)
        if not module.name.startswith(_PUBLIC_DSL)
        for node in module.nodes
        for measure, name, size in _sizes(node)
        if size > PRODUCT[measure]
    }
    assert over == {}, "split it by subject"


def test_no_file_names_a_developer_s_folder() -> None:
    tops = [path for path in ROOT.iterdir() if path.is_file() and path.name != ".git"]
    files = [*tops, *(path for folder in _OURS for path in (ROOT / folder).rglob("*") if path.is_file())]
    for path in files:
        hidden = any(part in {"__pycache__", ".run"} for part in path.parts)
        if hidden or path.suffix not in _TEXT:
            continue
        match = _A_WORKPLACE.search(path.read_text("utf-8"))
        assert match is None, f"{path.relative_to(ROOT)} names {match[0] if match else ''}"


_NAMES_NO_FILE = re.compile(r"(?:stage-writer|delta-loader|bootstrap|kafka-delta-express)[ a-z-]* CONFIG\b")


@law(_OF_USERS)
def a_remedy_names_the_real_config_file(module: Module) -> Iterator[str]:
    """common/remedies.py; a command's help and the generated reference refer to no particular file."""
    docstrings = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}  # docstrings
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            match = _NAMES_NO_FILE.search(node.value)
            if match is not None and module.name != "common/reference.py":
                yield f"{node.lineno}: {match[0]}"


_WITHOUT_ITS_CONFIG = re.compile(r"`(?:stage-writer|delta-loader|bootstrap)(?: [a-z-]+)+(?![a-z-]| [a-z{])")


def _message(node: ast.JoinedStr | ast.Constant) -> str:
    """The text as written, with ``{}`` for the filled-in values."""
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


@law([path for path in _OF_USERS if "settings" not in path.parts])
def a_command_in_a_remedy_has_its_arguments(module: Module) -> Iterator[str]:
    """Descriptions of settings, metrics and options refer to no particular file; remedies do."""
    general = [node.value for node in module.nodes if isinstance(node, ast.Expr)]
    calls = (node for node in module.nodes if isinstance(node, ast.Call))
    general += [word.value for call in calls for word in call.keywords if word.arg == "help"]
    passed = {id(inner) for node in general if not isinstance(node, ast.Call) for inner in ast.walk(node)}
    for node in module.nodes:
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            match = None if id(node) in passed else _WITHOUT_ITS_CONFIG.search(_message(node))
            if isinstance(node, ast.JoinedStr):
                passed |= {id(inner) for inner in ast.walk(node)}
            if match is not None and module.name not in {"common/metrics.py", "common/reference.py"}:
                yield f"{node.lineno}: {match[0]}"


@law(_OF_USERS)
def command_output_goes_through_one_function(module: Module) -> Iterator[str]:
    """`common.cli.echo` fills in the config's path; the code that drafts and shows configs has no remedies."""
    if module.name not in {"common/cli.py", "common/reference.py", "bootstrap/config/commands.py"}:
        yield from re.findall(r"typer\.echo\(", module.text)


# Names that say nothing, or that only this project used: a variable is named for its content.
VARIABLES = frozenset(
    (
        "around beginning crew evolver filing filling first_pass fitness flight found gave_way given_way gives_way it "
        "letters lonely looked looker looks misfit near one portion pressure rootless seat shaper told told_end"
    ).split()
)


# Tests may say "letters" for short: their dead letters are the only ones. In the product, "at" is the option --at.
VARIABLES_IN_TESTS = VARIABLES - {"letters"} | set("at look said says turn turns".split())
_TESTS = list((ROOT / "tests").rglob("*.py"))


def _variables(module: Module, words: frozenset[str]) -> Iterator[str]:
    for node in module.nodes:
        if isinstance(node, ast.arg) or (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
            name = node.id if isinstance(node, ast.Name) else node.arg
            if name in words:
                yield f"{node.lineno}: {name}"


@law(_OF_USERS)
def a_variable_is_named_for_its_content(module: Module) -> Iterator[str]:
    return _variables(module, VARIABLES)


@law(_TESTS)
def a_variable_of_a_test_is_named_for_its_content(module: Module) -> Iterator[str]:
    return _variables(module, VARIABLES_IN_TESTS)


def test_no_two_classes_have_the_same_name() -> None:
    modules_of = defaultdict(list)
    for module in map(parsed, _OF_USERS):
        for node in ast.iter_child_nodes(module.nodes[0]):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                modules_of[node.name].append(module.name)
    assert {name: modules for name, modules in modules_of.items() if len(modules) > 1} == {}


@pytest.mark.parametrize(("breaches", "paths"), LAWS, ids=[breaches.__name__ for breaches, _ in LAWS])
def test_law_of_the_style_holds_in_each_module(breaches: Callable[[Module], Iterator[str]], paths: list[Path]) -> None:
    modules = [parsed(path) for path in paths]
    assert modules
    assert [f"{module.name}: {what}" for module in modules for what in breaches(module)] == []
