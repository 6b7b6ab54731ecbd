"""The bytes of an Avro record, walked by its plan: where it ends, if it is one.

fastavro takes a negative index of a union or an enum as Python does, numbers of more bits than their type, and any byte
as a truth value: a record whose bytes are damaged could become another one. So what it reads is walked before. That
bounds the depth of its records, too, by Python's limit: fastavro itself has none.
"""

from collections.abc import Callable

from stage_writer.decode.binary.avro_plan import AvroKind, AvroNode

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
        raise DamagedError("the message ends early")
    return end


def _walk(node: AvroNode, body: bytes, offset: int) -> int:  # noqa: C901, PLR0911 - one for each kind
    match node.kind:
        case AvroKind.NULL:
            return offset
        case AvroKind.BOOLEAN:
            if body[offset] > 1:
                raise DamagedError(f"{body[offset]} is not a boolean")
            return offset + 1
        case AvroKind.FLOAT:
            return offset + 4
        case AvroKind.DOUBLE:
            return offset + 8
        case AvroKind.ENUM:
            return _choice(body, offset, len(node.names))[1]
        case AvroKind.UNION:
            choice, offset = _choice(body, offset, len(node.parts))
            return _walk(node.parts[choice], body, offset)
        case AvroKind.RECORD:
            for part in node.parts:
                offset = _walk(part, body, offset)
            return offset
        case AvroKind.ARRAY | AvroKind.MAP:
            return _blocks(node, body, offset)
        case AvroKind.OTHER if node.parts:
            return _walk(node.parts[0], body, offset)
        case _:
            return _number(body, offset, node.bits)[1] if node.bits else _sized(body, offset, node.size)


def _number(body: bytes, offset: int, bits: int = 64) -> tuple[int, int]:
    encoded = 0
    for index in range(_LONGEST):
        byte = body[offset + index]
        encoded |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:  # noqa: PLR2004 - the bit for more
            number = (encoded >> 1) ^ -(encoded & 1)
            if encoded >= _WORD or not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
                break
            return number, offset + index + 1
    raise DamagedError(f"a number has more than {bits} bits")


def _choice(body: bytes, offset: int, count: int) -> tuple[int, int]:
    choice, offset = _number(body, offset)
    if not 0 <= choice < count:
        raise DamagedError(f"union branch {choice} does not exist: there are {count}")
    return choice, offset


def _sized(body: bytes, offset: int, size: int) -> int:
    if size < 0:
        size, offset = _number(body, offset)
    if not 0 <= size <= len(body) - offset:
        raise DamagedError(f"a length of {size} bytes is given, but {len(body) - offset} are left")
    return offset + size


def _blocks(node: AvroNode, body: bytes, offset: int) -> int:
    while True:
        items, offset = _number(body, offset)
        if items == 0:
            return offset
        if items < 0:
            items, (_, offset) = -items, _number(body, offset)
        if items > len(body) - offset:
            raise DamagedError(f"{items} items are announced, but {len(body) - offset} bytes are left")
        for _ in range(items):
            offset = _walk(node.parts[0], body, offset if node.kind is AvroKind.ARRAY else _sized(body, offset, -1))
