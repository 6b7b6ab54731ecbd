"""The ports that both services and the bootstrap tool use: the clock and the object store.

A service gets its ports through its constructor. Production passes the real ones, the contract tests run one suite over
each implementation, and a simulation passes its own and so controls time and failures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from common.storage.chunks import ByteChunks


class Clock(Protocol):
    def monotonic_s(self) -> float:
        """Seconds that never decrease; only differences have a meaning."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""

    def sleep_s(self, seconds: float) -> None: ...


@dataclass(frozen=True, slots=True)
class StoredObject:
    """One object of a store: its path below the store's root, its size, and when it was last written."""

    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class Created:
    """The object was not there and is now, with our bytes."""


@dataclass(frozen=True, slots=True)
class AlreadyExists:
    """Another process's object is there; nothing was written."""


CreateOutcome = Created | AlreadyExists


class ObjectStore(Protocol):
    """A flat namespace of objects below one root URL. Paths are relative, with ``/`` between their parts.

    Every method raises `common.errors.StoreError` when the store cannot be reached or refuses; absence is a value.
    """

    @property
    def url(self) -> str:
        """The root, as configured."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every object whose path is below the folder ``prefix``, at any depth, in no particular order."""

    def read(self, path: str) -> bytes | None:
        """The object's bytes, or None when it does not exist."""

    def read_each(self, paths: Iterable[str]) -> Iterator[bytes | None]:
        """The result of `read` for each, in order; some may be fetched ahead."""

    def open(self, path: str) -> BinaryIO:
        """A seekable reader that fetches only the parts that are read: for the columns of a large Parquet file."""

    def stat(self, path: str) -> StoredObject | None:
        """The entry that `list` would return for one object, or None when it does not exist."""

    def create(self, path: str, data: bytes) -> CreateOutcome:
        """Write the object only if the path is free: atomic, durable, decided by the store."""

    def write(self, path: str, data: bytes) -> None:
        """Write the object, replacing any existing one. For names that are unique by themselves."""

    def upload(self, path: str, data: ByteChunks) -> None:
        """Write a new file of any size under a unique name, without a second copy in memory if possible.

        An existing file is never replaced: it is assumed to be from an earlier attempt.
        """

    def copy(self, path: str, to: str) -> None:
        """Copy an object now, replacing any existing one; without downloading it where possible."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; absent ones are ignored."""
