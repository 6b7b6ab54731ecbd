"""What a task's stores cost: the libraries that could keep them on disk.

    python -m benchmarks.topologies.stores [--entries 1000000] [--folder /a/disk]

The libraries are given what a task gives its backend: sorted batches of a restore, gets of keys that are there and of
ones that are not, flushes of random keys, short ranges, and a scan of everything. RocksDB's bindings are measured where
they are installed (`pip install rocksdict`).
"""

from __future__ import annotations

import argparse
import importlib
import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from stage_writer.topologies.stores.disk import open_backend
from stage_writer.topologies.stores.keys import key_to_bytes

BATCH = 10_000
GETS = 100_000
RANGES = 20_000
VALUE = random.Random(1).randbytes(60)  # noqa: S311 - any bytes


class Candidate(Protocol):
    def get(self, key: bytes) -> bytes | None: ...

    def put_all(self, entries: list[tuple[bytes, bytes]]) -> None:
        """One transaction."""

    def scan(self, low: bytes, high: bytes) -> Iterable[tuple[bytes, bytes]]:
        """In order."""


class Kept:
    """The backend that was kept, over LMDB, as a task uses it."""

    def __init__(self, folder: Path) -> None:
        self._backend = open_backend(folder)

    def get(self, key: bytes) -> bytes | None:
        return self._backend.get("space", key)

    def put_all(self, entries: list[tuple[bytes, bytes]]) -> None:
        """One transaction."""
        self._backend.apply({"space": dict(entries)}, "mark")

    def scan(self, low: bytes, high: bytes) -> Iterable[tuple[bytes, bytes]]:
        return self._backend.scan("space", low, high)


class Sqlite:
    """SQLite, with its log ahead, and as few waits for the disk as are safe."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "state.db", isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-65536", f"mmap_size={2**32}"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("CREATE TABLE space (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def get(self, key: bytes) -> bytes | None:
        found = self._connection.execute("SELECT value FROM space WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def put_all(self, entries: list[tuple[bytes, bytes]]) -> None:
        """One transaction."""
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT OR REPLACE INTO space VALUES (?, ?)", entries)
        self._connection.execute("COMMIT")

    def scan(self, low: bytes, high: bytes) -> Iterable[tuple[bytes, bytes]]:
        """In order."""
        return self._connection.execute("SELECT * FROM space WHERE key >= ? AND key < ? ORDER BY key", (low, high))


class Rocks:
    def __init__(self, folder: Path) -> None:
        self._module = importlib.import_module("rocksdict")
        options = self._module.Options(raw_mode=True)
        options.create_if_missing(True)  # noqa: FBT003 - the library's
        self._found = self._module.Rdict(str(folder), options)

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._found.get(key)
        return found

    def put_all(self, entries: list[tuple[bytes, bytes]]) -> None:
        """One transaction."""
        batch = self._module.WriteBatch(raw_mode=True)
        for key, value in entries:
            batch.put(key, value)
        self._found.write(batch)

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """In order."""
        for key, value in self._found.items(from_key=low):
            if key >= high:
                return
            yield key, value


CANDIDATES: dict[str, Callable[[Path], Candidate]] = {"LMDB (kept)": Kept, "SQLite": Sqlite, "RocksDB": Rocks}


def key(number: int) -> bytes:
    return key_to_bytes(f"user{number:010d}")


def tell(what: str, name: str, work: Callable[[], object], count: int) -> None:
    """Do it, and say how many a second."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:12} {what:26} {count / cpu:12,.0f} per CPU-second {count / wall:12,.0f} per second", flush=True)


def measure(name: str, candidate: Candidate, entries: int) -> None:
    chance = random.Random(7)  # noqa: S311
    everything = [key(number) for number in range(entries)]
    places = [chance.randrange(entries - 10) for _ in range(GETS)]
    there = [everything[place] for place in places]
    absent = [found + b"x" for found in there]

    def restore() -> None:
        for start in range(0, entries, BATCH):
            candidate.put_all([(each, VALUE) for each in everything[start : start + BATCH]])

    def flush() -> None:
        for start in range(0, GETS, BATCH):
            candidate.put_all(sorted((each, VALUE) for each in there[start : start + BATCH]))

    tell("restored, in order", name, restore, entries)
    tell("gets", name, lambda: [candidate.get(each) for each in there], GETS)
    tell("gets of what is not there", name, lambda: [candidate.get(each) for each in absent], GETS)
    tell("puts in flushes of 10,000", name, flush, GETS)
    ranges = [(everything[place], everything[place + 10]) for place in places[:RANGES]]
    tell("ranges of 10", name, lambda: [list(candidate.scan(low, high)) for low, high in ranges], RANGES)
    tell("entries scanned", name, lambda: sum(1 for _ in candidate.scan(b"\x01", b"\xff")), entries)


def main(arguments: list[str] | None = None) -> None:
    """Measure all, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, default=None)
    given = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=given.folder, prefix="stores-") as root:
        for name, make in CANDIDATES.items():
            place = Path(root) / name.split()[0]
            place.mkdir()
            try:
                candidate = make(place)
            except ModuleNotFoundError as error:
                print(f"{name:12} is not installed: {error}")
                continue
            measure(name, candidate, given.entries)


if __name__ == "__main__":
    main()
