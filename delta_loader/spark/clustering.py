"""The columns that a table is clustered by (liquid clustering): Delta keeps them in its log as domain metadata."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

import pyarrow.parquet as pq

from common.tables.log_files import COMMIT, LOG, newest_checkpoint

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from common.ports import ObjectStore

_DOMAIN = "delta.clustering"


def clustering_columns(store: ObjectStore) -> tuple[str, ...]:
    """The columns, physical names with dots; none for a table that is not clustered. Raises StoreError."""
    for action in _newest_first(store):
        if action.get("domain") == _DOMAIN:
            if action.get("removed"):
                return ()
            configuration = json.loads(str(action.get("configuration") or "{}"))
            columns = cast("list[list[str]]", configuration.get("clusteringColumns") or [])
            return tuple(".".join(column) for column in columns)
    return ()


def _newest_first(store: ObjectStore) -> Iterator[Mapping[str, object]]:
    items = list(store.list(LOG))
    base, parts = newest_checkpoint(store, items)
    commits = {int(match[1]): match[0] for item in items if (match := COMMIT.fullmatch(item.path)) is not None}
    for version in sorted(commits, reverse=True):
        if base is None or version > base:
            yield from _of_json(store, commits[version])
    for path in parts:
        if path.endswith(".json"):
            yield from _of_json(store, path)
            continue
        with store.open(path) as file:
            parquet = pq.ParquetFile(file)
            if "domainMetadata" in parquet.schema_arrow.names:
                rows = parquet.read(columns=["domainMetadata"])["domainMetadata"].to_pylist()
                yield from (row for row in cast("list[dict[str, object] | None]", rows) if row is not None)


def _of_json(store: ObjectStore, path: str) -> Iterator[Mapping[str, object]]:
    for line in (store.read(path) or b"").splitlines():
        if line.replace(b" ", b"", 2).startswith(b'{"domainMetadata"'):
            yield cast("Mapping[str, object]", json.loads(line)["domainMetadata"])
