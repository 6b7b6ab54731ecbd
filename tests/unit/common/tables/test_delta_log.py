"""The log reader, on tables that delta-rs wrote and on hand-written logs."""

import io
import json
import time
import tracemalloc
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

from benchmarks import large_table
from common.errors import TableError
from common.storage.store import FsspecStore
from common.tables.delta_log import clustering_columns, read_table_state
from common.tables.files import referenced_files
from common.tables.history import LoggedCommit, read_history, store_lines
from common.tables.log_files import is_torn, remove_torn_checkpoints
from delta_loader.maintenance.live_files import live_files
from delta_loader.ports import in_turn
from tests.builders import required
from tests.fakes.stores import TrappedStore

SCHEMA = '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
PROTOCOL: dict[str, object] = {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}}
TABLE = {
    "id": "the-table",
    "format": {"provider": "parquet", "options": {}},
    "schemaString": SCHEMA,
    "partitionColumns": ["date"],
    "configuration": {"delta.appendOnly": "true"},
}
METADATA: dict[str, object] = {"metaData": TABLE}


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(str(tmp_path))


def txn(app_id: str, version: int) -> dict[str, object]:
    return {"txn": {"appId": app_id, "version": version, "lastUpdated": 1}}


def commit(store: FsspecStore, version: int, *actions: object, separators: tuple[str, str] = (",", ":")) -> None:
    lines = "".join(json.dumps(action, separators=separators) + "\n" for action in actions)
    store.write(f"_delta_log/{version:020d}.json", lines.encode())


def append(folder: Path, offset: int, *, app_id: str = "orders-0") -> None:
    rows = pa.table({"id": pa.array([offset], pa.int64()), "date": ["2026-03-01"]})
    properties = CommitProperties(app_transactions=[Transaction(app_id, offset)])
    write_deltalake(str(folder), rows, mode="append", partition_by=["date"], commit_properties=properties)


def transactions(store: FsspecStore) -> dict[str, int]:
    state = required(read_table_state(store))
    return dict(state.transactions)


def test_folder_without_a_log_is_not_a_table(store: FsspecStore) -> None:
    assert read_table_state(store) is None
    store.write("date=2026-03-01/file.parquet", b"")
    assert read_table_state(store) is None


def test_table_of_delta_rs_is_read(store: FsspecStore, tmp_path: Path) -> None:
    for offset in (4, 9):
        append(tmp_path, offset)
    append(tmp_path, 3, app_id="orders-1")
    state = read_table_state(store)
    table = DeltaTable(str(tmp_path))
    assert state is not None
    assert state.version == table.version() == 2
    assert state.transactions == {"orders-0": 9, "orders-1": 3}
    assert state.partition_by == ("date",)
    assert state.table_id == str(table.metadata().id)
    assert json.loads(state.schema) == json.loads(table.schema().to_json())
    assert (state.reader_version, state.writer_version) == (
        table.protocol().min_reader_version,
        table.protocol().min_writer_version,
    )


def test_checkpoint_replaces_the_commits_before_it(store: FsspecStore, tmp_path: Path) -> None:
    for offset in range(12):
        append(tmp_path, offset)
    before = read_table_state(store)
    DeltaTable(str(tmp_path)).create_checkpoint()
    store.delete(f"_delta_log/{version:020d}.json" for version in range(11))
    after = read_table_state(store)
    assert after == before
    append(tmp_path, 12)
    assert transactions(store) == {"orders-0": 12}


def test_later_actions_win(store: FsspecStore) -> None:
    commit(store, 0, PROTOCOL, METADATA, txn("a-0", 5), txn("b-0", 1))
    commit(store, 1, txn("a-0", 7))
    commit(store, 2, {"metaData": {**TABLE, "id": "another"}})
    state = required(read_table_state(store))
    assert (state.version, state.table_id) == (2, "another")
    assert state.transactions == {"a-0": 7, "b-0": 1}
    assert state.properties == {"delta.appendOnly": "true"}


