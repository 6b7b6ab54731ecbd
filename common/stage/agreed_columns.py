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

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from common.ports import Created, ObjectStore
from common.stage.stored import StoredSchema, read_object
from common.stage.versions import newest, version_path, versions_folder
from common.stored_types import StoredForm

COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class AgreedColumns:
    app_id: str
    version: int
    columns: StoredSchema
    source: str
    """What the settings said when it was made, such as ``from_records``; for people."""
    created_ms: int
    formats: Mapping[str, str] = field(default_factory=dict)
    """The forms of values that the columns' types leave open, by path, as `formats` of a stream."""
    schema_ids: tuple[int | str, ...] = ()
    """The schemas whose fields are among the columns: of a registry their ids or GUIDs, behind a digest of the settings
    that they were read by; of a file a digest of its content and of those settings."""
    envelope: str | None = None
    """The `envelope` of the records, where the settings leave it to them."""

    @property
    def path(self) -> str:
        return version_path(versions_folder(COLUMNS, self.app_id), self.version)

    def to_bytes(self) -> bytes:
        return _FORM.to_bytes(self, indent=2)

    @classmethod
    def from_bytes(cls, path: str, version: int, data: bytes) -> AgreedColumns:
        """The inverse. Raises MarkerError, which names the object."""
        remedy = "delete it: the columns are found again, those of the table first"
        return replace(read_object(_FORM, path, data, remedy), version=version)


_FORM = StoredForm(AgreedColumns)


def agreed_columns(store: ObjectStore, app_id: str) -> AgreedColumns | None:
    """The columns that a stream's writers agreed on; None while there are none. Raises StoreError and MarkerError."""
    return newest(store, versions_folder(COLUMNS, app_id), AgreedColumns.from_bytes)


def agree_on(store: ObjectStore, proposed: AgreedColumns) -> bool:
    """Make a version; False if another process made it first. Raises StoreError."""
    return isinstance(store.create(proposed.path, proposed.to_bytes()), Created)
