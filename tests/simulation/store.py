"""An object store in memory, and each process's view of it, which has the world's faults."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from heapq import nsmallest
from typing import BinaryIO, Protocol

from common.errors import StoreError
from common.ports import AlreadyExists, Created, CreateOutcome, StoredObject
from common.storage.chunks import ByteChunks
from common.storage.listing import Upload
from common.storage.store import PROBES
from tests.simulation.invariants import Objects
from tests.simulation.world import World

_PAGE = 4


class Watches(Protocol):
    def put(self, objects: Objects, path: str, data: bytes) -> None: ...

    def delete(self, objects: Objects, path: str, process: str, *, is_late: bool) -> None:
        """An object is about to be deleted; ``is_late`` where its sender no longer waits for the answer."""


class Bucket:
    """All objects of the world: full path to bytes and time."""

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, int]] = {}
        self.invariants: Watches | None = None
        self._probing = threading.Lock()

    def probe(self, path: str) -> CreateOutcome:
        """An exclusive create that proves the store, from any thread."""
        with self._probing:
            is_there = path in self.objects
            self.objects.setdefault(path, (b"", 0))
            return AlreadyExists() if is_there else Created()

    def put(self, path: str, data: bytes, now_ms: int) -> None:
        if self.invariants is not None:
            self.invariants.put(self.objects, path, data)
        self.objects[path] = (data, now_ms)

    def delete(self, path: str, process: str, *, is_late: bool) -> None:
        if self.invariants is not None:
            self.invariants.delete(self.objects, path, process, is_late=is_late)
        self.objects.pop(path, None)


class SimulatedStore:
    """A `common.ports.ObjectStore` below one URL. Exclusive creates are exclusive."""

    def __init__(self, world: World, bucket: Bucket, url: str) -> None:
        self._world = world
        self._bucket = bucket
        self._url = url

    @property
    def url(self) -> str:
        return self._url

    def at(self, url: str) -> SimulatedStore:
        """The same bucket below another URL."""
        return SimulatedStore(self._world, self._bucket, url)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every object below a folder, at one moment."""
        start = self._full(prefix.rstrip("/") + "/")
        skip = len(self._url) + 1
        yield from self._world.effect(
            f"list {prefix}",
            lambda: [
                StoredObject(path[skip:], len(stored[0]), stored[1])
                for path, stored in self._bucket.objects.items()
                if path.startswith(start)
            ],
        )

    def scan(self, folder: str) -> Iterator[StoredObject]:
        """As `list`, page by page: objects that come or go between two pages are listed or not."""
        start, last = self._full(f"{folder}/" if folder else ""), ""
        while page := self._world.effect(f"scan {folder}", partial(self._page, start, last)):
            yield from page
            last = self._full(page[-1].path)

    def _page(self, start: str, last: str) -> Sequence[StoredObject]:
        paths = nsmallest(_PAGE, (path for path in self._bucket.objects if path.startswith(start) and path > last))
        objects = ((path, *self._bucket.objects[path]) for path in paths)
        return [StoredObject(path[len(self._url) + 1 :], len(data), time_ms) for path, data, time_ms in objects]

    def uploads(self, prefix: str) -> Iterator[Upload]:
        del prefix
        yield from ()

    def abort(self, upload: Upload) -> None: ...

    def read(self, path: str) -> bytes | None:
        return self._world.effect(f"read {path}", lambda: self._bytes(path))

    def read_each(self, paths: Iterable[str]) -> Iterator[bytes | None]:
        return map(self.read, paths)

    def open(self, path: str) -> BinaryIO:
        return io.BytesIO(self.read(path) or b"")

    def stat(self, path: str) -> StoredObject | None:
        def find() -> StoredObject | None:
            stored = self._bucket.objects.get(self._full(path))
            return None if stored is None else StoredObject(path, len(stored[0]), stored[1])

        return self._world.effect(f"stat {_traced(path)}", find)

    def create(self, path: str, data: bytes) -> CreateOutcome:
        """Exclusive; the same bytes from a request whose answer was lost count as created, as in
        `common.storage.store`."""

        if path.startswith(PROBES):
            return self._bucket.probe(self._full(path))

        def put() -> CreateOutcome:
            stored = self._bucket.objects.get(self._full(path))
            if stored is not None:
                return Created() if stored[0] == data else AlreadyExists()
            self._put(path, data)
            return Created()

        return self._world.effect(f"create {path}", put, changes=True)

    def write(self, path: str, data: bytes) -> None:
        """Unconditional."""
        self._world.effect(f"write {_traced(path)}", lambda: self._put(path, data), changes=True)

    def upload(self, path: str, data: ByteChunks) -> None:
        """As `write`, but an existing object is not replaced."""

        def put() -> None:
            if self._full(path) not in self._bucket.objects:
                self._put(path, data.to_bytes())

        self._world.effect(f"write {path}", put, changes=True)

    def copy(self, path: str, to: str) -> None:
        def put() -> None:
            data = self._bytes(path)
            if data is None:
                msg = f"no {path} to copy"
                raise StoreError(msg)
            self._put(to, data)

        self._world.effect(f"copy {path}", put, changes=True)

    def delete(self, paths: Iterable[str]) -> None:
        """One request for each."""
        process = self._world.process.name
        for path in paths:
            full = self._full(path)
            self._world.effect(
                f"delete {_traced(path)}",
                lambda full=full: self._bucket.delete(full, process, is_late=self._world.is_late),  # type: ignore[misc]
                changes=True,
            )

    def _put(self, path: str, data: bytes) -> None:
        self._bucket.put(self._full(path), data, self._world.now_ms)

    def _bytes(self, path: str) -> bytes | None:
        stored = self._bucket.objects.get(self._full(path))
        return None if stored is None else stored[0]

    def _full(self, path: str) -> str:
        return f"{self._url}/{path}"


def _traced(path: str) -> str:
    """A path in the trace: the names of probes differ from run to run."""
    return PROBES if path.startswith(PROBES) else path
