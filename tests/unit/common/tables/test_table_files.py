"""The files that a log named_files: real logs as delta-rs writes them, with checkpoints and missing commits."""

from pathlib import Path

import deltalake
import pyarrow as pa
import pytest

from common.errors import TableError
from common.storage.store import FsspecStore
from common.tables.files import referenced_files


def named_files(store: FsspecStore) -> set[str]:
    return set().union(*referenced_files(store))


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.rglob("*.parquet") if "_delta_log" not in path.parts}


@pytest.fixture
def table(tmp_path: Path) -> FsspecStore:
    for number in range(3):
        deltalake.write_deltalake(
            str(tmp_path), pa.table({"n": [number], "d": ["a b"]}), mode="append", partition_by=["d"]
        )
    deltalake.DeltaTable(str(tmp_path)).optimize.compact()
    return FsspecStore(str(tmp_path))


@pytest.mark.parametrize("chunk_bytes", [1, 7, 8 << 20])
def test_commits_alone_name_all_files(
    table: FsspecStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk_bytes: int
) -> None:
    monkeypatch.setattr("common.tables.files._CHUNK_BYTES", chunk_bytes)
    assert named_files(table) == files(tmp_path)
    assert len(files(tmp_path)) == 4


def test_checkpoint_replaces_missing_commits(table: FsspecStore, tmp_path: Path) -> None:
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    table.delete([f"_delta_log/{version:020d}.json" for version in range(3)])
    deltalake.write_deltalake(str(tmp_path), pa.table({"n": [9], "d": ["a b"]}), mode="append")
    assert named_files(table) == files(tmp_path), "tombstones, too"


def test_later_checkpoint_is_read_where_earlier_commits_are_missing(table: FsspecStore, tmp_path: Path) -> None:
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    for number in range(2):
        deltalake.write_deltalake(str(tmp_path), pa.table({"n": [number], "d": ["x"]}), mode="append")
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    table.delete([f"_delta_log/{version:020d}.json" for version in (0, 1, 2, 3, 4)])
    assert named_files(table) == files(tmp_path)


def test_missing_version_is_an_error(table: FsspecStore) -> None:
    table.delete([f"_delta_log/{1:020d}.json"])
    with pytest.raises(TableError, match="lacks version 1"):
        named_files(table)


def test_torn_checkpoint_does_not_replace_missing_commits(table: FsspecStore, tmp_path: Path) -> None:
    deltalake.DeltaTable(str(tmp_path)).create_checkpoint()
    (checkpoint,) = (stored.path for stored in table.list("_delta_log") if stored.path.endswith(".parquet"))
    table.write(checkpoint, b"PAR1")
    assert named_files(table) == files(tmp_path)
    table.delete([f"_delta_log/{0:020d}.json"])
    with pytest.raises(TableError, match="lacks version 0"):
        named_files(table)


def test_sidecars_are_followed(table: FsspecStore) -> None:
    import pyarrow.parquet as pq

    part = pa.table({"add": pa.array([{"path": "d=a%20b/in%2Da-sidecar.parquet"}])})
    sink = pa.BufferOutputStream()
    pq.write_table(part, sink)
    table.write("_delta_log/_sidecars/one.parquet", sink.getvalue().to_pybytes())
    line = b'{"checkpointMetadata":{"version":9}}\n{"sidecar":{"path":"one.parquet","sizeInBytes":1}}\n'
    table.write(f"_delta_log/{9:020d}.checkpoint.{'0' * 8}-0000-0000-0000-{'0' * 12}.json", line)
    assert "in-a-sidecar.parquet" in named_files(table)


def test_missing_table_names_no_files(tmp_path: Path) -> None:
    assert named_files(FsspecStore(str(tmp_path))) == set()
