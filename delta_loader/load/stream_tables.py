"""The tables of one stream in one pass, as they were last read; those that fail are left out.

Rules:

1. The main table says how far the stream is, so when it fails, the stream fails. A secondary table (of a route or for
   dead letters) fails if it cannot be read or created, is incompatible with the files, or refuses a commit. It is then
   left out until the next pass and reported, and the stream's other tables continue (load/secondary_tables.py).
2. Any table that was rolled back holds the whole stream (delta_loader/load/rollback.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from structlog.typing import FilteringBoundLogger

from common.errors import ExitCode, KafkaDeltaExpressError, NotCompatibleError
from common.schema.evolution import NO_COLUMNS
from common.settings import Stream
from common.settings.columns import as_in_table
from common.settings.merging import columns_of_rows
from common.settings.own_columns import columns_at
from common.spans import Position, TopicPartition
from common.stage.versions import agreed_columns, latest
from common.tables.identity import TableChain
from common.tables.rollback import Rollback, RollbackKind
from common.tables.state import TableState
from common.tables.stream_columns import with_columns_of_files
from common.tables.table_features import checks_of
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.load.rollback import RollbackDetector
from delta_loader.load.vacuum_guard import VacuumGuard
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import Target
from delta_loader.tables.load_modes.load_mode import LoadMode, Merge, choose_load_mode, require_loadable

if TYPE_CHECKING:
    from delta_loader.load.ports import Ports


class StreamTables:
    def __init__(
        self, stream: Stream, ports: Ports, guard: VacuumGuard, rollbacks: RollbackDetector, log: FilteringBoundLogger
    ) -> None:
        """There may be hundreds of tables, so they are read in parallel."""
        self._stream = stream
        self._ports = ports
        self._guard = guard
        self._rollbacks = rollbacks
        self._log = log
        self._registering = ports.registering if stream.catalog_tables else None
        self._fatal: KafkaDeltaExpressError | None = None
        self.urls = {comparable(url): url for url in reversed(stream.tables)}
        """The stream's spelling of each table's URL, by its comparable form."""
        self.targets: dict[str, Target] = {}
        """The tables that exist and have not failed, as they were last read."""
        self._forgotten: Sequence[Rollback] | None = None
        self.rolled_back: list[tuple[Target, Rollback]] = []
        self.failed: dict[str, KafkaDeltaExpressError] = {}
        """The tables that are left out, and why (rule 1)."""
        self.last_known: dict[str, Target | None] = {}
        """Of those that could be read until then: the table, or None if it did not exist."""
        self._absent: set[str] = set()

    @property
    def main(self) -> Target | None:
        return self.targets.get(self._stream.table)

    @property
    def ids(self) -> TxnIds:
        """The stream's txn ids, for the chains' newest generations, as the main table names them now.

        Another loader may have made the first commit to it since this pass began.
        """
        return self._rollbacks.ids if self.main is None else self.main.ids(self._rollbacks.ids)

    @property
    def by_spark(self) -> bool:
        """Whether Spark writes all rows of some table."""
        return any(target.load_mode.through_spark for target in self.targets.values())

    @contextmanager
    def tried(self, url: str) -> Iterator[None]:
        """Run work on one table: the main table's failure is raised, any other table's is kept (rule 1)."""
        try:
            yield
        except KafkaDeltaExpressError as error:
            if url == self._stream.table or error is self._fatal:
                self._fatal = error
                raise
            self.failed[url] = error
            if url in self.targets or url in self._absent:
                self.last_known[url] = self.targets.pop(url, None)
            self._log.error("table left out", table=url, problem=error.problem, remedy=error.remedy)

    def refresh(self) -> None:
        """Read the tables' current state. Raises TableError."""
        self.targets.clear()
        self._absent.clear()
        self.rolled_back = []
        urls = [url for url in self._stream.tables if url not in self.failed]
        for url, state in zip(urls, self._ports.parallel(self._state_or_error, urls), strict=True):
            with self.tried(url):
                self._take(url, state)

    def read(self, url: str) -> None:
        """Read one table again, after a change to it. Raises TableError."""
        self._take(url, self._ports.tables.state(url), is_newest=True)

    def _state_or_error(self, url: str) -> TableState | KafkaDeltaExpressError | None:
        try:
            return self._ports.tables.state(url)
        except KafkaDeltaExpressError as error:
            return error

    def _take(self, url: str, state: TableState | KafkaDeltaExpressError | None, *, is_newest: bool = False) -> None:
        """``is_newest`` says whether the state was read after the main table's."""
        if isinstance(state, KafkaDeltaExpressError):
            raise state
        if self._registering is not None and self._registering.register_table(
            self._stream, url, exists=state is not None
        ):
            self._log.info("table registered in the catalog", table=url)
        if state is None:
            self._absent.add(url)
            return
        load_mode = choose_load_mode(state, self._stream.load_of(url))
        require_loadable(load_mode, url)
        self._guard.table(url, state.properties)
        shape = TableShape(state.schema, state.partition_by)
        seen = Target(
            url,
            state.table_id,
            shape,
            state.transactions,
            state.version,
            load_mode,
            complete_columns=self._complete_columns(load_mode, url, state),
            checks=checks_of(state),
        )
        recorded = None if self.main is None else self.main.identity.secondary_versions.get(state.table_id)
        target, back = self._rollbacks.inspect(seen, recorded)
        if back is not None and back.is_older_copy and not is_newest:
            self.read(url)  # another loader may have committed to it, and then to the main table
            return
        self.rolled_back += [] if back is None else [(target, back)]
        self.targets[url] = self._with_forgotten(target) if url == self._stream.table else target

    def _complete_columns(self, load_mode: LoadMode, url: str, state: TableState) -> frozenset[str]:
        """The columns that the stream's rows have in a table that they are merged into; derived ones included."""
        if not isinstance(load_mode, Merge):
            return frozenset()
        store, record = self._ports.stage.store, self._stream.record
        gained = latest(store, self._stream.app_id, by_route=self._stream.gains_by_table) if record.evolves else None
        main = state.schema if self.main is None else self.main.shape.schema
        stream = with_columns_of_files(self._stream.at(url), main, partial(agreed_columns, store))
        own = NO_COLUMNS if gained is None else columns_at(self._stream, url, gained.columns)
        return frozenset((*columns_of_rows(stream), *as_in_table(stream, own).names))

    @property
    def main_to_commit(self) -> Target:
        """The main table, with what its next commit records of the others (common/tables/rollback.py, rule 8)."""
        main = self.targets[self._stream.table]
        read = {target.table_id: target.identity.newest_own for target in self.targets.values() if target is not main}
        known = {table_id: version for table_id, version in read.items() if version is not None}
        versions = {**main.identity.secondary_versions, **known}
        return replace(main, identity=replace(main.identity, secondary_versions=versions))

    def position(self, url: str, partition: TopicPartition) -> Position | None:
        target = self.targets.get(url)
        return None if target is None else target.ids(self.ids).position(target.transactions, partition)

    def note_forgotten(self, events: Sequence[Rollback]) -> None:
        """The main table has chains without a txn action, or may have: its commits name them (rollback.py, rule 7)."""
        self._forgotten = events
        if self.main is not None:
            self.targets[self.main.url] = self._with_forgotten(self.main)

    def _with_forgotten(self, main: Target) -> Target:
        if self._forgotten is None:
            return main
        identity = main.identity if main.identity.is_whole else replace(main.identity, is_whole=True)
        for back in self._forgotten:
            named = {
                (partition, back.generations.get(partition, 0)): position
                for partition, position in back.positions.items()
            }
            if back.is_unplaced:
                identity = replace(identity, unproved=identity.unproved.union(named))
            elif back.kind is RollbackKind.EXPIRED:
                missing = {partition: TableChain(number, position) for (partition, number), position in named.items()}
                identity = replace(identity, chains={**missing, **identity.chains})
        return main if identity == main.identity else replace(main, identity=identity)

    def raise_failure(self) -> None:
        for url, error in self.failed.items():
            left = len(self.failed) - 1
            more = f" (and {left} more)" if left else ""
            problem = f"{url} is skipped{more}, the stream's other tables continue: {error.problem}"
            is_held = all(failed.exit_code is ExitCode.HELD for failed in self.failed.values())
            raise (NotCompatibleError if is_held else KafkaDeltaExpressError)(problem, error.remedy)
