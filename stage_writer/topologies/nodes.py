"""The kinds of nodes, as values."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.schema import StructType
    from stage_writer.topologies.processors import Processor
    from stage_writer.topologies.steps import BatchStep


class KeyType(StrEnum):
    """The form of a key in Kafka."""

    STRING = "STRING"
    """UTF-8."""
    INT = "INT"
    """Four bytes, the highest first: Kafka's IntegerSerializer."""
    BIGINT = "BIGINT"
    """Eight bytes, the highest first: Kafka's LongSerializer."""
    DOUBLE = "DOUBLE"
    """Eight bytes, IEEE 754, the highest first: Kafka's DoubleSerializer."""
    BINARY = "BINARY"
    """The bytes as they are."""
    JSON = "JSON"
    """A JSON document; an array gives a tuple."""


class ValueType(StrEnum):
    """The form of a value in a topic that a sink writes."""

    JSON = "JSON"
    """One JSON document, as this project reads them: times and dates in ISO 8601, bytes in base64."""
    STRING = "STRING"
    """Text, as UTF-8."""
    BINARY = "BINARY"
    """Bytes as they are."""


class StoreBuilder(Protocol):
    """What a task makes a state store of; the stores' own builders know more."""

    @property
    def name(self) -> str:
        """The store's name."""


@dataclass(frozen=True, slots=True)
class SourceNode:
    """Messages of topics."""

    name: str
    parents: tuple[str, ...]
    """None."""
    topics: tuple[str, ...]
    columns: StructType | None
    """None for values that are any JSON."""
    key: KeyType
    timestamp: str | None
    """The column that is the record's time; None for Kafka's own."""
    headers: bool


@dataclass(frozen=True, slots=True)
class ProcessorNode:
    """A user's processor."""

    name: str
    parents: tuple[str, ...]
    supplier: Callable[[], Processor]


@dataclass(frozen=True, slots=True)
class StepNode:
    """A vectorised step."""

    name: str
    parents: tuple[str, ...]
    step: BatchStep
    columns: StructType | None
    """What it takes, when that cannot be known: after a processor."""


@dataclass(frozen=True, slots=True)
class TableSink:
    """Rows of a table: the stream's own (``""``), or one of its routes."""

    name: str
    parents: tuple[str, ...]
    table: str


@dataclass(frozen=True, slots=True)
class TopicSink:
    """Records for a Kafka topic."""

    name: str
    parents: tuple[str, ...]
    topic: str
    key: KeyType
    value: ValueType


Node: TypeAlias = SourceNode | ProcessorNode | StepNode | TableSink | TopicSink
