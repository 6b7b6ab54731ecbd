"""The tables of one stream in one pass: read, created, and left out where they fail.

Rules:

1. The main table says how far the stream is; when it fails, the stream fails. A secondary table (of a route or for dead
   letters) that fails, because it cannot be read or created, is incompatible with the files, or refuses a commit, is
   left out until the next pass and reported: the stream's other tables continue.
2. The range that a left-out table lacks is noted in the commit that moves the stream on (load/deferred.py). The table
   gets that range before anything later (delta_loader/load/catch_up.py), and no marker that it may need is settled
   before that.
3. Any table that was rolled back holds the whole stream (delta_loader/load/rollback.py).
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from common.errors import KafkaDeltaExpressError
from common.settings.merging import columns_of_rows, settings_of_columns
from common.stage.agreed_columns import agreed_columns
from common.stage.evolved import latest
from common.tables.deferred_ranges import DeferredRanges
from common.tables.identity import TableChain
from common.tables.rollback import RollbackKind
from common.tables.stream_columns import with_columns_of_files
from common.tables.table_features import may_have_refused_rows
from common.tables.urls import comparable
from delta_loader.load.creating import Creator
from delta_loader.load.deferred import excluded_spans, with_deferred, without_sources
from delta_loader.load.merged_keys import require_sequence
from delta_loader.load.schema_evolution import SchemaEvolution
from delta_loader.load.table_alterations import TableAlterations
from delta_loader.plan.held import missing_file, stage_again
from delta_loader.plan.plan import TableShape, shape_of, shapes_of
from delta_loader.tables.commits import Target, needed, side_commit
from delta_loader.tables.load_modes.compatibility import require_compatible
from delta_loader.tables.load_modes.load_mode import Merge, choose_load_mode, require_loadable, through_spark

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from common.settings import Stream
    from common.spans import Position, TopicPartition
    from common.stage.markers import Marker, StagedFile
    from common.tables.deferred_ranges import DeferredRange
    from common.tables.rollback import Rollback
    from common.tables.state import TableState
    from delta_loader.load.ports import Ports
    from delta_loader.load.rollback import RollbackDetector
    from delta_loader.load.vacuum_guard import VacuumGuard
    from delta_loader.plan.held import Held
    from delta_loader.plan.plan import Load
    from delta_loader.tables.commits import CommitNaming, TableCommit
    from delta_loader.tables.load_modes.load_mode import LoadMode


class StreamTables:
    """What one pass knows of a stream's tables."""

    def __init__(
        self,
        stream: Stream,
        ports: Ports,
        guard: VacuumGuard,
        look_back: RollbackDetector,
        log: FilteringBoundLogger,
    ) -> None:
        """There may be hundreds of tables, so they are read in parallel."""
        self._stream = stream
        self._ports = ports
        self._guard = guard
        self._rollback_detector = look_back
        self._log = log
        self._evolution = SchemaEvolution.of(stream, ports, log)
        self._alterations = TableAlterations.of(stream, ports, log)
        self._creator = Creator(stream, ports.tables, ports.maker)
        self._registering = ports.registering if stream.catalog_tables else None
        self._fatal: KafkaDeltaExpressError | None = None
        self._read_of: Target | None = None
        self._read = DeferredRanges({})
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
    def own(self) -> Target | None:
        """The stream's main table, if it exists."""
        return self.targets.get(self._stream.table)

    @property
    def by_spark(self) -> bool:
        """Whether Spark writes all rows of some table."""
        return any(through_spark(target.load_mode) for target in self.targets.values())

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

    def _state_or_error(self, url: str) -> TableState | KafkaDeltaExpressError | None:
        try:
            return self._ports.tables.state(url)
        except KafkaDeltaExpressError as error:
            return error

    def _take(self, url: str, state: TableState | KafkaDeltaExpressError | None) -> None:
        if isinstance(state, KafkaDeltaExpressError):
            raise state
        if self._registering is not None and self._registering.see_to(self._stream, url, exists=state is not None):
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
            has_refused=may_have_refused_rows(state),
        )
        target, back = self._rollback_detector.inspect(seen)
        self.rolled_back += [] if back is None else [(target, back)]
        self.targets[url] = self._with_forgotten(target) if url == self._stream.table else target

    def _complete_columns(self, load_mode: LoadMode, url: str, state: TableState) -> frozenset[str]:
        """The columns that the stream's rows have in a table that they are merged into; derived ones included."""
        if not isinstance(load_mode, Merge):
            return frozenset()
        store = self._ports.stage.store
        gained = latest(store, self._stream.app_id) if self._stream.evolves else None
        main = state.schema if self.own is None else self.own.shape.schema
        stream = with_columns_of_files(self._stream.at(url), main, partial(agreed_columns, store))
        return frozenset((*columns_of_rows(stream), *(() if gained is None else gained.columns.names)))

    def ensure(self, load: Load, urls: Collection[str] | None = None) -> None:
        """Create the tables that the load is the first to need; check that its files are compatible. Raises TableError.

        With ``urls``, only for these tables.
        """
        wanted = {
            pair for marker in load.markers for pair in shapes_of(marker).items() if urls is None or pair[0] in urls
        }
        if self.own is None and urls is None:  # its txn actions are needed even if no record becomes a row of it
            wanted |= {
                (staged.url, shape_of(staged))
                for marker in load.markers
                for staged in marker.tables
                if staged.url == self._stream.table
            }
        in_order = sorted(((url, shape) for url, shape in wanted if url not in self.failed), key=str)
        starts = {partition: run.start for partition, run in load.runs.items()}
        restage = stage_again(starts, below_table=urls is not None)
        missing = {url: shape for url, shape in reversed(in_order) if url not in self.targets}
        for url, shape in missing.items():
            with self.tried(url):
                self._creator.create(url, shape, restage)
                self._log.info("table created", table=url)
        if missing:
            self.refresh()
        for url, shape in in_order:
            if url in self.targets:
                with self.tried(url):
                    if shape.merge is not None:
                        require_sequence(self.targets[url], shape.merge, restage)
                    self._evolve(url, shape, load.markers)
                    self._require_compatible(self.targets[url], shape, restage)

    def _require_compatible(self, table: Target, staged: TableShape, restage: str) -> None:
        casting = self._alterations is not None and table.url != self._stream.dead_letters
        require_compatible(
            table.shape,
            staged,
            table.url,
            table.load_mode,
            casting=casting,
            restage=restage,
            settings=settings_of_columns(self._stream.at(table.url)),
        )
        if self._ports.merged_keys is not None and staged.merge is not None:
            self._ports.merged_keys.require(table, staged.merge)

    def _evolve(self, url: str, shape: TableShape, markers: Sequence[Marker]) -> None:
        if self._evolution is not None and self._evolution.evolve(self.targets[url], shape, markers):
            self._take(url, self._ports.tables.state(url))
        if self._alterations is not None and self._alterations.shape(self.targets[url], shape):
            self._take(url, self._ports.tables.state(url))

    def missing_files(self, load: Load, urls: Iterable[str] | None = None) -> Callable[[Marker], Held | None]:
        """Check every file that the load would add to ``urls``, or to all tables; a missing file holds its marker.

        A table that is left out by now is passed over.
        """
        gone: dict[object, str] = {}
        for url in [url for url in (self.targets if urls is None else urls) if url in self.targets]:
            with self.tried(url):
                gone |= self._missing_of(load, self.targets[url])

        def reason_of(marker: Marker) -> Held | None:
            path = gone.get(marker.name)
            if path is None:
                return None
            partition, own = marker.name.topic_partition, self.targets.get(self._stream.table)
            is_new = own is None or own.ids(self._rollback_detector.ids).position(own.transactions, partition) is None
            return missing_file(partition, marker.span.start, path, self._stream.table if is_new else None)

        return reason_of

    def _missing_of(self, load: Load, target: Target) -> Mapping[object, str]:
        ids = self._rollback_detector.ids
        files = [(marker, file) for marker in load.markers for file in needed(target, ids, load, marker).files]
        if not files:
            return {}
        store = self._ports.open_store(target.url)

        def is_there(item: tuple[Marker, StagedFile]) -> bool:
            file_store = self._ports.stage.store if item[1].is_mixed else store
            return self._guard.is_there(file_store, target.url, item[1].path)

        seen = self._ports.parallel(is_there, files)
        return {marker.name: file.path for (marker, file), there in zip(files, seen, strict=True) if not there}

    # Deferred ranges.

    def deferred(
        self, partitions: Iterable[TopicPartition], urls: Iterable[str] | None = None
    ) -> tuple[DeferredRange, ...]:
        """The ranges that tables may lack below the main table's position."""
        return self._deferred().of(self._rollback_detector.ids, urls or self._stream.side_tables, partitions)

    def floor(self, partition: TopicPartition, position: Position | None) -> Position | None:
        """The position up to which all tables have a Kafka partition's rows; ``position`` is the main table's."""
        if position is None:
            return None
        return self._deferred().floor(self._rollback_detector.ids, self._stream.side_tables, partition, position)

    def _deferred(self) -> DeferredRanges:
        """The deferred ranges in the main table's txn actions; read once for each state of the table."""
        own = self.own
        if own is not self._read_of:
            self._read_of, self._read = own, DeferredRanges.read({} if own is None else own.transactions)
        return self._read

    def side_commit(self, url: str, naming: CommitNaming, load: Load, *, catch_up: bool = False) -> TableCommit | None:
        """The commit of a load to a secondary table; None if it adds nothing.

        With ``catch_up`` the load is the range that the table lacks; otherwise the table waits until it has that range.
        """
        target = self.targets.get(url)
        if target is None:
            return None
        part = load if catch_up else without_sources(load, self._lacking(url, load.runs))
        return None if part is None else side_commit(target, naming, part)

    def with_deferred(self, commit: TableCommit, load: Load) -> TableCommit:
        """The commit to the main table, noting the ranges of the load that other tables do not get."""
        for url in self._stream.side_tables:
            without = self._lacking(url, load.runs) if url in self.targets else tuple(load.runs)
            spans = excluded_spans(load, url, without)
            if spans:
                commit = with_deferred(commit, url, spans, self.deferred(spans, [url]), self._rollback_detector.ids)
        return commit

    def _lacking(self, url: str, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(missing.partition for missing in self.deferred(partitions, [url]))

    def position(self, url: str, partition: TopicPartition) -> Position | None:
        """A table's own position."""
        target = self.targets.get(url)
        return (
            None if target is None else target.ids(self._rollback_detector.ids).position(target.transactions, partition)
        )

    def note_forgotten(self, events: Sequence[Rollback]) -> None:
        """The main table has chains without a txn action, or may have: its commits name them (rollback.py, rule 7)."""
        self._forgotten = events
        if self.own is not None:
            self.targets[self.own.url] = self._with_forgotten(self.own)

    def _with_forgotten(self, own: Target) -> Target:
        if self._forgotten is None:
            return own
        identity = own.identity if own.identity.is_whole else replace(own.identity, is_whole=True)
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
        return own if identity == own.identity else replace(own, identity=identity)

    def raise_failure(self) -> None:
        for url, error in self.failed.items():
            left = len(self.failed) - 1
            more = f" (and {left} more)" if left else ""
            problem = f"{url} is skipped{more}, the stream's other tables continue: {error.problem}"
            raise KafkaDeltaExpressError(problem, error.remedy)
