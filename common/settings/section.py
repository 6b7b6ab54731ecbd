"""The base of all sections of the settings, and of those that are made of parts.

A part is a section in the program and none in the file: its keys are those of the section that has it. It checks
itself, and code that needs no more than a part takes no more.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, Literal, NoReturn, Self, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    SerializerFunctionWrapHandler,
    ValidationInfo,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticKnownError

Option = str | int | float | bool | None


class Section(BaseModel):
    """A section: it cannot be changed, and knows no other keys than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    @field_validator("*", mode="before")
    @classmethod
    def _refuse_booleans(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true (also YAML's yes and on) for a count or a share, which pydantic takes for 1."""
        annotation = cls.model_fields[info.field_name or ""].annotation
        kinds: dict[object, Literal["int_type", "float_type"]] = {int: "int_type", int | None: "int_type"}
        kinds[float | None] = "float_type"
        if isinstance(value, bool) and annotation in kinds:
            raise PydanticKnownError(kinds[annotation])
        return value


class SectionPart(Section):
    """A part of a `SectionOfParts`; the field for it has an alias in parentheses, `(record)`, which is not a key."""


class SectionOfParts(Section):
    @model_validator(mode="before")
    @classmethod
    def _into_parts(cls, values: object) -> object:
        return _by_part(cls, values) if isinstance(values, dict) else values

    @model_serializer(mode="wrap")
    def _without_parts(self, serialized: SerializerFunctionWrapHandler) -> dict[str, object]:
        parts = parts_of(type(self))
        values: dict[str, object] = {}
        for key, value in serialized(self).items():
            values |= value if key in parts or f"({key})" in parts else {key: value}
        return values

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        whole = handler(schema)
        described = handler.resolve_ref_schema(whole)
        properties: dict[str, object] = {}
        for key, value in described["properties"].items():
            properties |= handler.resolve_ref_schema(value)["properties"] if key in parts_of(cls) else {key: value}
        described["properties"] = properties
        return whole

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """A copy with other values: ``update`` has them by the names of the fields, also of those of the parts."""
        changed = _by_part(type(self), update or {})
        for alias in parts_of(type(self)).keys() & changed.keys():
            name = alias.strip("()")
            changed[name] = getattr(self, name).model_copy(update=changed.pop(alias))
        return super().model_copy(update=changed, deep=deep)


@cache
def parts_of(model: type[BaseModel]) -> Mapping[str, type[SectionPart]]:
    """The parts of a section, by the aliases of their fields."""
    fields = model.model_fields.values()
    return {field.alias: part for field in fields if field.alias and (part := _part(field)) is not None}


def fields_of(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """The keys of a section in the file, and their declarations."""
    for name, field in model.model_fields.items():
        part = _part(field)
        if part is None:
            yield field.alias or name, field
        else:
            yield from fields_of(part)


def model_in(annotation: object) -> type[BaseModel] | None:
    """The section that a setting's annotation has, at any depth."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        return annotation if issubclass(annotation, BaseModel) else None
    return next((model for argument in get_args(annotation) if (model := model_in(argument)) is not None), None)


def _part(field: FieldInfo) -> type[SectionPart] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, SectionPart) else None


@cache
def _part_of_each(model: type[BaseModel]) -> Mapping[str, str]:
    """The alias of the part that has a field, by the field's name and by its key; no part is a value of the file."""
    return {
        name: alias
        for alias, part in parts_of(model).items()
        for field, declared in part.model_fields.items()
        for name in (field, declared.alias or field, alias)
    }


def _by_part(model: type[BaseModel], values: Mapping[str, object]) -> dict[str, object]:
    """The values with those of each part in a map of their own, under the part's alias."""
    part_of_each = _part_of_each(model)
    grouped: dict[str, object] = {}
    parts: dict[str, dict[str, object]] = {}
    for name, value in values.items():
        if name in part_of_each:
            parts.setdefault(part_of_each[name], {})[name] = value
        else:
            grouped[name] = value
    return {**grouped, **parts}


def refuse(problem: str) -> NoReturn:
    """Raise ValueError, of which pydantic makes an error with the key and the value in front of this sentence."""
    raise ValueError(problem)
