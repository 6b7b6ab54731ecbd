"""The cost of a task's state stores: compares libraries that could keep them on disk.

    python -m benchmarks.topologies.stores [--entries 1000000] [--folder /a/disk]

Each library does a task's work on its backend: restores in sorted batches, gets of present and of absent keys, flushes
of random keys, short ranges, and a scan of everything. RocksDB is measured if its bindings are installed
(`pip install rocksdict`).
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
        """Put all entries in one transaction."""

    def scan(self, low: bytes, high: bytes) -> Iterable[tuple[bytes, bytes]]:
        """The entries of a key range, in order."""


class Lmdb:
    """The backend in use, over LMDB, called as a task calls it."""

    def __init__(self, folder: Path) -> None:
        self._backend = open_backend(folder)

    def get(self, key: bytes) -> bytes | None:
        return self._backend.get("space", key)

    def put_all(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Put all entries in one transaction."""
        self._backend.apply({"space": dict(entries)}, "mark")

    def scan(self, low: bytes, high: bytes) -> Iterable[tuple[bytes, bytes]]:
        return self._backend.scan("space", low, high)


class Sqlite:
    """SQLite with a write-ahead log and without waits for the disk."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "state.db", isolation_level=None)
        for pragma in ("journal_mode=WAL", "synchronous=OFF", "cache_size=-65536", f"mmap_size={2**32}"):
            self._connection.execute(f"PRAGMA {pragma}")
        self._connection.execute("CREATE TABLE space (key BLOB PRIMARY KEY, value BLOB) WITHOUT ROWID")

    def get(self, key: bytes) -> bytes | None:
        found = self._connection.execute("SELECT value FROM space WHERE key = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def put_all(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Put all entries in one transaction."""
        self._connection.execute("BEGIN")
        self._connection.executemany("INSERT OR REPLACE INTO space VALUES (?, ?)", entries)
        self._connection.execute("COMMIT")

    def scan(self, low: bytes, high: bytes) -> Iterable[tuple[bytes, bytes]]:
        """The entries of a key range, in order."""
        return self._connection.execute("SELECT * FROM space WHERE key >= ? AND key < ? ORDER BY key", (low, high))


class Rocks:
    def __init__(self, folder: Path) -> None:
        self._module = importlib.import_module("rocksdict")
        options = self._module.Options(raw_mode=True)
        options.create_if_missing(True)  # noqa: FBT003 - the library's
        self._database = self._module.Rdict(str(folder), options)

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._database.get(key)
        return found

    def put_all(self, entries: list[tuple[bytes, bytes]]) -> None:
        """Put all entries in one transaction."""
        batch = self._module.WriteBatch(raw_mode=True)
        for key, value in entries:
            batch.put(key, value)
        self._database.write(batch)

    def scan(self, low: bytes, high: bytes) -> Iterator[tuple[bytes, bytes]]:
        """The entries of a key range, in order."""
        for key, value in self._database.items(from_key=low):
            if key >= high:
                return
            yield key, value


CANDIDATES: dict[str, Callable[[Path], Candidate]] = {"LMDB (kept)": Lmdb, "SQLite": Sqlite, "RocksDB": Rocks}


def key(number: int) -> bytes:
    return key_to_bytes(f"user{number:010d}")


def print_rate(operation: str, name: str, work: Callable[[], object], count: int) -> None:
    """Run the work and print its rate."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    print(f"{name:12} {operation:26} {count / cpu:12,.0f} per CPU-second {count / wall:12,.0f} per second", flush=True)


def measure(name: str, candidate: Candidate, entries: int) -> None:
    generator = random.Random(7)  # noqa: S311
    everything = [key(number) for number in range(entries)]
    places = [generator.randrange(entries - 10) for _ in range(GETS)]
    present = [everything[place] for place in places]
    absent = [name + b"x" for name in present]

    def restore() -> None:
        for start in range(0, entries, BATCH):
            candidate.put_all([(each, VALUE) for each in everything[start : start + BATCH]])

    def flush() -> None:
        for start in range(0, GETS, BATCH):
            candidate.put_all(sorted((each, VALUE) for each in present[start : start + BATCH]))

    print_rate("restored, in order", name, restore, entries)
    print_rate("gets", name, lambda: [candidate.get(each) for each in present], GETS)
    print_rate("gets of absent keys", name, lambda: [candidate.get(each) for each in absent], GETS)
    print_rate("puts in flushes of 10,000", name, flush, GETS)
    ranges = [(everything[place], everything[place + 10]) for place in places[:RANGES]]
    print_rate("ranges of 10", name, lambda: [list(candidate.scan(low, high)) for low, high in ranges], RANGES)
    print_rate("entries scanned", name, lambda: sum(1 for _ in candidate.scan(b"\x01", b"\xff")), entries)


def main(arguments: list[str] | None = None) -> None:
    """Measure all candidates and print the figures."""
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
