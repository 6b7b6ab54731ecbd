"""Keys and values in Kafka: the forms that a source reads and a topic's sink writes."""

from __future__ import annotations

import base64
import json
import struct
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from stage_writer.topologies.nodes import KeyType, ValueType

if TYPE_CHECKING:
    from collections.abc import Callable

    from stage_writer.topologies.records import Key, Value

_NUMBERS = {KeyType.INT: struct.Struct(">i"), KeyType.BIGINT: struct.Struct(">q"), KeyType.DOUBLE: struct.Struct(">d")}


def key_decoder(key: KeyType) -> Callable[[bytes], Key]:
    """From a message's key; raises ValueError for bytes that are none of these."""
    match key:
        case KeyType.STRING:
            return _text_of
        case KeyType.INT | KeyType.BIGINT | KeyType.DOUBLE:
            number = _NUMBERS[key]
            return lambda data: _number_of(number, data)
        case KeyType.BINARY:
            return bytes
        case KeyType.JSON:
            return lambda data: _frozen(json.loads(data))


def key_encoder(key: KeyType) -> Callable[[Key], bytes | None]:
    """To a message's key; raises TypeError or ValueError for what is none of these."""
    match key:
        case KeyType.STRING:
            return lambda given: None if given is None else _bytes_of_text(given)
        case KeyType.INT | KeyType.BIGINT | KeyType.DOUBLE:
            number = _NUMBERS[key]
            return lambda given: None if given is None else _bytes_of_number(number, given)
        case KeyType.BINARY:
            return lambda given: None if given is None else _bytes_of_bytes(given)
        case KeyType.JSON:
            return lambda given: None if given is None else _document(given)


def value_encoder(value: ValueType) -> Callable[[Value], bytes | None]:
    """To a message's value: None makes a tombstone. Raises TypeError or ValueError for what is none of these."""
    match value:
        case ValueType.JSON:
            return lambda given: None if given is None else _document(given)
        case ValueType.STRING:
            return lambda given: None if given is None else _bytes_of_text(given)
        case ValueType.BINARY:
            return lambda given: None if given is None else _bytes_of_bytes(given)


def _text_of(data: bytes) -> str:
    return data.decode("utf-8")


def _number_of(number: struct.Struct, data: bytes) -> int | float:
    try:
        (found,) = number.unpack(data)
    except struct.error as error:
        raise ValueError(str(error)) from error
    return found  # type: ignore[no-any-return] # unpack gives Any


def _frozen(value: Any) -> Key:  # noqa: ANN401 - any JSON
    if isinstance(value, list):
        return tuple(_frozen(one) for one in value)
    if isinstance(value, dict):
        msg = "a JSON object cannot be a key of a store"
        raise ValueError(msg)  # noqa: TRY004 - the message's fault, as all others here
    return value


def _bytes_of_text(given: Any) -> bytes:  # noqa: ANN401 - the user's
    if not isinstance(given, str):
        msg = f"text is wanted for Kafka, not {type(given).__name__}: {given!r}"
        raise TypeError(msg)
    return given.encode("utf-8")


def _bytes_of_bytes(given: Any) -> bytes:  # noqa: ANN401 - the user's
    if not isinstance(given, bytes):
        msg = f"bytes are wanted for Kafka, not {type(given).__name__}: {given!r}"
        raise TypeError(msg)
    return given


def _bytes_of_number(number: struct.Struct, given: Any) -> bytes:  # noqa: ANN401 - the user's
    try:
        return number.pack(given)
    except struct.error as error:
        msg = f"{given!r} does not fit the key's type: {error}"
        raise ValueError(msg) from error


def _document(given: Value) -> bytes:
    return json.dumps(given, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_plain).encode("utf-8")


def _plain(value: Any) -> str:  # noqa: ANN401 - the user's
    match value:
        case datetime():
            return (value if value.tzinfo is None else value.astimezone(UTC)).isoformat()
        case date():
            return value.isoformat()
        case Decimal():
            return str(value)
        case bytes():
            return base64.b64encode(value).decode("ascii")
        case _:
            msg = f"{type(value).__name__} has no form in JSON: {value!r}"
            raise TypeError(msg)