def test_protocol_features_are_read(store: FsspecStore) -> None:
    protocol = {
        "minReaderVersion": 3,
        "minWriterVersion": 7,
        "readerFeatures": ["deletionVectors"],
        "writerFeatures": ["deletionVectors", "generatedColumns"],
    }
    commit(store, 0, {"protocol": protocol}, METADATA)
    state = required(read_table_state(store))
    assert state.features == {"deletionVectors", "generatedColumns"}


def test_whitespace_in_the_json_is_ignored(store: FsspecStore) -> None:
    commit(store, 0, PROTOCOL, METADATA, txn("a-0", 5), separators=(", ", ": "))
    store.write("_delta_log/00000000000000000001.json", b'{ "txn" : {"appId": "a-0", "version": 6}}\r\n\n')
    assert transactions(store) == {"a-0": 6}


def test_other_files_in_the_log_folder_are_ignored(store: FsspecStore) -> None:
    commit(store, 0, PROTOCOL, METADATA, txn("a-0", 5))
    for name in (
        "_last_checkpoint",
        "00000000000000000000.crc",
        ".00000000000000000001.json.tmp",
        "00000000000000000000.00000000000000000003.compacted.json",
        "_commits/00000000000000000001.0b4a.json",
        "_sidecars/0b4a.parquet",
    ):
        store.write(f"_delta_log/{name}", b"not for us")
    assert transactions(store) == {"a-0": 5}


def checkpoint_part(*actions: dict[str, object]) -> bytes:
    """A checkpoint as Spark writes it: a column for each kind of action, null in rows of other kinds; maps as maps."""
    table_type = pa.schema(
        [
            ("txn", pa.struct([("appId", pa.string()), ("version", pa.int64()), ("lastUpdated", pa.int64())])),
            ("add", pa.struct([("path", pa.string())])),
            (
                "metaData",
                pa.struct(
                    [
                        ("id", pa.string()),
                        ("schemaString", pa.string()),
                        ("partitionColumns", pa.list_(pa.string())),
                        ("configuration", pa.map_(pa.string(), pa.string())),
                    ]
                ),
            ),
            (
                "protocol",
                pa.struct(
                    [
                        ("minReaderVersion", pa.int32()),
                        ("minWriterVersion", pa.int32()),
                        ("readerFeatures", pa.list_(pa.string())),
                    ]
                ),
            ),
        ]
    )
    buffer = io.BytesIO()
    rows = [{name: action.get(name) for name in table_type.names} for action in actions]
    pq.write_table(pa.Table.from_pylist(rows, schema=table_type), buffer)
    return buffer.getvalue()


PARQUET_METADATA: dict[str, object] = {
    "metaData": {
        "id": "the-table",
        "schemaString": SCHEMA,
        "partitionColumns": ["date"],
        "configuration": [("delta.appendOnly", "true")],
    }
}


CHECKPOINT_2 = checkpoint_part(PROTOCOL, PARQUET_METADATA, txn("a-0", 2), txn("from-the-checkpoint", 9))


def test_multipart_checkpoint_counts_once_all_parts_exist(store: FsspecStore) -> None:
    commit(store, 0, PROTOCOL, METADATA, txn("a-0", 1))
    commit(store, 1, txn("a-0", 2))
    commit(store, 2, txn("a-0", 3))
    # The reader trusts a checkpoint, so a false one shows which was read.
    part = "_delta_log/00000000000000000001.checkpoint.{:010d}.0000000002.parquet"
    store.write(part.format(1), checkpoint_part(PROTOCOL, PARQUET_METADATA, txn("of-one-part", 9)))
    assert transactions(store) == {"a-0": 3}
    store.write(part.format(2), checkpoint_part(txn("a-0", 2), txn("from-the-checkpoint", 9)))
    state = required(read_table_state(store))
    assert state.transactions == {"a-0": 3, "from-the-checkpoint": 9, "of-one-part": 9}
    assert state.properties == {"delta.appendOnly": "true"}
    assert state.partition_by == ("date",)


def test_checkpoint_of_many_files_is_read_within_5_mb(tmp_path: Path) -> None:
    large_table.make(tmp_path, 50_000)
    tracemalloc.start()
    try:
        state = read_table_state(FsspecStore(str(tmp_path)))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert state is not None
    assert (state.version, state.partition_by, state.writer_version) == (1, ("day",), 2)
    assert peak_bytes < 5_000_000


