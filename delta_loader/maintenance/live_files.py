"""Reads which data files a table's newest version has from its log: without a JVM, in parts.

Rules:

1. The newest of a file's actions counts: commits are read from the newest down, then the checkpoint below them. Only
   the files after the checkpoint are remembered, and the checkpoint's files are streamed.
2. A file with another deletion vector is another file, as in Delta's protocol.
3. A log that changes while it is read is read again by the caller: a log file that disappeared is a TableError.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import cast
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.ports import ObjectStore
from common.tables.log_files import LOG, commits_after, newest_checkpoint, parsing, required_file
from delta_loader.ports import ParallelMap
from delta_loader.tables.history import LiveFile

_ROWS = 50_000
_AT_A_TIME = 64
_VECTOR = ("storageType", "pathOrInlineDv", "offset")
_COLUMNS = ("path", "size", "modificationTime", "partitionValues", "stats", "deletionVector", "clusteringProvider")
Key = tuple[str, str]
"""A file's path in the log and its deletion vector (rule 2)."""


def live_files(store: ObjectStore, parallel: ParallelMap, *, with_statistics: bool = False) -> Iterator[LiveFile]:
    """The table's files, each once; nothing where there is no table. Raises TableError and StoreError."""
    items = list(store.list(LOG))
    base, parts = newest_checkpoint(store, items)
    commits = commits_after(store.url, items, base)[::-1]
    seen: set[Key] = set()
    for start in range(0, len(commits), _AT_A_TIME):
        some = commits[start : start + _AT_A_TIME]
        for path, data in zip(some, parallel(lambda path: required_file(store, path), some), strict=True):
            with parsing(f"{store.url}/{path}"):
                yield from _of_commit(data, seen, with_statistics=with_statistics)
    for path in parts:
        with parsing(f"{store.url}/{path}"):
            yield from _of_checkpoint(store, path, seen, with_statistics=with_statistics)


def _of_commit(data: bytes, seen: set[Key], *, with_statistics: bool) -> Iterator[LiveFile]:
    for line in data.splitlines():
        if not line.replace(b" ", b"", 2).startswith((b'{"add"', b'{"remove"')):
            continue
        for name, action in cast("dict[str, dict[str, object]]", json.loads(line)).items():
            vector = cast("Mapping[str, object] | None", action.get("deletionVector"))
            key = str(action["path"]), _vector_id(vector)
            if key not in seen:
                seen.add(key)
                if name == "add":
                    yield _file(action, vector, with_statistics=with_statistics)


def _file(action: Mapping[str, object], vector: Mapping[str, object] | None, *, with_statistics: bool) -> LiveFile:
    statistics = cast("str | None", action.get("stats"))
    return LiveFile(
        path=unquote(str(action["path"])),
        size_bytes=int(cast("int", action["size"])),
        modified_ms=int(cast("int", action["modificationTime"])),
        partition_values=cast("Mapping[str, str | None]", action.get("partitionValues") or {}),
        has_statistics=bool(statistics),
        statistics=statistics if with_statistics else None,
        is_clustered=action.get("clusteringProvider") is not None,
        deleted_rows=0 if vector is None else int(cast("int", vector.get("cardinality", 0))),
    )


def _of_checkpoint(store: ObjectStore, path: str, seen: set[Key], *, with_statistics: bool) -> Iterator[LiveFile]:
    if path.endswith(".json"):
        data = required_file(store, path)
        yield from _of_commit(data, seen, with_statistics=with_statistics)
        sidecars = [
            str(json.loads(line)["sidecar"]["path"])
            for line in data.splitlines()
            if line.replace(b" ", b"", 2).startswith(b'{"sidecar"')
        ]
    else:
        with store.open(path) as file:
            parquet = pq.ParquetFile(file)
            yield from _of_parquet(parquet, seen, with_statistics=with_statistics)
            sidecars = _sidecars(parquet)
    for sidecar in sidecars:
        sidecar_path = sidecar if sidecar.startswith(f"{LOG}/") else f"{LOG}/_sidecars/{sidecar}"
        with store.open(sidecar_path) as file:
            yield from _of_parquet(pq.ParquetFile(file), seen, with_statistics=with_statistics)


def _sidecars(parquet: pq.ParquetFile) -> list[str]:
    if "sidecar" not in parquet.schema_arrow.names:
        return []
    column = parquet.read(columns=["sidecar.path"])["sidecar"]
    return [row["path"] for row in cast("list[dict[str, str] | None]", column.to_pylist()) if row and row["path"]]


def _of_parquet(parquet: pq.ParquetFile, seen: set[Key], *, with_statistics: bool) -> Iterator[LiveFile]:
    if "add" not in parquet.schema_arrow.names:
        return
    adds = parquet.schema_arrow.field("add").type
    present = {adds.field(index).name for index in range(adds.num_fields)}
    columns = [f"add.{name}" for name in _COLUMNS if name in present]
    if "stats_parsed" in present:
        columns.append("add.stats_parsed.numRecords")
    for batch in parquet.iter_batches(_ROWS, columns=columns):
        added = batch.column("add")
        rows = added.filter(pc.is_valid(added))
        if len(rows):
            yield from _of_rows(cast("pa.StructArray", rows), seen, with_statistics=with_statistics)


def _of_rows(rows: pa.StructArray, seen: set[Key], *, with_statistics: bool) -> Iterator[LiveFile]:
    names = [rows.type.field(index).name for index in range(rows.type.num_fields)]
    arrays = dict(zip(names, rows.flatten(), strict=True))

    def column(name: str) -> Sequence[object]:
        array = arrays.get(name)
        return [None] * len(rows) if array is None else cast("list[object]", array.to_pylist())

    recorded = [array for name, array in arrays.items() if name in ("stats", "stats_parsed")]
    known = [any(flags) for flags in zip(*(pc.is_valid(array).to_pylist() for array in recorded), strict=True)]
    statistics = column("stats") if with_statistics else [None] * len(rows)
    columns = ("path", "size", "modificationTime", "partitionValues", "deletionVector", "clusteringProvider")
    for path, size, modified, values, vector, provider, has_statistics, text in zip(
        *map(column, columns), known or [False] * len(rows), statistics, strict=True
    ):
        vector_fields = cast("Mapping[str, object] | None", vector)
        if (str(path), _vector_id(vector_fields)) in seen:
            continue
        yield LiveFile(
            path=unquote(str(path)),
            size_bytes=int(cast("int", size)),
            modified_ms=int(cast("int", modified)),
            partition_values=dict(cast("list[tuple[str, str | None]]", values or [])),
            has_statistics=has_statistics,
            statistics=cast("str | None", text),
            is_clustered=provider is not None,
            deleted_rows=0 if vector_fields is None else int(cast("int", vector_fields.get("cardinality") or 0)),
        )


def _vector_id(vector: Mapping[str, object] | None) -> str:
    return "" if vector is None else "/".join(str(vector.get(name)) for name in _VECTOR)
