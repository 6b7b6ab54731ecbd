"""The stored forms of the project's own types, by their annotations: so a value and its stored form are one class.

A dataclass is stored as an object with its fields, after the ``version`` of the format; a span as ``[start, end]``;
what is known of Kafka partitions as an object by topic, and in it by number.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, make_dataclass
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, get_type_hints

from pydantic import (
    BaseModel,
    Field,
    GetCoreSchemaHandler,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
)
from pydantic_core import CoreSchema, to_json
from pydantic_core.core_schema import no_info_after_validator_function, plain_serializer_function_ser_schema

from common.spans import Partition, Position, Span, Topic, TopicPartition

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

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


def omit_defaults(*names: str) -> Any:  # noqa: ANN401 - a decorated method, of which pydantic has no type
    """The method of a dataclass that leaves these fields out where they have their defaults, so they cost no bytes.

    Without names, all fields that have one.
    """

    def write(self: object, serialize: SerializerFunctionWrapHandler) -> dict[str, object]:
        stored: dict[str, object] = serialize(self)
        for name, default in _omitted(type(self), names):  # type: ignore[arg-type]
            if getattr(self, name) == default:
                del stored[name]
        return stored

    return model_serializer(mode="wrap")(write)


@cache
def _omitted(of: type[Any], names: tuple[str, ...]) -> tuple[tuple[str, object], ...]:
    defaults = _defaults(of)  # type: ignore[arg-type]
    return tuple((name, default) for name, default in defaults.items() if not names or name in names)


@cache
def _defaults(of: type[Any]) -> dict[str, object]:
    plain = {
        stored_field.name: stored_field.default for stored_field in fields(of) if stored_field.default is not MISSING
    }
    return plain | {
        stored_field.name: stored_field.default_factory()
        for stored_field in fields(of)
        if stored_field.default_factory is not MISSING
    }


def same_fields(value: DataclassInstance, of: type[DataclassInstance]) -> dict[str, Any]:
    """The fields of a value that another dataclass has too, to make one of that."""
    return {
        stored_field.name: getattr(value, stored_field.name)
        for stored_field in fields(of)
        if stored_field.name in value.__dataclass_fields__
    }


def with_partition(of: type[_Value], name: str) -> StoredAs:
    """The annotation of a dataclass that is stored with ``topic`` and ``partition`` in place of the field ``name``."""
    hints = get_type_hints(of, include_extras=True)
    others = [stored_field.name for stored_field in fields(of) if stored_field.name != name]  # type: ignore[arg-type]
    place = [("topic", Annotated[str, Field(min_length=1)]), ("partition", Annotated[int, Field(ge=0)])]
    form = make_dataclass(of.__name__, [*place, *((other, hints[other]) for other in others)])

    def read(stored: Any) -> _Value:  # noqa: ANN401 - of the class that is made here
        partition = TopicPartition(Topic(stored.topic), Partition(stored.partition))
        return of(**{name: partition, **{other: getattr(stored, other) for other in others}})

    def write(value: _Value) -> object:
        partition: TopicPartition = getattr(value, name)
        return form(partition.topic, partition.partition, *(getattr(value, other) for other in others))

    return StoredAs(form, read, write)


def by_topic(values: Mapping[TopicPartition, _Value]) -> dict[str, dict[str, _Value]]:
    """Values of Kafka partitions as nested maps, by topic and number, sorted."""
    by_name: dict[str, dict[str, _Value]] = {}
    for partition in sorted(values):
        by_name.setdefault(partition.topic, {})[str(partition.partition)] = values[partition]
    return by_name


def by_partition(stored: Mapping[str, Mapping[str, _Value]]) -> dict[TopicPartition, _Value]:
    """The inverse of `by_topic`. Raises ValueError."""
    return {
        TopicPartition(Topic(topic), Partition(int(partition))): value
        for topic, partitions in stored.items()
        for partition, value in partitions.items()
    }


def stored_by_topic(value: object) -> StoredAs:
    return StoredAs(dict[str, dict[str, value]], by_partition, by_topic)  # type: ignore[valid-type]


StoredSpan = Annotated[
    Span, StoredAs(tuple[Position, Position], lambda ends: Span(*ends), lambda span: (span.start, span.end))
]
StoredPositions = Annotated[Mapping[TopicPartition, Position], stored_by_topic(int)]


class _Version(BaseModel):
    version: int = Field(default=1, le=1)


class StoredForm(Generic[_Value]):
    """The stored form of a dataclass. A field of the name ``version`` is not stored: the object's path has it."""

    def __init__(self, of: type[_Value]) -> None:
        self._adapter = TypeAdapter(of)
        self._optional = _defaults(of).keys()  # type: ignore[arg-type]

    def write(self, value: _Value) -> dict[str, Any]:
        stored: dict[str, Any] = self._adapter.dump_python(value, mode="json", by_alias=True)
        return {"version": 1} | stored | {"version": 1}

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
