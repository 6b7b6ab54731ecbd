"""The options that fsspec gets in addition to the storage options."""

import errno
import gc
import os
from threading import Event, Thread
from typing import cast

import fsspec
import pytest
from botocore.exceptions import ClientError, ParamValidationError
from fsspec.implementations.memory import MemoryFileSystem
from s3fs import S3FileSystem

from common.errors import StoreError, StoreRefusedError
from common.storage import store as stores
from common.storage.chunks import ByteChunks
from common.storage.store import PART_BYTES, FsspecStore, client_options
from tests.fakes.locks import WatchedLock

HERE = {"AWS_REGION": "eu-central-1"}


@pytest.mark.parametrize(
    ("url", "options", "environ", "added"),
    [
        pytest.param(
            "s3a://lake/stage", {"key": "k"}, HERE, {"client_kwargs": {"region_name": "eu-central-1"}}, id="s3"
        ),
        pytest.param(
            "s3://lake",
            {"client_kwargs": {"verify": "/ca.pem"}},
            HERE,
            {"client_kwargs": {"verify": "/ca.pem", "region_name": "eu-central-1"}},
            id="next to other options",
        ),
        pytest.param("s3://lake", {"client_kwargs": {"region_name": "eu-west-1"}}, HERE, {}, id="given by the config"),
        pytest.param(
            "s3://lake", {"config_kwargs": {"region_name": "eu-west-1"}}, HERE, {}, id="given in config_kwargs"
        ),
        pytest.param(
            "s3://lake", {"key": "k"}, {"AWS_DEFAULT_REGION": "eu-west-1"}, {}, id="read by the client itself"
        ),
        pytest.param("gs://lake", {"token": "t"}, HERE, {}, id="another store"),
    ],
)
def test_environment_region_reaches_the_s3_client(
    url: str, options: dict[str, object], environ: dict[str, str], added: dict[str, object]
) -> None:
    given = client_options(url, options, environ)
    connections = {"max_pool_connections": 256} if url.startswith("s3") else {}
    config = {**connections, **cast("dict[str, object]", options.get("config_kwargs", {}))}
    assert given == {**options, **added, **({"config_kwargs": config} if config else {})}


def test_connections_of_the_config_are_kept() -> None:
    options = {"config_kwargs": {"max_pool_connections": 3}}
    assert client_options("s3://lake", options, {}) == options


def test_stores_of_a_bucket_share_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """An S3 client takes 10 MB. Options, buckets and forks get separate ones, which end with their last store."""
    opened: list[str] = []
    url_to_fs = fsspec.url_to_fs

    def counted(url: str, **options: object) -> object:
        opened.append(url)
        return url_to_fs(url, **options)

    monkeypatch.setattr(fsspec, "url_to_fs", counted)
    options: dict[str, object] = {"key": "k", "secret": "s"}
    stores = [FsspecStore(f"s3://lake/{path}", options) for path in ("stage", "a", "b/")]
    assert opened == ["s3://lake/stage"]
    stores += [FsspecStore("s3a://lake/a", options), FsspecStore("s3://pond/a", options)]
    stores += [FsspecStore("s3://lake/a", {**options, "endpoint_url": "http://localhost:1"})]
    assert opened == ["s3://lake/stage", "s3://pond/a", "s3://lake/a"]
    pid = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)
    stores += [FsspecStore("s3://lake/a", options)]
    assert opened[3:] == ["s3://lake/a"]
    stores.clear()
    gc.collect()
    FsspecStore("s3://lake/a", options)
    assert opened[4:] == ["s3://lake/a"]


def test_stores_that_share_a_client_keep_separate_folders() -> None:
    stores = [FsspecStore(f"memory://shared-client/{path}") for path in ("a", "b/", "b/c")]
    for store in stores:
        store.write("name", store.url.encode())
    assert [store.read("name") for store in stores] == [store.url.encode() for store in stores]
    assert [[stored.path for stored in store.list("")] for store in stores] == [["name"], ["c/name", "name"], ["name"]]


