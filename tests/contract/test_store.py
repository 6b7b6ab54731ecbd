"""What every object store must do for the chain: one suite, over memory, a disk, S3 servers and emulated clouds."""

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

from common.clock import SystemClock
from common.errors import ConfigError, StoreError, StoreRefusedError, UnsafeStoreError
from common.ports import AlreadyExists, Created, CreateOutcome, ObjectStore
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.data_files import DataFileName
from common.storage.chunks import ByteChunks
from common.storage.listing_s3 import S3Listing
from common.storage.store import PART_BYTES, FsspecStore, normalised, prove_exclusive_create, prove_writable
from devservices.clouds import Cloud, running_cloud, there
from devservices.proxy import Pass, Refuse, Request, Verdict, running_proxy
from devservices.s3 import S3Server
from tests.conftest import built

ROOT = Path(__file__).parents[2]

# aiohttp's word to gcsfs and adlfs, which send from a thread of their own.
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
        pytest.param("moto", marks=pytest.mark.s3),
        pytest.param("versitygw", marks=pytest.mark.s3),
        *(pytest.param(kind, marks=pytest.mark.s3) for kind in built("minio")),
        *there(),
    ]
)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    unique = uuid.uuid4().hex
    if request.param == "memory":
        return FsspecStore(f"memory://{unique}")
    if request.param == "file":
        return FsspecStore(tmp_path.as_uri())
    server: S3Server | Cloud = request.getfixturevalue(request.param)
    return FsspecStore(f"{server.create_bucket(unique)}/stage", server.storage_options)


@pytest.mark.s3
def test_a_refusal_that_does_not_name_its_condition_is_one(moto: S3Server) -> None:
    """MinIO's."""
    with running_proxy(moto.endpoint_url) as proxy:
        store = FsspecStore(
            f"s3://moto/{uuid.uuid4().hex}", {**moto.storage_options, "endpoint_url": proxy.endpoint_url}
        )
        assert store.create("one", b"ours") == Created()
        refusal = Refuse(412, "PreconditionFailed")
        proxy.policy = lambda request: refusal if "if-none-match" in request.headers else Pass()
        assert store.create("one", b"theirs") == AlreadyExists()
        assert store.create("one", b"ours") == Created()  # a try whose answer was lost


def test_a_root_with_nothing_in_it_is_empty(store: ObjectStore) -> None:
    assert list(store.list("done/")) == []
    assert list(store.list("")) == []
    assert store.read("done/a") is None
    assert store.stat("done/a") is None
    store.delete(["done/a"])


@pytest.mark.parametrize("sizes", [(3, 0, 4), (2 * PART_BYTES - 7, 5), (PART_BYTES, PART_BYTES + 3, 1, 7)])
def test_a_file_of_any_size_arrives_whole_in_pieces(store: ObjectStore, sizes: tuple[int, ...]) -> None:
    pieces = [bytes([number + 1]) * size for number, size in enumerate(sizes)]
    store.upload("data/one.parquet", ByteChunks(pieces))
    assert store.read("data/one.parquet") == b"".join(pieces)


@pytest.mark.parametrize("size", [7, 2 * PART_BYTES + 7])
def test_a_file_is_never_replaced_by_an_upload(store: ObjectStore, size: int) -> None:
    store.upload("data/one.parquet", ByteChunks([b"1" * size]))
    store.upload("data/one.parquet", ByteChunks([b"2" * size]))
    assert store.read("data/one.parquet") == b"1" * size
    assert [item.path for item in store.list("")] == ["data/one.parquet"]


@pytest.mark.s3
@pytest.mark.parametrize("size", [7, 2 * PART_BYTES + 7])
def test_the_deployments_policy_lets_a_writer_add_files_and_replace_none(moto: S3Server, size: int) -> None:
    """The policy's own conditions, asked of each request: the S3 servers of these tests do not know its keys."""
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


