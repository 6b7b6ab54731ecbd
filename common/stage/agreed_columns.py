"""The columns that the writers of a stream agree on, where its settings do not declare them.

Rules:

1. ``columns/<app_id>/<version, 20 digits>.json`` has the columns of the stream's records, made by exclusive create; the
   highest version counts. Of two writers that found different columns, the second to write takes those of the first.
2. They are to the stream what declared columns are to another one: a restart, another writer and the loader use the
   same. What a stream gains by `unknown_fields: evolve` is not among them (common/stage/evolved.py).
3. Nothing else refers to a version: markers have the schema of their own files. So deleting these objects loses no
   record; the columns are found again, those of an existing table first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from common.ports import Created
from common.schema import StructType, schema_from_json, schema_to_json
from common.stage.stored import Stored, reading, require_known_version
from common.stage.versions import newest, version_path, versions_folder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from common.ports import ObjectStore

COLUMNS = "columns"
VERSION = 1


@dataclass(frozen=True, slots=True)
class AgreedColumns:
    """A version of a stream's columns."""

    app_id: str
    version: int
    columns: StructType
    source: str
    """What the settings said when it was made, such as ``from_records``; for people."""
    created_ms: int
    formats: Mapping[str, str] = field(default_factory=dict)
    """The forms of values that the columns' types leave open, by path, as `formats` of a stream."""
    schema_ids: tuple[int | str, ...] = ()
    """The schemas of a registry whose fields are among the columns: ids, or GUIDs."""
    envelope: str | None = None
    """The `envelope` of the records, where the settings leave it to them."""

    @property
    def path(self) -> str:
        return version_path(versions_folder(COLUMNS, self.app_id), self.version)

    def to_bytes(self) -> bytes:
        stored = _StoredColumns(
            version=1,
            app_id=self.app_id,
            columns=schema_to_json(self.columns),
            formats=dict(self.formats),
            source=self.source,
            created_ms=self.created_ms,
            schema_ids=list(self.schema_ids),
            envelope=self.envelope,
        )
        return stored.model_dump_json(indent=2).encode()

    @classmethod
    def from_bytes(cls, path: str, version: int, data: bytes) -> AgreedColumns:
        """The inverse. Raises MarkerError, which names the object."""
        with reading(path, "delete it: the columns are found again, those of the table first"):
            require_known_version(path, data, VERSION)
            stored = _StoredColumns.model_validate_json(data)
            columns = schema_from_json(stored.columns)
        ids = tuple(stored.schema_ids)
        source, created_ms = stored.source, stored.created_ms
        return cls(stored.app_id, version, columns, source, created_ms, stored.formats, ids, stored.envelope)


def agreed_columns(store: ObjectStore, app_id: str) -> AgreedColumns | None:
    """The columns that a stream's writers agreed on; None while there are none. Raises StoreError and MarkerError."""
    return newest(store, versions_folder(COLUMNS, app_id), AgreedColumns.from_bytes)


def agree_on(store: ObjectStore, proposed: AgreedColumns) -> bool:
    """Make a version; False if another process made it first. Raises StoreError."""
    return isinstance(store.create(proposed.path, proposed.to_bytes()), Created)


class _StoredColumns(Stored):
    version: Literal[1]
    app_id: str
    columns: str
    formats: dict[str, str] = Field(default_factory=dict)
    source: str
    created_ms: int
    schema_ids: list[int | str] = Field(default_factory=list)
    envelope: str | None = None
