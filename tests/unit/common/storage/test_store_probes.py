"""Probes prove a store's required behavior; a single failed probe is repeated."""

import errno
import os
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial, partialmethod
from pathlib import Path
from typing import ClassVar

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from common.errors import StoreError, StoreRefusedError, UnsafeStoreError
from common.ports import AlreadyExists, Created, CreateOutcome, ObjectStore
from common.storage.store import FsspecStore, prove_exclusive_create, prove_writable, store_time_ms
from tests.builders import required
from tests.fakes.stores import TrappedStore, failing


def failing_store(times: int, error: type[StoreError] = StoreError) -> TrappedStore:
    trap = failing("create", error("existing object is a directory"), times=times)
    return TrappedStore(f"memory://{uuid.uuid4().hex}", before=trap)


@pytest.mark.parametrize("prove", [prove_exclusive_create, prove_writable])
def test_failed_probe_is_repeated_once(prove: Callable[[ObjectStore], None]) -> None:
    store = failing_store(1)
    prove(store)
    assert list(store.list("")) == []
    with pytest.raises(StoreError, match="is a directory"):
        prove(failing_store(2))


def test_failed_probe_leaves_no_object() -> None:
    def fail_later(request: str, _path: str) -> None:
        if request == "create" and store.counts["create"] > 1:
            raise StoreRefusedError("no rights")

    store = TrappedStore(f"memory://{uuid.uuid4().hex}", before=fail_later)
    with pytest.raises(StoreRefusedError):
        prove_exclusive_create(store)
    assert list(store.list("")) == []


@pytest.mark.parametrize("prove", [prove_exclusive_create, prove_writable])
def test_refused_probe_is_final(prove: Callable[[ObjectStore], None]) -> None:
    store = failing_store(2, StoreRefusedError)
    with pytest.raises(StoreRefusedError):
        prove(store)
    assert store.counts["create"] == 1


def test_refused_create_names_the_missing_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """A create of an existing object reads it, which needs another permission."""

    def deny(self: MemoryFileSystem, path: str, *_: object, **__: object) -> bytes:
        del self
        raise PermissionError(path)

    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    store.create("a", b"1")
    with monkeypatch.context() as patch:
        patch.setattr(MemoryFileSystem, "cat_file", deny)
        with pytest.raises(StoreRefusedError, match="may not read"):
            store.create("a", b"2")
    monkeypatch.setattr(MemoryFileSystem, "pipe_file", deny)
    with pytest.raises(StoreRefusedError, match="may not create"):
        store.create("a", b"2")


class _ConditionFailedError(Exception):
    """An error of botocore for a server that does not name the condition."""

    response: ClassVar = {"Error": {"Code": "PreconditionFailed"}}


@pytest.mark.parametrize("cause", [None, _ConditionFailedError()])
def test_create_refused_by_a_vanished_object_is_not_our_own(
    monkeypatch: pytest.MonkeyPatch, cause: Exception | None
) -> None:
    def refuse(_self: MemoryFileSystem, path: str, *_: object, **__: object) -> None:
        raise (FileExistsError if cause is None else OSError)(path) from cause

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    assert FsspecStore(f"memory://{uuid.uuid4().hex}").create("a", b"1") == AlreadyExists()


