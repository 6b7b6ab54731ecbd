"""The files that a clean-up may remove, in a temporary database: a table with a million of them costs no memory.

Rule: a file is identified by its name, which is unique; any reference to that name excludes it, in any folder.
"""

import sqlite3
from collections.abc import Iterable, Iterator

from common.ports import StoredObject
from common.stage.data_files import shortened


class Candidates:
    """Data files by area, an area being a number."""

    def __init__(self) -> None:
        # A file that SQLite creates when its cache is full, and deletes by itself.
        self._database = sqlite3.connect("", isolation_level=None)
        self._database.execute("CREATE TABLE files (name, area, path, size, modified, topic, partition)")
        self._database.execute("CREATE INDEX by_name ON files (name)")
        self._database.execute("BEGIN")

    def close(self) -> None:
        self._database.close()

    def add(self, area: int, item: StoredObject, topic: str, partition: int) -> None:
        name = item.path.rpartition("/")[2]
        row = (name, area, item.path, item.size_bytes, item.modified_ms, topic, partition)
        self._database.execute("INSERT INTO files VALUES (?, ?, ?, ?, ?, ?, ?)", row)

    def keep(self, names: Iterable[str]) -> None:
        self._database.executemany("DELETE FROM files WHERE name = ?", ((name,) for name in names))

    def keep_partition(self, topic: str, partition: int) -> None:
        """Exclude all files of a chain, whose names have the topic as `shortened` leaves it."""
        self._database.execute("DELETE FROM files WHERE topic = ? AND partition = ?", (shortened(topic), partition))

    def keep_area(self, area: int) -> None:
        self._database.execute("DELETE FROM files WHERE area = ?", (area,))

    def left(self, area: int) -> Iterator[StoredObject]:
        """The unreferenced files, by path."""
        query = "SELECT path, size, modified FROM files WHERE area = ? ORDER BY path"
        for path, size_bytes, modified_ms in self._database.execute(query, (area,)):
            yield StoredObject(path, size_bytes, modified_ms)
