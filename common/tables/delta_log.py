"""A Delta table's txn actions, schema, protocol and clustering, read from its own log without a JVM.

The stage writer reads it to determine the load mode, ``delta-loader status`` and the bootstrap tool read positions from
it. Only the loader writes to a log, and it does so through Delta itself.

Rules:

1. The newest complete checkpoint that is not torn, and the commits after it, are read; classic, multi-part and version
   2 checkpoints (txn, metaData and protocol are never in a sidecar) are supported, log compactions are not needed.
2. Of a checkpoint only the columns of these actions are fetched; of a commit only their lines are parsed.
3. A commit that Delta's clean-up deleted since the log was listed is not skipped: the log is listed again, and a newer
   checkpoint has the commit's content.
4. With ``delta.setTransactionRetentionDuration`` an older txn action is ignored, as in Delta.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeVar, cast

import pyarrow.parquet as pq

from common.errors import TableError
from common.ports import ObjectStore
from common.tables.log_files import LOG, commits_after, newest_checkpoint, parsing
from common.tables.state import TXN_RETENTION, TableState, retention_ms

Content = TypeVar("Content")
_READ_AGAIN = 5
_ACTIONS = ("txn", "metaData", "protocol")
_CLUSTERING = "delta.clustering"


class _VanishedError(Exception):
    """A file of the log disappeared while it was read."""


def read_table_state(store: ObjectStore) -> TableState | None:
    """The newest state of the table at the store's root; None when there is no table. Raises TableError."""
    return _read(store, _state)


def clustering_columns(store: ObjectStore) -> tuple[str, ...]:
    """The columns of liquid clustering, physical names with dots; none for a table without. Raises TableError."""
    return _read(store, _clustering)


def _read(store: ObjectStore, read_once: Callable[[ObjectStore], Content]) -> Content:
    for _ in range(_READ_AGAIN):
        try:
            return read_once(store)
        except _VanishedError:
            continue
    msg = f"the log of the Delta table {store.url} changes faster than it can be read"
    raise TableError(msg, "try again; find out what deletes files below _delta_log")


def _state(store: ObjectStore) -> TableState | None:
    items = list(store.list(LOG))
    base, parts = newest_checkpoint(store, items)
    commits = commits_after(store.url, items, base)
    if base is None and not commits:
        return None
    state = _Replay()
    for path in (*parts, *commits):
        with parsing(f"{store.url}/{path}"):
            state.apply(_actions(store, path, _ACTIONS))
    return state.table(store.url, (-1 if base is None else base) + len(commits))


def _clustering(store: ObjectStore) -> tuple[str, ...]:
    """The clustering columns in the newest domain metadata of Delta's clustering."""
    items = list(store.list(LOG))
    base, parts = newest_checkpoint(store, items)
    for path in (*reversed(commits_after(store.url, items, base)), *parts):
        with parsing(f"{store.url}/{path}"):
            for action in _actions(store, path, ("domainMetadata",)):
                domain = cast("Mapping[str, object]", action["domainMetadata"])
                if domain["domain"] == _CLUSTERING:
                    removed = bool(domain.get("removed"))
                    configuration = {} if removed else json.loads(str(domain.get("configuration") or "{}"))
                    return tuple(".".join(column) for column in configuration.get("clusteringColumns") or ())
    return ()


def _actions(store: ObjectStore, path: str, names: Sequence[str]) -> list[Mapping[str, object]]:
    """The actions with these names of a commit or of a checkpoint's file."""
    if path.endswith(".json"):
        # An action's name is at the start of its line; a table with many files has few lines of interest.
        heads = tuple(f'{{"{name}"'.encode() for name in names)
        lines = _content(store, path).splitlines()
        return [json.loads(line) for line in lines if line.replace(b" ", b"", 2).startswith(heads)]
    with store.open(path) as file:
        parquet = pq.ParquetFile(file)
        wanted = [name for name in names if name in parquet.schema_arrow.names]
        # Of a million rows all but a few are files, and null here: they are skipped before they become objects.
        batches = parquet.iter_batches(columns=wanted) if wanted else ()
        return [
            {name: value}
            for batch in batches
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
            for value in column.drop_null().to_pylist()
        ]


def _content(store: ObjectStore, path: str) -> bytes:
    data = store.read(path)
    if data is None:
        raise _VanishedError
    return data


class _Replay:
    def __init__(self) -> None:
        self._metadata: dict[str, object] = {}
        self._protocol: dict[str, object] = {}
        self._transactions: dict[str, tuple[int, int | None]] = {}

    def apply(self, actions: Iterable[Mapping[str, object]]) -> None:
        for action in actions:
            for name, value in action.items():
                content = cast("dict[str, object]", value)
                if name == "txn":
                    updated_ms = cast("int | None", content.get("lastUpdated"))
                    self._transactions[str(content["appId"])] = int(cast("int", content["version"])), updated_ms
                elif name == "metaData":
                    self._metadata = content
                else:
                    self._protocol = content

    def table(self, url: str, version: int) -> TableState:
        if not self._metadata.get("schemaString") or not self._protocol:
            msg = f"the log of the Delta table {url} names no schema or no protocol"
            raise TableError(msg, "check that the URL is the table's root and that its log is whole")
        features = [*_texts(self._protocol.get("readerFeatures")), *_texts(self._protocol.get("writerFeatures"))]
        # A Parquet map comes as pairs, a JSON object as a dictionary.
        properties = dict(cast("Mapping[str, str]", self._metadata.get("configuration") or {}))
        return TableState(
            version=version,
            table_id=str(self._metadata.get("id", "")),
            schema=str(self._metadata["schemaString"]),
            partition_by=tuple(_texts(self._metadata.get("partitionColumns"))),
            properties=properties,
            reader_version=int(cast("int", self._protocol.get("minReaderVersion", 1))),
            writer_version=int(cast("int", self._protocol.get("minWriterVersion", 1))),
            features=frozenset(features),
            transactions=self._kept(retention_ms(properties.get(TXN_RETENTION, ""))),
        )

    def _kept(self, retained_ms: int | None) -> dict[str, int]:
        """The txn actions that have not expired (rule 4)."""
        oldest_ms = None if retained_ms is None else time.time_ns() // 1_000_000 - retained_ms
        return {
            app_id: version
            for app_id, (version, updated_ms) in self._transactions.items()
            if oldest_ms is None or (updated_ms is not None and updated_ms > oldest_ms)
        }


def _texts(value: object) -> list[str]:
    return [str(item) for item in cast("list[object]", value or [])]
