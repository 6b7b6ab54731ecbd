"""JSON values as Python types."""

from collections.abc import Mapping
from typing import cast

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]


def members_of(value: object) -> Mapping[str, object]:
    """The members of a parsed object; none of any other value."""
    return cast("Mapping[str, object]", value) if isinstance(value, dict) else {}
