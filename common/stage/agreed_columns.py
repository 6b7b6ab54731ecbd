"""The columns that the writers of a stream agree on, where its settings do not declare them.

Rules:

1. ``columns/<app_id>/<version, 20 digits>.json`` has the columns of the stream's records, made by exclusive create; the
   highest version counts. If two writers find different columns, the second to write takes the first one's.
2. They are to the stream what declared columns are to another one: a restart, another writer and the loader use the
   same. What a stream gains by `unknown_fields: evolve` is not among them (common/stage/evolved.py).
3. Nothing else refers to a version: markers have the schema of their own files. So deleting these objects loses no
   record; the columns are found again, those of an existing table first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from common.ports import ObjectStore
from common.stage.stored import StoredSchema
from common.stage.versions import Versioned, versions_folder

COLUMNS = "columns"


@dataclass(frozen=True, slots=True)
class AgreedColumns(Versioned):
    KIND: ClassVar[str] = COLUMNS
    REMEDY: ClassVar[str] = "delete it: the columns are found again, those of the table first"

    columns: StoredSchema
    source: str
    """The setting at that time, such as ``from_records``; for people."""
    created_ms: int
    formats: Mapping[str, str] = field(default_factory=dict)
    """The forms of values that the columns' types leave open, by path, as `formats` of a stream."""
    schema_ids: tuple[int | str, ...] = ()
    """The schemas whose fields are among the columns: of a registry their ids or GUIDs, behind a digest of the settings
    that they were read by; of a file a digest of its content and of those settings."""
    envelope: str | None = None
    """The `envelope` of the records, where the settings leave it to them."""


def agreed_columns(store: ObjectStore, app_id: str) -> AgreedColumns | None:
    """The columns that a stream's writers agreed on, or None. Raises StoreError and MarkerError."""
    return AgreedColumns.newest(store, versions_folder(COLUMNS, app_id))
