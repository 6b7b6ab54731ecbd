"""The loader's own ports: Delta tables, parallel work, and names for commits.

A simulation hands the service its own; production hands it Spark, a thread pool and UUIDs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from common.ports import ObjectStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from common.ports import StoredObject
    from common.schema.evolution import Addition
    from common.tables.delta_log import TableState
    from common.tables.history import LoggedCommit
    from delta_loader.core.commits import CommitOutcome, TableCommit
    from delta_loader.core.load_modes.casting import Widening
    from delta_loader.core.load_modes.layout import Layout, Template
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
    """Gives tables columns, and columns wider types."""

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        """Add columns to a table, also inside of its structs, by one commit that does nothing else.

        Raises TableError for what the table does not take, or has already.
        """

    def widen(self, url: str, widening: Widening) -> None:
        """Give a column, or a part of one, a wider type, by a commit that does nothing else.

        Raises TableError for what the table does not take.
        """


class TableMaker(Protocol):
    """Makes tables that are more than columns."""

    def make(self, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
        """Make an empty table by one commit; nothing happens when there is one, whatever it looks like.

        ``nullable``: every column takes nulls, whatever the shape says. Raises TableError.
        """

    def template(self, url: str) -> Template | None:
        """A table to make others like; None when there is none. Raises TableError."""


class ParallelMap(Protocol):
    """``map`` with several calls at a time; raises what a call raises."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> list[Result]:
        """Call ``function`` on each item; the results stand in the items' order."""


def in_turn(function: Callable[[Item], Result], items: Iterable[Item], /) -> list[Result]:
    """A ParallelMap without threads."""
    return [function(item) for item in items]


class StreamTurn(Protocol):
    """What a stream does when it is its turn."""

    def run(self, app_id: str, gives_way: Callable[[], bool], /) -> bool:
        """Load a stream; whether it ended early because it was asked, between two commits, to give way."""

    def progress(self, app_id: str, /) -> object:
        """Something that is another one once a stream under way has come further; asked from any thread."""


class Hurries(Protocol):
    """Asked while a pass waits for streams at their turns."""

    def __call__(self, at_it: frozenset[str], /) -> bool:
        """Whether another pass is due, of a stream that is not one of these."""


def never(_at_it: frozenset[str], /) -> bool:
    """`Hurries` where nothing is due before the pass has ended."""
    return False


class Turns(Protocol):
    """Gives streams their turns, one after the other or several at a time."""

    def __call__(
        self, turn: StreamTurn, app_ids: Sequence[str], /, *, to_the_end: bool = False, hurries: Hurries = never
    ) -> frozenset[str]:
        """Take each stream's turn; one that is at one from before has another one then. Which of all are still at it.

        With ``to_the_end`` none of ``app_ids`` is. ``hurries`` is asked meanwhile, and ends the wait, not the turns.
        """


def one_by_one(
    turn: StreamTurn,
    app_ids: Sequence[str],
    /,
    *,
    to_the_end: bool = False,  # noqa: ARG001 - it always is
    hurries: Hurries = never,  # noqa: ARG001 - the same
) -> frozenset[str]:
    """`Turns` without threads, in order."""
    for app_id in app_ids:
        turn.run(app_id, lambda: False)
    return frozenset()


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
