"""Values as bytes: how a store keeps the objects of a processor.

Rules:

1. A read value equals the stored one, in the same type: text, whole numbers of any size, floats, booleans, None, bytes,
   Decimal, date, datetime, time, timedelta, lists, tuples, dicts (keys of any of these), and windowed keys. Any other
   type is refused by name, subclasses included: it would be read as another type.
2. Reading never runs code (so no pickle): the bytes may come from anywhere.
3. The form is MessagePack, with the extensions below. They are part of the stored format: their codes are never reused.
"""

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, TypeAlias
from zoneinfo import ZoneInfo

import msgpack

from stage_writer.topologies.stores.keys import Windowed

Value: TypeAlias = Any  # a processor's type; see rule 1 for which are allowed
_TUPLE, _WINDOWED, _INTEGER, _DECIMAL, _DATE, _DATETIME, _ZONED, _TIME, _TIMEDELTA = range(1, 10)
_MICROSECOND = timedelta(microseconds=1)
_plain = msgpack.Packer(strict_types=True)
"""The packer for types that MessagePack supports itself. It calls no Python code, so threads may share it."""


def value_to_bytes(value: object) -> bytes:
    """The value's bytes. Raises TypeError for a type that stores do not support."""
    try:
        return bytes(_plain.pack(value))  # most values are
    except (TypeError, OverflowError):
        return bytes(msgpack.packb(value, default=_extended, strict_types=True))


def value_from_bytes(data: bytes) -> Value:
    """The inverse of `value_to_bytes`. Raises ValueError for other bytes."""
    try:
        return msgpack.unpackb(data, ext_hook=_from_extended, strict_map_key=False)
    except (TypeError, ValueError, ArithmeticError, LookupError, OSError) as error:
        raise ValueError(f"not a stored value: {type(error).__name__}: {error}") from error


def _extended(value: object) -> msgpack.ExtType:  # noqa: PLR0911 - one for each type
    kind = type(value)
    if kind is tuple:
        return msgpack.ExtType(_TUPLE, value_to_bytes(list(value)))  # type: ignore[call-overload]
    if isinstance(value, Windowed):
        return msgpack.ExtType(_WINDOWED, value_to_bytes([value.key, value.start_ms, value.end_ms]))
    if kind is int:  # more than 64 bits
        return msgpack.ExtType(_INTEGER, str(value).encode())
    if kind is Decimal:
        return msgpack.ExtType(_DECIMAL, str(value).encode())
    if isinstance(value, datetime) and kind is datetime:
        return _extended_datetime(value)
    if kind is date or kind is time:
        return msgpack.ExtType(_DATE if kind is date else _TIME, value.isoformat().encode())  # type: ignore[attr-defined]
    if isinstance(value, timedelta) and kind is timedelta:
        return msgpack.ExtType(_TIMEDELTA, str(value // _MICROSECOND).encode())
    raise TypeError(
        f"a store cannot keep {kind.__module__}.{kind.__qualname__}: use text, numbers, booleans, bytes, None, "
        "Decimal, dates and times, or lists, tuples and dicts of these"
    )


def _extended_datetime(value: datetime) -> msgpack.ExtType:
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key:
        naive = value.replace(tzinfo=None).isoformat()
        return msgpack.ExtType(_ZONED, value_to_bytes([naive, value.fold, zone.key]))
    return msgpack.ExtType(_DATETIME, value_to_bytes([value.isoformat(), value.fold]))


def _from_extended(code: int, data: bytes) -> object:  # noqa: PLR0911 - one for each type
    match code:
        case 1:
            return tuple(_listed(data, None))
        case 2:
            key, start_ms, end_ms = _listed(data, 3)
            return Windowed(key, start_ms, end_ms)
        case 3:
            return int(data.decode())
        case 4:
            return Decimal(data.decode())
        case 5:
            return date.fromisoformat(data.decode())
        case 6:
            text, fold = _listed(data, 2)
            return datetime.fromisoformat(text).replace(fold=fold)
        case 7:
            text, fold, zone = _listed(data, 3)
            return datetime.fromisoformat(text).replace(fold=fold, tzinfo=ZoneInfo(zone))
        case 8:
            return time.fromisoformat(data.decode())
        case 9:
            return int(data.decode()) * _MICROSECOND
        case _:
            raise ValueError(f"{code} is not a known type")


def _listed(data: bytes, length: int | None) -> list[Value]:
    values = value_from_bytes(data)
    if not isinstance(values, list) or length not in {None, len(values)}:
        raise ValueError("an extension holds something other than its elements")
    return values
