"""The loader's own ports: Delta tables, parallel work, and names for commits.

A simulation hands the service its own; production hands it Spark, a thread pool and UUIDs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from common.ports import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from common.delta_log import TableState
    from common.ports import StoredObject
    from common.schema.evolution import Addition
    from common.table_history import LoggedCommit
    from delta_loader.core.commits import CommitOutcome, TableCommit
    from delta_loader.core.plan import TableShape

Item = TypeVar("Item")
Result = TypeVar("Result")


class DeltaTables(Protocol):
    """Delta tables by URL. Every method raises `common.errors.TableError` when a table cannot be used."""

    def state(self, url: str) -> TableState | None:
        """The newest state of a table; None when there is none."""

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        """The table's commits from a version down to the oldest that its log still has; read as they are asked for."""

    def create(self, url: str, shape: TableShape) -> None:
        """Make an empty table; nothing happens when there is one, whatever it looks like."""

    def commit(self, commit: TableCommit) -> CommitOutcome:
        """Carry a commit out, if the table is still what it stands on. Atomic; an unknown end is looked up.

        A table that went back since its version that the target names is not what the commit stands on.
        """


class ColumnAdder(Protocol):
    """Gives tables columns."""

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        """Add columns to a table, also inside of its structs, by one commit that does nothing else.

        Raises TableError for what the table does not take, or has already.
        """


class ParallelMap(Protocol):
    """``map`` with several calls at a time; raises what a call raises."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> list[Result]:
        """Call ``function`` on each item; the results stand in the items' order."""


class ScannedStore(ObjectStore, Protocol):
    """A store that can be listed without holding the listing."""

    def scan(self, prefix: str) -> Iterator[StoredObject]:
        """Every object below the folder ``prefix``, a page or a folder at a time."""


class OpenScannedStore(Protocol):
    """Gives such a store below a table's URL."""

    def __call__(self, url: str, /) -> ScannedStore:
        """The store."""


class OpenStore(Protocol):
    """Gives the object store below a table's URL."""

    def __call__(self, url: str, /) -> ObjectStore:
        """The store."""


class NewId(Protocol):
    """Gives a name that nobody else has."""

    def __call__(self) -> str:
        """A new one at each call."""