@pytest.mark.parametrize("suffix", ["parquet", "json"])
def test_v2_checkpoint_is_read(store: FsspecStore, suffix: str) -> None:
    name = f"_delta_log/00000000000000000007.checkpoint.0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11.{suffix}"
    if suffix == "parquet":
        store.write(name, checkpoint_part(PROTOCOL, PARQUET_METADATA, txn("a-0", 4)))
    else:
        actions: list[object] = [{"checkpointMetadata": {}}, PROTOCOL, METADATA, txn("a-0", 4)]
        lines = [json.dumps(action) for action in actions]
        store.write(name, "\n".join(lines).encode())
    commit(store, 8, txn("b-0", 1))
    state = required(read_table_state(store))
    assert state.version == 8
    assert state.transactions == {"a-0": 4, "b-0": 1}


@pytest.mark.parametrize(
    ("commits", "message"),
    [
        ({0: (PROTOCOL, METADATA), 2: (txn("a-0", 5),)}, "lacks version 1"),
        ({5: (txn("a-0", 5),)}, "lacks version 0"),
        ({0: (txn("a-0", 5),)}, "no schema or no protocol"),
        ({0: (PROTOCOL, {"metaData": {"id": "t"}})}, "no schema or no protocol"),
    ],
    ids=["a hole", "no first version", "no schema", "columns without a schema"],
)
def test_incomplete_log_is_an_error(store: FsspecStore, commits: dict[int, tuple[object, ...]], message: str) -> None:
    for version, actions in commits.items():
        commit(store, version, *actions)
    with pytest.raises(TableError, match=message):
        read_table_state(store)


def test_commit_cleaned_up_during_the_read_is_not_lost(tmp_path: Path) -> None:
    reads: list[str] = []

    def clean(request: str, path: str) -> None:
        reads.extend([path] if request == "read" else [])
        if len(reads) == 2:  # after the listing, a checkpoint is written and the commits are removed
            part = checkpoint_part(PROTOCOL, PARQUET_METADATA, txn("a-0", 7))
            well.write("_delta_log/00000000000000000001.checkpoint.parquet", part)
            well.delete([f"_delta_log/{version:020d}.json" for version in (0, 1)])

    well, store = FsspecStore(str(tmp_path)), TrappedStore(str(tmp_path), before=clean)
    commit(store, 0, PROTOCOL, METADATA, txn("a-0", 5))
    commit(store, 1, txn("a-0", 7))
    assert transactions(store) == {"a-0": 7}


CHECKPOINT_4 = "_delta_log/00000000000000000004.checkpoint.parquet"
TORN = {"four bytes": b"PAR1", "nothing": b"", "no footer": b"PAR1" + b"x" * 200, "end of another": b"PAR1" * 4}


@pytest.fixture(params=sorted(TORN))
def torn(request: pytest.FixtureRequest, store: FsspecStore) -> FsspecStore:
    """Commits 0 to 5, a checkpoint of version 2, and a torn one of version 4 with the hint that names it."""
    commit(store, 0, PROTOCOL, METADATA, txn("a-0", 0))
    for version in range(1, 6):
        commit(store, version, txn("a-0", version))
    store.write("_delta_log/00000000000000000002.checkpoint.parquet", CHECKPOINT_2)
    store.write(CHECKPOINT_4, TORN[str(request.param)])
    store.write("_delta_log/_last_checkpoint", b'{"version":4,"size":7}')
    return store


def test_torn_checkpoint_is_ignored(torn: FsspecStore) -> None:
    assert transactions(torn) == {"a-0": 5, "from-the-checkpoint": 9}


def test_torn_checkpoint_is_removed_with_its_hint(torn: FsspecStore, monkeypatch: pytest.MonkeyPatch) -> None:
    deleted: list[str] = []

    def delete(paths: Iterable[str]) -> None:
        for path in paths:
            deleted.append(path)
            FsspecStore.delete(torn, [path])

    monkeypatch.setattr(torn, "delete", delete)
    assert remove_torn_checkpoints(torn) == [CHECKPOINT_4]
    assert deleted == ["_delta_log/_last_checkpoint", CHECKPOINT_4], "the hint never names a missing file"
    left = {stored.path for stored in torn.list("_delta_log")}
    assert not left & {CHECKPOINT_4, "_delta_log/_last_checkpoint"}
    assert transactions(torn) == {"a-0": 5, "from-the-checkpoint": 9}
    assert remove_torn_checkpoints(torn) == []


