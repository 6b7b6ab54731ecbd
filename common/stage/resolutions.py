"""An operator's resolution of a rollback of a table, as an object in the stage.

Rules:

1. Its name identifies the event that it resolves: ``accept/<app_id>/<table id>/<version, 20 digits>.json``, with the
   version of the commit that rolled the table back. It is made by exclusive create, so an event has one resolution; a
   second RESTORE is another version, and needs its own resolution.
2. `bootstrap accept` writes it after the chains were rewound, as its last step. A loader carries it out by a commit
   whose metadata ``answers`` the same version, which proves that it was carried out: nothing is recorded elsewhere, and
   the object may be removed after that.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Annotated, Any
from urllib.parse import quote, unquote

from pydantic import Field, TypeAdapter

from common.errors import UsageError
from common.remedies import CONFIG, quoted
from common.stored_types import StoredForm, StoredPositions, omit_defaults
from common.tables.commit_metadata import Decision, StoredGenerations, not_first

ACCEPT = "accept"


@dataclass(frozen=True, slots=True)
class Resolution:
    """An operator's decision about one event of one table."""

    app_id: str
    table: str
    table_id: str
    version: Annotated[int, Field(alias="went_back_at")]
    """The version of the commit that rolled the table back."""
    decision: Decision
    positions: StoredPositions
    """Where loading continues, for the Kafka partitions that the event concerns."""
    author: str
    created_ms: int
    generations: StoredGenerations = field(default_factory=dict)
    """The generations of the positions' chains; 0 if missing."""

    _without_defaults = omit_defaults()

    @property
    def path(self) -> str:
        return resolution_path(self.app_id, self.table_id, self.version)

    def to_bytes(self) -> bytes:
        return _FORM.to_bytes(replace(self, generations=not_first(self.generations)), indent=2)

    @classmethod
    def from_bytes(cls, path: str, data: bytes) -> Resolution:
        """The inverse. Raises UsageError."""
        try:
            return _FORM.read(_CONTENT.validate_json(data))
        except ValueError as error:
            msg = f"the resolution {path} in the stage cannot be read: {' '.join(str(error).split())[:200]}"
            app_id = unquote(path.split("/")[1]) if path.count("/") else path
            command = f"bootstrap accept {CONFIG} --stream {quoted(app_id)}"
            raise UsageError(
                msg, f"delete {path} from the stage, and decide again: `{command} --replay` or `{command} --go-on`"
            ) from None


_FORM = StoredForm(Resolution)
_CONTENT = TypeAdapter(dict[str, Any])


def resolution_path(app_id: str, table_id: str, version: int) -> str:
    return f"{ACCEPT}/{quote(app_id, safe='')}/{quote(table_id, safe='')}/{version:020d}.json"
