"""The ports that both services and the bootstrap tool use: the clock and the object store.

A service is given its ports by its constructor. Production hands it the real ones, the contract tests run one suite
over each implementation, and a simulation hands it its own and so decides about time and failure.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, BinaryIO, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from common.storage.pieces import Pieces


class Clock(Protocol):
    """Time, as two questions: how long since, and what date is it."""

    def monotonic_s(self) -> float:
        """Seconds that never go back; only differences mean something."""

    def wall_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""

    def sleep_s(self, seconds: float) -> None:
        """Wait."""


# Linux has a clock that also runs while the machine is suspended, as everybody else's does.
_STEADY = getattr(time, "CLOCK_BOOTTIME", None)


class SystemClock:
    """The machine's clock."""

    def monotonic_s(self) -> float:  # noqa: D102 - the port says it
        return time.monotonic() if _STEADY is None else time.clock_gettime(_STEADY)

    def wall_ms(self) -> int:  # noqa: D102 - the port says it
        return time.time_ns() // 1_000_000

    def sleep_s(self, seconds: float) -> None:  # noqa: D102 - the port says it
        time.sleep(seconds)


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
    """Somebody else's object is there; nothing was written."""


CreateOutcome = Created | AlreadyExists


class ObjectStore(Protocol):
    """A flat name space of objects below one root URL. Paths are relative, with ``/`` between their parts.

    Every method raises `common.errors.StoreError` when the store cannot be reached or refuses; absence is a value.
    """

    @property
    def url(self) -> str:
        """The root, as configured."""

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Every object whose path lies below the folder ``prefix``, at any depth, in no particular order."""

    def read(self, path: str) -> bytes | None:
        """The object's bytes, or None when it is not there."""

    def read_each(self, paths: Iterable[str]) -> Iterator[bytes | None]:
        """What `read` says of each, in their order; some may be fetched ahead."""

    def open(self, path: str) -> BinaryIO:
        """A seekable reader that fetches only what is read: for the columns of a large Parquet file."""

    def stat(self, path: str) -> StoredObject | None:
        """What `list` would say of one object, or None when it is not there."""

    def create(self, path: str, data: bytes) -> CreateOutcome:
        """Write the object only if nothing has that path: atomic, durable, decided by the store."""

    def write(self, path: str, data: bytes) -> None:
        """Write the object, whatever was there. For names that are unique by themselves."""

    def upload(self, path: str, data: Pieces) -> None:
        """Write a new file of any size under a name that is unique by itself, holding no second copy if that can be.

        A file that is there is never replaced: it is taken for an earlier try's.
        """

    def copy(self, path: str, to: str) -> None:
        """Make a second object of the same bytes, now, whatever was there; without fetching them where that can be."""

    def delete(self, paths: Iterable[str]) -> None:
        """Delete the objects; absent ones are passed over."""
