"""Which expressions settings allow: SQL that gives one value for each record, and always the same one.

Rules:

1. The text is parsed by DuckDB, and its tree is checked node by node against what is allowed; unknown nodes are
   refused. So there are no subqueries, windows, aggregates, stars, parameters, and no second expression or clause.
2. No function whose value changes from call to call (`random`, `now`, `uuid`…): a record that is read twice, after a
   crash, must give the same row.
3. Every name is a declared field, ``kafka``, or a lambda's own. (``current_date`` looks like a name; refused here.)
"""

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import duckdb

from common.errors import ExpressionError
from common.json_value import Json

KAFKA = "kafka"
_ALLOWED = frozenset(
    {"BETWEEN", "CASE", "CAST", "COLLATE", "COLUMN_REF", "COMPARISON", "CONJUNCTION", "CONSTANT", "FUNCTION", "LAMBDA",
     "OPERATOR", "TYPE"}
)  # fmt: skip
_CALLED = {
    "SUBQUERY": "a subquery",
    "WINDOW": "a window function",
    "STAR": "a star",
    "PARAMETER": "a parameter",
    "POSITIONAL_REFERENCE": "a column by its number",
}
_ROWS = frozenset({"unnest", "unlist", "generate_series", "range_table", "grouping", "grouping_id"})
_ONE_VALUE = "write one expression over the record's fields and kafka.*, as in substr(meta.time, 1, 10)"
_SYNTAX = f'{_ONE_VALUE}; put a field whose name is an SQL keyword, or has special characters, in "double quotes"'
_STABLE = "use values that do not change when a record is read again, for example kafka.timestamp"


_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": "1",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "preserve_insertion_order": "true",
}
FAULTS = (duckdb.InternalError, duckdb.FatalException)


def connect() -> duckdb.DuckDBPyConnection:
    """DuckDB as a library of vectorized functions: in memory, in the caller's thread, with times in UTC on any machine.

    No file, no network, no extension is loaded, and no setting can be changed afterward: expressions come from
    configuration, but are still arbitrary text. A connection belongs to one evaluator, and with it to one thread at a
    time. What they share, DuckDB's instance, takes longer to make than a batch of rows. A fault in DuckDB itself
    (`FAULTS`) makes an instance unusable: the next connection has another one.
    """
    cursor = _instance().cursor()
    try:
        cursor.execute("SELECT 1").fetchall()
    except FAULTS:
        _instance.cache_clear()
        return connect()
    return cursor


