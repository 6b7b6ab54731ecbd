"""Objects in the stage with versions, of which the highest counts: ``<kind>/<app_id>/<version, 20 digits>.json``.

Each version is made by exclusive create: of two processes that make the same one, the second is refused.
"""

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, ClassVar, Self
from urllib.parse import quote

from common.ports import Created, ObjectStore
from common.stage.stored import read_object
from common.stored_types import StoredForm

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
