"""Acquires the repair lock in the stage, and stops a command that has lost it (rules: common/stage/repair_lock.py)."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from bootstrap.plans.state import Author
from common.errors import KafkaDeltaExpressError, StoreError
from common.ports import AlreadyExists, CreateOutcome, ObjectStore, StoredObject
from common.spans import TopicPartition
from common.stage.repair_lock import (
    LastRepair,
    RepairEntry,
    ended_path,
    last_repair,
    overtaken,
    repair_path,
    repair_running,
)
from common.storage.chunks import ByteChunks


class RepairLocks:
    def __init__(self, store: ObjectStore, author: Author, unique: str, *, take_over: int | None = None) -> None:
        """``unique`` identifies this command; ``take_over`` is the unfinished lock of a process that is gone."""
        self._store = store
        self._author = author
        self._unique = unique
        self._take_over = take_over
        self._seen: dict[TopicPartition, LastRepair] = {}

    def read_last(self, partition: TopicPartition) -> int:
        """The last lock's number. Call this before a partition's chain is read (rule 2); only the first call counts.

        Raises StoreError.
        """
        if partition not in self._seen:
            self._seen[partition] = last_repair(self._store, partition)
        return self._seen[partition].number

    def finishes(self, partition: TopicPartition) -> bool:
        """Whether this command finishes a repair that was cut off: of this partition, or of others and this one."""
        return self._take_over is not None or not self._seen[partition].ended

    def is_cut_off(self, partition: TopicPartition, work: str) -> bool:
        """Whether the last lock is unfinished, and a command's of the same work."""
        last = self._seen[partition]
        return not last.ended and last.entry is not None and last.entry.work == work

    @contextmanager
    def locked(self, partition: TopicPartition, work: str) -> Iterator[ObjectStore]:
        """The stage, while the lock is held. Raises UsageError when another command holds it, and StoreError."""
        seen = self._seen[partition]
        if not seen.ended and seen.number != self._take_over:
            raise repair_running(partition, seen)
        number = seen.number + 1
        repair = RepairEntry(self._author.name, self._author.now_ms, work, self._unique)
        if isinstance(self._store.create(repair_path(partition, number), repair.to_bytes()), AlreadyExists):
            raise overtaken(partition, number)
        try:
            yield GuardedStore(self._store, partition, number)
        except StoreError:
            raise  # a timed-out request may still be carried out later: the lock is not released automatically
        except KafkaDeltaExpressError:
            self._end(partition, number)
            raise
        self._end(partition, number)

    def _end(self, partition: TopicPartition, number: int) -> None:
        self._store.create(ended_path(partition, number), b"{}")


class GuardedStore:
    """A `common.ports.ObjectStore` that changes nothing once the next lock is another command's (rule 4)."""

    def __init__(self, store: ObjectStore, partition: TopicPartition, number: int) -> None:
        self._store = store
        self._source = partition
        self._number = number

    @property
    def url(self) -> str:
        return self._store.url

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._store.list(prefix)

    def read(self, path: str) -> bytes | None:
        return self._store.read(path)

    def read_each(self, paths: Iterable[str]) -> Iterator[bytes | None]:
        return self._store.read_each(paths)

    def open(self, path: str) -> BinaryIO:
        return self._store.open(path)

    def stat(self, path: str) -> StoredObject | None:
        return self._store.stat(path)

    def create(self, path: str, data: bytes) -> CreateOutcome:
        self._require()
        return self._store.create(path, data)

    def write(self, path: str, data: bytes) -> None:
        self._require()
        self._store.write(path, data)

    def upload(self, path: str, data: ByteChunks) -> None:
        self._require()
        self._store.upload(path, data)

    def copy(self, path: str, to: str) -> None:
        self._require()
        self._store.copy(path, to)

    def delete(self, paths: Iterable[str]) -> None:
        """Deletes one after the other. Raises UsageError when the lock is another command's."""
        for path in paths:
            self._require()
            self._store.delete([path])

    def _require(self) -> None:
        if self._store.stat(repair_path(self._source, self._number + 1)) is not None:
            raise overtaken(self._source, self._number + 1)