@cache
def _instance() -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    connection.execute("SET GLOBAL TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection


@dataclass(frozen=True, slots=True)
class CheckedExpression:
    setting: str
    """The key that it is from, such as ``derive.date``."""
    text: str
    kafka_parts: frozenset[str]
    """Includes `*` when it uses ``kafka`` as a whole."""
    fields: frozenset[str]
    """The fields that it names, in lower case."""


@dataclass(frozen=True, slots=True)
class _Functions:
    """The kinds of DuckDB's own functions, by their names in lower case."""

    aggregates: frozenset[str]
    unstable: frozenset[str]
    macros: Mapping[str, str]


@cache
def _functions() -> _Functions:
    query = "SELECT lower(function_name), function_type, stability, macro_definition FROM duckdb_functions()"
    rows = connect().execute(query).fetchall()
    aggregates = {name for name, kind, _, _ in rows if kind in ("aggregate", "window")}
    aggregates -= {name for name, kind, _, _ in rows if kind in ("scalar", "macro")}
    unstable = {name for name, _, stability, _ in rows if stability not in (None, "CONSISTENT")}
    macros = {name: definition for name, kind, _, definition in rows if kind == "macro"}
    return _Functions(frozenset(aggregates), frozenset(unstable), macros)


class ExpressionChecker:
    def __init__(self, fields: Collection[str]) -> None:
        self._connection = connect()
        self._names = {name.casefold(): name for name in (*fields, KAFKA)}
        self._functions = _functions()

    def check(self, setting: str, text: str) -> CheckedExpression:
        """The expression of a setting, such as ``derive.date``. Raises ExpressionError for an invalid one."""
        tree = self._parsed(setting, text)
        lambdas = set(_lambda_names(tree))
        parts: set[str] = set()
        fields: set[str] = set()
        for node in _nodes(tree):
            self._check_node(node, setting, text)
            if node["class"] == "COLUMN_REF":
                path = [str(part).casefold() for part in _list(node["column_names"])]
                if path[0] not in lambdas:
                    self._check_name(path[0], setting, text)
                    fields.add(path[0])
                if path[0] == KAFKA:
                    parts.add(path[1] if len(path) > 1 else "*")
        return CheckedExpression(setting, text, frozenset(parts), frozenset(fields - {KAFKA}))

    def _parsed(self, setting: str, text: str) -> Json:
        ((serialized,),) = self._connection.execute("SELECT json_serialize_sql(?)", [f"SELECT {text}"]).fetchall()
        parsed = json.loads(serialized)
        if parsed["error"]:
            problem = str(parsed.get("error_message", "it cannot be parsed"))
            several = "Only SELECT" in problem  # a second statement, of another kind
            raise refused(setting, text, "it is more than one expression" if several else problem, _SYNTAX)
        statements = parsed["statements"]
        query = statements[0]["node"]
        clauses = ("modifiers", "where_clause", "group_expressions", "having", "qualify", "sample")
        plain = len(statements) == 1 and query["type"] == "SELECT_NODE" and query["from_table"]["type"] == "EMPTY"
        if not plain or any(query[clause] for clause in clauses) or len(query["select_list"]) != 1:
            raise refused(setting, text, "it is more than one expression", _ONE_VALUE)
        tree: Json = query["select_list"][0]
        if query["select_list"][0]["alias"]:
            raise refused(setting, text, "it has an alias", "remove AS …: the setting names the column")
        return tree

    def _check_node(self, node: dict[str, Json], setting: str, text: str) -> None:
        kind = str(node["class"])
        if kind not in _ALLOWED:
            raise refused(setting, text, f"{_CALLED.get(kind, kind)} is not allowed", _ONE_VALUE)
        if node.get("type") == "GROUPING_FUNCTION":
            raise refused(setting, text, "GROUPING is not allowed", _ONE_VALUE)
        if kind == "FUNCTION":
            self._check_function(str(node["function_name"]).casefold(), setting, text)

    def _check_function(self, function: str, setting: str, text: str) -> None:
        if function in self._functions.aggregates or function in _ROWS:
            raise refused(setting, text, f"{function} does not give one value for each record", _ONE_VALUE)
        if function in self._functions.unstable:
            raise refused(setting, text, f"{function} gives a different value each time", _STABLE)
        definition = self._functions.macros.get(function)
        if definition is not None:
            for node in _nodes(self._parsed(setting, definition)):
                self._check_node(node, setting, text)
                if node["class"] == "COLUMN_REF" and str(_list(node["column_names"])[0]).startswith("current_"):
                    raise refused(setting, text, f"{function} gives a different value each time", _STABLE)

    def _check_name(self, first: str, setting: str, text: str) -> None:
        if first not in self._names:
            close_matches = difflib.get_close_matches(first, list(self._names), 1)
            known = (
                f"did you mean {self._names[close_matches[0]]}?"
                if close_matches
                else f"available: {', '.join(self._names.values())}"
            )
            raise refused(setting, text, f"there is no field `{first}`", known)


def refused(setting: str, text: str, problem: str, remedy: str) -> ExpressionError:
    return ExpressionError(f"{setting}: {text.strip()}: {problem}", remedy)


def _list(value: Json) -> list[Json]:
    return value if isinstance(value, list) else []


def _nodes(tree: Json) -> Iterator[dict[str, Json]]:
    """Every node of a tree that has a class, from the outside in."""
    if isinstance(tree, dict):
        if "class" in tree:
            yield tree
        for child in tree.values():
            yield from _nodes(child)
    elif isinstance(tree, list):
        for child in tree:
            yield from _nodes(child)


def _lambda_names(tree: Json) -> Iterator[str]:
    for node in _nodes(tree):
        if node["class"] == "LAMBDA":
            for parameter in _nodes(node["lhs"]):
                if parameter["class"] == "COLUMN_REF":
                    yield str(_list(parameter["column_names"])[0]).casefold()
