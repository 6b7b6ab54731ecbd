"""What the writers of a stream agree on: objects in the stage with versions, of which the highest counts.

Rules:

1. ``<kind>/<app_id>/<version, 20 digits>.json`` is made by exclusive create: of two processes that make the same
   version, the second is refused, and takes the first one's.
2. ``columns/`` has the columns of a stream whose settings do not declare them. They are to it what declared columns are
   to another one: a restart, another writer and the loader use the same. Nothing else refers to a version: markers have
   the schema of their own files. So deleting these objects loses no record; the columns are found again, those of an
   existing table first.
3. ``schema/`` has all columns that a stream has gained by `unknown_fields: evolve` up to that version. A version has
   every column of the one before it. Where tables gain columns of their own (`Stream.gains_by_table`), they are in the
   folder ``routes`` below it, so that an edit of the settings keeps both apart.
4. A writer makes a version before it stages a value in a new column. A file with the columns of any version can be
   loaded: the loader adds those that the table lacks in front of the load. The loader makes a version for columns that
   it gave the table by offers in markers, and for those of which the table has another type: the table is the truth.
   If these objects are lost, they are made again from it and from new records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar, Self
from urllib.parse import quote

from common.ports import Created, ObjectStore
from common.schema import StructType
from common.schema.evolution import NO_COLUMNS, additions, extended
from common.stage.stored import StoredSchema, read_object
from common.stored_types import StoredForm, omit_defaults

_VERSION = re.compile(r"(\d{20})\.json", re.ASCII)


def versions_folder(kind: str, app_id: str) -> str:
    return f"{kind}/{quote(app_id, safe='')}/"


@dataclass(frozen=True, slots=True)
class Versioned:
    KIND: ClassVar[str]
    REMEDY: ClassVar[str]
    """For an object that cannot be read."""

    app_id: str
    version: int

    @property
    def folder(self) -> str:
        return versions_folder(self.KIND, self.app_id)

    @property
    def path(self) -> str:
        return f"{self.folder}{self.version:020d}.json"

    def to_bytes(self) -> bytes:
        return self._form().to_bytes(self, indent=2)

    @classmethod
    def from_bytes(cls, path: str, version: int, data: bytes) -> Self:
        """The inverse. Raises MarkerError, which names the object."""
        stored: Self = read_object(cls._form(), path, data, cls.REMEDY)
        return replace(stored, version=version)

    @classmethod
    def newest(cls, store: ObjectStore, folder: str) -> Self | None:
        """The highest version in a folder, or None. Raises StoreError and MarkerError."""
        paths = [item.path for item in store.list(folder)]
        versions = [(int(match[1]), path) for path in paths if (match := _VERSION.fullmatch(path.removeprefix(folder)))]
        version, path = max(versions, default=(0, ""))
        data = store.read(path) if path else None
        return None if data is None else cls.from_bytes(path, version, data)

    def create(self, store: ObjectStore) -> bool:
        """Make this version; False if another process made it first. Raises StoreError."""
        return isinstance(store.create(self.path, self.to_bytes()), Created)

    @classmethod
    @cache
    def _form(cls) -> StoredForm[Any]:
        return StoredForm(cls)


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


SCHEMA = "schema"


@dataclass(frozen=True, slots=True)
class Gained:
    """How one column was added, for people."""

    column: str
    """Its path and type, in SQL's syntax."""
    offered_by: str
    """The marker that offered it, or that is the first to have it."""
    created_ms: int


@dataclass(frozen=True, slots=True)
class Evolved(Versioned):
    """All columns that a stream has gained."""

    KIND: ClassVar[str] = SCHEMA
    REMEDY: ClassVar[str] = "delete it: the loader publishes the columns again, by the table"

    columns: StoredSchema
    """In addition to the declared ones; fields gained inside a declared struct are in a struct of its name."""
    gained: tuple[Gained, ...] = ()
    by_route: bool = False
    """Whether each of the columns is a route's, with those of its table (common/settings/own_columns.py)."""

    continues: int = 0
    """The version of the columns with, or without, a route of which this one has what the tables have."""

    _without_empty = omit_defaults("by_route", "continues")

    @property
    def folder(self) -> str:
        return folder_of(self.app_id, by_route=self.by_route)

    @classmethod
    def nothing(cls, app_id: str, *, by_route: bool) -> Evolved:
        """A stream without gained columns, before its first version."""
        return cls(app_id, 0, NO_COLUMNS, by_route=by_route)

    def with_columns(
        self, columns: StructType, declared: StructType, offers: Mapping[str, StructType], now_ms: int
    ) -> Evolved:
        """The next version; ``offers`` are by the path of the marker that each comes with."""
        known = extended(declared, self.columns)
        by_path = {
            column.path: path for path, offer in reversed(list(offers.items())) for column in additions(known, offer)
        }
        new = (Gained(str(column), by_path.get(column.path, ""), now_ms) for column in additions(known, columns))
        return replace(self, version=self.version + 1, columns=columns, gained=(*self.gained, *new))


def folder_of(app_id: str, *, by_route: bool = False) -> str:
    return versions_folder(SCHEMA, app_id) + ("routes/" if by_route else "")


def latest(store: ObjectStore, app_id: str, *, by_route: bool = False) -> Evolved | None:
    """The latest published columns of a stream, or None. Raises StoreError and MarkerError."""
    return Evolved.newest(store, folder_of(app_id, by_route=by_route))
