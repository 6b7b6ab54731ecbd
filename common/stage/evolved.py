"""The columns that a stream has gained, as its writers and its loader agree on them in the stage.

Rules:

1. ``schema/<app_id>/<version, 20 digits>.json`` has all columns that were agreed on up to that version, made by
   exclusive create; the highest version counts. A version has every column of the one before it. Where
   tables gain columns of their own (`Stream.gains_by_table`), they are in the folder ``routes`` below it, so that an
   edit of the settings keeps both apart.
2. A writer makes a version before it stages a value in a new column. A file with the columns of any version can be
   loaded: the loader adds those that the table lacks in front of the load. The loader makes a version for columns that
   it gave the table by offers in markers, and for those of which the table has another type: the table is the truth.
   If these objects are lost, they are made again from it and from new records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from common.ports import ObjectStore
from common.schema import StructType
from common.schema.evolution import NO_COLUMNS, additions, extended
from common.stage.stored import StoredSchema
from common.stage.versions import Versioned, versions_folder
from common.stored_types import omit_defaults

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
