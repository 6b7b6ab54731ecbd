"""The JSON form of a value whose type has more than one: the `formats` of a stream.

Rules:

1. A format belongs to one value: a column, a field of a STRUCT (``meta.sent``), the elements of an ARRAY
   (``times.element``) or the values of a MAP (``payload.value``), at any depth. Names with dots are in backticks.
2. A format that does not belong to the type, and a path that matches nothing, are refused: ValueError with a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from common.hints import did_you_mean
from common.schema import ArrayType, DataType, MapType, Primitive, StructType, quote_name, type_to_ddl
from common.settings.section import refuse


class ValueFormat(StrEnum):
    """A form of values that a stream asks for."""

    EPOCH_S = "epoch_s"
    EPOCH_MS = "epoch_ms"
    EPOCH_US = "epoch_us"
    HEX = "hex"
    BASE64 = "base64"
    JSON = "json"


EPOCH_DECIMALS = {ValueFormat.EPOCH_S: 6, ValueFormat.EPOCH_MS: 3, ValueFormat.EPOCH_US: 0}
"""The decimals of an epoch's unit: down to microseconds."""

_TIMES = (Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)
_TYPES: dict[ValueFormat, tuple[Primitive, ...]] = {
    ValueFormat.EPOCH_S: _TIMES,
    ValueFormat.EPOCH_MS: _TIMES,
    ValueFormat.EPOCH_US: _TIMES,
    ValueFormat.HEX: (Primitive.BINARY,),
    ValueFormat.BASE64: (Primitive.BINARY,),
    ValueFormat.JSON: (Primitive.STRING,),
}
_STEP = re.compile(r"(?:`((?:[^`]|``)+)`|([^.`]+))(\.|$)")


@dataclass(frozen=True, slots=True)
class Forms:
    """The formats of a value and its content, by the steps of their paths."""

    format: ValueFormat | None = None
    inner: Mapping[str, Forms] = field(default_factory=dict)

    def at(self, step: str) -> Forms:
        """The formats of a field, of an ARRAY's ``element`` or a MAP's ``value``."""
        return self.inner.get(step, NO_FORMS)

    def __bool__(self) -> bool:
        return self.format is not None or bool(self.inner)


NO_FORMS = Forms()


def forms_of(columns: StructType, formats: Mapping[str, str]) -> Forms:
    """The formats by steps. Raises ValueError (rule 2)."""
    forms = Forms()
    for path, name in formats.items():
        steps = path_steps(path)
        wanted = ValueFormat(name)
        data_type = _type_at(columns, steps, path)
        if data_type not in _TYPES[wanted]:
            types = " or ".join(type_to_ddl(each) for each in _TYPES[wanted])
            fitting = [other.value for other in ValueFormat if data_type in _TYPES[other]]
            remedy = f"use one of {', '.join(fitting)}" if fitting else "take it out"
            refuse(f"{wanted} is a format of {types}, and {path!r} is {type_to_ddl(data_type)}; {remedy}")
        forms = _with(forms, steps, wanted)
    return forms


def path_steps(path: str) -> tuple[str, ...]:
    """The steps of a dotted path. Raises ValueError."""
    steps: list[str] = []
    offset, more = 0, True
    while more:
        match = _STEP.match(path, offset)
        if match is None:
            refuse(f"{path!r} is not a valid path; separate names by dots, and put odd names in `backticks`")
        steps.append(match[1].replace("``", "`") if match[1] else match[2])
        offset, more = match.end(), bool(match[3])
    return tuple(steps)


def _with(forms: Forms, steps: tuple[str, ...], wanted: ValueFormat) -> Forms:
    if not steps:
        return Forms(wanted, forms.inner)
    return Forms(forms.format, {**forms.inner, steps[0]: _with(forms.at(steps[0]), steps[1:], wanted)})


def _type_at(data_type: DataType, steps: tuple[str, ...], path: str) -> DataType:
    for depth, step in enumerate(steps):
        known = _inside(data_type)
        if step not in known:
            parent = f"`{'.'.join(steps[:depth])}`" if depth else "columns"
            hint = did_you_mean(step, known, _hint(known))
            refuse(f"names {path!r}, but {parent} has no {step!r}; {hint}")
        data_type = known[step]
    return data_type


def _inside(data_type: DataType) -> dict[str, DataType]:
    match data_type:
        case StructType(fields):
            return {each.name: each.type for each in fields}
        case ArrayType(element):
            return {"element": element}
        case MapType(_, value):
            return {"value": value}
        case _:
            return {}


def _hint(known: Mapping[str, DataType]) -> str:
    return f"there is {', '.join(quote_name(name) for name in known)}" if known else "it holds no other values"