def test_failed_read_is_not_an_empty_marker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Google's and Azure's stores refuse the range of an empty object in words of their own."""

    errors: list[Exception] = [OSError("no range"), OSError("no range"), ValueError("a bug")]

    def fail(_self: MemoryFileSystem, _path: str, *_: object, **__: object) -> None:
        raise errors.pop(0)

    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    store.write("done/t/0/1.done", b"")
    store.write("done/t/0/2.done", b"1")
    monkeypatch.setattr(MemoryFileSystem, "cat_file", fail)
    assert store.read("done/t/0/1.done") == b""
    for path in ("done/t/0/2.done", "done/t/0/1.done"):
        with pytest.raises(StoreError, match="cannot read"):
            store.read(path)


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone of a process cannot be changed")
def test_times_without_a_zone_are_in_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    store.write("a", b"")
    noon = {"name": "a", "size": 0, "type": "file", "created": datetime(2026, 1, 1, 12)}  # noqa: DTZ001 - on purpose
    monkeypatch.setattr(MemoryFileSystem, "info", lambda _self, _path: noon)
    try:
        with monkeypatch.context() as patch:
            patch.setenv("TZ", "Asia/Tokyo")
            time.tzset()
            stored = required(store.stat("a"))
    finally:
        time.tzset()
    assert stored.modified_ms == datetime(2026, 1, 1, 12, tzinfo=UTC).timestamp() * 1000


def test_unreadable_folder_is_not_an_empty_listing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore(str(tmp_path))
    store.write("done/t/0/1.done", b"")
    ls = LocalFileSystem.ls

    def denied(self: LocalFileSystem, path: str, *args: object, **options: object) -> object:
        if path.rstrip("/").endswith("/t"):
            raise PermissionError(path)
        return ls(self, path, *args, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", denied)
    with pytest.raises(StoreRefusedError, match="may not list"):
        list(store.list("done"))


@pytest.mark.parametrize("in_a_race", [True, False])
def test_store_that_repeats_a_create_is_unsafe(*, in_a_race: bool) -> None:
    class Repeating(FsspecStore):
        def create(self, path: str, data: bytes) -> CreateOutcome:
            outcome = super().create(path, data)
            return Created() if path.endswith("-race") == in_a_race else outcome

    store = Repeating(f"memory://{uuid.uuid4().hex}")
    with pytest.raises(UnsafeStoreError, match="lets two writers create the same object"):
        prove_exclusive_create(store)
    assert list(store.list("")) == []


@pytest.mark.parametrize("gone", ["a", "b", "c"])
def test_folder_that_vanishes_does_not_end_a_listing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gone: str
) -> None:
    store = FsspecStore(str(tmp_path))
    for folder in "abc":
        store.write(f"{folder}/1", b"")

    def without_it(real: Callable[..., object], *arguments: object, **options: object) -> object:
        if str(arguments[-1]).endswith(f"/{gone}"):
            raise FileNotFoundError
        return real(*arguments, **options)

    monkeypatch.setattr(LocalFileSystem, "ls", partialmethod(partial(without_it, LocalFileSystem.ls)))
    monkeypatch.setattr(os, "scandir", partial(without_it, os.scandir))
    for listed in (store.list(""), store.scan("")):
        assert {stored.path for stored in listed} == {f"{folder}/1" for folder in "abc" if folder != gone}


def test_probe_that_may_not_be_deleted_is_left() -> None:
    store = TrappedStore(f"memory://{uuid.uuid4().hex}", before=failing("delete", StoreRefusedError("no rights")))
    prove_writable(store)
    assert len(list(store.list(""))) == 1


def test_time_of_a_store_that_loses_its_probe_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore(f"memory://{uuid.uuid4().hex}")
    monkeypatch.setattr(FsspecStore, "stat", lambda *_: None)
    with pytest.raises(StoreError, match=r"an object that was just written to .* is missing"):
        store_time_ms(store)
    assert list(store.list("")) == []


@pytest.mark.parametrize("local", [True, False])
def test_folder_is_no_object(tmp_path: Path, *, local: bool) -> None:
    store = FsspecStore(str(tmp_path) if local else f"memory://{uuid.uuid4().hex}")
    store.write("folder/object", b"text")
    assert required(store.stat("folder/object")).size_bytes == 4
    assert store.stat("folder") is None
    assert store.stat("folder/other") is None


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_full_store_needs_space(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(number, "full")

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", full)
    with pytest.raises(StoreError) as caught:
        FsspecStore(f"memory://{uuid.uuid4().hex}").write("object", b"")
    assert (type(caught.value), caught.value.remedy.partition(";")[0]) == (StoreError, "free some space")


def test_file_that_vanishes_during_a_scan_does_not_end_it(tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / f"{number}.parquet").touch()
    first, second, third = (entry.name for entry in os.scandir(tmp_path))
    scanned = FsspecStore(str(tmp_path)).scan("")
    assert next(scanned).path == first
    (tmp_path / second).unlink()
    assert [item.path for item in scanned] == [third]


def test_files_behind_a_symbolic_link_are_not_scanned(tmp_path: Path) -> None:
    """They are not the table's, and a clean-up must not remove them."""
    table, elsewhere = tmp_path / "table", tmp_path / "elsewhere"
    for folder in (table, elsewhere):
        folder.mkdir()
        (folder / "part.parquet").touch()
    (table / "link").symlink_to(elsewhere)
    (table / "loop").symlink_to(table)
    assert [item.path for item in FsspecStore(str(table)).scan("")] == ["part.parquet"]


def test_file_left_by_a_crash_is_hidden_from_other_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark reads all files of a folder whose names do not begin with a dot."""
    during: list[str] = []
    link = os.link

    def watched(source: str, target: str) -> None:
        during.extend(path.name for path in tmp_path.iterdir())
        link(source, target)

    monkeypatch.setattr(os, "link", watched)
    FsspecStore(str(tmp_path)).create("part.parquet", b"1")
    assert [name[0] for name in during] == ["."]
    assert [path.name for path in tmp_path.iterdir()] == ["part.parquet"]