@pytest.mark.parametrize("missing", [(3,), (3, 4, 5)])
def test_torn_checkpoint_stays_where_commits_are_missing(torn: FsspecStore, missing: tuple[int, ...]) -> None:
    torn.delete([f"_delta_log/{version:020d}.json" for version in missing])
    for read in (read_table_state, remove_torn_checkpoints):
        with pytest.raises(TableError, match="lacks version 3, and its checkpoint of version 4 is torn"):
            read(torn)
    assert CHECKPOINT_4 in {stored.path for stored in torn.list("_delta_log")}


def test_torn_part_and_torn_v2_checkpoint_are_ignored(store: FsspecStore) -> None:
    commit(store, 0, PROTOCOL, METADATA, txn("a-0", 0))
    commit(store, 1, txn("a-0", 1))
    names = [f"_delta_log/{1:020d}.checkpoint.{part:010d}.{2:010d}.parquet" for part in (1, 2)]
    names.append(f"_delta_log/{0:020d}.checkpoint.0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11.json")
    for name, content in zip(
        names, (CHECKPOINT_2, CHECKPOINT_2[:-1], b'{"checkpointMetadata":{}}\n{"prot'), strict=True
    ):
        store.write(name, content)
    assert transactions(store) == {"a-0": 1}
    assert remove_torn_checkpoints(store) == [names[1], names[2]]


def test_delta_rs_opens_a_table_after_its_torn_checkpoint_is_removed(store: FsspecStore, tmp_path: Path) -> None:
    for offset in range(3):
        append(tmp_path, offset)
    DeltaTable(str(tmp_path)).create_checkpoint()
    store.write("_delta_log/00000000000000000002.checkpoint.parquet", b"PAR1")
    with pytest.raises(Exception, match="footer"):
        DeltaTable(str(tmp_path))
    assert len(remove_torn_checkpoints(store)) == 1
    assert DeltaTable(str(tmp_path)).to_pyarrow_table().num_rows == 3


def clustering(*columns: list[str], removed: bool = False) -> dict[str, object]:
    configuration = json.dumps({"clusteringColumns": columns, "domainName": "delta.clustering"})
    return {"domainMetadata": {"domain": "delta.clustering", "configuration": configuration, "removed": removed}}


def test_newest_clustering_of_a_table_wins(store: FsspecStore) -> None:
    other = {"domainMetadata": {"domain": "delta.rowTracking", "configuration": "{}", "removed": False}}
    commit(store, 0, PROTOCOL, METADATA)
    assert clustering_columns(store) == ()
    commit(store, 1, clustering(["date"]))
    commit(store, 2, clustering(["id"], ["meta", "at"]))
    commit(store, 3, other, txn("orders-0", 9))
    assert clustering_columns(store) == ("id", "meta.at")
    commit(store, 4, clustering(["id"], removed=True))
    assert clustering_columns(store) == ()


def test_checkpoint_clustering_counts_until_a_later_commit_changes_it(store: FsspecStore) -> None:
    rows = [{"domainMetadata": clustering(["id"])["domainMetadata"]}, {"domainMetadata": None}]
    commit(store, 7, PROTOCOL, METADATA)
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), buffer)
    store.write(f"_delta_log/{7:020d}.checkpoint.parquet", buffer.getvalue())
    assert clustering_columns(store) == ("id",)
    commit(store, 8, clustering(["date"]))
    assert clustering_columns(store) == ("date",)


READERS: list[Callable[[FsspecStore], object]] = [
    read_table_state,
    lambda store: list(referenced_files(store)),
    lambda store: list(live_files(store, in_turn)),
    lambda store: list(read_history(2, store_lines(store))),
]


