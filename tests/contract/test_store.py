"""The behavior that the chain needs of every object store: over memory, a disk, S3 servers and emulated clouds."""

import errno
import json
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock

import pytest

from bootstrap.apply.repair_lock import GuardedStore
from common.clock import SystemClock
from common.errors import ConfigError, StoreError, StoreRefusedError, UnsafeStoreError
from common.ports import AlreadyExists, Created, CreateOutcome, ObjectStore
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.data_files import DataFileName
from common.storage.chunks import ByteChunks
from common.storage.listing import S3Listing
from common.storage.store import PART_BYTES, FsspecStore, normalized, prove_exclusive_create, prove_writable
from devservices.clouds import Cloud, available_clouds, running_cloud
from devservices.proxy import Pass, Refuse, Request, Verdict, running_proxy
from devservices.s3 import S3Server
from tests.conftest import built

ROOT = Path(__file__).parents[2]

# aiohttp warns gcsfs and adlfs, which send from their own thread.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture(scope="module")
def gcs() -> Iterator[Cloud]:
    with running_cloud("gcs") as cloud:
        yield cloud


@pytest.fixture(scope="module")
def azure() -> Iterator[Cloud]:
    with running_cloud("azure") as cloud:
        yield cloud


@pytest.fixture(
    params=[
        "memory",
        "file",
        "locked",
        pytest.param("moto", marks=pytest.mark.s3),
        pytest.param("versitygw", marks=pytest.mark.s3),
        *(pytest.param(kind, marks=pytest.mark.s3) for kind in built("minio")),
        *available_clouds(),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    unique = uuid.uuid4().hex
    if request.param == "memory":
        return FsspecStore(f"memory://{unique}")
    if request.param == "locked":
        return GuardedStore(FsspecStore(tmp_path.as_uri()), TopicPartition(Topic("orders"), Partition(0)), 1)
    if request.param == "file":
        return FsspecStore(tmp_path.as_uri())
    server: S3Server | Cloud = request.getfixturevalue(request.param)
    return FsspecStore(f"{server.create_bucket(unique)}/stage", server.storage_options)


@pytest.mark.s3
def test_refusal_without_the_condition_s_name_counts_as_a_refusal(moto: S3Server) -> None:
    """MinIO refuses so."""
    with running_proxy(moto.endpoint_url) as proxy:
        store = FsspecStore(
            f"s3://moto/{uuid.uuid4().hex}", {**moto.storage_options, "endpoint_url": proxy.endpoint_url}
        )
        assert store.create("one", b"ours") == Created()
        refusal = Refuse(412, "PreconditionFailed")
        proxy.policy = lambda request: refusal if "if-none-match" in request.headers else Pass()
        assert store.create("one", b"theirs") == AlreadyExists()
        assert store.create("one", b"ours") == Created()  # a retry after a lost response


def test_empty_root_lists_and_reads_nothing(store: ObjectStore) -> None:
    assert list(store.list("done/")) == []
    assert list(store.list("")) == []
    assert store.read("done/a") is None
    assert store.stat("done/a") is None
    store.delete(["done/a"])


@pytest.mark.parametrize("sizes", [(3, 0, 4), (2 * PART_BYTES - 7, 5), (PART_BYTES, PART_BYTES + 3, 1, 7)])
def test_file_of_any_size_is_uploaded_in_parts(store: ObjectStore, sizes: tuple[int, ...]) -> None:
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    store.upload("data/one.parquet", ByteChunks(pieces))
    assert store.read("data/one.parquet") == b"".join(pieces)


@pytest.mark.parametrize("size", [7, 2 * PART_BYTES + 7])
def test_upload_never_replaces_a_file(store: ObjectStore, size: int) -> None:
    store.upload("data/one.parquet", ByteChunks([b"1" * size]))
    store.upload("data/one.parquet", ByteChunks([b"2" * size]))
    assert store.read("data/one.parquet") == b"1" * size
    assert [item.path for item in store.list("")] == ["data/one.parquet"]


@pytest.mark.s3
@pytest.mark.parametrize("size", [7, 2 * PART_BYTES + 7])
def test_deployment_policy_lets_a_writer_add_but_not_replace_files(moto: S3Server, size: int) -> None:
    """The policy's conditions, applied to each request: the S3 servers of these tests do not know its keys."""
    statements = json.loads((ROOT / "deploy" / "aws" / "writer-policy.json").read_text("utf-8"))["Statement"]
    conditions = [
        statement.get("Condition", {})
        for statement in statements
        if statement["Effect"] == "Allow"
        and "s3:PutObject" in statement["Action"]
        and statement["Resource"].endswith(":::lake/tables/*")
    ]
    unnamed = Refuse(403, "AccessDenied")

    def judge(request: Request) -> Verdict:
        if request.method not in {"PUT", "POST"}:
            return Pass()
        creates = "partNumber=" not in request.query and "uploads" not in request.query
        asked = {
            "Null": {"s3:if-none-match": str("if-none-match" not in request.headers).lower()},
            "Bool": {"s3:ObjectCreationOperation": str(creates).lower()},
        }
        return Pass() if any(_holds(condition, asked) for condition in conditions) else unnamed

    with running_proxy(moto.endpoint_url) as proxy:
        bucket = moto.create_bucket(uuid.uuid4().hex)
        options = {**moto.storage_options, "endpoint_url": proxy.endpoint_url}
        store = FsspecStore(bucket, options)
        proxy.policy = judge
        store.upload("tables/orders/one.parquet", ByteChunks([b"1" * size]))
        prove_writable(FsspecStore(f"{bucket}/tables/orders", options))
        with pytest.raises(StoreRefusedError):
            store.write("tables/orders/one.parquet", b"2")
        assert store.read("tables/orders/one.parquet") == b"1" * size


def _holds(condition: dict[str, dict[str, str]], asked: dict[str, dict[str, str]]) -> bool:
    return all(asked[operator][key] == value for operator, keys in condition.items() for key, value in keys.items())


def test_oversized_marker_is_read_only_up_to_the_limit(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("common.storage.bounded.MOST_BYTES", 100)
    for path, size in (("done/a/0/1.done", 0), ("done/a/0/2.done", 100), ("done/a/0/3.done", 200), ("data/1", 200)):
        store.write(path, b"x" * size)
    sizes = [
        len(store.read(path) or b"") for path in ("done/a/0/1.done", "done/a/0/2.done", "done/a/0/3.done", "data/1")
    ]
    assert sizes == [0, 100, 101, 200]
    assert store.read("done/a/0/4.done") is None


def test_written_objects_are_read_listed_and_deleted(store: ObjectStore) -> None:
    store.write("done/a/1.done", b"one")
    store.write("done/a/deeper/2.done", b"")
    store.write("other/3", b"three")
    assert store.read("done/a/1.done") == b"one"
    assert store.read("done/a/deeper/2.done") == b""
    assert {item.path: item.size_bytes for item in store.list("done/")} == {
        "done/a/1.done": 3,
        "done/a/deeper/2.done": 0,
    }
    store.delete(["done/a/none", "done/a/1.done"])
    assert [item.path for item in store.list("done")] == ["done/a/deeper/2.done"]
    assert sorted(item.path for item in store.list("")) == ["done/a/deeper/2.done", "other/3"]


def test_listing_a_folder_excludes_longer_names(store: ObjectStore) -> None:
    store.write("done/orders/0/1.done", b"")
    store.write("done/orders-eu/0/1.done", b"")
    store.write("done/orders/01/1.done", b"")
    assert [item.path for item in store.list("done/orders/0/")] == ["done/orders/0/1.done"]


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["moto", "versitygw", *built("minio")])
def test_long_listing_is_split_into_ranges_and_has_each_object_once(kind: str, request: pytest.FixtureRequest) -> None:
    server: S3Server = request.getfixturevalue(kind)
    store = FsspecStore(f"{server.create_bucket(uuid.uuid4().hex)}/stage", server.storage_options)
    paths = {f"done/topic/{partition}/{start:03d}.done" for partition in range(40) for start in range(5)}
    paths |= {"done/topi", "done/topic/9999", "done/topic/a b/ü%2F", "done/topic2/1"}
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda path: store.write(path, b""), paths))
    folder, asked = store._full("done/topic"), []
    call, lock = store._fs.call_s3, Lock()

    def counted(*args: object, **options: object) -> object:
        with lock:
            asked.append(options)
        return call(*args, **options)

    store._fs.call_s3 = counted
    wanted = sorted(path for path in paths if path.startswith("done/topic/"))
    for page, most in ((1_000, 1), (20, 4 + 3 + 16 + 12), (3, 4 + 15 + 16 + 68)):
        asked.clear()
        listed = [full for full, _ in S3Listing(store._fs, folder, page=page).items()]
        assert sorted(listed) == [f"{folder.removesuffix('done/topic')}{path}" for path in wanted]
        assert len(asked) <= most
    assert sorted(item.path for item in store.list("done/topic/")) == wanted


