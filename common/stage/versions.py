"""Objects of the stage of which the highest version counts: ``<folder>/<version, 20 digits>.json``.

Each version is made by exclusive create, so that of two processes that make one, the other one knows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.ports import ObjectStore

_VERSION = re.compile(r"(\d{20})\.json", re.ASCII)


def version_path(folder: str, version: int) -> str:
    """The object of a version; the folder has its closing slash."""
    return f"{folder}{version:020d}.json"


def newest_version(store: ObjectStore, folder: str) -> tuple[int, str] | None:
    """The highest version in a folder, and its path; None if there is none. Raises StoreError."""
    versions = [
        (int(match[1]), item.path)
        for item in store.list(folder)
        if (match := _VERSION.fullmatch(item.path.removeprefix(folder)))
    ]
    return max(versions, default=None)
