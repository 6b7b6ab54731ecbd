"""Keys as bytes whose order is the keys' order.

Rules:

1. Keys of one type are ordered as Python orders them: numbers by value, text by code point, bytes bytewise, tuples
   element by element, windowed keys by key, start and end. Keys of different types are different keys, ordered by type:
   None, False, True, whole numbers, floats, bytes, text, tuples, windowed keys.
2. No encoded key is a prefix of another one, so the rest of a store's own key layout can be decoded.
3. Minus zero is zero, and NaN is one key, above all other floats.
4. No encoded key starts with a zero byte: stores keep their internal entries there.
"""

from __future__ import annotations

import struct
from typing import NamedTuple, TypeAlias

_NONE, _FALSE, _TRUE, _INTEGER, _FLOAT, _BYTES, _TEXT, _TUPLE, _WINDOWED = range(1, 10)
_END = 0
_ESCAPED = b"\x00\xff"
_LONGEST_INTEGER_BYTES = 120
_ZERO_BYTES = 0x80  # the length byte of 0; below it are negative numbers, above it positive ones
_SIGN = 1 << 63
_ALL = (1 << 64) - 1
_FURTHEST = 1 << 62  # no time starts with 255, which after a text's end would read as one of its zeros
_TIME = struct.Struct(">Q")
_DOUBLE = struct.Struct(">d")
_NAN = _DOUBLE.pack(float("nan"))
FIRST_KEY = b"\x01"
"""The first key of a user's entry: keys below it are the store's internal entries."""
TIME_BYTES = 8
NEVER_MS = -(1 << 62)
FOREVER_MS = 1 << 62


class Windowed(NamedTuple):
    """A key in a window of time: ``[start_ms, end_ms)`` for time windows, ``[start_ms, end_ms]`` for sessions."""

    key: Key
    start_ms: int
    end_ms: int


Key: TypeAlias = "str | int | bytes | float | bool | Windowed | tuple[Key, ...] | None"


def key_to_bytes(key: Key) -> bytes:
    """The key's bytes. Raises TypeError for an unsupported type, ValueError for a number that is too large."""
    if type(key) is str:  # most keys are
        return b"\x07" + key.encode().replace(b"\x00", _ESCAPED) + b"\x00"
    into = bytearray()
    _encode(key, into)
    return bytes(into)


def key_from_bytes(data: bytes) -> Key:
    """The inverse of `key_to_bytes`. Raises ValueError for other bytes."""
    key, end = key_at(data, 0)
    if end != len(data):
        raise ValueError(f"{len(data) - end} bytes after the key")
    return key


def key_at(data: bytes, start: int) -> tuple[Key, int]:
    """Decode the key at a position; also returns where it ends (rule 2)."""
    try:
        return _decode(data, start)
    except (IndexError, struct.error) as error:
        raise ValueError("the key ends too early") from error


def prefix_bounds(prefix: Key) -> tuple[bytes, bytes | None]:
    """The lower and upper bounds of the keys that start with that text, those bytes, or those elements."""
    if isinstance(prefix, Windowed) or not isinstance(prefix, str | bytes | tuple):
        raise TypeError(f"a prefix must be text, bytes or a tuple, not {type(prefix).__name__}")
    low = key_to_bytes(prefix)[:-1]
    return low, after_key(low) if isinstance(prefix, tuple) else after_prefix(low)


def after_key(key: bytes) -> bytes:
    """The lowest bytes above everything a store appends to a key, or a tuple to an element (rule 2)."""
    return key + b"\xff"


def after_prefix(prefix: bytes) -> bytes | None:
    """The lowest bytes above everything that starts with ``prefix``, or None."""
    short = prefix.rstrip(b"\xff")
    return short[:-1] + bytes((short[-1] + 1,)) if short else None


def time_to_bytes(time_ms: int) -> bytes:
    """A time as `TIME_BYTES` bytes, ordered by time. Raises ValueError for a time out of range."""
    if not -_FURTHEST <= time_ms <= _FURTHEST:
        raise ValueError(f"{time_ms} is not a time in milliseconds")
    return _TIME.pack(time_ms + _SIGN)


