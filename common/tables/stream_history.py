"""One stream's loads, as a table's log records them.

Rule: each commit is read once, and the log only as far down as a question requires.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property, partial

from common.ports import ObjectStore
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.marker_contents import partitions_of_other_topics
from common.stage.markers import Marker
from common.tables.history import LoggedCommit, ReadOnce, read_history, store_lines
from common.tables.identity import NO_IDENTITY, TableIdentity, identity_of
from common.tables.rollback import (
    Rollback,
    find_older_copy,
    find_rollback,
    own_history,
    unknown_positions,
    unknown_since,
    without_txn,
)
from common.tables.state import TableState
from common.tables.transactions import TxnIds


class StreamHistory:
    """What a table's commits say about one stream. Every method raises StoreError."""

    def __init__(self, stream: Stream, commits: Iterator[LoggedCommit], recorded: int | None = None) -> None:
        """``commits`` are the table's, newest first, and lazy.

        ``recorded`` is a secondary table's newest own version, as the main table's log names it (rollback.py, rule 8).
        """
        self._stream = stream
        self._recorded = recorded
        self._app_id = stream.app_id
        self.commits = ReadOnce(commits)
        """From the newest down; may be iterated any number of times."""

    @cached_property
    def rollback(self) -> Rollback | None:
        back = find_rollback(self.commits, self._app_id)
        if back is None and self._recorded is not None:
            back = find_older_copy(self.commits, self._app_id, self._recorded)
        return back

    @cached_property
    def unknown_since(self) -> LoggedCommit | None:
        """The oldest commit of a log that ends before one of the stream's; None if it has one."""
        return unknown_since(self.commits, self._app_id)

    def identity(self, transactions: Mapping[str, int]) -> TableIdentity:
        """The topic and stream that the table's positions belong to; ``transactions`` are its newest."""
        ids = TxnIds(self._app_id, self._stream.several_topics)
        return identity_of(self.commits, self._stream, ids, transactions)

    def without_txn(
        self,
        unplaced: Iterable[TopicPartition],
        without_origin: Iterable[TopicPartition],
        generations: Mapping[TopicPartition, int],
        first_ms: Mapping[TopicPartition, int],
    ) -> tuple[Rollback, ...]:
        """Why Kafka partitions that are staged have no txn action."""
        chains = list(unplaced)
        if not chains:
            return ()
        past = own_history(
            self.commits, self._app_id, [(partition, generations.get(partition, 0)) for partition in chains]
        )
        return without_txn(past, chains, without_origin, generations, first_ms)

    def unknown(
        self,
        placed: Mapping[TopicPartition, tuple[Position, Iterable[Marker]]],
        generations: Mapping[TopicPartition, int],
        stage: ObjectStore,
        *,
        loads: bool = True,
    ) -> Rollback | None:
        """The chains whose position may not be theirs, where the log cannot tell (`unknown_positions`)."""
        oldest = self.unknown_since if placed else None
        if oldest is None:
            return None
        others = partial(partitions_of_other_topics, stage, self._stream)
        return unknown_positions(oldest, placed, generations, others, loads=loads)


def read_stream_history(stream: Stream, state: TableState, store: ObjectStore) -> StreamHistory:
    return StreamHistory(stream, read_history(state.version, store_lines(store)))


def histories_of(
    stream: Stream, states: Mapping[str, TableState], commits: Callable[[str, int], Iterator[LoggedCommit]]
) -> dict[str, StreamHistory]:
    """By URL, of all of a stream's tables; the main table's state is not newer than those of the others.

    ``commits`` reads a table's history, from a version down.
    """
    own = states.get(stream.table)
    main = None if own is None else StreamHistory(stream, commits(stream.table, own.version))
    recorded = {} if own is None or main is None else main.identity(own.transactions).secondary_versions
    others = {
        url: StreamHistory(stream, commits(url, state.version), recorded.get(state.table_id))
        for url, state in states.items()
        if url != stream.table
    }
    return others if main is None else {stream.table: main, **others}


def read_histories(
    stream: Stream, states: Mapping[str, TableState], open_store: Callable[[str], ObjectStore]
) -> dict[str, StreamHistory]:
    """The same from the tables' stores."""
    return histories_of(stream, states, lambda url, newest: read_history(newest, store_lines(open_store(url))))


def read_identity(stream: Stream, state: TableState | None, store: ObjectStore) -> TableIdentity:
    """The identity of the newest state of a table, from it and its log below ``store``. Raises StoreError."""
    return NO_IDENTITY if state is None else read_stream_history(stream, state, store).identity(state.transactions)
