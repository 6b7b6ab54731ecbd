"""JSON values as Python types."""

Json = str | int | float | bool | None | list["Json"] | dict[str, "Json"]
