"""One message, strictly: the reference for the meaning of each JSON value for each type.

The reader in C leaves every message that it cannot read exactly, so only this module decides which messages are refused
and why, and property tests compare the reader with it. Rules:

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

import base64
import datetime as dt
import json
import math
import re
import struct
from collections.abc import Callable, Collection
from dataclasses import replace
from decimal import Decimal
from typing import NamedTuple, NoReturn, assert_never

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
from stage_writer.decode.decode_options import STRICT, DecodeOptions
from stage_writer.decode.json_document import (
    Json,
    NotOneDocumentError,
    Number,
    Object,
    UnsourcedError,
    json_text,
    parse_document,
)
from stage_writer.decode.rejects import ErrorClass, Refusal

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

    def __init__(self, columns: StructType, reading: DecodeOptions = STRICT) -> None:
        check_decodable(columns)
        self._row = _struct(columns, reading)
        self._holds_json = reading.holds_json

    def decode(self, message: bytes) -> Row | Refusal:
        try:
            return self._decoded(message, sourced=self._holds_json)
        except UnsourcedError:  # A sourced document costs several times as much, and few lenient values need it.
            return self._decoded(message, sourced=True)

    def _decoded(self, message: bytes, *, sourced: bool) -> Row | Refusal:
        document = document_of(message, sourced=sourced)
        try:
            return document if isinstance(document, Refusal) else self._row(document)
        except _RefusedError as refused:
            return refused.refusal


def document_of(message: bytes, *, sourced: bool) -> Object | Refusal:
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
            msg = f"the column `{field.name}` is a CHAR or VARCHAR, whose length a writer cannot enforce"
            raise SchemaError(msg, "declare the column as STRING")
        _check_type(field.type, field.name)


def _check_type(data_type: DataType, path: str) -> None:
    match data_type:
        case Primitive.VARIANT:
            msg = f"`{path}` is a VARIANT, which the loader creates from JSON text"
            remedy = (
                "declare it as STRING with the format json (formats: {…: json}); if the table's column is a "
                "VARIANT, the loader parses the text"
            )
            raise SchemaError(msg, remedy)
        case ArrayType(element):
            _check_type(element, f"{path}[]")
        case MapType(key, value):
            if key is not Primitive.STRING:
                msg = f"`{path}` is a MAP with keys of {type_to_ddl(key)}"
                raise SchemaError(msg, "declare the keys as STRING: the keys of JSON objects are strings")
            _check_type(value, f"{path}[]")
        case StructType(()):
            msg = f"`{path}` is a STRUCT without fields, which Parquet does not support"
            raise SchemaError(msg, "declare its fields, or remove the column")
        case StructType():
            check_decodable(data_type)
        case Primitive() | DecimalType():
            pass
        case _:
            assert_never(data_type)


class _RefusedError(Exception):
    """Raised by a converter deep inside a value to refuse the record. Those around it add the steps to it."""

    def __init__(self, error_class: ErrorClass, problem: str) -> None:
        super().__init__(problem)
        self.error_class = error_class
        self.steps: list[str] = []
        """Where the value is, from the inside."""

    @property
    def refusal(self) -> Refusal:
        path = "".join(reversed(self.steps)).removeprefix(".")
        return Refusal(self.error_class, f"{path}: {self}")


Converter = Callable[[Json], object]


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


def _wrong_type(value: Json, wanted: str) -> NoReturn:
    raise _RefusedError(ErrorClass.WRONG_TYPE, f"{_describe(value)} where {wanted} is declared")


def _converter(data_type: DataType, reading: DecodeOptions) -> Converter:
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


def _primitive(data_type: Primitive, reading: DecodeOptions) -> Converter:
    if reading.epoch_decimals is not None:
        return _epoch(data_type, reading.epoch_decimals)
    if reading.format is ValueFormat.HEX:
        return _binary_in_hex
    if reading.format is ValueFormat.JSON:
        return json_text
    if reading.non_finite and data_type in {Primitive.DOUBLE, Primitive.FLOAT}:
        return _non_finite(_primitive(data_type, replace(reading, non_finite=False)))
    if reading.lenient and data_type in _LENIENTLY:
        return _leniently(_LENIENTLY[data_type], _PRIMITIVES[data_type])
    return _PRIMITIVES[data_type]


def _non_finite(convert: Converter) -> Converter:
    def converted(value: Json) -> object:
        number = _NON_FINITE.get(value) if isinstance(value, str) else None
        return convert(value) if number is None else number

    return converted


def _leniently(understand: Callable[[Json], Json], convert: Converter) -> Converter:
    return lambda value: convert(understand(value))


def _number(value: Json) -> Json:
    """A string that is a JSON number, as that number."""
    return Number(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else value


def _whole(value: Json) -> Json:
    """A number, or a string that is one, written without point and exponent if it is whole."""
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

    def convert(value: Json) -> int:
        if not isinstance(value, Number):
            _wrong_type(value, name)
        if not _INTEGER.fullmatch(value):
            raise _RefusedError(
                ErrorClass.NOT_EXACT, f"{_shown(value)} is not an integer in plain notation, for {name}"
            )
        number = int(value) if len(value) <= _MAX_INTEGER_DIGITS else limit
        if not -limit <= number < limit:
            raise _RefusedError(ErrorClass.OUT_OF_RANGE, f"{_shown(value)} is out of range for {name}")
        return number

    return convert


def _double(value: Json) -> float:
    if not isinstance(value, Number):
        _wrong_type(value, "DOUBLE")
    number = float(value)
    if math.isinf(number):
        raise _RefusedError(ErrorClass.OUT_OF_RANGE, f"{_shown(value)} is out of range for DOUBLE")
    return number


def _float(value: Json) -> float:
    if not isinstance(value, Number):
        _wrong_type(value, "FLOAT")
    try:
        (nearest,) = struct.unpack("<f", struct.pack("<f", _double(value)))
    except OverflowError:
        raise _RefusedError(ErrorClass.OUT_OF_RANGE, f"{_shown(value)} is out of range for FLOAT") from None
    return float(nearest)


def _string(value: Json) -> str:
    if not isinstance(value, str) or isinstance(value, Number):
        _wrong_type(value, "STRING")
    return value


def _boolean(value: Json) -> bool:
    if not isinstance(value, bool):
        _wrong_type(value, "BOOLEAN")
    return value


def _text(value: Json, form: re.Pattern[str], wanted: str) -> re.Match[str]:
    if not isinstance(value, str) or isinstance(value, Number):
        _wrong_type(value, wanted)
    match = form.fullmatch(value)
    if match is None:
        raise _RefusedError(ErrorClass.MALFORMED, f"{_describe(value)} is not a {wanted}")
    return match


def _binary(value: Json) -> bytes:
    match = _text(value, _BASE64, "BINARY in base64 (standard alphabet, padded)")
    return base64.b64decode(match[0])


def _binary_in_hex(value: Json) -> bytes:
    return bytes.fromhex(_text(value, _HEX, "BINARY in hex (two digits per byte)")[0])


def _date(value: Json) -> dt.date:
    match = _text(value, _DATE, "DATE of the form YYYY-MM-DD")
    try:
        return dt.date(int(match[1]), int(match[2]), int(match[3]))
    except ValueError as error:
        raise _RefusedError(ErrorClass.MALFORMED, f"'{match[0]}' is not a valid date: {error}") from None


def _moment(match: re.Match[str]) -> dt.datetime:
    fraction = (match[7] or "").ljust(_MICROSECOND_DIGITS, "0")
    if fraction[_MICROSECOND_DIGITS:].strip("0"):
        raise _RefusedError(ErrorClass.NOT_EXACT, f"'{match[0]}' is more precise than a microsecond")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    try:
        return dt.datetime(  # noqa: DTZ001 - the zone is the caller's subject
            year, month, day, hour, minute, second, int(fraction[:_MICROSECOND_DIGITS])
        )
    except ValueError as error:
        raise _RefusedError(ErrorClass.MALFORMED, f"'{match[0]}' is not a valid timestamp: {error}") from None


def _timestamp(value: Json) -> dt.datetime:
    match = _text(value, _TIMESTAMP, "TIMESTAMP of the form YYYY-MM-DDThh:mm:ss[.ffffff][Z|±hh:mm]")
    moment = _moment(match).replace(tzinfo=dt.UTC)
    if match[9] is None:
        return moment
    hours, minutes = int(match[10]), int(match[11])
    if hours > 23 or minutes > 59:  # noqa: PLR2004 - a clock's
        raise _RefusedError(ErrorClass.MALFORMED, f"'{match[0]}' has an invalid offset from UTC")
    offset = dt.timedelta(hours=hours, minutes=minutes)
    try:
        return moment - offset if match[9] == "+" else moment + offset
    except OverflowError:
        raise _RefusedError(ErrorClass.OUT_OF_RANGE, f"'{match[0]}' is outside the years 0001 to 9999 (UTC)") from None


def _timestamp_ntz(value: Json) -> dt.datetime:
    match = _text(value, _TIMESTAMP, "TIMESTAMP_NTZ of the form YYYY-MM-DDThh:mm:ss[.ffffff]")
    if match["zone"] is not None:
        raise _RefusedError(ErrorClass.MALFORMED, f"'{match[0]}' has a time zone, but TIMESTAMP_NTZ has none")
    return _moment(match)


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


class _Exact(NamedTuple):
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


def _exact_value(value: Json, data_type: DecimalType, name: str) -> Decimal:
    if not isinstance(value, str):
        _wrong_type(value, name)
    exact = _exact(value)
    if exact is None:
        raise _RefusedError(ErrorClass.MALFORMED, f"{_describe(value)} is not a plain number, for {name}")
    if not exact.digits:
        return Decimal(0)
    if len(exact.digits) + exact.exponent > data_type.precision - data_type.scale:
        raise _RefusedError(ErrorClass.OUT_OF_RANGE, f"{_shown(value)} is out of range for {name}")
    if -exact.exponent > data_type.scale:
        raise _RefusedError(ErrorClass.NOT_EXACT, f"{_shown(value)} has too many decimal places for {name}")
    return Decimal(f"{exact.sign}{exact.digits}e{exact.exponent}")


def _decimal(data_type: DecimalType) -> Converter:
    name = type_to_ddl(data_type)
    return lambda value: _exact_value(value, data_type, name)


def _epoch(data_type: Primitive, decimals: int) -> Converter:
    name = f"{type_to_ddl(data_type)} as an epoch"
    zone = dt.UTC if data_type is Primitive.TIMESTAMP else None
    wide = DecimalType(_EPOCH_DIGITS + decimals, decimals)

    def convert(value: Json) -> dt.datetime:
        microseconds = int(_exact_value(value, wide, name).scaleb(decimals))
        try:
            return dt.datetime(1970, 1, 1, tzinfo=zone) + dt.timedelta(microseconds=microseconds)
        except OverflowError:
            problem = f"{_shown(str(value))} is outside the years 0001 to 9999, for {name}"
            raise _RefusedError(ErrorClass.OUT_OF_RANGE, problem) from None

    return convert


def _array(data_type: ArrayType, reading: DecodeOptions) -> Converter:
    element = _converter(data_type.element, reading)
    name = type_to_ddl(data_type)

    def convert(value: Json) -> list[object]:
        if not isinstance(value, list) or isinstance(value, Object):
            _wrong_type(value, name)
        items: list[object] = []
        try:
            for item in value:
                inner = element(item) if item is not None else _null(nullable=data_type.contains_null)
                items.append(inner)
        except _RefusedError as refused:
            refused.steps.append(f"[{len(items)}]")
            raise
        return items

    return convert


def _map(data_type: MapType, reading: DecodeOptions) -> Converter:
    item = _converter(data_type.value, reading)
    name = type_to_ddl(data_type)

    def convert(value: Json) -> list[tuple[str, object]]:
        if not isinstance(value, Object):
            _wrong_type(value, name)
        pairs: dict[str, object] = {}
        key = ""
        try:
            for key, inner in value:
                if key in pairs:
                    _refuse_second("key")
                pairs[key] = item(inner) if inner is not None else _null(nullable=data_type.value_contains_null)
        except _RefusedError as refused:
            refused.steps.append(f"[{json.dumps(_shown(key), ensure_ascii=False)}]")
            raise
        return list(pairs.items())

    return convert


def _struct(data_type: StructType, reading: DecodeOptions) -> Callable[[Json], Row]:
    fields = tuple((field.name, field.nullable, _converter(field.type, reading.at(field.name))) for field in data_type)
    names = frozenset(data_type.names)
    ddl = type_to_ddl(data_type)

    def convert(value: Json) -> Row:
        if not isinstance(value, Object):
            _wrong_type(value, ddl)
        given = dict(value)
        row: Row = {}
        name = ""
        try:
            if len(given) < len(value) and (twice := _given_twice(value, names)) is not None:
                name = twice
                _refuse_second("field")
            for name, nullable, converter in fields:
                inner = given.get(name)
                row[name] = converter(inner) if inner is not None else _null(nullable=nullable)
        except _RefusedError as refused:
            refused.steps.append(f".{name}")
            raise
        return row

    return convert


def _given_twice(value: Object, names: Collection[str]) -> str | None:
    """The first declared field that is given again."""
    seen: set[str] = set()
    for name, _ in value:
        if name in seen and name in names:
            return name
        seen.add(name)
    return None


def _refuse_second(kind: str) -> NoReturn:
    raise _RefusedError(ErrorClass.DUPLICATE_FIELD, f"the {kind} occurs twice")


def _null(*, nullable: bool) -> object:
    if not nullable:
        raise _RefusedError(ErrorClass.MISSING_FIELD, "null or missing, but declared NOT NULL")
    return None
