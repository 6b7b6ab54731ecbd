"""The stored forms of the project's own types, by their annotations: so a value and what is stored are one class.

A dataclass is stored as an object with its fields, after the ``version`` of the format; a span as ``[start, end]``;
what is known of Kafka partitions as an object by topic, and in it by number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, Field, SerializerFunctionWrapHandler, TypeAdapter, model_serializer
from pydantic_core import to_json
from pydantic_core.core_schema import no_info_after_validator_function, plain_serializer_function_ser_schema

from common.spans import Partition, Position, Span, Topic, TopicPartition

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class StoredAs:
    """The annotation of a type that is stored as another: ``read`` makes the value, and raises ValueError."""

    form: object
    read: Callable[[Any], object]
    write: Callable[[Any], object]

    def __get_pydantic_core_schema__(self, _source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        form = handler.generate_schema(self.form)
        written = plain_serializer_function_ser_schema(self.write, return_schema=form)
        return no_info_after_validator_function(self.read, form, serialization=written)


def lean(*names: str) -> Any:  # noqa: ANN401 - a decorated method, of which pydantic has no type
    """The method of a dataclass that leaves these fields out where they are None or False, so they cost no bytes."""

    def write(self: object, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        stored: dict[str, object] = serialize(self)
        absent = {
            name for name in names if stored[name] is None or stored[name] is False
        }  # a count of 0 says something
        return {name: part for name, part in stored.items() if name not in absent}

    return model_serializer(mode="wrap")(write)


def by_topic(values: Mapping[TopicPartition, _Value]) -> dict[str, dict[str, _Value]]:
    """What is known of Kafka partitions, by topic and number, sorted."""
    found: dict[str, dict[str, _Value]] = {}
    for partition in sorted(values):
        found.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    return found


def by_partition(stored: Mapping[str, Mapping[str, _Value]]) -> dict[TopicPartition, _Value]:
    """The inverse of `by_topic`. Raises ValueError."""
    return {
        TopicPartition(Topic(topic), Partition(int(partition))): value
        for topic, partitions in stored.items()
        for partition, value in partitions.items()
    }


def stored_by_topic(value: object) -> StoredAs:
    """The annotation of a mapping of Kafka partitions to values of this type."""
    return StoredAs(dict[str, dict[str, value]], by_partition, by_topic)  # type: ignore[valid-type]


StoredSpan = Annotated[
    Span,
    StoredAs(tuple[Position, Position], lambda ends: Span(*ends), lambda span: (span.start, span.end)),
]
StoredPositions = Annotated[Mapping[TopicPartition, Position], stored_by_topic(int)]


class _Version(BaseModel):
    version: int = Field(default=1, le=1)


class StoredForm(Generic[_Value]):
    """The stored form of a dataclass; if lean, fields that have a default are left out where they are None or empty.

    A field of the name ``version`` is not stored: the object's path has it.
    """

    def __init__(self, of: type[_Value], *, lean: bool = False) -> None:
        self._adapter = TypeAdapter(of)
        self._optional = {
            field.name
            for field in fields(of)  # type: ignore[arg-type]
            if lean and not (field.default is MISSING and field.default_factory is MISSING)
        }

    def write(self, value: _Value) -> dict[str, Any]:
        stored = self._adapter.dump_python(value, mode="json", by_alias=True)
        absent = {name for name in self._optional if stored[name] in (None, {}, [])} | {"version"}
        return {"version": 1, **{name: part for name, part in stored.items() if name not in absent}}

    def to_bytes(self, value: _Value, indent: int | None = None) -> bytes:
        return to_json(self.write(value), indent=indent)

    def from_bytes(self, data: bytes) -> _Value:
        """The inverse; types are as strict as JSON's. Raises ValueError."""
        return self._adapter.validate_json(data, strict=True)

    def read(self, content: Mapping[str, Any]) -> _Value:
        """The inverse. Raises ValueError, also for a newer version."""
        _Version.model_validate(content)
        there = {name: part for name, part in content.items() if name not in self._optional or part is not None}
        return self._adapter.validate_python(there)
