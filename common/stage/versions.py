"""Objects of the stage of which the highest version counts: ``<kind>/<app_id>/<version, 20 digits>.json``.

Each version is made by exclusive create, so that of two processes that make one, the other one knows.
"""

import re
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import quote

from common.ports import ObjectStore

T = TypeVar("T")
_VERSION = re.compile(r"(\d{20})\.json", re.ASCII)


def versions_folder(kind: str, app_id: str) -> str:
    return f"{kind}/{quote(app_id, safe='')}/"


def version_path(folder: str, version: int) -> str:
    """The object of a version; the folder has its closing slash."""
    return f"{folder}{version:020d}.json"


def newest(store: ObjectStore, folder: str, read: Callable[[str, int, bytes], T]) -> T | None:
    """The highest version in a folder, by its path, number and content; None if there is none. Raises StoreError."""
    versions = [
        (int(match[1]), item.path)
        for item in store.list(folder)
        if (match := _VERSION.fullmatch(item.path.removeprefix(folder)))
    ]
    if not versions:
        return None
    version, path = max(versions)
    data = store.read(path)
    return None if data is None else read(path, version, data)
