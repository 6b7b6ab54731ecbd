"""The base of all sections of the settings."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

Option = str | int | float | bool | None


class Section(BaseModel):
    """A section: it cannot be changed, and knows no other keys than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)

    @field_validator("*", mode="before")
    @classmethod
    def _true_is_no_number(cls, value: object, info: ValidationInfo) -> object:
        """Refuse true (also YAML's yes and on) for a count, which pydantic takes for 1."""
        field = cls.model_fields[info.field_name or ""]
        if isinstance(value, bool) and field.annotation in {int, int | None}:
            kind: Literal["int_type"] = "int_type"
            raise PydanticKnownError(kind)
        return value
