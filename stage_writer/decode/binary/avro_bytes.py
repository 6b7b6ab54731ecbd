"""The bytes of an Avro record, walked by its plan: where it ends, if it is one.

fastavro takes a negative index of a union or an enum as Python does, numbers of more bits than their type, and any byte
as a truth value: a record whose bytes are damaged could become another one. So what it reads is walked before. That
bounds the depth of its records, too, by Python's limit: fastavro itself has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.decode.binary.avro_plan import AvroKind, AvroNode

if TYPE_CHECKING:
    from collections.abc import Callable

    Walk = Callable[[bytes, int], int]
    """The end of a value in bytes, from its start. Raises DamagedError, and IndexError where the bytes end early."""

_LONGEST = 10
_WORD = 1 << 64


class DamagedError(ValueError):
    """The bytes are no record of the plan."""


def end_of(node: AvroNode, body: bytes) -> int:
    """Where the record ends. Raises DamagedError, IndexError and RecursionError."""
    end = _walk(node, body, 0)
    if end > len(body):
        msg = "it ends early"
        raise DamagedError(msg)
    return end


def _walk(node: AvroNode, body: bytes, at: int) -> int:  # noqa: C901, PLR0911 - one for each kind
    match node.kind:
        case AvroKind.NULL:
            return at
        case AvroKind.BOOLEAN:
            if body[at] > 1:
                msg = f"{body[at]} is no boolean"
                raise DamagedError(msg)
            return at + 1
        case AvroKind.FLOAT:
            return at + 4
        case AvroKind.DOUBLE:
            return at + 8
        case AvroKind.ENUM:
            return _choice(body, at, len(node.names))[1]
        case AvroKind.UNION:
            place, at = _choice(body, at, len(node.parts))
            return _walk(node.parts[place], body, at)
        case AvroKind.RECORD:
            for part in node.parts:
                at = _walk(part, body, at)
            return at
        case AvroKind.ARRAY | AvroKind.MAP:
            return _blocks(node, body, at)
        case AvroKind.OTHER if node.parts:
            return _walk(node.parts[0], body, at)
        case _:
            return _number(body, at, node.bits)[1] if node.bits else _sized(body, at, node.size)


def _number(body: bytes, at: int, bits: int = 64) -> tuple[int, int]:
    """A whole number, and where it ends."""
    found = 0
    for place in range(_LONGEST):
        byte = body[at + place]
        found |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004 - the bit for more
            number = (found >> 1) ^ -(found & 1)
            if found >= _WORD or not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
                break
            return number, at + place + 1
    msg = f"a number has more than {bits} bits"
    raise DamagedError(msg)


def _choice(body: bytes, at: int, count: int) -> tuple[int, int]:
    place, at = _number(body, at)
    if not 0 <= place < count:
        msg = f"it names the choice {place} of {count}"
        raise DamagedError(msg)
    return place, at


def _sized(body: bytes, at: int, size: int) -> int:
    if size < 0:
        size, at = _number(body, at)
    if not 0 <= size <= len(body) - at:
        msg = f"it names {size} bytes, and {len(body) - at} are left"
        raise DamagedError(msg)
    return at + size


def _blocks(node: AvroNode, body: bytes, at: int) -> int:
    while True:
        items, at = _number(body, at)
        if items == 0:
            return at
        if items < 0:
            items, (_, at) = -items, _number(body, at)
        if items > len(body) - at:
            msg = f"it names {items} items, and {len(body) - at} bytes are left"
            raise DamagedError(msg)
        for _ in range(items):
            at = _walk(node.parts[0], body, at if node.kind is AvroKind.ARRAY else _sized(body, at, -1))
