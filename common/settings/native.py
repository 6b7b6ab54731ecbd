"""Whether a writer uses its reader in C: the values of `writer.native`."""

from enum import StrEnum
from typing import Annotated

from pydantic import BeforeValidator, WithJsonSchema


class Native(StrEnum):
    """Whether the C reader is used, required or off."""

    AUTO = "auto"
    ON = "on"
    OFF = "off"


def parse_native(value: object) -> object:
    """YAML has booleans for ``on`` and ``off``."""
    return (Native.ON if value else Native.OFF) if isinstance(value, bool) else value


NativeChoice = Annotated[
    Native, BeforeValidator(parse_native), WithJsonSchema({"enum": ["auto", "on", "off", True, False]})
]
