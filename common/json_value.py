"""What JSON can hold, as Python's types."""

from __future__ import annotations

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
