"""The backend on disk: LMDB, a memory-mapped tree, one folder for each task.

Chosen by measuring (benchmarks/topologies/stores.py): a get, which every record needs, takes half the time of RocksDB's
bindings and a third of SQLite's; RocksDB is better at merging a flush, which is rare.

Rules:

1. Applied changes survive any end of the process, without waiting for the disk: the pages belong to the kernel. A
   machine that stops may lose some of them, so the folder records the machine's boot id while in use, and is trusted
   after another boot only if it was closed, completely on disk, before.
2. An untrusted or unreadable folder is discarded: the stage has the state. Nothing on the disk is ever the only copy.
3. One process uses a folder at a time, by a lock that ends with it. A second process gets the next number, so it need
   not wait for a predecessor that still writes its last snapshot.
4. LMDB's keys end at 511 bytes. Longer ones are kept under their prefix, in a list of all with that prefix.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import lmdb
import msgpack

from common.errors import StateError
from stage_writer.topologies.stores.backend import Space

_MARK, _MACHINE, _CLOSED = b"mark", b"machine", b"closed"
_LONG_BYTES = 500
_FIRST_MAP_BYTES = 2**30
MOST_STORES = 1_000
"""Spaces per task; each costs a transaction less than a nanosecond. Stores with times count twice, for their index."""
_MOST_SPACES = MOST_STORES + 24  # including the engine's own
_DATA = "lmdb"
_Bucket = dict[bytes, bytes]


class _Open(NamedTuple):
    environment: lmdb.Environment
    own: lmdb._Database
    reading: lmdb.Transaction[bytes]


class DiskBackend:
    """A `Backend` in a folder for its exclusive use (see `open_backend`). Raises StateError."""

    def __init__(self, folder: Path, lock: int) -> None:
        """``lock`` is the open file that excludes other processes (rule 3)."""
        self._folder = folder
        self._lock = lock
        self._spaces: dict[Space, lmdb._Database] = {}
        self._machine = _machine()
        self._held: _Open | None = None
        try:
            self._open()
            is_ours = self._is_believed()
        except (lmdb.Error, OSError):
            is_ours = False  # rule 2
        if is_ours:
            self._note({_MACHINE: self._machine.encode()})
        else:
            self.clear()

    @property
    def mark(self) -> str | None:
        mark = self._now.reading.get(_MARK, db=self._now.own)
        return None if mark is None else mark.decode()

    def get(self, space: Space, key: bytes) -> bytes | None:
        database = self._spaces.get(space)
        if database is None:
            return None
        try:
            if len(key) < _LONG_BYTES:
                return self._now.reading.get(key, db=database)
            bucket = self._now.reading.get(key[:_LONG_BYTES], db=database)
            return None if bucket is None else _bucket(bucket).get(key)
        except lmdb.Error as error:  # without the context manager below: this runs for every record
            raise self._error(error, verb="read") from error

    def scan(
        self, space: Space, low: bytes = b"", high: bytes | None = None, *, reverse: bool = False
    ) -> Iterator[tuple[bytes, bytes]]:
        database = self._spaces.get(space)
        if database is None:
            return
        # A transaction of its own: it may be read in another thread, and kept while others are open.
        with self._errors("read"), self._now.environment.begin() as reading, reading.cursor(database) as cursor:
            for key, value in _backward(cursor, high) if reverse else _forward(cursor, low):
                if (key < low[:_LONG_BYTES]) if reverse else (high is not None and key >= high):
                    return
                entries = ((key, value),) if len(key) < _LONG_BYTES else _ordered(value, reverse=reverse)
                for entry in entries:
                    if low <= entry[0] and (high is None or entry[0] < high):
                        yield entry

    def count(self, space: Space) -> int:
        database = self._spaces.get(space)
        return 0 if database is None else int(self._now.reading.stat(database)["entries"])

    def apply(self, changes: Mapping[Space, Mapping[bytes, bytes | None]], mark: str | None) -> None:
        with self._errors("write"):
            while True:
                for space in changes:
                    self._add(space)
                try:
                    self._write(changes, mark)
                except lmdb.MapFullError:
                    self._grow()
                else:
                    return

    def clear(self) -> None:
        with self._errors("clear"):
            self._release()
            shutil.rmtree(self._folder / _DATA, ignore_errors=True)
            self._open()
            self._note({_MACHINE: self._machine.encode()})

    @property
    def size_bytes(self) -> int:
        info, stat = self._now.environment.info(), self._now.environment.stat()
        return (info["last_pgno"] + 1) * stat["psize"]

    def close(self) -> None:
        if self._held is None:
            return
        with self._errors("close"):
            self._now.environment.sync(True)  # noqa: FBT003 - lmdb's
            self._note({_MACHINE: _CLOSED})
            self._now.environment.sync(True)  # noqa: FBT003
        self._release()
        os.close(self._lock)

    @property
    def _now(self) -> _Open:
        if self._held is None:
            raise StateError(f"the state in {self._folder} is closed", "")
        return self._held

    def _open(self, map_bytes: int = _FIRST_MAP_BYTES) -> None:
        folder = self._folder / _DATA
        folder.mkdir(parents=True, exist_ok=True)
        held_bytes = sum(path.stat().st_size for path in folder.iterdir())
        environment = lmdb.open(
            str(folder), map_size=max(map_bytes, 2 * held_bytes), max_dbs=_MOST_SPACES, sync=False, metasync=False
        )
        own = environment.open_db(b"own")
        self._held = _Open(environment, own, environment.begin())
        self._spaces.clear()
        for name in environment.dbs():
            if bytes(name).startswith(b"space/"):
                self._add(bytes(name).removeprefix(b"space/").decode())

    def _add(self, space: Space) -> None:
        if space not in self._spaces:
            self._now.reading.abort()
            self._spaces[space] = self._now.environment.open_db(b"space/" + space.encode())
            self._renew()

    def _renew(self) -> None:
        held = self._now
        self._held = held._replace(reading=held.environment.begin())

    def _write(self, changes: Mapping[Space, Mapping[bytes, bytes | None]], mark: str | None) -> None:
        held = self._now
        held.reading.abort()
        try:
            with held.environment.begin(write=True) as writing:
                for space, changed in changes.items():
                    _put_all(writing, self._spaces[space], changed)
                if mark is None:
                    writing.delete(_MARK, db=held.own)
                else:
                    writing.put(_MARK, mark.encode(), db=held.own)
        finally:
            self._renew()

    def _note(self, facts: Mapping[bytes, bytes]) -> None:
        held = self._now
        held.reading.abort()
        with held.environment.begin(write=True) as writing:
            for name, fact in facts.items():
                writing.put(name, fact, db=held.own)
        held.environment.sync(True)  # noqa: FBT003
        self._renew()

    def _grow(self) -> None:
        held = self._now
        map_bytes = 2 * held.environment.info()["map_size"]
        self._release()
        self._open(map_bytes)

    def _release(self) -> None:
        if self._held is not None:
            held, self._held = self._held, None
            held.reading.abort()
            held.environment.close()
            self._spaces.clear()

    def _is_believed(self) -> bool:
        """Whether the content can be trusted (rule 1): closed properly, or in use since this machine started."""
        machine = self._now.reading.get(_MACHINE, db=self._now.own)
        return machine == _CLOSED or (machine is not None and machine == self._machine.encode() != b"")

    @contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        try:
            yield
        except (lmdb.Error, OSError) as error:
            raise self._error(error, verb) from error

    def _error(self, error: Exception, verb: str) -> StateError:
        return StateError(
            f"cannot {verb} the state in {self._folder}: {error}",
            "check that the disk is mounted and has space; its content may be deleted",
        )


def open_backend(folder: Path) -> DiskBackend:
    """The backend of a task whose folder this is, in the first subfolder that no other process uses (rule 3)."""
    for number in count():
        backend_folder = folder / str(number)
        try:
            backend_folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(backend_folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            msg = f"cannot keep state in {backend_folder}: {error}"
            raise StateError(msg, "set state_folder to a folder that this user may write to") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            continue
        _empty_slots_above(folder, number)
        return DiskBackend(backend_folder, lock)
    raise AssertionError  # count() never ends


def _empty_slots_above(folder: Path, number: int) -> None:
    """Delete the folders of predecessors that are gone; their locks stay, for processes about to take them."""
    for above in count(number + 1):
        try:
            lock = os.open(folder / str(above) / "lock", os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            return
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder / str(above) / _DATA, ignore_errors=True)
        os.close(lock)


def _machine() -> str:
    """The boot id of this machine; empty if unknown."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""


