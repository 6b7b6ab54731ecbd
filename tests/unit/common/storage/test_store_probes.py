"""What a store must be able to do is proved by probes, of which one may fail."""

import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from common.errors import StoreError, StoreRefusedError, UnsafeStoreError
from common.ports import AlreadyExists, Created, CreateOutcome, ObjectStore
from common.storage.store import FsspecStore, prove_exclusive_create, prove_writable
from tests.fakes.stores import TrappedStore, failing


def failing_store(times: int, error: type[StoreError] = StoreError) -> TrappedStore:
    trap = failing("create", error("existing object is a directory"), times=times)
    return TrappedStore(f"memory://{uuid.uuid4().hex}", before=trap)


@pytest.mark.parametrize("prove", [prove_exclusive_create, prove_writable])
def test_a_probe_that_failed_once_is_tried_again(prove: Callable[[ObjectStore], None]) -> None:
    store = failing_store(1)
    prove(store)
    assert list(store.list("")) == []
    with pytest.raises(StoreError, match="is a directory"):
        prove(failing_store(2))


@pytest.mark.parametrize("prove", [prove_exclusive_create, prove_writable])
def test_a_refusal_is_final(prove: Callable[[ObjectStore], None]) -> None:
    store = failing_store(2, StoreRefusedError)
    with pytest.raises(StoreRefusedError):
        prove(store)
    assert store.counts["create"] == 1


def test_a_create_that_is_refused_says_which_right_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused create reads what is there: that needs another right."""

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


def test_a_create_that_is_refused_by_an_object_that_is_gone_is_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: MemoryFileSystem, path: str, *_: object, **__: object) -> None:
        raise FileExistsError(path)

    monkeypatch.setattr(MemoryFileSystem, "pipe_file", refuse)
    assert FsspecStore(f"memory://{uuid.uuid4().hex}").create("a", b"1") == AlreadyExists()


def test_a_folder_that_cannot_be_read_is_no_empty_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_store_that_refuses_the_second_but_not_the_simultaneous_is_not_safe() -> None:
    class Racy(FsspecStore):
        def create(self, path: str, data: bytes) -> CreateOutcome:
            outcome = super().create(path, data)
            return Created() if path.endswith("-race") else outcome

    store = Racy(f"memory://{uuid.uuid4().hex}")
    with pytest.raises(UnsafeStoreError, match="lets two writers create the same object"):
        prove_exclusive_create(store)
    assert list(store.list("")) == []
