"""Why a message did not become a row: a closed list of classes, each with its sentence.

The class is what people count, alert on and query in the dead-letter table; the error names the field and the value.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ErrorClass(StrEnum):
    """The dead-letter table's ``error_class``. Names are never reused for another meaning."""

    EMPTY = "empty"
    """The message has no bytes, or only white space. (A null value is a tombstone, and no error.)"""

    INVALID_UTF8 = "invalid_utf8"
    """The message's bytes are not UTF-8."""

    INVALID_JSON = "invalid_json"
    """The message is not exactly one JSON document: malformed, a second document, NaN, half of a surrogate pair."""

    NOT_AN_OBJECT = "not_an_object"
    """The message is valid JSON, but no object: a number, a string, an array, `null`…"""

    DUPLICATE_FIELD = "duplicate_field"
    """A declared field, or a key of a declared map, is given twice."""

    MISSING_FIELD = "missing_field"
    """A field or element that is declared NOT NULL is null or not there."""

    WRONG_TYPE = "wrong_type"
    """A value is of another JSON type than its column wants: a string for an INT, a number for a STRING."""

    MALFORMED = "malformed"
    """A string does not have the form of its column's type: a date, a timestamp, base64, a decimal."""

    OUT_OF_RANGE = "out_of_range"
    """A number or a time lies beyond what its column's type holds."""

    NOT_EXACT = "not_exact"
    """A value could only be stored rounded: `1.5` for a BIGINT, too many decimals, nanoseconds."""

    NOT_FRAMED = "not_framed"
    """A message of a stream with `framing: confluent` does not begin with the magic byte 0 and a schema's id."""

    UNKNOWN_SCHEMA = "unknown_schema"
    """The message names a schema that the registry does not have."""

    WRONG_SCHEMA = "wrong_schema"
    """The message names a schema that is no JSON Schema: it is Avro or Protobuf."""

    NOT_AN_EVENT = "not_an_event"
    """A message of a stream with `envelope: debezium` is no change of a row: it lacks its `op` or its image."""

    EXPRESSION_FAILED = "expression_failed"
    """An expression of the settings (`jmespath`, `where`, `derive`, `route`) failed for this record."""

    UNROUTED = "unrouted"
    """The record's route is null, or none of `routes`, and the stream says `unrouted: dead_letters`."""

    EXPLODES_TOO_FAR = "explodes_too_far"
    """The rows that `explode` would make of the record come to more than four times the writer's `memory`."""

    NULL_KEY = "null_key"
    """A key column of a stream with `merge` is null, so that an unknown format row the event changes."""

    UNREADABLE_KEY = "unreadable_key"
    """A tombstone of a stream with `merge` has a message key that does not give the key columns."""

    NULL_SEQUENCE = "null_sequence"
    """An upsert of a stream with `merge` has no `sequence`, so that it is unknown whether it is newer than its row."""

    TOPOLOGY = "topology"
    """The code of the stream's topology raised an exception for the message, or gave a row that does not fit."""

    LATE = "late"
    """A topology with `late="dead_letter"` has dropped the record: its window is closed."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why one message is not a row."""

    error_class: ErrorClass
    error: str


@dataclass(frozen=True, slots=True)
class Reject:
    """A refused message of a batch, by its index in the batch."""

    index: int
    error_class: ErrorClass
    error: str
