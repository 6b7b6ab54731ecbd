"""Messages of a topic as records: wrappers are recognized, and messages that are not records are counted. Pure.

Rule: a message is read as the writer would: one JSON object in UTF-8, with or without a frame of Confluent's
serializers, a change event of Debezium, Maxwell, Canal or AWS DMS, or none.
"""

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from common.schema.inference import JsonShape

_FRAME = 5
_MAGIC = 0
_EVENT = {"op", "source"}
_SCHEMA_CHANGES = ("table-", "database-")
_BORDERS = ("bootstrap-start", "bootstrap-complete")


@dataclass(slots=True)
class TopicSample:
    topic: str
    partitions: int
    records: JsonShape = field(default_factory=JsonShape)
    """The records; for change events the images of rows."""
    messages: int = 0
    tombstones: int = 0
    framed: int = 0
    events: Counter[str] = field(default_factory=Counter)
    """Change events by their envelope."""
    unreadable: int = 0
    keys: Counter[tuple[str, ...]] = field(default_factory=Counter)
    """The names of the fields of message keys that are JSON objects."""

    @property
    def framing(self) -> str:
        return "confluent" if self.framed and self.framed + self.tombstones == self.messages else "none"

    @property
    def envelope(self) -> str:
        return next(iter(self.events)) if self.is_all_events else "plain"

    @property
    def key_fields(self) -> tuple[str, ...]:
        """The fields that every message key has; empty where keys differ, or are not objects."""
        (names, count) = max(self.keys.items(), key=lambda item: item[1], default=((), 0))
        return names if count == self.messages else ()

    @property
    def is_all_events(self) -> bool:
        """Whether each record was a change event, all of one envelope."""
        events = self.events.total()
        return len(self.events) == 1 and events + self.tombstones + self.unreadable == self.messages


def sampled(topic: str, partitions: int, messages: Iterable[tuple[bytes | None, bytes | None]]) -> TopicSample:
    plain, images = TopicSample(topic, partitions), JsonShape()
    for value, key in messages:
        plain.messages += 1
        plain.keys[_key_fields(key)] += 1
        if value is None:
            plain.tombstones += 1
            continue
        framed = len(value) > _FRAME and value[0] == _MAGIC
        plain.framed += framed
        document = _document(value[_FRAME:] if framed else value)
        if document is None:
            plain.unreadable += 1
            continue
        plain.records.add(document)
        event = _event(document)
        if event is not None:
            envelope, rows = event
            plain.events[envelope] += 1
            for image in rows:
                images.add(image)
    if plain.is_all_events and images.seen:
        plain.records = images
    return plain


def _key_fields(key: bytes | None) -> tuple[str, ...]:
    framed = key is not None and len(key) > _FRAME and key[0] == _MAGIC
    document = None if key is None else _document(key[_FRAME:] if framed else key)
    if document is None:
        return ()
    payload = document.get("payload")
    return tuple(payload if isinstance(payload, dict) else document)


def _document(text: bytes) -> dict[str, object] | None:
    try:
        document: object = json.loads(text.decode())
    except ValueError:  # including text that is not UTF-8
        return None
    return document if isinstance(document, dict) else None


def _event(document: dict[str, object]) -> tuple[str, list[object]] | None:
    """The envelope of a change event and the images of its rows; None for any other record."""
    metadata, data, kind = document.get("metadata"), document.get("data"), document.get("type")
    if isinstance(metadata, dict) and "record-type" in metadata:
        return "dms", _images(data)
    if isinstance(kind, str) and {"database", "table", "isDdl"} <= document.keys():
        return "canal", [image for row in (data if isinstance(data, list) else []) for image in _images(row)]
    if isinstance(kind, str) and "database" in document and ("data" in document or kind.startswith(_SCHEMA_CHANGES)):
        return "maxwell", [] if kind in _BORDERS else _images(data)
    payload = document.get("payload", document)
    if not isinstance(payload, dict) or not payload.keys() >= _EVENT or not payload.keys() & {"before", "after"}:
        return None
    return "debezium", _images(payload.get("before") if payload.get("op") == "d" else payload.get("after"))


def _images(image: object) -> list[object]:
    return [image] if isinstance(image, dict) else []
