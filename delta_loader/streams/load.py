"""One pass over one stream, in the order in which data flows: discover, plan, commit, settle.

Rules:

1. The loader has no state of its own: each pass starts with the stage's listing and the tables' txn actions. Within a
   pass it remembers only what its own commits were acknowledged to have done.
2. The secondary tables (routes and dead letters) are committed to before the main table (core/commits.py, rule 3). A
   crash in between leaves some of them ahead, which their own txn actions show. A table that fails is left out, and the
   range that it lacks is noted (delta_loader/tables/stream_tables.py).
3. Time, names and parallel work come from ports. Nothing here starts a thread or reads a clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from common.errors import TableError
from common.spans import MAX_POSITION, Position
from common.stage.markers import Marker
from common.tables.rollback import RollbackKind
from common.tables.transactions import TxnIds
from delta_loader.conflict_backoff import CONFLICTS_TO_FAILURE, ConflictBackoff
from delta_loader.core.commits import (
    AlreadyLoaded,
    CommitNaming,
    Committed,
    Conflicted,
    Failed,
    NotWritten,
    TableCommit,
    Unknown,
    rows_commit,
)
from delta_loader.core.held import Held, held, no_table, not_written, unknown_partition
from delta_loader.core.identity import StreamIdentity
from delta_loader.core.load_modes.load_mode import through_spark
from delta_loader.core.plan import (
    ForeignMarker,
    Limits,
    Load,
    Loadable,
    Rootless,
    Run,
    Straddle,
    cuttable,
    has_mixed,
    next_run,
    plan_load,
)
from delta_loader.core.settle import IdleFacts, highest_timestamp_ms, newest_fact, unknown_partitions, valid_through_ms
from delta_loader.stage.generations import put_older_aside
from delta_loader.stage.strays import StrayKeeper
from delta_loader.streams.marker_window import MarkerWindow
from delta_loader.streams.merged import MergedLoads
from delta_loader.streams.refusals import Refusals
from delta_loader.streams.report import LoadReporter
from delta_loader.streams.settling import Settling
from delta_loader.table_services.guard import VacuumGuard
from delta_loader.tables.catch_up import CatchUp
from delta_loader.tables.evolving import Evolver
from delta_loader.tables.rollback import Looked, RollbackDetector, held_by
from delta_loader.tables.shaping import Shaper
from delta_loader.tables.stream_tables import StreamTables

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from common.settings import LoaderSettings, Stream
    from common.spans import TopicPartition
    from common.stage.answers import Answer
    from common.stage.idle import IdleFact, StreamFact
    from common.tables.rollback import Rollback
    from delta_loader.core.commits import Target
    from delta_loader.core.listed import Listing
    from delta_loader.core.plan import Found
    from delta_loader.service_ports import Ports
    from delta_loader.streams.report import StreamReport


class StreamLoad:
    """One pass over one stream."""

    def __init__(
        self, stream: Stream, settings: LoaderSettings, ports: Ports, report: StreamReport, looked: Looked
    ) -> None:
        self._stream = stream
        self._settings = settings
        self._ports = ports
        self._report = report
        self._log = ports.log.bind(app_id=stream.app_id)
        self._telling = LoadReporter(report, self._log, ports.metrics, ports.clock)
        self._ids = TxnIds(stream.app_id, stream.several_topics)
        self._limits = Limits(settings.max_files, settings.max_bytes)
        self._look_back = RollbackDetector(stream, self._ids, ports.tables, ports.stage, looked)
        self._guard = VacuumGuard(ports.open_store, ports.parallel, ports.clock, ports.new_id, self._log)
        self._patience = ConflictBackoff(ports.clock, ports.new_id)
        evolver = Evolver.of(stream, ports, self._log)
        self._tables = StreamTables(
            stream,
            ports.tables,
            self._guard,
            self._look_back,
            parallel=ports.parallel,
            stage=ports.stage,
            evolver=evolver,
            shaper=Shaper.of(stream, ports, self._log),
            maker=ports.maker,
            registering=ports.registering if stream.catalog_tables else None,
            log=self._log,
        )
        self._urls = self._tables.urls
        self._begun: Mapping[TopicPartition, int] = {}
        self._near = MarkerWindow(ports.stage, self._urls, settings.max_files)
        self._stop: Callable[[], bool] = lambda: False
        self._is_apart = False
        self._facts: tuple[tuple[IdleFact, ...], tuple[StreamFact, ...]] = ((), ())
        self._partitions: StreamFact | None = None
        self._merged = MergedLoads(ports.stage.store, ports.clock, ports.new_id, self._telling.held)
        self._refusals: Refusals | None = None
        if ports.refusing is not None:
            self._refusals = Refusals(
                stream, self._tables, ports.tables, ports.new_id, ports.refusing, self._commit, self._telling.held
            )

    def run(self, stop: Callable[[], bool]) -> None:
        """Load until nothing is left, then settle. Raises KafkaDeltaExpressError, also when only one table failed."""
        self._stop = stop
        self._report.looked_s = self._ports.clock.monotonic_s()
        listing = self._ports.stage.listing(self._stream)
        self._facts = self._ports.stage.facts()
        self._partitions = self._ports.partitions(self._stream) or newest_fact(self._stream.app_id, self._facts[1])
        self._tables.look()
        begun = self._ports.stage.generations(self._stream)
        target = self._tables.own
        if target is not None:
            self._ids = target.ids(self._ids).at(begun, target.transactions, {*listing, *begun})
        else:
            self._ids = self._ids.at(begun, {}, {*listing, *begun})
        self._look_back.ids, self._begun = self._ids, begun
        self._merged.look((one for one in listing if listing[one].waiting(self._position(one))), self._position)
        if not self._stands(listing):
            listing = self._put_strays_aside(listing)
            self._pay_debts(listing)
        while not stop() and not self._stands(listing):
            load = plan_load(self._apart(self._runs(listing)), self._limits)
            if load is None:
                break
            self._carry_out(load, listing)
        if self._ports.replacements is not None and not stop() and not self._stands(listing):
            replaced = self._ports.replacements.run(self._stream, self._position_now, stop, self._report.stepped)
            self._report.replacements += replaced.carried_out
            for source, reason in replaced.held.items():
                self._telling.held(source, self._report.held.get(source, reason))
        self._tell(listing)
        if not stop() and not self._stands(listing):
            self._settle(listing)
        self._tables.raise_failure()

    def look(self) -> None:
        """Find out how far the stream is without changing anything. Raises KafkaDeltaExpressError."""
        self._report.looked_s = self._ports.clock.monotonic_s()
        listing, begun = self._ports.stage.listing(self._stream), self._ports.stage.generations(self._stream)
        own, *_ = self._ports.parallel(self._ports.tables.state, self._stream.tables)
        transactions = {} if own is None else own.transactions
        self._ids = self._ids.at(begun, transactions, {*listing, *begun})
        positions = {source: self._ids.position(transactions, source) for source in listing}
        self._near.read(listing, positions.__getitem__)
        for source, listed in listing.items():
            self._telling.partition(source, positions[source], listed, self._found(source))
        self._telling.stream(sum(len(listed.names) for listed in listing.values()), 0)

    # Discover and plan.

    def _stands(self, listing: Listing) -> bool:
        """Whether a table was rolled back and there is no resolution yet; a resolution is carried out."""
        for _ in range(CONFLICTS_TO_FAILURE):
            answers = [(target, self._look_back.answer(target, back)) for target, back in self._tables.rolled_back]
            answered = next(((target, answer) for target, answer in answers if answer is not None), None)
            if answered is None or self._stop():
                break
            self._obey(*answered)
        for target, back in self._tables.rolled_back[:1]:
            for source in listing:
                if source not in self._report.held:
                    self._telling.held(source, held_by(target.url, self._stream.app_id, back))
        return bool(self._tables.rolled_back)

    def _obey(self, target: Target, answer: Answer) -> None:
        self._log.warning(
            "applying a resolution", table=target.url, version=answer.version, decision=str(answer.decision)
        )
        self._commit(self._look_back.obedience(target, answer, self._ports.new_id))
        self._tables.look()

    def _position(self, source: TopicPartition) -> Position | None:
        return self._tables.position(self._stream.table, source)

    def _position_now(self, source: TopicPartition) -> Position | None:
        """Read again, for work outside a transaction of this loader; None also when the table was rolled back."""
        self._tables.look()
        if self._tables.rolled_back or self._is_foreign(source):
            return None
        return self._finished(source)

    def _is_foreign(self, source: TopicPartition) -> bool:
        """Whether the staged markers of a Kafka partition belong to something other than the table's position."""
        return any(isinstance(found, ForeignMarker) for found in self._found(source))

    def _runs(self, listing: Listing) -> dict[TopicPartition, Loadable]:
        """The loadable runs, by Kafka partition; partitions that cannot move are held."""
        self._near.read(listing, self._position)
        forgotten = self._forgotten(listing)
        runs: dict[TopicPartition, Loadable] = {}
        unknown = self._unknown(listing)
        for source in listing:
            if source in unknown:
                paths = [path for found in self._found(source) for path in listing[source].paths(found.name)]
                self._telling.held(source, unknown_partition(source, paths))
            if source in self._report.held:
                continue
            outcome = next_run(self._position(source), self._found(source))
            outcome = cuttable(outcome, self._stream.row_tables, kafka_columns=self._stream.kafka_columns)
            absent = None if self._stream.table in self._tables.targets else self._stream.table
            reason = forgotten.get(source) or held(source, outcome, absent)
            if isinstance(outcome, Run | Straddle) and source not in forgotten:
                runs[source] = outcome
            elif reason is not None:
                self._telling.held(source, reason)
        return runs

    def _apart(self, runs: dict[TopicPartition, Loadable]) -> dict[TopicPartition, Loadable]:
        """Once Spark could not write rows of several Kafka partitions: the other runs, and one of these at a time."""
        if not self._is_apart:
            return runs
        every = self._tables.by_spark
        mixed = [source for source, run in runs.items() if every or any(has_mixed(marker) for marker in run.markers)]
        return {source: run for source, run in runs.items() if source not in mixed[1:]}

    def _forgotten(self, listing: Listing) -> dict[TopicPartition, Held]:
        """Kafka partitions that most likely had a position in the table and lost it; a resolution is carried out."""
        target = self._tables.own
        if target is None:
            return {}
        unplaced = [source for source in listing if self._position(source) is None and not self._is_foreign(source)]
        rootless = [source for source in unplaced if isinstance(next_run(None, self._found(source)), Rootless)]
        forgotten: dict[TopicPartition, Held] = {}
        first_ms = {
            source: first.manifest.created_ms
            for source in unplaced
            if isinstance(first := min(self._found(source), key=lambda found: found.name, default=None), Marker)
            and first.manifest is not None
        }
        events = list(self._look_back.without_txn(target, unplaced, rootless, first_ms))
        self._tables.note_forgotten(events)
        events += self._unknown_history(target, listing)
        for back in events:
            answer = self._look_back.answer(target, back)
            if answer is not None and not self._stop():
                self._obey(target, answer)
                return self._forgotten(listing)
            forgotten |= dict.fromkeys(back.positions, held_by(target.url, self._stream.app_id, back))
        return forgotten

    def _unknown_history(self, target: Target, listing: Listing) -> list[Rollback]:
        """Chains that have something to load and whose position may be that of a table that was rolled back."""
        placed: dict[TopicPartition, tuple[Position, list[Marker]]] = {}
        for source in listing:
            position, found = self._position(source), self._found(source)
            if position is not None and isinstance(next_run(position, found), Run | Straddle):
                placed[source] = position, [marker for marker in found if isinstance(marker, Marker)]
        back = self._look_back.unknown(target, placed)
        return [] if back is None else [back]

    def _found(self, source: TopicPartition) -> list[Found]:
        return self._identity.younger(source, self._near.of(source))

    @property
    def _identity(self) -> StreamIdentity:
        """What markers are checked against, as the tables were last read."""
        targets, own = self._tables.targets, self._tables.own
        identities = {url: target.identity for url, target in targets.items()}
        transactions = {} if own is None else own.transactions
        return StreamIdentity(self._stream, self._ids, self._begun, identities, transactions)

    def _put_strays_aside(self, listing: Listing) -> Listing:
        """Before planning, move markers that are certain to be late claims out of the way (core/strays.py)."""
        self._near.read(listing, self._position)
        positions = {source: self._finished(source) for source in listing}
        near = [found for source in listing for found in self._near.of(source)]
        listing, older = put_older_aside(self._ports.stage, listing, self._begun, near, self._urls)
        near = [found for source in listing for found in self._found(source)]
        keeper = StrayKeeper(self._ports.stage, self._urls, self._identity)
        listing, late = keeper.put_aside(listing, positions, near)
        self._telling.strays((*older, *late))
        return listing

    # Commit.

    def _carry_out(self, planned: Load, listing: Listing) -> None:
        """Commit a load, hold what cannot be committed, or plan again after a conflict."""
        positions = {source: self._position(source) for source in planned.runs}
        self._tables.ensure(planned)
        load = self._without(planned, self._no_table)
        ports = self._ports
        load = load and self._without(load, self._tables.gone_files(load, ports.open_store, ports.parallel))
        if load is None or not self._is_at(positions):
            return
        try:
            if self._merged.begin(load):
                self._commit_to_each(load, listing, positions)
        finally:
            self._merged.end(load, self._position)

    def _commit_to_each(
        self, load: Load, listing: Listing, positions: Mapping[TopicPartition, Position | None]
    ) -> None:
        """Commit to the secondary tables first, then to the main table."""
        naming = CommitNaming(self._ids, self._ports.new_id())
        for url in self._stream.side_tables:
            commit = self._tables.side_commit(url, naming, load)
            if commit is not None and not (self._commit_aside(commit) and self._is_at(positions)):
                return
        own = self._tables.targets[self._stream.table]
        commit = rows_commit(own, naming, load, self._valid_through_ms(load, listing))
        if self._commit(self._tables.with_deferred(commit, load)):
            self._telling.loaded(load, self._tables.targets[self._stream.table].version)

    def _commit_aside(self, commit: TableCommit) -> bool:
        """Commit to a secondary table; False when the plan has to be made again, but not when the commit failed."""
        goes_on = True
        with self._tables.tried(commit.target.url):
            goes_on = self._commit(commit)
        if commit.target.url in self._tables.failed:
            self._patience.reset()
        return goes_on

    def _pay_debts(self, listing: Listing) -> None:
        """Load into tables the ranges that they were left out of in earlier passes."""

        def must_end(source: TopicPartition) -> bool:
            return self._stop() or bool(self._tables.rolled_back) or source in self._report.held

        commit, identity = self._commit, self._identity
        paying = CatchUp(self._stream, self._tables, self._ports, self._limits, commit, identity, must_end)
        paying.run(listing, self._ids)

    def _is_at(self, positions: Mapping[TopicPartition, Position | None]) -> bool:
        """Whether the newest read of the table still has the positions that the plan starts at, and no rollback.

        A commit is based on the newest read. If a rolled-back table was set to lower positions, it would leave a gap,
        and it would hide a RESTORE that was seen.
        """
        at = all(self._position(source) == position for source, position in positions.items())
        return at and not self._tables.rolled_back

    def _without(self, load: Load, reason_of: Callable[[Marker], Held | None]) -> Load | None:
        """The load up to the first marker of each partition that has a reason to wait; None when nothing is left."""
        for source, run in load.runs.items():
            reason = reason_of(run.markers[0])
            if reason is not None:
                self._telling.held(source, reason)
        return load.until(lambda marker: reason_of(marker) is not None)

    def _no_table(self, marker: Marker) -> Held | None:
        missing = self._tables.own is None
        return no_table(marker.name.topic_partition, self._stream.table) if missing else None

    def _commit(self, commit: TableCommit) -> bool:
        """Carry out a commit, without the records that its table refuses; False when the plan has to be made again.

        Raises TableError.
        """
        left = commit if self._refusals is None else self._refusals.without(commit, self._ids)
        return left is not None and self._commit_all(left)

    def _commit_all(self, commit: TableCommit) -> bool:
        started_s = self._ports.clock.monotonic_s()
        commit = self._guard.renewed(commit)
        outcome = self._merged.commit(commit, self._ports.tables.commit)
        self._telling.commit(commit, outcome, self._ports.clock.monotonic_s() - started_s)
        match outcome:
            case Committed(version):
                self._patience.reset()
                self._landed(commit, version)
                return not self._tables.rolled_back
            case AlreadyLoaded() | Conflicted():
                self._telling.conflict()
                if not self._patience.wait(self._stop):
                    msg = (
                        f"{self._patience.conflicts} commits in a row to {commit.target.url} met other writers' commits"
                    )
                    raise TableError(msg, "find out what else loads or alters the table; this program tries again")
                self._tables.look()
                return False
            case Failed(problem):
                msg = f"a commit to the Delta table {commit.target.url} failed: {problem}"
                raise TableError(msg, "nothing was written; the next run tries again")
            case Unknown(problem):
                msg = f"it is not known whether a commit to the Delta table {commit.target.url} was made: {problem}"
                raise TableError(
                    msg, "this program reads the table again before it retries, so nothing is loaded twice"
                )
            case NotWritten(problem):
                sources = {write.source for write in commit.written}
                if not sources:
                    msg = f"dead letters could not be written to {commit.target.url}: {problem}"
                    raise TableError(msg, "see the log; this program tries again at its next run")
                if len(sources) > 1:
                    self._is_apart = True  # which of them caused it is unknown
                    return False
                for source in sources:
                    writes = [write for write in commit.written if write.source == source]
                    tied = all(write.place is not None for write in writes)
                    flags = [write.shape.merge.soft_delete for write in writes if write.shape.merge is not None]
                    start = commit.metadata.spans[source].start
                    reason = not_written(
                        source, start, problem, commit.target.url, tied=tied, flag=next(iter(flags), None)
                    )
                    self._telling.held(source, reason)
                return False
            case _:
                assert_never(outcome)

    def _landed(self, commit: TableCommit, version: int) -> None:
        """Update what is known after a commit; other commits just before it have not been read yet."""
        url, targets = commit.target.url, self._tables.targets
        is_next = commit.target.version is None or version == commit.target.version + 1
        if is_next and not through_spark(commit.target.way):  # Delta's writer may have changed more: identity columns
            targets[url] = commit.target.after(commit, version)
            self._look_back.landed(targets[url])
        else:
            self._tables.look()

    def _valid_through_ms(self, load: Load, listing: Listing) -> int | None:
        facts, _ = self._facts
        known = self._partitions
        if known is None:
            return None
        idle = IdleFacts(facts)
        highest: dict[TopicPartition, int | None] = {}
        for source in {*listing, *known.sources()} - self._unknown(listing):
            run = load.runs.get(source)
            end = self._position(source) if run is None else run.end
            if end is None and source not in listing:
                end = Position(MAX_POSITION)  # nothing was ever staged: any idle fact covers all of it
            idle_ms = idle.through_ms(source, end, self._ids.generations.get(source, 0))
            loaded_ms = highest_timestamp_ms(self._found(source), end)
            highest[source] = max((ms for ms in (idle_ms, loaded_ms) if ms is not None), default=None)
        return valid_through_ms(highest, known.time_ms)

    def _unknown(self, listing: Listing) -> frozenset[TopicPartition]:
        return unknown_partitions({source: self._found(source) for source in listing}, self._partitions)

    # Settle and report.

    def _finished(self, source: TopicPartition) -> Position | None:
        return self._tables.floor(source, self._position(source))

    def _settle(self, listing: Listing) -> None:
        def look_again() -> bool:
            self._tables.look()
            return not self._stands(listing)

        now_ms, keep_ms = self._ports.clock.wall_ms(), int(self._settings.marker_retention_s * 1000)
        unknown = {one for one, reason in self._report.held.items() if reason.reason == RollbackKind.UNKNOWN.value}
        listing = {source: listed for source, listed in listing.items() if source not in unknown}
        settling = Settling(self._ports.stage, self._urls, self._finished, look_again)
        self._telling.settled(settling.run(listing, self._identity, now_ms, keep_ms))

    def _tell(self, listing: Listing) -> None:
        for source, listed in listing.items():
            position = None if self._is_foreign(source) else self._position(source)
            self._telling.partition(source, position, listed, self._found(source))
        left_out = {*self._tables.failed, *(debt.url for debt in self._tables.debts(listing))}
        self._telling.stream(sum(len(listed.names) for listed in listing.values()), len(left_out))
