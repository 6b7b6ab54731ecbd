"""Which files a Delta table's log refers to, for a clean-up. Read without a JVM, in bounded memory.

Rules:

1. A file is referenced if any version that can still be read refers to it, even as a tombstone. Each such version is a
   checkpoint and the commits after it, so all of them together are the oldest checkpoint and every existing commit;
   and, where commits between two checkpoints are gone, the later checkpoint too.
2. Files are identified by their names, without folders: a data file's name is unique, and the log may spell a path in
   several ways (percent-encoded, absolute).
3. A log that lacks a version, or that cannot be read, is an error and never an empty result. A torn checkpoint does not
   count.
"""

import json
from collections.abc import Iterable, Iterator
from typing import cast
from urllib.parse import unquote

import pyarrow.parquet as pq

from common.errors import TableError
from common.ports import ObjectStore, StoredObject
from common.tables.log_files import COMMIT, LOG, complete_checkpoints, is_torn, parsing

_ACTIONS = ("add", "remove", "sidecar")
_CHUNK_BYTES = 8 * 2**20
_ROWS = 50_000


def referenced_files(store: ObjectStore) -> Iterator[set[str]]:
    """The names of the files that the table at the store's root refers to, in batches, some more than once.

    Nothing when there is no table. Raises TableError and StoreError.
    """
    items = sorted(store.list(LOG), key=lambda item: item.path)
    commits = {int(match[1]): match[0] for item in items if (match := COMMIT.fullmatch(item.path)) is not None}
    for path in [*_checkpoints(store, items, set(commits)), *commits.values()]:
        with parsing(f"{store.url}/{path}"):
            yield from _names_in(store, path)


def _checkpoints(store: ObjectStore, listed: Iterable[StoredObject], commits: set[int]) -> list[str]:
    """The checkpoints without which the commits are incomplete (rule 1)."""
    needed: list[str] = []
    known = -1  # everything up to this version is covered
    for version, parts in reversed(list(complete_checkpoints(listed))):
        if not commits.issuperset(range(known + 1, version + 1)):
            if any(is_torn(store, part) for part in parts):
                continue
            needed += [part.path for part in parts]
        known = version
    newest = max(commits, default=known)
    missing = next((version for version in range(known + 1, newest + 1) if version not in commits), None)
    if missing is not None:
        msg = f"the log of the Delta table {store.url} lacks version {missing}"
        raise TableError(msg, "restore the file from a backup: without it the table's files are unknown")
    return needed


def _names_in(store: ObjectStore, path: str) -> Iterator[set[str]]:
    if path.endswith(".json"):
        for lines in _lines(store, path):
            yield from _names_of(store, [_path_of(line) for line in lines])
        return
    with store.open(path) as file:
        parquet = pq.ParquetFile(file)
        present = {name for name in _ACTIONS if name in parquet.schema_arrow.names}
        columns = [f"{name}.path" for name in _ACTIONS if name in present]
        for batch in parquet.iter_batches(_ROWS, columns=columns):
            for name in batch.schema.names:
                values = cast("list[str | None]", batch.column(name).flatten()[0].to_pylist())
                yield from _names_of(store, [(name, value) for value in values if value is not None])


def _names_of(store: ObjectStore, listed: Iterable[tuple[str, str] | None]) -> Iterator[set[str]]:
    files = [item for item in listed if item is not None]
    yield {unquote(path.rpartition("/")[2]) for action, path in files if action != "sidecar"}
    for action, path in files:
        if action == "sidecar":
            yield from _names_in(store, path if "/" in path else f"{LOG}/_sidecars/{path}")


def _lines(store: ObjectStore, path: str) -> Iterator[list[bytes]]:
    with store.open(path) as file:
        rest = b""
        while chunk := file.read(_CHUNK_BYTES):
            *lines, rest = (rest + chunk).split(b"\n")
            yield lines
        yield [rest]


def _path_of(line: bytes) -> tuple[str, str] | None:
    if b'"path"' not in line:
        return None
    for action, content in cast("dict[str, object]", json.loads(line)).items():
        if action in _ACTIONS and isinstance(content, dict):
            return action, str(content["path"])
    return None
