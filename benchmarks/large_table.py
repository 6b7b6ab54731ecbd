"""Makes a Delta table whose log has any number of files; the files themselves do not exist, because a load reads none.

The log is a checkpoint in Delta's format for version 1, or commits without a checkpoint.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.staged import SCHEMA

_AT_A_TIME = 100_000
_TIME_MS = 1_767_225_600_000
_TEXTS = pa.map_(pa.string(), pa.string())
_ADD = pa.struct(
    [
        ("path", pa.string()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("modificationTime", pa.int64()),
        ("dataChange", pa.bool_()),
        ("stats", pa.string()),
    ]
)
_METADATA = pa.struct(
    [
        ("id", pa.string()),
        ("format", pa.struct([("provider", pa.string()), ("options", _TEXTS)])),
        ("schemaString", pa.string()),
        ("partitionColumns", pa.list_(pa.string())),
        ("configuration", _TEXTS),
        ("createdTime", pa.int64()),
    ]
)
_PROTOCOL = pa.struct([("minReaderVersion", pa.int32()), ("minWriterVersion", pa.int32())])
_CHECKPOINT = pa.schema([("add", _ADD), ("metaData", _METADATA), ("protocol", _PROTOCOL)])


def make(table: Path, files: int, properties: Mapping[str, str] | None = None, *, commits: int = 0) -> int:
    """Make a table like that of `benchmarks.staged`, by day, with ``files`` in a checkpoint or in ``commits``.

    Returns its version: with fewer files than commits, there is a commit for each file.
    """
    log = table / "_delta_log"
    log.mkdir(parents=True)
    protocol = {"minReaderVersion": 1, "minWriterVersion": 2}
    metadata = {
        "id": "0b1d7c8e-0000-4000-8000-000000000000",
        "format": {"provider": "parquet", "options": {}},
        "schemaString": SCHEMA,
        "partitionColumns": ["day"],
        "configuration": dict(properties or {}),
        "createdTime": _TIME_MS,
    }
    made = {"commitInfo": {"timestamp": _TIME_MS, "operation": "CREATE TABLE", "operationParameters": {}}}
    written = {"commitInfo": {"timestamp": _TIME_MS, "operation": "WRITE", "operationParameters": {"mode": "Append"}}}
    _commit(log, 0, made, {"protocol": protocol}, {"metaData": metadata})
    if commits:
        each = -(-files // commits)
        for version, adds in enumerate(_adds(files, each), 1):
            _commit(log, version, written, *({"add": {**add, "dataChange": True}} for add in _with_mappings(adds)))
        return -(-files // each)
    _commit(log, 1, written)
    as_pairs = {"configuration": list((properties or {}).items()), "format": {"provider": "parquet", "options": []}}
    settings = [{"metaData": {**metadata, **as_pairs}}]
    with pq.ParquetWriter(log / f"{1:020d}.checkpoint.parquet", _CHECKPOINT) as checkpoint:
        checkpoint.write_table(pa.Table.from_pylist([*settings, {"protocol": protocol}], schema=_CHECKPOINT))
        for adds in _adds(files, _AT_A_TIME):
            nothing = [pa.nulls(len(adds), kind) for kind in (_METADATA, _PROTOCOL)]
            checkpoint.write_table(pa.table([adds, *nothing], schema=_CHECKPOINT))
    (log / "_last_checkpoint").write_text(json.dumps({"version": 1, "size": files + 2}), "utf-8")
    return 1


def _with_mappings(adds: pa.Array) -> Iterator[dict[str, object]]:
    for add in adds.to_pylist():
        yield {**add, "partitionValues": dict(add["partitionValues"])}


def _adds(files: int, at_a_time: int) -> Iterator[pa.Array]:
    for begin in range(0, files, at_a_time):
        numbers = range(begin, min(files, begin + at_a_time))
        adds = (
            {
                "path": f"day=2025-{1 + number % 12:02d}-01/backlog-{number % 1000}-{number:020d}.snappy.parquet",
                "partitionValues": [("day", f"2025-{1 + number % 12:02d}-01")],
                "size": 16_000_000,
                "modificationTime": _TIME_MS,
                "dataChange": False,
                "stats": json.dumps(
                    {
                        "numRecords": 100_000,
                        "minValues": {"id": number, "name": "a", "_kafka_partition": 0, "_kafka_offset": number},
                        "maxValues": {
                            "id": number + 1,
                            "name": "z",
                            "_kafka_partition": 0,
                            "_kafka_offset": number + 1,
                        },
                        "nullCount": {"id": 0, "name": 0, "_kafka_partition": 0, "_kafka_offset": 0},
                    }
                ),
            }
            for number in numbers
        )
        yield pa.array(adds, _ADD)


def _commit(log: Path, version: int, *actions: Mapping[str, object]) -> None:
    (log / f"{version:020d}.json").write_text("".join(json.dumps(action) + "\n" for action in actions), "utf-8")
