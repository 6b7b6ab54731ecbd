"""The loader's own ports: Delta tables, parallel work, and names for commits.

A simulation hands the service its own; production hands it Spark, a thread pool and UUIDs.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol, TypeVar

from common.ports import ObjectStore, StoredObject
from common.schema.evolution import Addition
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.tables.history import LoggedCommit
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import CommitOutcome, TableCommit
from delta_loader.tables.load_modes.casting import Widening
from delta_loader.tables.load_modes.layout import Layout, Template

Item = TypeVar("Item")
Result = TypeVar("Result")


class DeltaTables(Protocol):
    """Delta tables by URL. Every method raises `common.errors.TableError` when a table cannot be used."""

    def state(self, url: str) -> TableState | None:
        """The newest state of a table; None when it does not exist."""

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        """The table's commits from a version down to the oldest in its log; read lazily."""

    def create(self, url: str, shape: TableShape) -> None:
        """Create an empty table; does nothing when one exists, even with another shape."""

    def make(self, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
        """The same for a table with more than columns; with ``nullable``, every column accepts nulls in any case."""

    def template(self, url: str) -> Template | None:
        """The table to use as a template; None when it does not exist."""

    def commit(self, commit: TableCommit) -> CommitOutcome:
        """Carry out a commit, if the table is unchanged since the plan. Atomic; an unknown result is looked up.

        A rollback since the version in the target counts as a change.
        """

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        """Add columns to a table, also inside its structs, by a commit that does nothing else.

        Raises TableError for a column that the table does not accept or already has.
        """

    def widen(self, url: str, widening: Widening) -> None:
        """Give a column, or a part of one, a wider type, by a commit that does nothing else.

        Raises TableError for a type that the table does not accept.
        """


class ParallelMap(Protocol):
    """``map`` with several calls at a time; raises what a call raises."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> list[Result]:
        """Call ``function`` on each item; returns the results in the items' order."""


def in_turn(function: Callable[[Item], Result], items: Iterable[Item], /) -> list[Result]:
    """A ParallelMap without threads."""
    return [function(item) for item in items]


class StreamWork(Protocol):
    """A stream's work in its turn."""

    def run(self, app_id: str, should_yield: Callable[[], bool], /) -> bool:
        """Load a stream; returns whether it ended early, between two commits, because it was asked to yield."""

    def progress(self, app_id: str, /) -> object:
        """A value that changes when a running stream makes progress; called from any thread."""


AnotherIsDue = Callable[[frozenset[str]], bool]
"""Called while a pass waits for these unfinished streams: whether another pass is due for a stream other than these."""


def never(_unfinished: frozenset[str], /) -> bool:
    """`AnotherIsDue` for a pass that is never interrupted."""
    return False


class StreamRunner(Protocol):
    """Gives streams their turns, one after the other or several at a time."""

    def __call__(
        self,
        work: StreamWork,
        app_ids: Sequence[str],
        /,
        *,
        to_the_end: bool = False,
        another_is_due: AnotherIsDue = never,
    ) -> frozenset[str]:
        """Run each stream's turn; a stream already in a turn gets another one after it. Returns all still running.

        With ``to_the_end`` none of ``app_ids`` is left running. ``another_is_due`` is polled, and ends the wait, not
        the turns.
        """


def run_in_order(
    work: StreamWork,
    app_ids: Sequence[str],
    /,
    *,
    to_the_end: bool = False,  # noqa: ARG001 - it always is
    another_is_due: AnotherIsDue = never,  # noqa: ARG001 - the same
) -> frozenset[str]:
    """`StreamRunner` without threads, in order."""
    for app_id in app_ids:
        work.run(app_id, lambda: False)
    return frozenset()


class ScannedStore(ObjectStore, Protocol):
    """A store that can be listed without holding the listing."""

    def scan(self, prefix: str) -> Iterator[StoredObject]:
        """Every object below the folder ``prefix``, a page or a folder at a time."""


OpenScannedStore = Callable[[str], ScannedStore]
"""Opens such a store below a table's URL."""
OpenStore = Callable[[str], ObjectStore]
"""Opens the object store below a table's URL."""
NewId = Callable[[], str]
"""Makes unique names."""
EndsOf = Callable[[Stream], Mapping[TopicPartition, Position] | None]
"""By partition, the position that the next record will have; None when Kafka does not answer in time.

Empty when Kafka has none of the stream's topics.
"""