def bound_to_bytes(time_ms: int) -> bytes:
    """A time to search from or to; a time out of range becomes the nearest valid one."""
    return _TIME.pack(min(max(time_ms, -_FURTHEST), _FURTHEST) + _SIGN)


def time_at(data: bytes, start: int) -> int:
    """The time whose bytes start at a position."""
    return int(_TIME.unpack_from(data, start)[0]) - _SIGN


TIME_CODEC = (time_to_bytes, lambda data: time_at(data, 0))


def _encode(key: object, into: bytearray) -> None:
    match key:
        case str():
            into.append(_TEXT)
            into += key.encode().replace(b"\x00", _ESCAPED)
            into.append(_END)
        case None:
            into.append(_NONE)
        case bool():
            into.append(_TRUE if key else _FALSE)
        case int():
            _encode_integer(key, into)
        case float():
            into.append(_FLOAT)
            into += _float_to_bytes(key)
        case bytes():
            into.append(_BYTES)
            into += key.replace(b"\x00", _ESCAPED)
            into.append(_END)
        case Windowed(inner, start_ms, end_ms):
            into.append(_WINDOWED)
            _encode(inner, into)
            into += time_to_bytes(start_ms)
            into += time_to_bytes(end_ms)
        case tuple():
            into.append(_TUPLE)
            for element in key:  # an invalid key among them is refused where it occurs
                _encode(element, into)
            into.append(_END)
        case _:
            msg = f"a key must be text, a number, bytes, a boolean, None or a tuple of these, not {type(key).__name__}"
            raise TypeError(msg)


def _encode_integer(key: int, into: bytearray) -> None:
    length = (abs(key).bit_length() + 7) // 8
    if length > _LONGEST_INTEGER_BYTES:
        raise ValueError(f"an integer of {length} bytes is too long for a key: the limit is {_LONGEST_INTEGER_BYTES}")
    into.append(_INTEGER)
    if key >= 0:
        into.append(_ZERO_BYTES + length)
        into += key.to_bytes(length, "big")
    else:
        into.append(_ZERO_BYTES - length)
        into += (key + (1 << (8 * length)) - 1).to_bytes(length, "big")


def _float_to_bytes(key: float) -> bytes:
    bits = int.from_bytes(_NAN if key != key else _DOUBLE.pack(key + 0.0), "big")  # noqa: PLR0124 - only NaN is not itself
    return _TIME.pack(bits ^ _ALL if bits & _SIGN else bits | _SIGN)


def _decode(data: bytes, start: int) -> tuple[Key, int]:  # noqa: PLR0911 - one for each type
    tag, start = data[start], start + 1
    match tag:
        case 1:
            return None, start
        case 2 | 3:
            return tag == _TRUE, start
        case 4:
            return _decode_integer(data, start)
        case 5:
            (bits,) = _TIME.unpack_from(data, start)
            raw = bits ^ _SIGN if bits & _SIGN else bits ^ _ALL
            return float(_DOUBLE.unpack(_TIME.pack(raw))[0]), start + 8
        case 6 | 7:
            text, end = _decode_string(data, start)
            return (text.decode() if tag == _TEXT else text), end
        case 8:
            elements: list[Key] = []
            while data[start] != _END:
                element, start = _decode(data, start)
                elements.append(element)
            return tuple(elements), start + 1
        case 9:
            inner, start = _decode(data, start)
            return Windowed(inner, time_at(data, start), time_at(data, start + TIME_BYTES)), start + 2 * TIME_BYTES
        case _:
            raise ValueError(f"{tag} is not a known type of key")


def _decode_integer(data: bytes, start: int) -> tuple[int, int]:
    length, start = data[start] - _ZERO_BYTES, start + 1
    end = start + abs(length)
    if end > len(data):
        raise IndexError
    number = int.from_bytes(data[start:end], "big")
    return (number if length >= 0 else number - (1 << (8 * -length)) + 1), end


def _decode_string(data: bytes, start: int) -> tuple[bytes, int]:
    end = data.index(b"\x00", start)
    while data[end + 1 : end + 2] == b"\xff":
        end = data.index(b"\x00", end + 2)
    return data[start:end].replace(_ESCAPED, b"\x00"), end + 1