def test_folder_is_not_an_object(store: ObjectStore) -> None:
    store.write("done/a/1.done", b"one")
    assert store.stat("done/a") is None


def test_stat_has_size_and_age(store: ObjectStore) -> None:
    before_ms = SystemClock().wall_ms()
    store.write("a", b"12345")
    uploaded = store.stat("a")
    assert uploaded is not None
    assert (uploaded.path, uploaded.size_bytes) == ("a", 5)
    # S3 has a resolution of whole seconds.
    assert before_ms - 1_500 <= uploaded.modified_ms <= SystemClock().wall_ms() + 1_500
    listed = next(iter(store.list("")))
    assert listed.modified_ms // 1000 == uploaded.modified_ms // 1000  # MinIO's listing is finer than its stat


def test_write_replaces_the_object(store: ObjectStore) -> None:
    store.write("a", b"first")
    store.write("a", b"second")
    assert store.read("a") == b"second"


def test_copy_is_a_separate_new_object(store: ObjectStore) -> None:
    old, new = "day=a%2Fb c %ü/one", "day=a%2Fb c %ü/two"
    store.write(old, b"bytes")
    before = store.stat(old)
    time.sleep(1.1)  # stores have a resolution of whole seconds
    store.copy(old, new)
    after = store.stat(new)
    assert before is not None
    assert after is not None
    assert after.modified_ms > before.modified_ms
    store.delete([old])
    assert store.read(new) == b"bytes"
    with pytest.raises(StoreError):
        store.copy("not there", new)


