"""Why a message did not become a row: a closed list of classes, each with its sentence.

Operators count, alert on and query by the class in the dead-letter table; the error names the field and the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class ErrorClass(StrEnum):
    """The dead-letter table's ``error_class``. Names are never reused for another meaning."""

    EMPTY = "empty"
    """The message has no bytes, or only white space. (A null value is a tombstone, not an error.)"""

    INVALID_UTF8 = "invalid_utf8"
    """The message's bytes are not UTF-8, or the key of a header that the stream uses is not."""

    INVALID_JSON = "invalid_json"
    """The message is not exactly one JSON document: malformed, a second document, NaN, an unpaired surrogate."""

    NOT_AN_OBJECT = "not_an_object"
    """The message is valid JSON, but not an object: a number, a string, an array, `null`…"""

    DUPLICATE_FIELD = "duplicate_field"
    """A declared field, or a key of a declared map, occurs twice."""

    MISSING_FIELD = "missing_field"
    """A field or element that is declared NOT NULL is null or missing."""

    WRONG_TYPE = "wrong_type"
    """A value has a JSON type that its column does not accept: a string for an INT, a number for a STRING."""

    MALFORMED = "malformed"
    """A string does not have the form of its column's type: a date, a timestamp, base64, a decimal."""

    OUT_OF_RANGE = "out_of_range"
    """A number or a time is outside the range of its column's type."""

    NOT_EXACT = "not_exact"
    """A value could only be stored rounded: `1.5` for a BIGINT, too many decimals, nanoseconds."""

    NOT_FRAMED = "not_framed"
    """A message of a stream with `framing: confluent` does not start with the magic byte 0 and a schema's id."""

    UNKNOWN_SCHEMA = "unknown_schema"
    """The message names a schema that the registry does not have."""

    WRONG_SCHEMA = "wrong_schema"
    """The message names a schema that is not of the stream's `format`, or that cannot be read."""

    INVALID_RECORD = "invalid_record"
    """The message's bytes are not exactly one record of its Avro or Protobuf schema."""

    AGAINST_SCHEMA = "against_schema"
    """A message of a stream with `validate` does not satisfy its JSON Schema."""

    NOT_AN_EVENT = "not_an_event"
    """A message of a stream with an `envelope` is not a row change: it lacks its operation or its image."""

    TRUNCATED = "truncated"
    """The event says that the source table was truncated, and the stream does not have `merge.truncates: apply`."""

    EXPRESSION_FAILED = "expression_failed"
    """An expression of the settings (`jmespath`, `where`, `derive`, `route`) failed for this record."""

    EXPECTATION = "expectation"
    """The record breaks a rule of `expect` with `on_fail: dead_letter`; the error names the rule."""

    UNROUTED = "unrouted"
    """The record's route is null, or not in `routes`, and the stream has `unrouted: dead_letters`."""

    EXPLODES_TOO_FAR = "explodes_too_far"
    """The rows that `explode` would make of the record exceed four times the writer's `memory`."""

    NULL_KEY = "null_key"
    """A key column of a stream with `merge` is null, so it is unknown which row the event changes."""

    REPEATED_KEY = "repeated_key"
    """Two elements of an event's array (`explode`, with `merge`) have the same key: one of their rows would be lost."""

    UNREADABLE_KEY = "unreadable_key"
    """A tombstone of a stream with `merge` has a message key that does not give the key columns."""

    NULL_SEQUENCE = "null_sequence"
    """An upsert of a stream with `merge` has no `sequence`, so it is unknown whether it is newer than its row."""

    TOPOLOGY = "topology"
    """The code of the stream's topology raised an exception for the message, or returned an incompatible row."""

    LATE = "late"
    """A topology with `late="dead_letter"` has dropped the record: its window is closed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    error_class: ErrorClass
    error: str

    def at(self, index: int) -> Reject:
        return Reject(index, self.error_class, self.error)


@dataclass(frozen=True, slots=True, order=True)
class Reject:
    """A refused message of a batch, by its index in the batch."""

    index: int
    error_class: ErrorClass
    error: str


def moved(rejects: Iterable[Reject], places: NDArray[np.int64] | Sequence[int]) -> tuple[Reject, ...]:
    """Refused messages of a part of a batch, by their indices in the batch."""
    return tuple(replace(reject, index=int(places[reject.index])) for reject in rejects)


def truncated() -> Refusal:
    text = "the source table was truncated: the rows of the stream's table stay, unless merge.truncates is apply"
    return Refusal(ErrorClass.TRUNCATED, text)