@pytest.mark.parametrize("read", READERS[:3], ids=["state", "names", "files"])
def test_commit_that_lacks_a_member_is_an_error_that_names_it(store: FsspecStore, read: Callable[..., object]) -> None:
    commit(store, 0, PROTOCOL, METADATA, {"add": {"size": "path"}}, {"txn": {"appId": "a-0"}})
    with pytest.raises(TableError, match=rf"{0:020d}\.json of the table's log cannot be read: "):
        read(store)


@pytest.mark.parametrize("read", READERS, ids=["state", "names", "files", "history"])
def test_damaged_commit_is_an_error_that_names_it(
    store: FsspecStore, tmp_path: Path, read: Callable[..., object]
) -> None:
    for offset in range(3):
        append(tmp_path, offset)
    torn = tmp_path / "_delta_log" / f"{2:020d}.json"
    torn.write_bytes(b"".join(line[:-20] + b"\n" for line in torn.read_bytes().splitlines()))
    with pytest.raises(TableError, match=rf"{torn.name} of the table's log cannot be read: ") as caught:
        read(store)
    assert "restore" in caught.value.remedy


@pytest.mark.parametrize("read", READERS[:3], ids=["state", "names", "files"])
def test_damaged_checkpoint_is_an_error_that_names_it(
    store: FsspecStore, tmp_path: Path, read: Callable[..., object]
) -> None:
    """Its footer's length is plausible, so it is not a torn one, which is skipped."""
    for offset in range(3):
        append(tmp_path, offset)
    DeltaTable(str(tmp_path)).create_checkpoint()
    for commit_file in (tmp_path / "_delta_log").glob("*.json"):
        commit_file.unlink()
    (checkpoint,) = (tmp_path / "_delta_log").glob("*.checkpoint.parquet")
    content = checkpoint.read_bytes()
    checkpoint.write_bytes(b"x" * (len(content) - 8) + content[-8:])
    with pytest.raises(TableError, match=f"{checkpoint.name} of the table's log cannot be read: "):
        read(store)


@pytest.mark.parametrize("last", [b"[1]", b"7", b'{"add":'])
def test_json_checkpoint_that_ends_without_an_action_is_torn(store: FsspecStore, last: bytes) -> None:
    path = f"_delta_log/{0:020d}.checkpoint.{'0' * 8}-0000-0000-0000-{'0' * 12}.json"
    store.write(path, b'{"checkpointMetadata":{"version":0}}\n' + last)
    (checkpoint,) = store.list("_delta_log")
    assert is_torn(store, checkpoint)


@pytest.mark.parametrize(("operation", "restored"), [("RESTORE", 0), ("CLONE", None)])
def test_only_a_restore_restores_a_version(operation: str, restored: int | None) -> None:
    info = {"operation": operation, "operationParameters": {"version": 0}, "readVersion": True}
    logged = LoggedCommit.of(3, info)
    assert (logged.restored_version, logged.read_version) == (restored, None)


def file_of(path: str, vector: str | None = None) -> dict[str, object]:
    deleted = {"storageType": "u", "pathOrInlineDv": vector, "offset": 1, "sizeInBytes": 34, "cardinality": 2}
    about = {"path": path, "size": 5, "modificationTime": 7, "partitionValues": {}, "dataChange": True}
    return about if vector is None else {**about, "deletionVector": deleted}


def live(store: FsspecStore) -> list[tuple[str, int]]:
    return sorted((file.path, file.deleted_rows) for file in live_files(store, in_turn))