def test_second_create_is_refused_and_changes_nothing(store: ObjectStore) -> None:
    assert store.create("done/t/0/1.done", b"first") == Created()
    assert store.create("done/t/0/1.done", b"second") == AlreadyExists()
    assert store.read("done/t/0/1.done") == b"first"


def test_create_repeated_with_the_same_bytes_succeeds(store: ObjectStore) -> None:
    assert store.create("done/t/0/1.done", b"same") == Created()
    assert store.create("done/t/0/1.done", b"same") == Created()


def test_name_can_be_created_again_after_a_delete(store: ObjectStore) -> None:
    store.create("a", b"first")
    store.delete(["a"])
    assert store.create("a", b"second") == Created()


def test_empty_object_can_be_created_and_blocks_another_create(store: ObjectStore) -> None:
    assert store.create("done/t/0/1.done", b"") == Created()
    assert store.create("done/t/0/1.done", b"x") == AlreadyExists()
    assert store.read("done/t/0/1.done") == b""


def test_one_of_many_concurrent_creates_wins(store: ObjectStore) -> None:
    for attempt in range(5):
        path = f"done/t/0/{attempt}.done"

        def claim(number: int, path: str = path) -> CreateOutcome:
            return store.create(path, b"writer %d" % number * 100)

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(claim, range(8)))
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Created)]
        assert len(winners) == 1
        assert store.read(path) == b"writer %d" % winners[0] * 100


