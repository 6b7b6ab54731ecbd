"""One message with the values of its `jmespath` expressions put in: as kafka-delta-ingest does.

Rules:

1. All expressions see the record as it was sent. A value replaces the record's value in its column; a null changes
   nothing.
2. Everything else stays as it was written: digits, and on request the exact text.
3. An expression sees numbers as JMESPath does, as integers and doubles. A number that a double would change has no
   value for functions, but can be copied.
"""

import json
import math
from collections.abc import Mapping, Sequence

from common.schema import Primitive
from stage_writer.decode.json_document import (
    Json,
    NotOneDocumentError,
    Number,
    Object,
    SourcedArray,
    SourcedObject,
    SourcedText,
    json_text,
    parse_document,
)
from stage_writer.decode.rejects import ErrorClass, Refusal
from stage_writer.shape.jmespath.expressions import Assignment, FailedExpressionError, MessageProperty, iso8601

_MOST_DIGITS = 4000  # Python refuses longer integers
_TOO_DEEP = "jmespath: the message is nested too deeply"


class _Text(str):
    __slots__ = ()


class MessageRewriter:
    """Puts the values of expressions into messages, one at a time."""

    def __init__(self, assignments: Sequence[Assignment], *, sourced: bool) -> None:
        """With ``sourced`` values that are not filled keep their exact text."""
        self._assignments = assignments
        self._sourced = sourced

    def rewritten(self, message: bytes, about: Mapping[str, object]) -> bytes | Refusal:
        """The message with its values; unchanged if it is not a JSON object.

        ``about`` has the keys of `OF_MESSAGE`, with times in milliseconds.
        """
        try:
            document = parse_document(message.decode(), sourced=self._sourced)
        except (UnicodeDecodeError, NotOneDocumentError):
            return message
        if not isinstance(document, Object):
            return message
        try:
            record = _seen(document)
            values = [
                _of_message(assignment, about)
                if isinstance(assignment.plain, MessageProperty)
                else assignment.value(record)
                for assignment in self._assignments
            ]
            for assignment, value in zip(self._assignments, values, strict=True):
                if value is not None:
                    _put(document, assignment.goal.steps, _Text(_written(value, assignment.setting)))
            return _shown(document).encode()
        except FailedExpressionError as error:
            return Refusal(ErrorClass.EXPRESSION_FAILED, str(error))
        except RecursionError:
            return Refusal(ErrorClass.EXPRESSION_FAILED, _TOO_DEEP)


def _of_message(assignment: Assignment, about: Mapping[str, object]) -> object:
    """Kafka's value as its column reads it; a time in a BIGINT is in nanoseconds, as in kafka-delta-ingest."""
    value = about[assignment.text.strip()]
    if assignment.text.strip() != "kafka.timestamp" or not isinstance(value, int):
        return value
    if assignment.goal.type is Primitive.LONG:
        return value * 1_000_000
    try:
        return iso8601(value * 1000)
    except OverflowError as error:
        msg = f"{assignment.setting}: timestamp {value} ms is outside the years 1 to 9999"
        raise FailedExpressionError(msg) from error


def _seen(value: Json) -> object:
    """A value as JMESPath sees it (rule 3)."""
    match value:
        case Number():
            return _number(value)
        case Object():
            return {name: _seen(inner) for name, inner in value}
        case list():
            return [_seen(inner) for inner in value if not isinstance(inner, tuple)]
        case str():
            return str(value)
        case _:
            return value


def _number(text: Number) -> object:
    if text.lstrip("-").isdigit():
        return int(text) if len(text) <= _MOST_DIGITS and text != "-0" else text
    double = float(text)
    return double if math.isfinite(double) and _same(repr(double), text) else text


def _same(first: str, other: str) -> bool:
    """Whether two numbers have the same digits, regardless of their points and exponents."""
    return _digits(first) == _digits(other)


def _digits(text: str) -> tuple[str, int]:
    """The significant digits, and the exponent of the last one."""
    mantissa, _, exponent = text.lower().partition("e")
    whole, _, fraction = mantissa.lstrip("-").partition(".")
    digits = (whole + fraction).lstrip("0")
    significant = digits.rstrip("0")
    return significant, int(exponent or 0) - len(fraction) + len(digits) - len(significant) if significant else 0


def _put(record: Object, steps: tuple[str, ...], value: _Text) -> None:
    name, *rest = steps
    indexes = [index for index, (known, _) in enumerate(record) if known == name]
    if rest:
        inner = record[indexes[-1]][1] if indexes else None
        if isinstance(inner, Object):
            changed = Object(inner)  # without a source, because its content has changed
            record[indexes[-1]] = (name, changed)
            _put(changed, tuple(rest), value)
            return
        made = Object()
        _put(made, tuple(rest), value)
        _set(record, indexes, name, made)
    else:
        _set(record, indexes, name, value)


def _set(record: Object, indexes: Sequence[int], name: str, value: Json) -> None:
    for index in reversed(indexes):
        del record[index]
    record.insert(indexes[0] if indexes else len(record), (name, value))


def _shown(value: Json) -> str:
    match value:
        case _Text() | Number():
            return str(value)
        case SourcedText() | SourcedArray():
            return json_text(value)
        case Object():
            members = (f"{json.dumps(name, ensure_ascii=False)}:{_member(inner)}" for name, inner in value)
            return f"{{{','.join(members)}}}"
        case list():
            return f"[{','.join(_shown(inner) for inner in value if not isinstance(inner, tuple))}]"
        case _:
            return json.dumps(value, ensure_ascii=False)


def _member(value: Json) -> str:
    """An object within the record is unchanged, or has lost its source in `_put`."""
    return json_text(value) if isinstance(value, SourcedObject) else _shown(value)


def _written(value: object, setting: str) -> str:
    """An expression's value as JSON. Raises FailedExpressionError."""
    match value:
        case Number():
            return str(value)
        case dict():
            members = (f"{json.dumps(str(name))}:{_written(inner, setting)}" for name, inner in value.items())
            return f"{{{','.join(members)}}}"
        case list():
            return f"[{','.join(_written(inner, setting) for inner in value)}]"
        case float() if not math.isfinite(value):
            raise FailedExpressionError(f"{setting}: its value is {value}, which is not JSON")
        case None | bool() | int() | float() | str():
            return json.dumps(value, ensure_ascii=False)
        case _:
            raise FailedExpressionError(f"{setting}: its value is an expression, not a value")
