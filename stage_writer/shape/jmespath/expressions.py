"""JMESPath as in kafka-delta-ingest: which expressions `jmespath` allows, and their value for one record.

Rules:

1. The language is that of jmespath.org with the functions ``substr(text, skip, take)``, ``epoch_seconds_to_iso8601``
   and ``epoch_micros_to_iso8601``. An expression that is ``kafka.topic``, ``kafka.partition``, ``kafka.offset`` or
   ``kafka.timestamp`` and nothing else is about the message, as in kafka-delta-ingest.
2. Expressions and their targets are checked at construction. Whether a record has a field cannot be known then.
3. Three kinds are *plain*: a path of fields, ``substr`` of one with two numbers, and those about the message. They can
   be evaluated on whole batches (`stage_writer.shape.jmespath.decoder`).
"""

import datetime as dt
import difflib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import jmespath
from jmespath import functions
from jmespath.exceptions import JMESPathError

from common.schema import DataType, Primitive, StructType, type_to_ddl
from common.settings.formats import path_steps
from stage_writer.shape.expressions import refused

Steps = tuple[str, ...]

OF_MESSAGE = {
    "kafka.topic": (Primitive.STRING,),
    "kafka.partition": (Primitive.INTEGER, Primitive.LONG),
    "kafka.offset": (Primitive.LONG,),
    "kafka.timestamp": (Primitive.TIMESTAMP, Primitive.LONG),
}
"""The message properties that expressions can use, and the types that a column for each can have."""
_FAILURES = (JMESPathError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class Path:
    steps: Steps


@dataclass(frozen=True, slots=True)
class Substring:
    """Some characters of the text at a path."""

    steps: Steps
    skip: int
    take: int


@dataclass(frozen=True, slots=True)
class MessageProperty:
    name: str


Plain = Path | Substring | MessageProperty


@dataclass(frozen=True, slots=True)
class Goal:
    steps: Steps
    type: DataType


@dataclass(frozen=True, slots=True)
class Assignment:
    setting: str
    """Its key, for errors."""
    text: str
    goal: Goal
    plain: Plain | None
    """None for an expression that has to be evaluated record by record."""
    compiled: jmespath.parser.ParsedResult

    def value(self, record: object) -> object:
        """Its value for a record, in JSON's types. Raises FailedExpressionError."""
        try:
            return self.compiled.search(record, _OPTIONS)
        except _FAILURES as error:
            raise FailedExpressionError(f"{self.setting}: {' '.join(str(error).split())}") from error


class FailedExpressionError(Exception):
    """An expression has no value for a record. The message gives the reason."""


def assignments_of(columns: StructType, settings: Mapping[str, str]) -> tuple[Assignment, ...]:
    """The entries of `jmespath`, checked. Raises ExpressionError, which points at the expression."""
    assignments = tuple(_assignment(columns, column, text) for column, text in settings.items())
    for number, assignment in enumerate(assignments):
        for other in assignments[:number]:
            shared = min(len(assignment.goal.steps), len(other.goal.steps))
            if assignment.goal.steps[:shared] == other.goal.steps[:shared]:
                problem = f"{other.setting} fills the same column"
                raise refused(assignment.setting, assignment.text, problem, "set each column, or part of one, once")
    return assignments


def _assignment(columns: StructType, column: str, text: str) -> Assignment:
    setting = f"jmespath.{column}"
    goal = _goal_of(columns, column, setting, text)
    try:
        compiled = jmespath.compile(text)
    except JMESPathError as error:
        problem = " ".join(str(error).split())
        raise refused(setting, text, problem, "see https://jmespath.org/specification.html") from error
    if text.strip() in OF_MESSAGE:
        return Assignment(setting, text, goal, _of_message(setting, text, goal), compiled)
    if text.strip() == "kafka.timestamp_type":
        raise refused(setting, text, "the type of a timestamp is not kept", "remove it, or use kafka.timestamp")
    for node in _nodes(compiled.parsed):
        _check(node, setting, text)
    return Assignment(setting, text, goal, _plain(compiled.parsed), compiled)


def _goal_of(columns: StructType, column: str, setting: str, text: str) -> Goal:
    try:
        steps = path_steps(column)
    except ValueError as error:
        raise refused(setting, text, str(error), "name a declared column") from None
    data_type: DataType = columns
    for step in steps:
        field = data_type.field(step) if isinstance(data_type, StructType) else None
        if field is None:
            names = data_type.names if isinstance(data_type, StructType) else ()
            close_matches = difflib.get_close_matches(step, names, 1)
            hint = f"did you mean {close_matches[0]}?" if close_matches else "declare it in `columns`, with its type"
            raise refused(setting, text, f"`{column}` is not a declared column, nor a field of a STRUCT", hint)
        data_type = field.type
    return Goal(steps, data_type)


def _of_message(setting: str, text: str, goal: Goal) -> MessageProperty:
    name = text.strip()
    if goal.type not in OF_MESSAGE[name]:
        types = " or ".join(type_to_ddl(primitive) for primitive in OF_MESSAGE[name])
        raise refused(setting, text, f"its column is {type_to_ddl(goal.type)}", f"declare it as {types}")
    return MessageProperty(name)


def _plain(node: Mapping[str, object]) -> Plain | None:
    steps = _steps(node)
    if steps is not None:
        return Path(steps)
    if node["type"] != "function_expression" or node["value"] != "substr":
        return None
    source, skip, take = _children(node)
    steps, numbers = _steps(source), (skip.get("value"), take.get("value"))
    if steps is None or any(operand["type"] != "literal" for operand in (skip, take)):
        return None
    first, count = (number if type(number) is int and number >= 0 else None for number in numbers)
    return None if first is None or count is None else Substring(steps, first, count)


def _steps(node: Mapping[str, object]) -> Steps | None:
    if node["type"] == "field":
        return (str(node["value"]),)
    if node["type"] == "subexpression" and all(child["type"] == "field" for child in _children(node)):
        return tuple(str(child["value"]) for child in _children(node))
    return None


def _check(node: Mapping[str, object], setting: str, text: str) -> None:
    if node["type"] != "function_expression":
        return
    name, count = str(node["value"]), len(_children(node))
    known = functions.Functions.FUNCTION_TABLE | _Functions.FUNCTION_TABLE
    if name not in known:
        close_matches = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {close_matches[0]}?" if close_matches else f"available: {', '.join(sorted(known))}"
        raise refused(setting, text, f"there is no function {name}", hint)
    signature = known[name]["signature"]
    is_open = bool(signature) and bool(signature[-1].get("variadic"))
    if count < len(signature) or (count > len(signature) and not is_open):
        wanted = f"{len(signature)} or more" if is_open else str(len(signature))
        raise refused(setting, text, f"{name} takes {wanted} arguments, not {count}", "give that many")


def _children(node: Mapping[str, object]) -> list[Mapping[str, object]]:
    children = node.get("children")
    return [child for child in children if isinstance(child, dict)] if isinstance(children, list) else []


def fields_of(texts: Iterable[str]) -> frozenset[str]:
    """The names of all fields that expressions mention; those about the message mention none."""
    nodes = (node for text in texts if text.strip() not in OF_MESSAGE for node in _nodes(jmespath.compile(text).parsed))
    return frozenset(str(node["value"]) for node in nodes if node["type"] == "field")


def _nodes(node: Mapping[str, object]) -> Iterator[Mapping[str, object]]:
    yield node
    for child in _children(node):
        yield from _nodes(child)


class _Functions(functions.Functions):
    """The functions of kafka-delta-ingest, in addition to JMESPath's own."""

    @functions.signature({"types": ["string"]}, {"types": ["number"]}, {"types": ["number"]})
    def _func_substr(self, text: str, skip: float, take: float) -> str:
        first = max(0, int(skip))
        return text[first : first + max(0, int(take))]

    @functions.signature({"types": ["number"]})
    def _func_epoch_seconds_to_iso8601(self, seconds: float) -> str:
        return iso8601(math.trunc(seconds) * 1_000_000)

    @functions.signature({"types": ["number"]})
    def _func_epoch_micros_to_iso8601(self, micros: float) -> str:
        return iso8601(math.trunc(micros))


def iso8601(micros: int) -> str:
    """A time in UTC, with as many decimals as it needs: none, three or six. Raises OverflowError."""
    moment = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=micros)  # noqa: DTZ001 - UTC, said by the Z
    fraction = "milliseconds" if moment.microsecond % 1000 == 0 else "microseconds"
    return f"{moment.isoformat(timespec=fraction if moment.microsecond else 'seconds')}Z"


_OPTIONS = jmespath.Options(custom_functions=_Functions())
