"""One message, strictly: the reference for the meaning of each JSON value for each type.

The bulk decoder passes on everything it cannot prove good, so only this module decides which messages are refused and
why, and property tests compare the bulk decoder with it. Rules:

1. A record becomes its row exactly as sent, or is refused. Nothing is rounded, coerced, nulled or dropped.
2. Fields are found by exact, case-sensitive name. A field that is not declared is ignored. One that is declared and
   absent, or explicitly null, is null; refused where NOT NULL is declared.
3. Integers are written without point and exponent (`1.0` and `1e2` are refused). DOUBLE takes the nearest double, FLOAT
   the nearest float of that double; what would be infinite is refused.
4. DECIMAL takes a number, or a string that is a plain number, whose value it holds exactly: zeros at the end do not
   count.
5. DATE is ``YYYY-MM-DD``. TIMESTAMP is ``YYYY-MM-DD``, ``T`` or a space, ``hh:mm:ss``, up to nine decimals, and ``Z``,
   ``±hh:mm`` or ``±hhmm``; none of these means UTC. TIMESTAMP_NTZ is the same without a zone. Decimals after the sixth
   must be zeros. Years are 0001 to 9999, in UTC. An epoch (`formats`) is a number of seconds, milliseconds or
   microseconds since 1970 in UTC, or a string that is a plain number, as for DECIMAL; down to microseconds, and zeros
   behind them.
6. BINARY is a string of base64: the standard alphabet, padded, canonical. Or of hex digits in pairs, where asked for.
7. MAP and STRUCT take an object; a declared field or a key given twice is refused at any depth.
8. A STRING of the format `json` accepts any value, and is its JSON text as it was sent; null is null.
9. Lenient reading (`coerce`) also accepts: for numbers and BOOLEAN a string that is one in JSON, for integers a number
   with point or exponent that is whole, for STRING any value's JSON text as it was sent. Nothing else, and exactly.
"""

from __future__ import annotations

import base64
import datetime as dt
import json
import math
import re
import struct
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import TYPE_CHECKING, NoReturn, assert_never

from common.errors import SchemaError
from common.schema import (
    CHAR_VARCHAR_KEY,
    INTEGER_BITS,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructType,
    type_to_ddl,
)
from common.settings.formats import ValueFormat
from stage_writer.decode.json_document import (
    Json,
    NotOneDocumentError,
    Number,
    Object,
    json_text,
    parse_document,
)
from stage_writer.decode.reading import STRICT, Reading
from stage_writer.decode.rejects import ErrorClass, Refusal

if TYPE_CHECKING:
    from collections.abc import Callable

Row = dict[str, object]
"""A row as `pyarrow.array` accepts it, with the columns' Arrow types."""

