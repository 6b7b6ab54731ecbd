"""Keys, values, times and headers in Kafka: the forms that a source reads and a topic's sink writes.

Rule: reading any bytes gives a value or a ValueError, and text that was read can be written.
"""

import base64
import json
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import partial
from operator import index
from typing import Any, NoReturn

from stage_writer.decode.json_document import SURROGATE_ESCAPE
from stage_writer.topologies.nodes import KeyType, ValueType
from stage_writer.topologies.records import Headers, Key, Value

_LATEST_MS = 2**63 - 1
_NUMBERS = {KeyType.INT: struct.Struct(">i"), KeyType.BIGINT: struct.Struct(">q"), KeyType.DOUBLE: struct.Struct(">d")}


def key_decoder(key: KeyType) -> Callable[[bytes], Key]:
    """Decodes a message's key; raises ValueError for bytes of another form."""
    match key:
        case KeyType.STRING:
            return _text_of
        case KeyType.INT | KeyType.BIGINT | KeyType.DOUBLE:
            return partial(_number_of, _NUMBERS[key])
        case KeyType.BINARY:
            return bytes
        case KeyType.JSON:
            return _key_of_document


def key_encoder(key: KeyType) -> Callable[[Key], bytes | None]:
    """Encodes a message's key; raises TypeError or ValueError for an invalid one."""
    match key:
        case KeyType.STRING:
            encode: Callable[[Key], bytes] = _bytes_of_text
        case KeyType.INT | KeyType.BIGINT | KeyType.DOUBLE:
            encode = partial(_bytes_of_number, _NUMBERS[key])
        case KeyType.BINARY:
            encode = _bytes_of_bytes
        case KeyType.JSON:
            encode = _document
    return lambda given: None if given is None else encode(given)


def value_encoder(value: ValueType) -> Callable[[Value], bytes | None]:
    """Encodes a message's value; None makes a tombstone. Raises TypeError or ValueError for an invalid one."""
    encode = {ValueType.JSON: _document, ValueType.STRING: _bytes_of_text, ValueType.BINARY: _bytes_of_bytes}[value]
    return lambda given: None if given is None else encode(given)


def kafka_time(timestamp_ms: Any) -> int:  # noqa: ANN401 - the user's
    """A record's time. Raises TypeError and ValueError for an invalid one."""
    is_whole = isinstance(timestamp_ms, float) and timestamp_ms.is_integer()
    whole_ms = int(timestamp_ms) if is_whole else index(timestamp_ms)
    if not -_LATEST_MS <= whole_ms <= _LATEST_MS:
        raise ValueError(f"{whole_ms} is not a time in milliseconds")
    return whole_ms


def kafka_headers(headers: Any) -> Headers:  # noqa: ANN401 - the user's
    """A record's headers. Raises TypeError and ValueError for invalid ones."""
    return tuple((_bytes_of_text(name).decode(), _header(value)) for name, value in headers) if headers else ()


def _header(value: Any) -> bytes | None:  # noqa: ANN401 - the user's
    return _bytes_of_text(value) if isinstance(value, str) else None if value is None else _bytes_of_bytes(value)


def _text_of(data: bytes) -> str:
    return data.decode("utf-8")


def _number_of(number: struct.Struct, data: bytes) -> int | float:
    try:
        (value,) = number.unpack(data)
    except struct.error as error:
        raise ValueError(str(error)) from error
    return value  # type: ignore[no-any-return] # unpack gives Any


def any_json(text: str) -> Value:
    """The value of one JSON document. Raises ValueError for other text, or nesting too deep for Python's parser.

    An unpaired surrogate is refused, because text with one could not be written.
    """
    try:
        value: Value = _DECODER.decode(text)
        if SURROGATE_ESCAPE.search(text) is not None:
            json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    return value


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_no_constant)
_TOO_DEEP = "it is nested too deeply"


def _key_of_document(data: bytes) -> Key:
    document = any_json(_text_of(data))
    try:
        return _frozen(document)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _frozen(value: Any) -> Key:  # noqa: ANN401 - any JSON
    if isinstance(value, list):
        return tuple(_frozen(item) for item in value)
    if isinstance(value, dict):
        msg = "a JSON object cannot be a key of a store"
        raise ValueError(msg)  # noqa: TRY004 - the message's fault, as all others here
    return value


def _bytes_of_text(given: Any) -> bytes:  # noqa: ANN401 - the user's
    if not isinstance(given, str):
        raise TypeError(f"Kafka needs text, not {type(given).__name__}: {given!r}")
    return given.encode("utf-8")


def _bytes_of_bytes(given: Any) -> bytes:  # noqa: ANN401 - the user's
    if not isinstance(given, bytes):
        raise TypeError(f"Kafka needs bytes, not {type(given).__name__}: {given!r}")
    return given


def _bytes_of_number(number: struct.Struct, given: Any) -> bytes:  # noqa: ANN401 - the user's
    try:
        return number.pack(given)
    except struct.error as error:
        raise ValueError(f"{given!r} does not match the key's type: {error}") from error


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
            raise TypeError(f"{type(value).__name__} cannot be written as JSON: {value!r}")
