"""The files of a Delta table's log: their names, which checkpoint can be read, and removing those that never can.

Rules:

1. A checkpoint is complete when all parts according to their names exist, and torn when one of them has no end: a
   Parquet file is written from its front, so a file whose writer died or failed has no footer. Delta's own rename, and
   one request to an object store, leave none; a full disk, a power failure and other writers do.
2. A torn checkpoint is skipped: an older one, or the first commit, and the commits since have the same content.
3. It is removed, with the hint that names it, only where the log is complete without it. Otherwise it stays, and the
   error says what is missing: it may be all that is left of the table.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import SEEK_END
from typing import cast

import pyarrow as pa

from common.errors import TableError
from common.ports import ObjectStore, StoredObject

LOG = "_delta_log"
COMMIT = re.compile(r"_delta_log/(\d{20})\.json")
CHECKPOINT = re.compile(r"_delta_log/(\d{20})\.checkpoint(?:\.(\d{10})\.(\d{10})|\.[0-9a-f-]{36})?\.(parquet|json)")
_HINT = f"{LOG}/_last_checkpoint"
_MAGIC = b"PAR1"
_TAIL_BYTES = 4 + len(_MAGIC)  # the footer's length, and the magic number


def commit_path(version: int) -> str:
    return f"{LOG}/{version:020d}.json"


def required_file(store: ObjectStore, path: str) -> bytes:
    """A file of the log that was there a moment ago. Raises TableError and StoreError."""
    data = store.read(path)
    if data is None:
        msg = f"{store.url}/{path} was deleted while it was read: the log is being cleaned up"
        raise TableError(msg, "run the command again")
    return data


@contextmanager
def parsing(path: str) -> Iterator[None]:
    """Raises TableError, which names the file, where a file of the log is damaged, or cannot be read to its end."""
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        raise TableError(
            f"{path} of the table's log cannot be read: {str(error).partition(chr(10))[0]}",
            "try again; if the file is damaged, restore it from a backup: without it the table's state is unknown",
        ) from error


def newest_checkpoint(store: ObjectStore, listed: Iterable[StoredObject]) -> tuple[int | None, list[str]]:
    """The version and the files of the newest checkpoint that is complete and not torn.

    None and an empty list without one. ``listed`` is a listing of the log. Raises StoreError.
    """
    for version, parts in complete_checkpoints(listed):
        if not any(is_torn(store, part) for part in parts):
            return version, [part.path for part in parts]
    return None, []


def complete_checkpoints(listed: Iterable[StoredObject]) -> Iterator[tuple[int, list[StoredObject]]]:
    """The version and the files of each complete checkpoint, the newest first, and of one version the most parts."""
    checkpoints: dict[tuple[int, int], list[StoredObject]] = {}
    for item in listed:
        match = CHECKPOINT.fullmatch(item.path)
        if match:
            checkpoints.setdefault((int(match[1]), int(match[3] or 1)), []).append(item)
    for version, count in sorted(checkpoints, reverse=True):
        parts = sorted(checkpoints[version, count], key=lambda part: part.path)
        if count == 1:  # each of them is a separate checkpoint
            yield from ((version, [part]) for part in parts)
        elif len(parts) >= count:
            yield version, parts


def is_torn(store: ObjectStore, checkpoint: StoredObject) -> bool:
    """Whether one file of a checkpoint has no end (rule 1). Raises StoreError."""
    if checkpoint.path.endswith(".json"):
        lines = (store.read(checkpoint.path) or b"").rstrip().splitlines()
        try:
            return not lines or not isinstance(json.loads(lines[-1]), dict)
        except ValueError:
            return True
    if checkpoint.size_bytes <= len(_MAGIC) + _TAIL_BYTES:
        return True
    with store.open(checkpoint.path) as file:
        file.seek(-_TAIL_BYTES, SEEK_END)
        tail = file.read(_TAIL_BYTES)
    footer_bytes = int.from_bytes(tail[:4], "little")
    return not tail.endswith(_MAGIC) or footer_bytes > checkpoint.size_bytes - len(_MAGIC) - _TAIL_BYTES


def commits_after(url: str, listed: Iterable[StoredObject], base: int | None) -> list[str]:
    """The files of all commits after the checkpoint ``base``, or of all, in their order; ``listed`` lists the log.

    Raises TableError when one is missing.
    """
    listed = list(listed)
    commits = {int(match[1]): match[0] for item in listed if (match := COMMIT.fullmatch(item.path)) is not None}
    first = 0 if base is None else base + 1
    torn = [version for version, _ in complete_checkpoints(listed) if version >= first]
    newest = max([*commits, *torn, first - 1])
    missing = next((version for version in range(first, newest + 1) if version not in commits), None)
    if missing is not None:
        also = f", and its checkpoint of version {torn[0]} is torn" if torn else ""
        msg = f"the log of the Delta table {url} lacks version {missing}{also}"
        raise TableError(msg, "restore the file from a backup: without it the table's state is unknown")
    return [commits[version] for version in range(first, newest + 1)]


def remove_torn_checkpoints(store: ObjectStore) -> list[str]:
    """Delete the torn checkpoints of the table at the store's root that are newer than its newest readable one.

    Returns their paths. Raises TableError where the log does not say all without them (rule 3), and StoreError.
    """
    items = list(store.list(LOG))
    torn: dict[str, int] = {}
    base = None
    for version, parts in complete_checkpoints(items):
        bad = [part.path for part in parts if is_torn(store, part)]
        if not bad:
            base = version
            break
        torn |= dict.fromkeys(bad, version)
    if not torn:
        return []
    commits_after(store.url, items, base)
    if _hinted(store) in torn.values():
        store.delete([_HINT])  # some readers open no table whose hint names a missing file
    store.delete(torn)
    return list(torn)


def _hinted(store: ObjectStore) -> int | None:
    with suppress(ValueError):
        hint = json.loads(store.read(_HINT) or b"null")
        if isinstance(hint, dict):
            return cast("int | None", hint.get("version"))
    return None