def test_only_a_large_file_is_uploaded_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each part is a request, and so are their begin and end."""
    in_parts: list[bool] = []

    async def uploaded(_fs: S3FileSystem, _path: str, data: bytes | ByteChunks, **options: object) -> None:
        assert isinstance(data, ByteChunks) is ("chunksize" in options)
        in_parts.append("chunksize" in options)

    monkeypatch.setattr(S3FileSystem, "_pipe_file", uploaded)
    store = FsspecStore("s3://lake/in-parts", {"key": "k", "secret": "s"})
    for size_bytes in (1, 2 * PART_BYTES - 1, 2 * PART_BYTES):
        store.upload("part.parquet", ByteChunks([bytes(size_bytes)]))
    assert in_parts == [False, False, True]


def test_client_that_cannot_start_is_a_store_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def unable(*_: object, **__: object) -> None:
        msg = "Unable to load libjvm\ndlopen(/usr/lib/libjvm.so) failed"
        raise OSError(msg)

    monkeypatch.setattr(fsspec, "url_to_fs", unable)
    with pytest.raises(StoreError) as raised:
        FsspecStore("hdfs://name/x")
    assert raised.value.problem == "no store can be opened for hdfs://name/x: Unable to load libjvm"


@pytest.mark.parametrize(
    ("options", "problem", "remedy"),
    [
        ({"keyy": "k"}, "has 'keyy'", "did you mean 'key'?"),
        ({"client_kwargs": {"endpoint": "http://localhost:1"}}, "has 'endpoint'", "did you mean 'endpoint_url'?"),
        ({"region": "eu"}, "has 'region'", "write it as client_kwargs: {region_name: …}"),
        ({"region_name": "eu"}, "has 'region_name'", "write it as client_kwargs: {region_name: …}"),
        ({"endpoint": "http://localhost:1"}, "has 'endpoint'", "did you mean 'endpoint_url'?"),
        ({"key": 1234, "endpoint_url": "http://127.0.0.1:9"}, "storage_options.key is not text", "put it in quotes"),
        ({"config_kwargs": {"zzz": 1}}, "has 'zzz'", "remove it"),
        ({"endpoint_url": "localhost:1"}, "Invalid endpoint: localhost:1", "write endpoint_url as a URL"),
    ],
)
def test_invalid_client_options_are_named(options: dict[str, object], problem: str, remedy: str) -> None:
    """A supervisor would otherwise restart the program again and again, as for an unreachable store."""
    store = FsspecStore("s3://lake/stage", {"key": "k", "secret": "s", **options})
    with pytest.raises(StoreRefusedError, match=problem) as raised:
        list(store.list("done/"))
    assert raised.value.remedy.startswith(remedy)


@pytest.mark.parametrize("by_the_client", [True, False])
def test_name_that_no_bucket_can_have_is_permanent(monkeypatch: pytest.MonkeyPatch, *, by_the_client: bool) -> None:
    async def refuse(*_: object, **__: object) -> None:
        if by_the_client:
            raise ParamValidationError(report='Invalid bucket name "la ke": Bucket name must match the regex')
        refused = ClientError({"Error": {"Code": "InvalidBucketName"}}, "PutObject")
        raise OSError(errno.EINVAL, "The specified bucket is not valid.") from refused

    monkeypatch.setattr(S3FileSystem, "_pipe_file", refuse)
    with pytest.raises(StoreRefusedError) as raised:
        FsspecStore("s3://LAKE/stage", {"key": "k", "secret": "s"}).write("name", b"")
    assert raised.value.remedy == "create the bucket or folder, or fix its name in the URL"


def test_memory_store_is_not_written_during_a_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The listing would fail: it iterates over a dictionary that all threads share."""
    lock, written = WatchedLock(), Event()
    monkeypatch.setattr(stores, "_IN_MEMORY", lock)
    store = FsspecStore("memory://in-turn/a")

    def write() -> None:
        try:
            store.write("name", b"")
            written.set()
        finally:
            lock.waited_for.set()

    writer = Thread(target=write)
    find = MemoryFileSystem.find

    def slow(*arguments: object, **options: object) -> object:
        writer.start()
        lock.waited_for.wait()
        assert not written.is_set()
        return find(*arguments, **options)

    monkeypatch.setattr(MemoryFileSystem, "find", slow)
    assert not list(store.list(""))
    writer.join()
    assert store.read("name") == b""