def test_newest_action_of_a_file_counts(store: FsspecStore) -> None:
    commit(store, 0, PROTOCOL, METADATA, {"add": file_of("a%20b")}, {"add": file_of("c")})
    commit(store, 1, {"remove": file_of("a%20b")}, {"add": file_of("a%20b", "v1")})
    assert live(store) == [("a b", 2), ("c", 0)]
    commit(store, 2, {"remove": file_of("c")}, {"remove": file_of("a%20b", "v1")}, {"add": file_of("a%20b")})
    assert live(store) == [("a b", 0)]


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_files_in_the_sidecars_of_a_checkpoint_are_live(store: FsspecStore, suffix: str) -> None:
    parsed = pa.struct([("numRecords", pa.int64())])
    numbers = [(name, pa.int64()) for name in ("size", "modificationTime")]
    kind = pa.struct([("path", pa.string()), *numbers, ("stats", pa.string()), ("stats_parsed", parsed)])
    counts = {"a": (None, {"numRecords": 3}), "b": ("{}", None), "c": (None, None)}
    files = [file_of(path) | {"stats": text, "stats_parsed": rows} for path, (text, rows) in counts.items()]
    of_log, sidecar = f"_delta_log/{7:020d}.checkpoint.0b4a5dbe-8d61-4bb7-9e0e-2f8f0b0e3c11.{suffix}", io.BytesIO()
    pq.write_table(pa.table({"add": pa.array(files, kind)}), sidecar)
    store.write("_delta_log/_sidecars/one.parquet", sidecar.getvalue())
    if suffix == "json":
        store.write(of_log, b'{"checkpointMetadata":{}}\n{"sidecar":{"path":"one.parquet"}}')
    else:
        whole = io.BytesIO()
        pq.write_table(pa.table({"sidecar": pa.array([{"path": "_delta_log/_sidecars/one.parquet"}])}), whole)
        store.write(of_log, whole.getvalue())
    listed = [(file.path, file.has_statistics) for file in live_files(store, in_turn)]
    assert listed == [("a", True), ("b", True), ("c", False)]


def test_file_of_a_checkpoint_is_gone_once_it_is_removed_with_its_deletion_vector(store: FsspecStore) -> None:
    commit(store, 0, PROTOCOL, METADATA)
    commit(store, 1)
    rows = [{"add": file_of(path, vector)} for path, vector in (("a%20b", "v1"), ("c", None), ("d", "v2"))]
    for row in rows:
        row["add"]["partitionValues"] = []
    vector = pa.struct([("storageType", pa.string()), ("pathOrInlineDv", pa.string()), ("offset", pa.int32()),
                        ("sizeInBytes", pa.int32()), ("cardinality", pa.int64())])  # fmt: skip
    add = pa.struct([("path", pa.string()), ("size", pa.int64()), ("modificationTime", pa.int64()),
                     ("partitionValues", pa.map_(pa.string(), pa.string())), ("dataChange", pa.bool_()),
                     ("deletionVector", vector)])  # fmt: skip
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows, pa.schema([("add", add)])), sink)
    store.write(f"_delta_log/{1:020d}.checkpoint.parquet", sink.getvalue().to_pybytes())
    assert live(store) == [("a b", 2), ("c", 0), ("d", 2)]
    commit(
        store, 2, {"remove": file_of("a%20b", "v1")}, {"add": file_of("a%20b", "v3")}, {"remove": file_of("d", "v2")}
    )
    assert live(store) == [("a b", 2), ("c", 0)]


def test_position_without_a_time_is_forgotten_where_positions_expire(store: FsspecStore) -> None:
    now_ms = time.time_ns() // 1_000_000
    kept = [
        {"txn": {"appId": f"a-{number}", "version": 5, "lastUpdated": updated_ms}}
        for number, updated_ms in enumerate((now_ms, 1))
    ]
    commit(store, 0, PROTOCOL, METADATA, *kept, {"txn": {"appId": "a-2", "version": 5}})
    assert transactions(store) == {"a-0": 5, "a-1": 5, "a-2": 5}
    properties = {"delta.setTransactionRetentionDuration": "interval 1 day"}
    commit(store, 1, {"metaData": {**TABLE, "configuration": properties}})
    assert transactions(store) == {"a-0": 5}


def test_only_torn_checkpoints_above_the_newest_good_one_are_removed(store: FsspecStore) -> None:
    for version in range(4):
        commit(store, version, PROTOCOL, METADATA, txn("a-0", version))
    names = [f"_delta_log/{version:020d}.checkpoint.parquet" for version in (1, 2, 3)]
    for name, content in zip(names, (b"PAR1", CHECKPOINT_2, b"PAR1"), strict=True):
        store.write(name, content)
    store.delete([f"_delta_log/{version:020d}.json" for version in (0, 1, 2)])
    assert remove_torn_checkpoints(store) == [names[2]]
    assert store.stat(names[0]) is not None
