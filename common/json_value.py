"""What JSON can hold, as Python's types."""

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