def _put_all(writing: lmdb.Transaction[bytes], database: lmdb._Database, changed: Mapping[bytes, bytes | None]) -> None:
    for key in sorted(changed):  # neighbors are on one page
        value = changed[key]
        if len(key) >= _LONG_BYTES:
            _put_long(writing, database, key, value)
        elif value is None:
            writing.delete(key, db=database)
        else:
            writing.put(key, value, db=database)


def _put_long(writing: lmdb.Transaction[bytes], database: lmdb._Database, key: bytes, value: bytes | None) -> None:
    stored = writing.get(key[:_LONG_BYTES], db=database)
    bucket = {} if stored is None else _bucket(stored)
    if value is None:
        bucket.pop(key, None)
    else:
        bucket[key] = value
    if bucket:
        writing.put(key[:_LONG_BYTES], msgpack.packb(bucket), db=database)
    else:
        writing.delete(key[:_LONG_BYTES], db=database)


def _bucket(data: bytes) -> _Bucket:
    bucket: _Bucket = msgpack.unpackb(data, strict_map_key=False)
    return bucket


def _ordered(bucket: bytes, *, reverse: bool) -> list[tuple[bytes, bytes]]:
    return sorted(_bucket(bucket).items(), reverse=reverse)


def _forward(cursor: lmdb.Cursor[bytes], low: bytes) -> Iterator[tuple[bytes, bytes]]:
    if cursor.set_range(low[:_LONG_BYTES]) if low else cursor.first():
        yield from cursor.iternext()


def _backward(cursor: lmdb.Cursor[bytes], high: bytes | None) -> Iterator[tuple[bytes, bytes]]:
    at_end = high is None or not cursor.set_range(high[:_LONG_BYTES])
    if cursor.last() if at_end else True:
        yield from cursor.iterprev()