def test_store_passes_its_probes_and_keeps_none_of_their_objects(store: ObjectStore) -> None:
    prove_exclusive_create(store)
    prove_writable(store)
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    "name",
    ["a b", "a=b", "100%", "%2F", "東京", "Ελλάδα", "a+b", "a&b", "a;b", "a,b", "(a)", "~a", "@", "$", "!", ".a", "a~"],
)
def test_every_name_of_a_partition_value_round_trips(store: ObjectStore, name: str) -> None:
    path = f"city={name}/file.parquet"
    store.write(path, b"bytes")
    assert store.read(path) == b"bytes"
    stored = store.stat(path)
    assert stored is not None
    assert stored.size_bytes == 5
    assert [listed.path for listed in store.list("")] == [path]
    assert [listed.path for listed in store.list(f"city={name}")] == [path]
    with store.open(path) as file:
        assert file.read() == b"bytes"
    store.delete([path])
    assert store.read(path) is None


def test_longest_data_file_name_round_trips(store: ObjectStore) -> None:
    partition = TopicPartition(Topic("t" * 249), Partition(2**31 - 1))
    values = tuple((f"column{number}", "東" * 1000) for number in range(4))
    path = DataFileName(partition, Position(0), str(uuid.uuid4()), values).path
    store.write(path, b"bytes")
    assert [item.path for item in store.list("")] == [path]
    assert store.read(path) == b"bytes"


def test_part_of_an_object_is_read_by_seeking(store: ObjectStore) -> None:
    store.write("big", bytes(range(256)) * 1000)
    with store.open("big") as file:
        file.seek(-256, 2)
        assert file.read(4) == b"\0\1\2\3"
        file.seek(1)
        assert file.read(2) == b"\1\2"


def test_objects_are_read_in_the_requested_order(store: ObjectStore) -> None:
    paths = [f"state/{number}" for number in range(20)]
    for path in paths[::2]:
        store.write(path, path.encode())
    wanted = [None if number % 2 else path.encode() for number, path in enumerate(paths)]
    assert list(store.read_each(paths)) == wanted
    assert list(store.read_each(reversed(paths))) == wanted[::-1]


def test_data_of_several_megabytes_round_trips(store: ObjectStore) -> None:
    data = uuid.uuid4().bytes * 500_000  # 8 MB, above what S3 clients send in one part by default
    store.write("data.parquet", data)
    assert store.read("data.parquet") == data


# Particular to one kind of store.


def test_local_temporary_files_are_not_listed_or_left(tmp_path: Path) -> None:
    store = FsspecStore(str(tmp_path))
    store.create("done/t/0/1.done", b"one")
    store.create("done/t/0/1.done", b"two")
    store.write("a", b"one")
    (tmp_path / "done" / "t" / "0" / ".0123.kde-tmp").write_bytes(b"torn by a crash")
    assert sorted(item.path for item in store.list("")) == ["a", "done/t/0/1.done"]
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert sorted(left) == [".0123.kde-tmp", "1.done", "a"]


