"""Changes critical modules in one place at a time and says which changes no fast test sees: ``make mutants``.

Rules:

1. One mutant is one small change of a module's syntax tree: a comparison at its boundary, ``and`` for ``or``, a
   negation left out, a number one higher, ``+`` for ``-``, ``min`` for ``max``, no result, a statement left out.
2. A mutant runs in a forked process, with pytest and the large libraries loaded already; the files of the project stay
   as they are. It is bounded by CPU time, which a loaded machine does not change: who never ends is killed, too.
3. What is the same program all the same is named in `EQUIVALENT`, with a reason, and is not run.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.util
import os
import resource
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet  # noqa: F401 - for the forked processes, as the next one
import pydantic  # noqa: F401
import pytest
import typer

if TYPE_CHECKING:
    import types
    from collections.abc import Iterator
    from importlib.machinery import ModuleSpec

ROOT = Path(__file__).parents[2]
ENOUGH = 0.95
"""The share of a module's mutants that has to be killed."""
_CPU_S = 60
_OK, _FAILED = 0, 1

_PLAN_LAWS = ("tests/property/test_planner_laws.py", "tests/property/test_straddle_laws.py")
TESTS = {
    "common.stage.chain": ("tests/unit/common/test_chain.py", "tests/property/test_chain.py"),
    "delta_loader.core.plan": ("tests/unit/delta_loader/test_plan.py", *_PLAN_LAWS),
    "delta_loader.core.settle": (
        "tests/unit/delta_loader/test_commits.py",
        "tests/unit/delta_loader/test_valid_through.py",
        "tests/unit/delta_loader/test_many_partitions.py",
        "tests/property/test_idle.py",
        *_PLAN_LAWS,
    ),
    "delta_loader.core.lease": ("tests/unit/delta_loader/test_lease.py", "tests/property/test_lease_histories.py"),
}
"""For each module the fast tests that cover it, the quickest first."""

EQUIVALENT = {
    ("common.stage.chain", "read_chain: if marker.previous is not None: → if True:"): "no segment ends at no marker",
}
"""By module and mutant: why no test can see it."""

_COMPARED = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_COMPUTED = {ast.Add: ast.Sub, ast.Sub: ast.Add}
_CALLED = {"min": "max", "max": "min", "any": "all", "all": "any"}


@dataclass(frozen=True, slots=True)
class Mutant:
    """A changed module."""

    what: str
    """Function, the code before and after."""
    source: str


def mutants(source: str) -> Iterator[Mutant]:
    """All mutants of a module's source."""
    for number, (_, function) in enumerate(_places(ast.parse(source))):
        for variant in (0, 1):
            tree = ast.parse(source)
            node, _ = list(_places(tree))[number]
            before = _first_line(node)
            if _change(node, variant):
                ast.fix_missing_locations(tree)
                yield Mutant(f"{function}: {before} → {_first_line(node)}", ast.unparse(tree))


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _places(tree: ast.AST, function: str = "") -> Iterator[tuple[ast.AST, str]]:
    """Everything in functions that decides something, with its function's name."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            yield from _places(ast.Module(child.body, []), f"{function}.{child.name}".lstrip("."))
        elif not isinstance(child, ast.JoinedStr):  # what is said, and not done
            if function:
                yield child, function
            yield from _places(child, function)


def _change(node: ast.AST, variant: int) -> bool:  # noqa: C901 - one case for each kind
    """Change a node in place; whether there is such a variant of it."""
    match node, variant:
        case ast.Compare(), 0:
            node.ops[0] = _COMPARED[type(node.ops[0])]()
        case ast.BoolOp(), 0:
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.BoolOp(), 1:
            node.values.pop()
        case ast.BinOp(), 0 if type(node.op) in _COMPUTED:
            node.op = _COMPUTED[type(node.op)]()
        case ast.Call(func=ast.Name(id=name)), 0 if name in _CALLED:
            node.func = ast.Name(_CALLED[name])
        case ast.Constant(value=bool()), 0:
            node.value = not node.value
        case ast.Constant(value=int()), 0:
            node.value += 1  # type: ignore[operator]
        case ((ast.If() | ast.While() | ast.IfExp()), (0 | 1)):
            node.test = ast.Constant(bool(variant))
        case ast.Return(value=ast.expr() as value), 0 if not (isinstance(value, ast.Constant) and value.value is None):
            node.value = ast.Constant(None)
        case ast.UnaryOp(op=ast.Not()), 0:
            node.op = ast.Not()
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ((ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue()), 0):
            node.__class__ = ast.Pass  # type: ignore[assignment] # so that it needs no parent
        case _:
            return False
    return True


class _Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a mutant's source."""

    def __init__(self, module: str, source: str) -> None:
        self._module, self._source = module, source

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:  # noqa: ARG002
        """Of the mutated module only."""
        return importlib.util.spec_from_loader(fullname, self) if fullname == self._module else None

    def exec_module(self, module: types.ModuleType) -> None:
        """Run the mutant's source."""
        exec(compile(self._source, f"<mutant of {self._module}>", "exec"), module.__dict__)  # noqa: S102


def survives(module: str, source: str, tests: tuple[str, ...]) -> bool:
    """Whether no test fails with that source for the module (rule 2)."""
    process = os.fork()
    if not process:
        code = _FAILED
        try:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, 1)
            os.dup2(nowhere, 2)
            resource.setrlimit(resource.RLIMIT_CPU, (_CPU_S, _CPU_S))
            sys.meta_path.insert(0, _Mutated(module, source))
            quiet = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
            code = int(pytest.main([*quiet, *tests]))
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status) == _OK


def main(modules: list[str] = typer.Argument(None)) -> None:  # noqa: B008
    """Test all modules of the table, or those named; exit code 1 where too many mutants survive."""
    os.chdir(ROOT)
    too_many = False
    for module in modules or TESTS:
        source = (ROOT / f"{module.replace('.', '/')}.py").read_text()
        if not survives(module, source, TESTS[module]):
            typer.echo(f"{module}: its tests fail as it is", err=True)
            raise typer.Exit(1)
        tried = [mutant for mutant in mutants(source) if (module, mutant.what) not in EQUIVALENT]
        survivors = []
        for mutant in tried:
            if survives(module, mutant.source, TESTS[module]):
                survivors.append(mutant)
                typer.echo(f"survived: {module}: {mutant.what}")
        killed = 1 - len(survivors) / len(tried)
        too_many |= killed < ENOUGH
        typer.echo(f"{module}: {killed:.1%} of {len(tried)} mutants killed")
    if too_many:
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
