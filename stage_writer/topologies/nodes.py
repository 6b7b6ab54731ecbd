"""The kinds of nodes."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from common.schema import StructType
from stage_writer.topologies.steps import BatchStep
from stage_writer.topologies.task.context import Processor


class KeyType(StrEnum):
    """The form of a key in Kafka."""

    STRING = "STRING"
    """UTF-8."""
    INT = "INT"
    """Four bytes, big-endian: Kafka's IntegerSerializer."""
    BIGINT = "BIGINT"
    """Eight bytes, big-endian: Kafka's LongSerializer."""
    DOUBLE = "DOUBLE"
    """Eight bytes, IEEE 754, big-endian: Kafka's DoubleSerializer."""
    BINARY = "BINARY"
    """The bytes unchanged."""
    JSON = "JSON"
    """A JSON document; an array becomes a tuple."""


class ValueType(StrEnum):
    """The form of a value in a topic that a sink writes."""

    JSON = "JSON"
    """One JSON document, in the form that this project reads: times and dates in ISO 8601, bytes in base64."""
    STRING = "STRING"
    """Text, as UTF-8."""
    BINARY = "BINARY"
    """Bytes, unchanged."""


@dataclass(frozen=True, slots=True)
class SourceNode:
    name: str
    parents: tuple[str, ...]
    topics: tuple[str, ...]
    columns: StructType | None
    """The columns of the values; None for values that are any JSON."""
    key: KeyType
    timestamp: str | None
    """The column with the record's time; None for Kafka's timestamp."""
    headers: bool


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    name: str
    parents: tuple[str, ...]
    supplier: Callable[[], Processor]


@dataclass(frozen=True, slots=True)
class StepNode:
    name: str
    parents: tuple[str, ...]
    step: BatchStep
    columns: StructType | None
    """The step's input columns, if they cannot be derived: after a processor."""


@dataclass(frozen=True, slots=True)
class TableSink:
    """Rows of a table: the stream's main one (``""``), or one of its routes."""

    name: str
    parents: tuple[str, ...]
    table: str


@dataclass(frozen=True, slots=True)
class TopicSink:
    name: str
    parents: tuple[str, ...]
    topic: str
    key: KeyType
    value: ValueType


Node: TypeAlias = SourceNode | ProcessorNode | StepNode | TableSink | TopicSink