def test_of_a_marker_that_is_too_large_no_more_is_read_than_tells_so(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("common.storage.bounded.MOST_BYTES", 100)
    for path, size in (("done/a/0/1.done", 0), ("done/a/0/2.done", 100), ("done/a/0/3.done", 200), ("data/1", 200)):
        store.write(path, b"x" * size)
    sizes = [
        len(store.read(path) or b"") for path in ("done/a/0/1.done", "done/a/0/2.done", "done/a/0/3.done", "data/1")
    ]
    assert sizes == [0, 100, 101, 200]
    assert store.read("done/a/0/4.done") is None


def test_what_was_written_is_read_listed_and_deleted(store: ObjectStore) -> None:
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


def test_a_folder_is_not_the_one_whose_name_it_begins(store: ObjectStore) -> None:
    store.write("done/orders/0/1.done", b"")
    store.write("done/orders-eu/0/1.done", b"")
    store.write("done/orders/01/1.done", b"")
    assert [item.path for item in store.list("done/orders/0/")] == ["done/orders/0/1.done"]


@pytest.mark.s3
@pytest.mark.parametrize("kind", ["moto", "versitygw", *built("minio")])
def test_a_long_listing_is_made_in_ranges_and_has_each_object_once(kind: str, request: pytest.FixtureRequest) -> None:
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
        found = [full for full, _ in S3Listing(store._fs, folder, page=page).items()]
        assert sorted(found) == [f"{folder.removesuffix('done/topic')}{path}" for path in wanted]
        assert len(asked) <= most
    assert sorted(item.path for item in store.list("done/topic/")) == wanted


def test_a_folder_is_no_object(store: ObjectStore) -> None:
    store.write("done/a/1.done", b"one")
    assert store.stat("done/a") is None


def test_size_and_age_are_told(store: ObjectStore) -> None:
    before_ms = SystemClock().wall_ms()
    store.write("a", b"12345")
    uploaded = store.stat("a")
    assert uploaded is not None
    assert (uploaded.path, uploaded.size_bytes) == ("a", 5)
    # S3 tells whole seconds.
    assert before_ms - 1_500 <= uploaded.modified_ms <= SystemClock().wall_ms() + 1_500
    listed = next(iter(store.list("")))
    assert listed.modified_ms // 1000 == uploaded.modified_ms // 1000  # MinIO lists finer than it tells


def test_a_write_replaces_what_was_there(store: ObjectStore) -> None:
    store.write("a", b"first")
    store.write("a", b"second")
    assert store.read("a") == b"second"


def test_a_copy_is_an_object_of_its_own_and_as_young_as_it_is(store: ObjectStore) -> None:
    old, new = "day=a%2Fb c %ü/one", "day=a%2Fb c %ü/two"
    store.write(old, b"bytes")
    before = store.stat(old)
    time.sleep(1.1)  # stores tell whole seconds
    store.copy(old, new)
    after = store.stat(new)
    assert before is not None
    assert after is not None
    assert after.modified_ms > before.modified_ms
    store.delete([old])
    assert store.read(new) == b"bytes"
    with pytest.raises(StoreError):
        store.copy("not there", new)


def test_a_second_create_is_refused_and_changes_nothing(store: ObjectStore) -> None:
    assert store.create("done/t/0/1.done", b"first") == Created()
    assert store.create("done/t/0/1.done", b"second") == AlreadyExists()
    assert store.read("done/t/0/1.done") == b"first"


def test_a_create_that_is_repeated_with_the_same_bytes_is_our_own(store: ObjectStore) -> None:
    assert store.create("done/t/0/1.done", b"same") == Created()
    assert store.create("done/t/0/1.done", b"same") == Created()


def test_a_name_is_free_again_after_a_delete(store: ObjectStore) -> None:
    store.create("a", b"first")
    store.delete(["a"])
    assert store.create("a", b"second") == Created()


def test_an_empty_object_can_be_created_and_is_in_the_way(store: ObjectStore) -> None:
    assert store.create("done/t/0/1.done", b"") == Created()
    assert store.create("done/t/0/1.done", b"x") == AlreadyExists()
    assert store.read("done/t/0/1.done") == b""


def test_of_many_creates_at_once_one_wins_and_the_object_is_its(store: ObjectStore) -> None:
    for attempt in range(5):
        path = f"done/t/0/{attempt}.done"

        def claim(number: int, path: str = path) -> CreateOutcome:
            return store.create(path, b"writer %d" % number * 100)

        with ThreadPoolExecutor(8) as pool:
            outcomes = list(pool.map(claim, range(8)))
        winners = [number for number, outcome in enumerate(outcomes) if isinstance(outcome, Created)]
        assert len(winners) == 1
        assert store.read(path) == b"writer %d" % winners[0] * 100


def test_the_store_proves_fit_and_keeps_nothing_of_the_proof(store: ObjectStore) -> None:
    prove_exclusive_create(store)
    prove_writable(store)
    assert list(store.list("")) == []


@pytest.mark.parametrize(
    "name",
    ["a b", "a=b", "100%", "%2F", "東京", "Ελλάδα", "a+b", "a&b", "a;b", "a,b", "(a)", "~a", "@", "$", "!", ".a", "a~"],
)
def test_every_name_that_a_partition_value_can_make_goes_round(store: ObjectStore, name: str) -> None:
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


def test_a_data_file_of_the_longest_names_goes_round(store: ObjectStore) -> None:
    partition = TopicPartition(Topic("t" * 249), Partition(2**31 - 1))
    values = tuple((f"column{number}", "東" * 1000) for number in range(4))
    path = DataFileName(partition, Position(0), str(uuid.uuid4()), values).path
    store.write(path, b"bytes")
    assert [item.path for item in store.list("")] == [path]
    assert store.read(path) == b"bytes"


def test_a_part_of_an_object_is_read_by_seeking(store: ObjectStore) -> None:
    store.write("big", bytes(range(256)) * 1000)
    with store.open("big") as file:
        file.seek(-256, 2)
        assert file.read(4) == b"\0\1\2\3"
        file.seek(1)
        assert file.read(2) == b"\1\2"


def test_many_objects_are_read_in_the_order_that_was_asked_for(store: ObjectStore) -> None:
    paths = [f"state/{number}" for number in range(20)]
    for path in paths[::2]:
        store.write(path, path.encode())
    wanted = [None if number % 2 else path.encode() for number, path in enumerate(paths)]
    assert list(store.read_each(paths)) == wanted
    assert list(store.read_each(reversed(paths))) == wanted[::-1]


def test_bytes_of_a_data_file_s_size_go_round(store: ObjectStore) -> None:
    data = uuid.uuid4().bytes * 500_000  # 8 MB, above what S3 clients send in one part by default
    store.write("data.parquet", data)
    assert store.read("data.parquet") == data


# What is particular to one of them.


def test_on_a_local_disk_no_temporary_file_is_seen_or_left(tmp_path: Path) -> None:
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
def test_on_a_local_disk_the_bytes_are_synced_before_the_name_and_the_name_before_the_answer(
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


def test_a_full_disk_is_no_fuller_after_a_try_and_its_error_says_what_to_do(
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


def test_a_name_that_is_too_long_for_a_local_disk_is_no_outage(tmp_path: Path) -> None:
    store, path = FsspecStore(str(tmp_path)), f"{'a' * 300}.json"
    for call in (store.read, store.stat, lambda path: store.create(path, b"one")):
        with pytest.raises(StoreRefusedError, match="too long") as caught:
            call(path)
        assert "a shorter app_id" in caught.value.remedy


def test_an_operator_s_touch_is_a_marker(tmp_path: Path) -> None:
    (tmp_path / "done" / "orders" / "0").mkdir(parents=True)
    (tmp_path / "done" / "orders" / "0" / "41.done").touch()
    store = FsspecStore(tmp_path.as_uri())
    assert [item.path for item in store.list("done/")] == ["done/orders/0/41.done"]
    assert store.read("done/orders/0/41.done") == b""


def test_a_store_that_lets_two_creates_win_is_found_unfit(tmp_path: Path) -> None:
    class Careless(FsspecStore):
        def create(self, path: str, data: bytes) -> CreateOutcome:
            self.write(path, data)
            return Created()

    with pytest.raises(UnsafeStoreError, match="ignores conditional writes") as caught:
        prove_exclusive_create(Careless(tmp_path.as_uri()))
    assert caught.value.exit_code == 2
    assert "If-None-Match" in caught.value.remedy


def test_a_store_that_only_fails_in_a_race_is_found_unfit(tmp_path: Path) -> None:
    class Racy(FsspecStore):
        def create(self, path: str, data: bytes) -> CreateOutcome:
            if path.endswith("-race"):
                self.write(path, data)
                return Created()
            return super().create(path, data)

    with pytest.raises(UnsafeStoreError):
        prove_exclusive_create(Racy(tmp_path.as_uri()))


@pytest.mark.parametrize("url", ["nothing://a/b", "s3x://bucket"])
def test_a_url_that_fsspec_does_not_know_is_a_wrong_config(url: str) -> None:
    with pytest.raises(ConfigError, match=url):
        FsspecStore(url)


def test_an_option_that_the_store_does_not_take_is_named() -> None:
    store = FsspecStore("s3://bucket/stage", {"no_such_option": 1, "key": "a", "secret": "b"})
    with pytest.raises(StoreError, match="no_such_option") as caught:
        store.read("a")
    assert "storage_options" in caught.value.remedy


def test_a_store_that_is_not_there_is_an_error_with_a_remedy() -> None:
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "a", "secret": "b", "client_kwargs": {"region_name": "x"}}
    store = FsspecStore("s3://bucket/stage", {**options, "config_kwargs": {"retries": {"max_attempts": 1}}})
    with pytest.raises(StoreError, match="s3://bucket/stage/a") as caught:
        store.read("a")
    assert "storage_options" in caught.value.remedy


@pytest.mark.s3
def test_a_wrong_key_is_an_error_that_names_the_credentials(versitygw: S3Server) -> None:
    options = {**versitygw.storage_options, "secret": "wrong"}
    store = FsspecStore(f"s3://{versitygw.kind}/stage", options)
    with pytest.raises(StoreError) as caught:
        store.write("a", b"")
    assert "credentials" in caught.value.remedy
    assert "wrong" not in str(caught.value)


def test_sparks_name_for_s3_is_fsspecs() -> None:
    assert normalised("s3a://bucket/a") == normalised("s3n://bucket/a") == "s3://bucket/a"
    assert normalised("file:///a") == "file:///a"
