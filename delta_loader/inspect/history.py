"""Reads a Delta table's history from its log: the JSON commits, oldest first, without a JVM.

Rules:

1. Versions are read in order and several at a time, so a long history costs time and no memory.
2. The history ends with the version that the listing showed: later commits are not part of it. It starts after the
   newest gap, because older commits cannot be followed.
"""

from collections.abc import Iterator
from itertools import islice, takewhile

from common.ports import ObjectStore
from common.tables.log_files import COMMIT, LOG, commit_path, parsing, required_file
from delta_loader.ports import ParallelMap
from delta_loader.tables.history import TableVersion, parse_version

_AT_A_TIME = 64


def listed_versions(store: ObjectStore) -> set[int]:
    """The versions whose commits the log still has; none when there is no table."""
    return {int(match[1]) for item in store.list(LOG) if (match := COMMIT.fullmatch(item.path))}


def read_versions(store: ObjectStore, parallel: ParallelMap, first: int = 0) -> Iterator[TableVersion]:
    """Every version from ``first`` on that the log still has. Raises TableError and StoreError."""
    listed = listed_versions(store)
    newest = max(listed, default=-1)
    waiting = reversed(list(takewhile(listed.__contains__, range(newest, first - 1, -1))))
    while some := list(islice(waiting, _AT_A_TIME)):
        yield from parallel(lambda version: read_version(store, version), some)


def read_version(store: ObjectStore, version: int) -> TableVersion:
    """One version. Raises TableError and StoreError."""
    path = commit_path(version)
    with parsing(f"{store.url}/{path}"):
        return parse_version(version, required_file(store, path))