_INTEGER = re.compile(r"-?[0-9]+")
_MAX_INTEGER_DIGITS = 20
_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
_DECIMAL = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?(?:[eE]([+-]?)([0-9]+))?")
_MAX_EXPONENT_DIGITS = 18  # larger ones would need a longer message than possible to compensate
_DATE = re.compile(r"([0-9]{4})-([0-9]{2})-([0-9]{2})")
_TIMESTAMP = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})[Tt ]([0-9]{2}):([0-9]{2}):([0-9]{2})(?:\.([0-9]{1,9}))?"
    r"(?P<zone>[Zz]|([+-])([0-9]{2}):?([0-9]{2}))?"
)
_HEX = re.compile(r"(?:[0-9A-Fa-f]{2})*")
_BASE64 = re.compile(r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?")
_MICROSECOND_DIGITS = 6
_EPOCH_DIGITS = 20  # more than any year needs, in any unit
_SHOWN_CHARACTERS = 80


class StrictDecoder:
    """Decodes one message at a time into the declared columns. Raises SchemaError for columns it cannot decode into."""

    def __init__(self, columns: StructType, reading: Reading = STRICT) -> None:
        check_decodable(columns)
        self._row = _struct(columns, reading)
        self._sourced = reading.lenient or reading.holds_json

    def decode(self, message: bytes) -> Row | Refusal:
        """The message's row, or why it has none."""
        document = document_of(message, sourced=self._sourced)
        if isinstance(document, Refusal):
            return document
        try:
            return self._row(document, "")
        except _RefusedError as refused:
            return refused.refusal


def document_of(message: bytes, *, sourced: bool) -> Object | Refusal:
    """The one object in the message, or why there is none."""
    try:
        text = message.decode()
    except UnicodeDecodeError as error:
        return Refusal(ErrorClass.INVALID_UTF8, f"byte {error.start} of the message is not UTF-8")
    if not text.strip(" \t\r\n"):
        return Refusal(ErrorClass.EMPTY, "the message is empty")
    try:
        document = parse_document(text, sourced=sourced)
    except NotOneDocumentError as error:
        return Refusal(ErrorClass.INVALID_JSON, str(error))
    if not isinstance(document, Object):
        return Refusal(ErrorClass.NOT_AN_OBJECT, f"the message is {_describe(document)}, not an object")
    return document


def check_decodable(columns: StructType) -> None:
    """Raises SchemaError for a column that no JSON value can be decoded into without loss."""
    for field in columns:
        if CHAR_VARCHAR_KEY in json.loads(field.metadata_json):
            msg = f"the column `{field.name}` is a CHAR or VARCHAR, whose length would have to be enforced"
            raise SchemaError(msg, "make the column a STRING")
        _check_type(field.type, field.name)


def _check_type(data_type: DataType, path: str) -> None:
    match data_type:
        case Primitive.VARIANT:
            msg = f"`{path}` is a VARIANT, which the loader makes of JSON text"
            remedy = (
                "declare it as STRING with the format json (formats: {…: json}); where the table's column is a "
                "VARIANT, the loader has the text parsed"
            )
            raise SchemaError(msg, remedy)
        case ArrayType(element):
            _check_type(element, f"{path}[]")
        case MapType(key, value):
            if key is not Primitive.STRING:
                msg = f"`{path}` is a MAP with keys of {type_to_ddl(key)}"
                raise SchemaError(msg, "declare the keys as STRING: the keys of a JSON object are strings")
            _check_type(value, f"{path}[]")
        case StructType(()):
            msg = f"`{path}` is a STRUCT without fields, which Parquet cannot hold"
            raise SchemaError(msg, "declare its fields, or leave the column out")
        case StructType():
            check_decodable(data_type)
        case Primitive() | DecimalType():
            pass
        case _:
            assert_never(data_type)


class _RefusedError(Exception):
    """Raised by a converter deep inside a value to refuse the record."""

    def __init__(self, error_class: ErrorClass, path: str, problem: str) -> None:
        super().__init__(problem)
        self.refusal = Refusal(error_class, f"{path}: {problem}")


if TYPE_CHECKING:
    Converter = Callable[[Json, str], object]


def _shown(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({len(text)} characters)"


def _describe(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "true" if value else "false"
        case Number():
            return f"the number {_shown(value)}"
        case str():
            return f"the string {json.dumps(_shown(value), ensure_ascii=False)}"
        case Object():
            return "an object"
        case list():
            return "an array"


def _wrong_type(value: Json, path: str, wanted: str) -> NoReturn:
    raise _RefusedError(ErrorClass.WRONG_TYPE, path, f"{_describe(value)} where {wanted} is declared")


def _converter(data_type: DataType, reading: Reading) -> Converter:
    match data_type:
        case Primitive.BYTE | Primitive.SHORT | Primitive.INTEGER | Primitive.LONG:
            return _leniently(_whole, _integer(data_type)) if reading.lenient else _integer(data_type)
        case Primitive():
            return _primitive(data_type, reading)
        case DecimalType():
            return _decimal(data_type)
        case ArrayType():
            return _array(data_type, reading.at("element"))
        case MapType():
            return _map(data_type, reading.at("value"))
        case StructType():
            return _struct(data_type, reading)
        case _:
            assert_never(data_type)


def _primitive(data_type: Primitive, reading: Reading) -> Converter:
    if reading.epoch_decimals is not None:
        return _epoch(data_type, reading.epoch_decimals)
    if reading.format is ValueFormat.HEX:
        return _binary_in_hex
    if reading.format is ValueFormat.JSON:
        return _json
    if reading.non_finite and data_type in {Primitive.DOUBLE, Primitive.FLOAT}:
        return _non_finite(_primitive(data_type, replace(reading, non_finite=False)))
    if reading.lenient and data_type in _LENIENTLY:
        return _leniently(_LENIENTLY[data_type], _PRIMITIVES[data_type])
    return _PRIMITIVES[data_type]


def _non_finite(convert: Converter) -> Converter:
    def converted(value: Json, path: str) -> object:
        number = _NON_FINITE.get(value) if isinstance(value, str) and not isinstance(value, Number) else None
        return convert(value, path) if number is None else number

    return converted


def _leniently(understand: Callable[[Json], Json], convert: Converter) -> Converter:
    return lambda value, path: convert(understand(value), path)


def _number(value: Json) -> Json:
    """A string that is a JSON number, as that number."""
    return Number(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _whole(value: Json) -> Json:
    """The same, and a whole number without point and exponent."""
    number = _number(value)
    exact = _exact(number) if isinstance(number, Number) else None
    if exact is None or exact.exponent < 0 or len(exact.digits) + exact.exponent > _MAX_INTEGER_DIGITS:
        return number
    return Number(f"{exact.sign}{exact.digits or '0'}{'0' * exact.exponent}")


def _truth(value: Json) -> Json:
    return _TRUTHS.get(value, value) if isinstance(value, str) else value


def _as_text(value: Json) -> Json:
    """A value that is not a string as its JSON text."""
    return value if isinstance(value, str) and not isinstance(value, Number) else json_text(value)


_NON_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_TRUTHS: dict[str, bool] = {"true": True, "false": False}
_LENIENTLY: dict[Primitive, Callable[[Json], Json]] = {
    Primitive.DOUBLE: _number,
    Primitive.FLOAT: _number,
    Primitive.BOOLEAN: _truth,
    Primitive.STRING: _as_text,
}


def _integer(data_type: Primitive) -> Converter:
    limit = 1 << (INTEGER_BITS[data_type] - 1)
    name = type_to_ddl(data_type)

    def convert(value: Json, path: str) -> int:
        if not isinstance(value, Number):
            _wrong_type(value, path, name)
        if not _INTEGER.fullmatch(value):
            raise _RefusedError(ErrorClass.NOT_EXACT, path, f"{_shown(value)} is not written as an integer, for {name}")
        if len(value) > _MAX_INTEGER_DIGITS or not -limit <= int(value) < limit:
            raise _RefusedError(ErrorClass.OUT_OF_RANGE, path, f"{_shown(value)} is beyond the range of {name}")
        return int(value)

    return convert


def _double(value: Json, path: str) -> float:
    if not isinstance(value, Number):
        _wrong_type(value, path, "DOUBLE")
    number = float(value)
    if math.isinf(number):
        raise _RefusedError(ErrorClass.OUT_OF_RANGE, path, f"{_shown(value)} is beyond the range of DOUBLE")
    return number


def _float(value: Json, path: str) -> float:
    if not isinstance(value, Number):
        _wrong_type(value, path, "FLOAT")
    try:
        (nearest,) = struct.unpack("<f", struct.pack("<f", _double(value, path)))
    except OverflowError:
        refused = _RefusedError(ErrorClass.OUT_OF_RANGE, path, f"{_shown(value)} is beyond the range of FLOAT")
        raise refused from None
    return float(nearest)


def _string(value: Json, path: str) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        _wrong_type(value, path, "STRING")
    return value


def _boolean(value: Json, path: str) -> bool:
    if not isinstance(value, bool):
        _wrong_type(value, path, "BOOLEAN")
    return value


def _text(value: Json, path: str, form: re.Pattern[str], wanted: str) -> re.Match[str]:
    if not isinstance(value, str) or isinstance(value, Number):
        _wrong_type(value, path, wanted)
    match = form.fullmatch(value)
    if match is None:
        raise _RefusedError(ErrorClass.MALFORMED, path, f"{_describe(value)} is not a {wanted}")
    return match


def _binary(value: Json, path: str) -> bytes:
    match = _text(value, path, _BASE64, "BINARY in base64 (standard alphabet, padded)")
    return base64.b64decode(match[0])


def _binary_in_hex(value: Json, path: str) -> bytes:
    return bytes.fromhex(_text(value, path, _HEX, "BINARY in hex (two digits a byte)")[0])


def _json(value: Json, path: str) -> str:  # noqa: ARG001 - a converter's arguments
    return json_text(value)


def _date(value: Json, path: str) -> dt.date:
    match = _text(value, path, _DATE, "DATE of the form YYYY-MM-DD")
    try:
        return dt.date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError as error:
        raise _RefusedError(ErrorClass.MALFORMED, path, f"“{match[0]}” is no day: {error}") from None


def _moment(match: re.Match[str], path: str) -> dt.datetime:
    fraction = (match[7] or "").ljust(_MICROSECOND_DIGITS, "0")
    if fraction[_MICROSECOND_DIGITS:].strip("0"):
        problem = f"“{match[0]}” has more decimals than a timestamp's microseconds"
        raise _RefusedError(ErrorClass.NOT_EXACT, path, problem)
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        return dt.datetime(  # noqa: DTZ001 - the zone is the caller's subject
            year, month, day, hour, minute, second, int(fraction[:_MICROSECOND_DIGITS])
        )
    except ValueError as error:
        raise _RefusedError(ErrorClass.MALFORMED, path, f"“{match[0]}” is no moment: {error}") from None


def _timestamp(value: Json, path: str) -> dt.datetime:
    match = _text(value, path, _TIMESTAMP, "TIMESTAMP of the form YYYY-MM-DDThh:mm:ss[.ffffff][Z|±hh:mm]")
    moment = _moment(match, path).replace(tzinfo=dt.UTC)
    if match[9] is None:
        return moment
    hours, minutes = int(match[10]), int(match[11])
    if hours > 23 or minutes > 59:  # noqa: PLR2004 - a clock's
        raise _RefusedError(ErrorClass.MALFORMED, path, f"“{match[0]}” has no such offset from UTC")
    offset = dt.timedelta(hours=hours, minutes=minutes)
    try:
        return moment - offset if match[9] == "+" else moment + offset
    except OverflowError:
        refused = _RefusedError(ErrorClass.OUT_OF_RANGE, path, f"“{match[0]}” is not in the years 0001 to 9999 of UTC")
        raise refused from None


def _timestamp_ntz(value: Json, path: str) -> dt.datetime:
    match = _text(value, path, _TIMESTAMP, "TIMESTAMP_NTZ of the form YYYY-MM-DDThh:mm:ss[.ffffff]")
    if match["zone"] is not None:
        raise _RefusedError(ErrorClass.MALFORMED, path, f"“{match[0]}” has a zone, for a TIMESTAMP_NTZ")
    return _moment(match, path)


_PRIMITIVES: dict[Primitive, Converter] = {
    Primitive.DOUBLE: _double,
    Primitive.FLOAT: _float,
    Primitive.STRING: _string,
    Primitive.BOOLEAN: _boolean,
    Primitive.BINARY: _binary,
    Primitive.DATE: _date,
    Primitive.TIMESTAMP: _timestamp,
    Primitive.TIMESTAMP_NTZ: _timestamp_ntz,
}


@dataclass(frozen=True, slots=True)
class _Exact:
    """A number: sign, digits without zeros at either end, exponent. Zero has no digits."""

    sign: str
    digits: str
    exponent: int


def _exact(text: str) -> _Exact | None:
    """The number in a text; None when it is not a plain number."""
    match = _DECIMAL.fullmatch(text)
    if match is None or not (match[2] or match[3]):
        return None
    sign, whole, decimals = match[1], match[2], match[3] or ""
    digits = (whole + decimals).lstrip("0")
    significant = digits.rstrip("0")
    if not significant:
        return _Exact("", "", 0)
    exponent_digits = (match[5] or "").lstrip("0") or "0"
    exponent = int(f"{match[4] or ''}{exponent_digits[:_MAX_EXPONENT_DIGITS]}")
    return _Exact(sign, significant, exponent + len(digits) - len(significant) - len(decimals))


def _exact_value(value: Json, path: str, data_type: DecimalType, name: str) -> Decimal:
    """The value, if a decimal of the type holds it exactly."""
    if not isinstance(value, str):
        _wrong_type(value, path, name)
    exact = _exact(value)
    if exact is None:
        problem = f"{_describe(value)} is not a plain number, for {name}"
        raise _RefusedError(ErrorClass.MALFORMED, path, problem)
    if not exact.digits:
        return Decimal(0)
    if len(exact.digits) + exact.exponent > data_type.precision - data_type.scale:
        raise _RefusedError(ErrorClass.OUT_OF_RANGE, path, f"{_shown(value)} is beyond the range of {name}")
    if -exact.exponent > data_type.scale:
        raise _RefusedError(ErrorClass.NOT_EXACT, path, f"{_shown(value)} has too many decimals for {name}")
    return Decimal(f"{exact.sign}{exact.digits}e{exact.exponent}")


def _decimal(data_type: DecimalType) -> Converter:
    name = type_to_ddl(data_type)
    return lambda value, path: _exact_value(value, path, data_type, name)


def _epoch(data_type: Primitive, decimals: int) -> Converter:
    name = f"{type_to_ddl(data_type)} as an epoch"
    zone = dt.UTC if data_type is Primitive.TIMESTAMP else None
    wide = DecimalType(_EPOCH_DIGITS + decimals, decimals)

    def convert(value: Json, path: str) -> dt.datetime:
        microseconds = int(_exact_value(value, path, wide, name).scaleb(decimals))
        try:
            return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=microseconds)
        except OverflowError:
            problem = f"{_shown(str(value))} is not in the years 0001 to 9999, for {name}"
            raise _RefusedError(ErrorClass.OUT_OF_RANGE, path, problem) from None

    return convert


def _array(data_type: ArrayType, reading: Reading) -> Converter:
    element = _converter(data_type.element, reading)
    name = type_to_ddl(data_type)

    def convert(value: Json, path: str) -> list[object]:
        if not isinstance(value, list) or isinstance(value, Object):
            _wrong_type(value, path, name)
        return [
            _part(item, f"{path}[{index}]", element, nullable=data_type.contains_null)
            for index, item in enumerate(value)
        ]

    return convert


def _map(data_type: MapType, reading: Reading) -> Converter:
    item = _converter(data_type.value, reading)
    name = type_to_ddl(data_type)

    def convert(value: Json, path: str) -> list[tuple[str, object]]:
        if not isinstance(value, Object):
            _wrong_type(value, path, name)
        pairs: dict[str, object] = {}
        for key, inner in value:
            place = f"{path}[{json.dumps(_shown(key), ensure_ascii=False)}]"
            if key in pairs:
                raise _RefusedError(ErrorClass.DUPLICATE_FIELD, place, "the key is given twice")
            pairs[key] = _part(inner, place, item, nullable=data_type.value_contains_null)
        return list(pairs.items())

    return convert


def _struct(data_type: StructType, reading: Reading) -> Callable[[Json, str], Row]:
    converters = tuple(
        (field.name, field.nullable, _converter(field.type, reading.at(field.name))) for field in data_type
    )
    names = frozenset(data_type.names)

    def convert(value: Json, path: str) -> Row:
        if not isinstance(value, Object):
            _wrong_type(value, path, type_to_ddl(data_type))
        given: dict[str, Json] = {}
        for name, inner in value:
            if name in names:
                if name in given:
                    place = f"{path}.{name}" if path else name
                    raise _RefusedError(ErrorClass.DUPLICATE_FIELD, place, "the field is given twice")
                given[name] = inner
        return {
            name: _part(given.get(name), f"{path}.{name}" if path else name, converter, nullable=nullable)
            for name, nullable, converter in converters
        }

    return convert


def _part(value: Json, path: str, converter: Converter, *, nullable: bool) -> object:
    if value is not None:
        return converter(value, path)
    if not nullable:
        raise _RefusedError(ErrorClass.MISSING_FIELD, path, "null or absent, where NOT NULL is declared")
    return None
