"""Reads a Delta table's history from its log: the JSON commits, oldest first, without a JVM.

Rules:

1. Versions are read in order and several at a time, so a long history costs time and no memory.
2. The history ends with the version that the listing showed: later commits are not part of it. It starts after the
   newest gap, because older commits cannot be followed.
"""

from collections.abc import Iterator
from itertools import islice, takewhile

from common.errors import TableError
from common.ports import ObjectStore
from common.tables.log_files import COMMIT, LOG, required_file
from delta_loader.ports import ParallelMap
from delta_loader.tables.history import TableVersion, parse_version

_AT_A_TIME = 64


def read_history(store: ObjectStore, parallel: ParallelMap) -> Iterator[TableVersion]:
    """Every version that the log still has; nothing when there is no table. Raises TableError and StoreError."""
    listed = {int(match[1]): match[0] for item in store.list(LOG) if (match := COMMIT.fullmatch(item.path))}
    newest = max(listed, default=-1)
    unbroken = list(takewhile(listed.__contains__, range(newest, -1, -1)))[::-1]
    waiting = iter(unbroken)
    while some := list(islice(waiting, _AT_A_TIME)):
        yield from parallel(lambda version: _read(store, version, listed[version]), some)


def _read(store: ObjectStore, version: int, path: str) -> TableVersion:
    data = required_file(store, path)
    try:
        return parse_version(version, data)
    except (ValueError, KeyError, TypeError) as error:
        msg = f"{store.url}/{path} is not a commit of a Delta log: {error}"
        raise TableError(msg, "restore the file from a backup: without it the table's state is unknown") from error
