"""Binary records as the JSON that the stream's decoder reads: the port, and the JSON of single values.

    body of a message ─► the record's schema ─► JSON text ─► envelope, columns, unknown fields… as of any JSON

Rules:

1. A value's text holds it exactly, so the decoder refuses what does not fit its column, in the same words for all
   formats: numbers with all their digits, bytes as base64 or hex, times as ISO 8601 or as the epoch that `formats` asks
   for. NaN and the infinities, which JSON lacks, are strings that a DOUBLE or FLOAT column accepts (`DecodeOptions`).
2. If a value has several texts, the column's type decides: a time is its number for a column of a number.
3. Bytes are not text: for a STRING column they are refused here.
"""

import base64
import datetime as dt
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Protocol, cast

import pyarrow as pa

from common.schema import DataType, DecimalType, Primitive
from common.settings.formats import ValueFormat
from stage_writer.decode.decode_options import DecodeOptions
from stage_writer.decode.rejects import ErrorClass, Refusal

quoted = cast("Callable[[object], str]", encode_basestring)
"""A string."""
_NUMBERS = (Primitive.BYTE, Primitive.SHORT, Primitive.INTEGER, Primitive.LONG, Primitive.DOUBLE)
_EPOCH = dt.date(1970, 1, 1).toordinal()
_SECONDS_A_DAY = 86_400


class RefusedBody(Exception):  # noqa: N818 - it ends the reading of one record, as `Refusal` says
    """Raised inside a record to refuse it."""

    def __init__(self, error_class: ErrorClass, error: str) -> None:
        super().__init__(error)
        self.refusal = Refusal(error_class, error)


@dataclass(frozen=True, slots=True)
class Texts:
    values: pa.LargeBinaryArray
    """Null for a refused one."""
    refused: Sequence[tuple[int, Refusal]]
    """By rising index."""


class RecordReader(Protocol):
    """Reads the bodies of messages that have one schema. Not thread-safe."""

    def read(self, bodies: pa.LargeBinaryArray) -> Texts:
        """The records as JSON; none of the input is null."""


MakeRecordReader = Callable[[str, Sequence[tuple[str, str]]], RecordReader]
"""Makes a reader of records of a schema, with names and texts of its references, each after those it refers to.

Raises SchemaError for a schema that cannot be read.
"""


def integer(value: object) -> str:
    return repr(value)


def boolean(value: object) -> str:
    return "true" if value else "false"


def number(value: object) -> str:
    """A number, or the string for NaN or an infinity."""
    if not isinstance(value, float):
        return repr(value)
    if math.isfinite(value):
        return repr(value)
    return '"NaN"' if math.isnan(value) else '"Infinity"' if value > 0 else '"-Infinity"'


def is_number(column: DataType | None) -> bool:
    """Whether a column holds numbers, so that a time is one for it (rule 2)."""
    return column in _NUMBERS or isinstance(column, DecimalType)


def date_text(path: str, column: DataType | None) -> Callable[[object], str]:
    if is_number(column):
        return integer

    def text(value: object) -> str:
        days = int(str(value))
        try:
            return f'"{dt.date.fromordinal(days + _EPOCH).isoformat()}"'
        except (ValueError, OverflowError):
            return _outside(days, path, column)

    return text


def time_text(
    path: str, column: DataType | None, reading: DecodeOptions, digits: int, zone: str
) -> Callable[[object], str]:
    """A time as the text for a column: its unit has so many decimal ``digits`` behind the seconds."""
    if is_number(column):
        return integer
    if reading.epoch_decimals is not None:
        shift = 6 - reading.epoch_decimals - digits
        return lambda value: _shifted(int(str(value)), shift)
    unit = 10**digits

    def text(value: object) -> str:
        seconds, fraction = divmod(int(str(value)), unit)
        days, of_day = divmod(seconds, _SECONDS_A_DAY)
        try:
            day = dt.date.fromordinal(days + _EPOCH).isoformat()
        except (ValueError, OverflowError):
            return _outside(int(str(value)), path, column)
        minutes, second = divmod(of_day, 60)
        return f'"{day}T{minutes // 60:02}:{minutes % 60:02}:{second:02}.{fraction:0{digits}}{zone}"'

    return text


def _outside(value: int, path: str, column: DataType | None) -> str:
    """A time that has no date: its number, where no column wants it."""
    if column is None:
        return str(value)
    raise RefusedBody(ErrorClass.OUT_OF_RANGE, f"{path}: {value} is outside the years 0001 to 9999")


def _shifted(value: int, digits: int) -> str:
    """A number times ten to the power of ``digits``, exactly."""
    return str(value * 10**digits) if digits >= 0 else decimal(value, -digits)


def decimal(unscaled: int, scale: int) -> str:
    if scale == 0:
        return str(unscaled)
    digits = str(abs(unscaled)).rjust(scale + 1, "0")
    return f"{'-' if unscaled < 0 else ''}{digits[:-scale]}.{digits[-scale:]}"


def bytes_text(path: str, column: DataType | None, reading: DecodeOptions) -> Callable[[object], str]:
    """Bytes as the text for a column (rule 3)."""
    if reading.format is ValueFormat.HEX:
        return lambda value: f'"{_bytes(value).hex()}"'
    if column is Primitive.STRING and reading.format is not ValueFormat.JSON and not reading.lenient:

        def refuse(value: object) -> str:
            raise RefusedBody(ErrorClass.WRONG_TYPE, f"{path}: {len(_bytes(value))} bytes where STRING is declared")

        return refuse
    return base64_text


def base64_text(value: object) -> str:
    return f'"{base64.b64encode(_bytes(value)).decode()}"'


def _bytes(value: object) -> bytes:
    if not isinstance(value, bytes):
        raise TypeError(f"{type(value).__name__} instead of bytes")
    return value


def uuid_text(value: object) -> str:
    return f'"{uuid_of(_bytes(value))}"'


def uuid_of(value: bytes) -> str:
    digits = value.hex()
    return f"{digits[:8]}-{digits[8:12]}-{digits[12:16]}-{digits[16:20]}-{digits[20:]}"