@pytest.mark.parametrize(
    ("change", "steps"),
    [
        (lambda store: store.create("b", b"two"), ["file", "link", "folder"]),
        (lambda store: store.write("b", b"two"), ["file", "replace", "folder"]),
        (lambda store: store.copy("a", "b"), ["file", "file", "replace", "folder"]),
    ],
    ids=["create", "write", "copy"],
)
def test_local_bytes_are_synced_before_the_name_and_the_name_before_the_return(
    change: Callable[[FsspecStore], object], steps: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, seen = FsspecStore(str(tmp_path)), list[str]()
    store.write("a", b"one")
    fsync = os.fsync

    def synced(handle: int) -> None:
        seen.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        fsync(handle)

    def watched(step: str) -> Callable[[str, str], None]:
        real: Callable[[str, str], None] = getattr(os, step)

        def named(source: str, target: str) -> None:
            seen.append(step)
            real(source, target)

        return named

    monkeypatch.setattr(os, "fsync", synced)
    for step in ("link", "replace"):
        monkeypatch.setattr(os, step, watched(step))
    change(store)
    assert seen == steps


def test_failed_write_to_a_full_disk_leaves_nothing_and_has_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    store = FsspecStore(str(tmp_path))
    store.write("a", b"one")
    monkeypatch.setattr(os, "fsync", full)
    writes: tuple[Callable[[str, bytes], object], ...] = (
        store.create,
        store.write,
        lambda path, _: store.copy("a", path),
        lambda path, data: store.upload(path, ByteChunks([data])),
    )
    for write in writes:
        with pytest.raises(StoreError, match="No space left") as caught:
            write("b", b"two")
        assert "free some space" in caught.value.remedy
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a"]


def test_overlong_local_name_is_refused_with_a_remedy(tmp_path: Path) -> None:
    store, path = FsspecStore(str(tmp_path)), f"{'a' * 300}.json"
    for call in (store.read, store.stat, lambda path: store.create(path, b"one")):
        with pytest.raises(StoreRefusedError, match="too long") as caught:
            call(path)
        assert "a shorter app_id" in caught.value.remedy


def test_operator_s_touched_file_is_a_marker(tmp_path: Path) -> None:
    (tmp_path / "done" / "orders" / "0").mkdir(parents=True)
    (tmp_path / "done" / "orders" / "0" / "41.done").touch()
    store = FsspecStore(tmp_path.as_uri())
    assert [item.path for item in store.list("done/")] == ["done/orders/0/41.done"]
    assert store.read("done/orders/0/41.done") == b""


def test_store_that_ignores_conditional_writes_is_unsafe(tmp_path: Path) -> None:
    class Careless(FsspecStore):
        def create(self, path: str, data: bytes) -> CreateOutcome:
            self.write(path, data)
            return Created()

    with pytest.raises(UnsafeStoreError, match="ignores conditional writes") as caught:
        prove_exclusive_create(Careless(tmp_path.as_uri()))
    assert caught.value.exit_code == 2
    assert "If-None-Match" in caught.value.remedy


def test_store_that_only_fails_in_a_race_is_unsafe(tmp_path: Path) -> None:
    class Racy(FsspecStore):
        def create(self, path: str, data: bytes) -> CreateOutcome:
            if path.endswith("-race"):
                self.write(path, data)
                return Created()
            return super().create(path, data)

    with pytest.raises(UnsafeStoreError):
        prove_exclusive_create(Racy(tmp_path.as_uri()))


@pytest.mark.parametrize("url", ["nothing://a/b", "s3x://bucket"])
def test_url_that_fsspec_does_not_know_is_a_config_error(url: str) -> None:
    with pytest.raises(ConfigError, match=url):
        FsspecStore(url)


def test_unknown_storage_option_is_named() -> None:
    store = FsspecStore("s3://bucket/stage", {"no_such_option": 1, "key": "a", "secret": "b"})
    with pytest.raises(StoreError, match="no_such_option") as caught:
        store.read("a")
    assert "storage_options" in caught.value.remedy


def test_unreachable_store_is_an_error_with_a_remedy() -> None:
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "a", "secret": "b", "client_kwargs": {"region_name": "x"}}
    store = FsspecStore("s3://bucket/stage", {**options, "config_kwargs": {"retries": {"max_attempts": 1}}})
    with pytest.raises(StoreError, match="s3://bucket/stage/a") as caught:
        store.read("a")
    assert "storage_options" in caught.value.remedy


@pytest.mark.s3
def test_wrong_key_is_an_error_that_names_the_credentials(versitygw: S3Server) -> None:
    options = {**versitygw.storage_options, "secret": "wrong"}
    store = FsspecStore(f"s3://{versitygw.kind}/stage", options)
    with pytest.raises(StoreError) as caught:
        store.write("a", b"")
    assert "credentials" in caught.value.remedy
    assert "wrong" not in str(caught.value)


def test_spark_s_s3_schemes_are_normalized() -> None:
    assert normalized("s3a://bucket/a") == normalized("s3n://bucket/a") == "s3://bucket/a"
    assert normalized("file:///a") == "file:///a"
