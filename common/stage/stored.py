"""Common parts of the stored forms of markers, chain origins and replacements: JSON objects in the stage.

Rules:

1. A form has a ``version``. A version newer than this program knows is refused; unknown fields of a known one are
   ignored: a newer writer may add some.
2. An unreadable object is a MarkerError that names the object, the first field at fault, and the remedy.
3. An object larger than any that this product writes (common/storage/bounded.py) is not parsed, and neither is one that
   would take more memory than they do once it is parsed: a byte of JSON can cost thirty of memory. The code that writes
   an object keeps to the same bounds (`beyond_bounds`).
"""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, TypeVar

from pydantic import BaseModel, Field, ValidationError

from common.errors import MarkerError, NewerFormatError, SchemaError
from common.printable import one_line
from common.schema import StructType, schema_from_json, schema_to_json
from common.sizes import size_text
from common.spans import MAX_POSITION, Position
from common.storage.bounded import MOST_BYTES
from common.stored_types import StoredAs, StoredForm

_Value = TypeVar("_Value")

UPGRADE = "upgrade this service to at least the release of the service that wrote it; see docs/upgrading.md"

VERSION = 1
"""Of a `StoredForm`: none of them has changed yet so that an older reader would misread it."""
MOST_OBJECTS = 100_000
"""The limit of JSON objects in one stored object: files, the partition values of each, tables."""
MOST_ELEMENTS = 2_000_000
"""The limit of names, values and objects in one stored object, together."""
_SMALL_BYTES = 2**20
"""Smaller objects cost little, regardless of their content."""
# A text itself is not counted; an unterminated one extends to the end, so each byte is read once.
_TOKEN = re.compile(rb'(?s)"[^"\\]*+(?:\\.[^"\\]*+)*+"?|[,:\[{]')

_QUOTE, _BRACE = b'"{'

Count = Annotated[int, Field(ge=0)]
StoredSchema = Annotated[StructType, StoredAs(str, schema_from_json, schema_to_json)]
"""As in Delta's metaData action: JSON."""
StoredOffset = Annotated[int, Field(ge=0, le=MAX_POSITION)]
StoredPosition = Annotated[Position, Field(ge=0, le=MAX_POSITION)]
NotEmpty = Annotated[str, Field(min_length=1)]


class _Versioned(BaseModel):
    version: Annotated[int, Field(ge=1)]


@contextmanager
def reading(what: str, remedy: str) -> Iterator[None]:
    """Convert SchemaError and ValueError, and so pydantic's, to a MarkerError about ``what`` (rule 2)."""
    try:
        yield
    except SchemaError as error:
        raise MarkerError(f"{what} cannot be read: {one_line(error.problem)}", remedy) from error
    except ValueError as error:
        detail = one_line(_first_problem(error) if isinstance(error, ValidationError) else str(error))
        raise MarkerError(f"{what} cannot be read: {detail}", remedy) from error


def require_known_version(what: str, data: bytes, highest: int) -> None:
    """Refuse a newer form (rule 1). Raises MarkerError, and ValueError if there is no version, or it is too large."""
    problem = beyond_bounds(data)
    if problem is not None:
        raise ValueError(f"it {problem}, and these programs never write such an object")
    version = _Versioned.model_validate_json(data).version
    if version > highest:
        raise NewerFormatError(f"{what} has format version {version}; this program reads up to {highest}", UPGRADE)


def read_object(form: StoredForm[_Value], what: str, data: bytes, remedy: str) -> _Value:
    """The value that an object stores. Raises MarkerError about ``what``."""
    with reading(what, remedy):
        require_known_version(what, data, VERSION)
        return form.from_bytes(data)


def read_if_readable(form: StoredForm[_Value], what: str, data: bytes | None) -> _Value | None:
    """The value that an object stores; None without an object, and for one that cannot be read."""
    try:
        return None if data is None else read_object(form, what, data, "")
    except MarkerError:
        return None


def beyond_bounds(data: bytes) -> str | None:
    """Which limit an object's JSON exceeds, as the end of a sentence about it; None where it may be read (rule 3)."""
    if len(data) > MOST_BYTES:
        return f"is larger than {size_text(MOST_BYTES)}"
    if len(data) <= _SMALL_BYTES:
        return None
    objects = elements = 0
    for token in _TOKEN.finditer(data):
        first = data[token.start()]
        elements += first != _QUOTE
        objects += first == _BRACE
        if objects > MOST_OBJECTS:
            return f"has more than {MOST_OBJECTS:,} objects (files, their partition values, tables)"
        if elements > MOST_ELEMENTS:
            return f"has more than {MOST_ELEMENTS:,} names and values"
    return None


def _first_problem(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    path = ".".join(str(part) for part in first["loc"])
    return f"{path}: {first['msg']}" if path else first["msg"]
