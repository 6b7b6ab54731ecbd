"""What the stored forms of markers, beginnings and replacements have in common: JSON objects in the stage.

Rules:

1. A form has a ``version``. A newer one than this program knows is refused; unknown fields of a known one are passed
   over: a newer writer may add some.
2. What cannot be read is a MarkerError that names the object, the first field at fault, and what to do about it.
3. What is larger than any of our objects is (common/storage/bounded.py) is not parsed.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.errors import MarkerError, NewerFormatError
from common.sizes import size_text
from common.spans import MAX_POSITION
from common.storage.bounded import MOST_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

UPGRADE = "upgrade this service to at least the release of the service that wrote it; see docs/upgrading.md"

Count = Annotated[int, Field(ge=0)]
StoredOffset = Annotated[int, Field(ge=0, le=MAX_POSITION)]


class Stored(BaseModel):
    """A stored form, or a part of one."""

    model_config = ConfigDict(frozen=True, strict=True, extra="ignore")


class _Versioned(BaseModel):
    version: int


@contextmanager
def reading(what: str, remedy: str) -> Iterator[None]:
    """Tells what is wrong with ``what``: ValueError, and so pydantic's, becomes a MarkerError (rule 2)."""
    try:
        yield
    except ValueError as error:
        detail = _first_problem(error) if isinstance(error, ValidationError) else str(error)
        msg = f"{what} cannot be read: {detail}"
        raise MarkerError(msg, remedy) from error


def require_known_version(what: str, data: bytes, highest: int) -> None:
    """Refuse a newer form (rule 1). Raises MarkerError, and ValueError for what has no version, or is too large."""
    if len(data) > MOST_BYTES:
        msg = f"it is larger than {size_text(MOST_BYTES)}, and nothing that these programs write there is"
        raise ValueError(msg)
    version = _Versioned.model_validate_json(data).version
    if version > highest:
        msg = f"{what} has format version {version}; this program reads up to {highest}"
        raise NewerFormatError(msg, UPGRADE)


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]
