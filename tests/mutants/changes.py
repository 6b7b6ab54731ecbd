"""The mutants of a module: each a small change of one function's syntax tree.

A comparison at its boundary or turned round, ``and`` for ``or``, a condition left out or always (never) true, a
negation left out, a number one higher, ``+`` for ``-``, ``min`` for ``max``, ``any`` for ``all``, no result, a call or
a ``raise`` left out. Texts and log lines are what is said and not what is done, and stay as they are.
"""

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice

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
    what: str
    """Function, the code before and after; unique within a module."""
    lines: range
    """Those of the statement that it changes, or of that statement's head."""
    tree: ast.Module


def mutants(source: str) -> Iterator[Mutant]:
    seen: Counter[str] = Counter()
    for number, (original, function, statement) in enumerate(_places(ast.parse(source))):
        for variant in count():
            changed = _copy(original)
            if not _change(changed, variant):
                break
            tree = ast.parse(source)
            node = next(islice(_places(tree), number, None))[0]
            _change(node, variant)
            name = function.replace(".<locals>", "")
            what = f"{name}: {_first_line(original)} → {_first_line(changed)}"
            seen[what] += 1
            unique = what if seen[what] == 1 else f"{what} ({seen[what]})"
            yield Mutant(unique, _lines(statement), ast.fix_missing_locations(tree))


def _copy(node: ast.AST) -> ast.AST:
    """A node that can be changed without the original, over the same nodes below it."""
    fields = {name: list(value) if isinstance(value, list) else value for name, value in ast.iter_fields(node)}
    return ast.copy_location(type(node)(**fields), node)


def _lines(statement: ast.stmt) -> range:
    end = max(statement.lineno + 1, statement.body[0].lineno) if hasattr(statement, "body") else None
    return range(statement.lineno, end or (statement.end_lineno or statement.lineno) + 1)


def _first_line(node: ast.AST) -> str:
    return ast.unparse(node).partition("\n")[0]


def _places(
    tree: ast.AST, prefix: str = "", function: str = "", statement: ast.stmt | None = None
) -> Iterator[tuple[ast.AST, str, ast.stmt]]:
    """Everything in functions that may decide something, with its function's name and the innermost statement."""
    for field, value in ast.iter_fields(tree):
        if field in {"annotation", "returns", "decorator_list", "args"} and not isinstance(tree, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            match child:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    yield from _places(child, f"{prefix}{child.name}.<locals>.", f"{prefix}{child.name}")
                case ast.ClassDef():
                    yield from _places(child, f"{prefix}{child.name}.")
                case ast.AST() if not isinstance(child, ast.JoinedStr):
                    within = child if isinstance(child, ast.stmt) else statement
                    if function and within is not None:
                        yield child, function, within
                    yield from _places(child, prefix, function, within)


def _change(node: ast.AST, variant: int) -> bool:  # noqa: C901, PLR0912 - one case for each kind
    """Change a node in place; whether there is such a variant of it."""
    match node, variant:
        case ast.Compare(), _ if variant < len(node.ops):
            node.ops[variant] = _COMPARED[type(node.ops[variant])]()
        case ast.BoolOp(), 0:
            node.op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        case ast.BoolOp(), _ if variant <= len(node.values):
            # `True and x` is x, and so is `False or x`.
            node.values[variant - 1] = ast.Constant(isinstance(node.op, ast.And))
        case ast.BinOp(), 0 if type(node.op) in _COMPUTED:
            node.op = _COMPUTED[type(node.op)]()
        case ast.Call(func=ast.Name(id=name)), 0 if name in _CALLED:
            node.func = ast.Name(_CALLED[name], ast.Load())
        case ast.Constant(value=bool()), 0:
            node.value = not node.value
        case ast.Constant(value=int()), 0:
            node.value += 1  # type: ignore[operator]
        case ((ast.If() | ast.While() | ast.IfExp()), (0 | 1)) if not isinstance(node.test, ast.Constant):
            node.test = ast.Constant(bool(variant))
        case ast.Return(value=ast.Constant(value=None | False)), _:
            return False  # no result is as false
        case ast.Return(value=ast.expr()), 0:
            node.value = ast.Constant(None)
        case ast.UnaryOp(op=ast.Not()), 0:
            node.operand = ast.UnaryOp(ast.Not(), node.operand)
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Attribute(attr="log" | "_log")))), 0:
            return False  # is said and not done
        case ast.Expr(value=ast.Call(func=ast.Name(id="assert_never"))), _:
            return False  # is never reached
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="super"))))), _:
            return False  # a function that is loaded keeps its cells
        case ((ast.AugAssign() | ast.Delete() | ast.Break() | ast.Continue() | ast.Raise()), 0):
            _leave_out(node)
        case ast.Expr(value=ast.Call()), 0:
            _leave_out(node)
        case _:
            return False
    return True


def _leave_out(node: ast.AST) -> None:
    node.__class__ = ast.Pass
    node._fields = ()  # type: ignore[misc]
