"""What all sections of the settings have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

Option = str | int | float | bool | None


class Section(BaseModel):
    """A section: it cannot be changed, and knows no other keys than its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)
