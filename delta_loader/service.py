"""The loader's loop, in the order in which data flows: discover, plan, commit, settle.

Rules:

1. The loader has no state of its own: each pass begins with the stage's listing and the tables' txn actions. What it
   remembers within a pass is only what a commit of its own was acknowledged to have done.
2. The tables of a stream's routes and its dead-letter table are committed to before its own table (core/commits.py,
   rule 3). A crash in between leaves some ahead, which their own txn actions show. One that fails is left out, and what
   it lacks is noted (delta_loader/stream_tables.py).
3. One stream that fails, or one Kafka partition that is held, never stops the others. A failure is never silent: it
   is logged, counted, and after `FAILURES_TO_RED` passes in a row the service's health says so.
4. Time, names and parallel work come from ports. Nothing here starts a thread or asks a clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, assert_never

from common import metrics as catalogue
from common.errors import KafkaDeltaExpressError, TableError
from common.markers import Marker
from common.transactions import TxnIds
from delta_loader.core.commits import (
    AlreadyLoaded,
    CommitOutcome,
    Committed,
    Conflicted,
    Failed,
    Naming,
    NotWritten,
    TableCommit,
    rows_commit,
)
from delta_loader.core.held import Held, held, no_table, not_written
from delta_loader.core.plan import (
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
from delta_loader.core.settle import highest_timestamp_ms, idle_through_ms, settle_candidates, settled, valid_through_ms
from delta_loader.evolving import Evolver
from delta_loader.generations import put_older_aside, readable, younger
from delta_loader.guard import VacuumGuard
from delta_loader.patience import CONFLICTS_TO_FAILURE, Patience
from delta_loader.paying import Paying
from delta_loader.strays import StrayKeeper
from delta_loader.stream_tables import StreamTables
from delta_loader.went_back import LookBack, Looked, held_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from structlog.typing import FilteringBoundLogger

    from common.answers import Answer
    from common.markers import MarkerName
    from common.metrics import Metrics
    from common.ports import Clock
    from common.settings import LoaderSettings, Stream
    from common.spans import Position, TopicPartition
    from delta_loader.core.commits import Target
    from delta_loader.core.plan import Found
    from delta_loader.ports import ColumnAdder, DeltaTables, NewId, OpenStore, ParallelMap
    from delta_loader.replace import Replacements
    from delta_loader.stage import Listing, Stage

FAILURES_TO_RED = 3
_SMALLEST_WINDOW = 16


@dataclass(frozen=True, slots=True)
class Ports:
    """Everything that the service reaches the world through."""

    stage: Stage
    tables: DeltaTables
    open_store: OpenStore
    parallel: ParallelMap
    clock: Clock
    new_id: NewId
    log: FilteringBoundLogger
    metrics: Metrics
    replacements: Replacements | None = None
    """None where nobody can ask for any."""
    columns: ColumnAdder | None = None
    """None where no table gains any."""


@dataclass(slots=True)
class StreamReport:
    """What one pass did for one stream."""

    app_id: str
    commits: int = 0
    rows: int = 0
    files: int = 0
    settled: int = 0
    strays: int = 0
    held: dict[TopicPartition, Held] = field(default_factory=dict)
    failure: KafkaDeltaExpressError | None = None


class LoaderService:
    """Loads streams; `run_pass` is one turn of the loop."""

    def __init__(self, streams: Sequence[Stream], settings: LoaderSettings, ports: Ports) -> None:
        """Touches nothing yet."""
        self._streams = streams
        self._settings = settings
        self._ports = ports
        self._failures: dict[str, int] = {stream.app_id: 0 for stream in streams}
        self._problems: dict[str, str] = {}
        self._passes = 0
        self._looked: Looked = {}

    def run_pass(self, stop: Callable[[], bool] = lambda: False) -> list[StreamReport]:
        """Load everything that is loadable now. ``stop`` is asked between commits; a commit under way is finished."""
        started_s = self._ports.clock.monotonic_s()
        reports = [self._run_stream(stream, stop) for stream in self._streams if not stop()]
        self._passes += 1
        self._tell_pass(reports, self._ports.clock.monotonic_s() - started_s)
        return reports

    def warm_up(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Look at every table and change nothing, so that a pass that comes later need not pay for a first look."""
        for url in (url for stream in self._streams for url in stream.tables):
            if stop():
                return
            try:
                self._ports.tables.state(url)
            except KafkaDeltaExpressError as error:
                self._ports.log.debug("a table cannot be looked at", table=url, problem=error.problem)  # a pass tells

    @property
    def problems(self) -> tuple[str, ...]:
        """Why the service is not healthy: streams that failed again and again. Empty when all is well."""
        return tuple(
            f"stream {app_id} failed {count} times in a row: {self._problems[app_id]}"
            for app_id, count in self._failures.items()
            if count >= FAILURES_TO_RED
        )

    @property
    def ready(self) -> bool:
        """Whether a first pass is done."""
        return self._passes > 0

    def _run_stream(self, stream: Stream, stop: Callable[[], bool]) -> StreamReport:
        report = StreamReport(stream.app_id)
        try:
            StreamLoad(stream, self._settings, self._ports, report, self._looked).run(stop)
        except KafkaDeltaExpressError as error:
            self._failed(report, error)
        except Exception as error:
            # A bug, or a dependency that raises what it should not: it may cost this stream's turn and no other's.
            self._ports.log.exception("unexpected exception", app_id=stream.app_id)
            problem = f"unexpected {type(error).__name__}: {error}"
            self._failed(report, KafkaDeltaExpressError(problem, "report it with the log; the next run tries again"))
        else:
            self._failures[stream.app_id] = 0
        return report

    def _failed(self, report: StreamReport, error: KafkaDeltaExpressError) -> None:
        report.failure = error
        self._failures[report.app_id] += 1
        self._problems[report.app_id] = error.problem
        self._ports.log.error(
            "stream failed",
            app_id=report.app_id,
            problem=error.problem,
            remedy=error.remedy,
            failures_in_a_row=self._failures[report.app_id],
        )

    def _tell_pass(self, reports: Sequence[StreamReport], duration_s: float) -> None:
        metrics, failed = self._ports.metrics, any(report.failure for report in reports)
        metrics.add(catalogue.LOADER_RUNS, outcome="failure" if failed else "success")
        metrics.observe(catalogue.LOADER_RUN_SECONDS, duration_s)
        for app_id, count in self._failures.items():
            metrics.set(catalogue.LOADER_FAILURES, count, app_id=app_id)
        if not failed:
            metrics.set(catalogue.LOADER_LAST_SUCCESS, self._ports.clock.wall_ms() / 1000)
        metrics.forget(catalogue.LOADER_HELD)
        for report in reports:
            for reason in {found.reason for found in report.held.values()}:
                count = sum(found.reason == reason for found in report.held.values())
                metrics.set(catalogue.LOADER_HELD, count, app_id=report.app_id, reason=reason)


class StreamLoad:
    """One pass over one stream."""

    def __init__(
        self, stream: Stream, settings: LoaderSettings, ports: Ports, report: StreamReport, looked: Looked
    ) -> None:
        """Touches nothing yet; results go into ``report``."""
        self._stream = stream
        self._settings = settings
        self._ports = ports
        self._report = report
        self._log = ports.log.bind(app_id=stream.app_id)
        self._ids = TxnIds(stream.app_id, stream.several_topics)
        self._limits = Limits(settings.max_files, settings.max_bytes)
        self._look_back = LookBack(stream.app_id, self._ids, ports.tables, ports.stage, looked)
        self._known: dict[TopicPartition, dict[MarkerName, tuple[Found, ...]]] = {}
        self._guard = VacuumGuard(ports.open_store, ports.parallel, ports.clock, ports.new_id, self._log)
        self._patience = Patience(ports.clock, ports.new_id)
        evolver = Evolver.of(stream, ports, self._log)
        self._tables = StreamTables(
            stream,
            ports.tables,
            self._guard,
            self._look_back,
            parallel=ports.parallel,
            stage=ports.stage,
            evolver=evolver,
            log=self._log,
        )
        self._urls = self._tables.urls
        self._stop: Callable[[], bool] = lambda: False
        self._is_apart = False

    def run(self, stop: Callable[[], bool]) -> None:
        """Load until nothing is left, then settle. Raises KafkaDeltaExpressError, also when only one table failed."""
        self._stop = stop
        listing = self._ports.stage.listing(self._stream)
        self._tables.look()
        begun = self._ports.stage.generations(self._stream)
        target = self._tables.own
        self._ids = self._ids.at(begun, {} if target is None else target.transactions, {*listing, *begun})
        self._look_back.ids = self._ids
        if not self._stands(listing):
            listing = self._put_strays_aside(listing)
            self._pay_debts(listing)
        while not stop() and not self._stands(listing):
            load = plan_load(self._apart(self._runs(listing)), self._limits)
            if load is None:
                break
            self._carry_out(load, listing)
        if self._ports.replacements is not None and not stop() and not self._stands(listing):
            for source, reason in self._ports.replacements.run(self._stream, self._position_now, stop).items():
                self._hold(source, self._report.held.get(source, reason))
        self._tell(listing)
        if not stop() and not self._stands(listing):
            self._settle(listing)
        self._tables.raise_failure()

    # Discover and plan.

    def _stands(self, listing: Listing) -> bool:
        """Whether a table went back and nobody has said yet what to do; an answer is obeyed."""
        for _ in range(CONFLICTS_TO_FAILURE):
            answers = [(target, self._look_back.answer(target, back)) for target, back in self._tables.went_back]
            answered = next(((target, answer) for target, answer in answers if answer is not None), None)
            if answered is None or self._stop():
                break
            self._obey(*answered)
        for target, back in self._tables.went_back[:1]:
            for source in listing:
                if source not in self._report.held:
                    self._hold(source, held_by(target.url, self._stream.app_id, back))
        return bool(self._tables.went_back)

    def _obey(self, target: Target, answer: Answer) -> None:
        self._log.warning("obeying an answer", table=target.url, version=answer.version, decision=str(answer.decision))
        self._commit(self._look_back.obedience(target, answer, self._ports.new_id))
        self._tables.look()

    def _position(self, source: TopicPartition) -> Position | None:
        return self._tables.position(self._stream.table, source)

    def _position_now(self, source: TopicPartition) -> Position | None:
        """By a new look, for what is no transaction of ours; None also when the table went back."""
        self._tables.look()
        return None if self._tables.went_back else self._tables.floor(source, self._position(source))

    def _runs(self, listing: Listing) -> dict[TopicPartition, Loadable]:
        """What could be loaded now, by Kafka partition; partitions that cannot move are held."""
        self._read_around_positions(listing)
        forgotten = self._forgotten(listing)
        runs: dict[TopicPartition, Loadable] = {}
        for source in listing:
            if source in self._report.held:
                continue
            outcome = next_run(self._position(source), self._found(source))
            outcome = cuttable(outcome, self._stream.row_tables, kafka_columns=self._stream.kafka_columns)
            reason = forgotten.get(source) or held(source, outcome)
            if isinstance(outcome, Run | Straddle) and source not in forgotten:
                runs[source] = outcome
            elif reason is not None:
                self._hold(source, reason)
        return runs

    def _apart(self, runs: dict[TopicPartition, Loadable]) -> dict[TopicPartition, Loadable]:
        """Once Spark could not write the rows of several Kafka partitions: one of them at a time, with the others."""
        if not self._is_apart:
            return runs
        mixed = [source for source, run in runs.items() if any(has_mixed(marker) for marker in run.markers)]
        return {source: run for source, run in runs.items() if source not in mixed[1:]}

    def _forgotten(self, listing: Listing) -> dict[TopicPartition, Held]:
        """Kafka partitions that the table had a position for, by all that is known; an answer is obeyed."""
        target = self._tables.own
        if target is None:
            return {}
        unplaced = [source for source in listing if self._position(source) is None]
        rootless = [source for source in unplaced if isinstance(next_run(None, self._found(source)), Rootless)]
        forgotten: dict[TopicPartition, Held] = {}
        for back in self._look_back.without_txn(target, unplaced, rootless):
            answer = self._look_back.answer(target, back)
            if answer is not None and not self._stop():
                self._obey(target, answer)
                return self._forgotten(listing)
            forgotten |= dict.fromkeys(back.positions, held_by(target.url, self._stream.app_id, back))
        return forgotten

    def _read_around_positions(self, listing: Listing) -> None:
        window = max(_SMALLEST_WINDOW, self._limits.max_files // max(1, len(listing)))
        wanted = {source: listed.around(self._position(source), window) for source, listed in listing.items()}
        known = {source: self._known.get(source, {}) for source in listing}
        unknown = [name for source, names in wanted.items() for name in names if name not in known[source]]
        fresh = self._ports.stage.read(listing, unknown, self._urls)
        self._known = {
            source: {name: fresh.get(name) or known[source].get(name, ()) for name in names}
            for source, names in wanted.items()
        }

    def _found(self, source: TopicPartition) -> list[Found]:
        found = (marker for markers in self._known.get(source, {}).values() for marker in markers)
        return younger(found, self._ids.generations)

    def _hold(self, source: TopicPartition, reason: Held) -> None:
        self._report.held[source] = reason
        self._log.warning(
            "partition held",
            topic=source.topic,
            partition=source.partition,
            reason=reason.reason,
            problem=reason.problem,
            remedy=reason.remedy,
        )

    def _put_strays_aside(self, listing: Listing) -> Listing:
        """Before anything is planned: what is certain to be a late claim goes out of the way (core/strays.py)."""
        self._read_around_positions(listing)
        positions = {source: self._tables.floor(source, self._position(source)) for source in listing}
        near = [found for source in listing for found in self._found(source)]
        listing, older = put_older_aside(self._ports.stage, listing, self._ids.generations, near, self._urls)
        near = younger(near, self._ids.generations)
        listing, late = StrayKeeper(self._ports.stage, self._urls).put_aside(listing, positions, near)
        for marker in (*older, *late):
            self._report.strays += 1
            self._ports.metrics.add(catalogue.LOADER_STRAYS, app_id=self._stream.app_id)
            files = sum(len(table.files) for table in marker.tables)
            self._log.warning("stray put aside", marker=marker.name.path, span=str(marker.span), files=files)
        return listing

    # Commit.

    def _carry_out(self, planned: Load, listing: Listing) -> None:
        """Commit a load, or hold what cannot be committed, or plan anew after a conflict."""
        positions = {source: self._position(source) for source in planned.runs}
        self._tables.ensure(planned)
        load = self._without(planned, self._no_table)
        ports = self._ports
        load = load and self._without(load, self._tables.gone_files(load, ports.open_store, ports.parallel))
        if load is None or not self._is_at(positions):
            return
        naming = Naming(self._ids, ports.new_id())
        for url in self._stream.side_tables:
            commit = self._tables.side_commit(url, naming, load)
            if commit is not None and not (self._commit_aside(commit) and self._is_at(positions)):
                return
        own = self._tables.targets[self._stream.table]
        commit = rows_commit(own, naming, load, self._valid_through_ms(load, listing))
        self._commit(self._tables.with_debts(commit, load))

    def _commit_aside(self, commit: TableCommit) -> bool:
        """A commit to another table than the own; False when the plan has to be made anew, not when it failed."""
        goes_on = True
        with self._tables.tried(commit.target.url):
            goes_on = self._commit(commit)
        if commit.target.url in self._tables.failed:
            self._patience.reset()
        return goes_on

    def _pay_debts(self, listing: Listing) -> None:
        """Bring tables what they were left out of in earlier passes."""

        def must_end(source: TopicPartition) -> bool:
            return self._stop() or bool(self._tables.went_back) or source in self._report.held

        paying = Paying(self._stream, self._tables, self._ports, self._limits, self._commit, must_end)
        paying.run(listing, self._ids)

    def _is_at(self, positions: Mapping[TopicPartition, Position | None]) -> bool:
        """Whether a look since the plan was made still finds the table where the plan begins, and whole.

        A commit stands on the newest look. It would leave a gap if a table that went back was set to lower positions,
        and hide a RESTORE that was seen.
        """
        at = all(self._position(source) == position for source, position in positions.items())
        return at and not self._tables.went_back

    def _without(self, load: Load, reason_of: Callable[[Marker], Held | None]) -> Load | None:
        """The load up to the first marker of each partition that has a reason to wait; None when nothing is left."""
        for source, run in load.runs.items():
            reason = reason_of(run.markers[0])
            if reason is not None:
                self._hold(source, reason)
        return load.until(lambda marker: reason_of(marker) is not None)

    def _no_table(self, marker: Marker) -> Held | None:
        missing = self._tables.own is None
        return no_table(marker.name.topic_partition, self._stream.table) if missing else None

    def _commit(self, commit: TableCommit) -> bool:
        """Carry one commit out; False when the plan has to be made anew. Raises TableError."""
        started_s = self._ports.clock.monotonic_s()
        commit = self._guard.renewed(commit)
        outcome = self._ports.tables.commit(commit)
        self._tell_commit(commit, outcome, self._ports.clock.monotonic_s() - started_s)
        match outcome:
            case Committed(version):
                self._landed(commit, version)
                return not self._tables.went_back
            case AlreadyLoaded() | Conflicted():
                self._ports.metrics.add(catalogue.LOADER_CONFLICTS, app_id=self._stream.app_id)
                if not self._patience.wait(self._stop):
                    msg = (
                        f"{self._patience.conflicts} commits in a row to {commit.target.url} met other writers' commits"
                    )
                    raise TableError(msg, "find out what else loads or alters the table; this program tries again")
                self._tables.look()
                return False
            case Failed(problem):
                msg = f"a commit to the Delta table {commit.target.url} failed: {problem}"
                raise TableError(msg, "nothing was written; this program tries again at its next run")
            case NotWritten(problem):
                sources = {write.source for write in commit.written}
                if len(sources) > 1:
                    self._is_apart = True  # which of them it was is not known
                    return False
                for source in sources:
                    self._hold(source, not_written(source, commit.metadata.spans[source].start, problem))
                return False
            case _:
                assert_never(outcome)

    def _landed(self, commit: TableCommit, version: int) -> None:
        """What is known after a commit; what others committed just before it was not looked at yet."""
        url, targets = commit.target.url, self._tables.targets
        if commit.target.version is None or version == commit.target.version + 1:
            targets[url] = commit.target.after(commit, version)
            self._look_back.landed(targets[url])
        else:
            self._tables.look()

    def _valid_through_ms(self, load: Load, listing: Listing) -> int | None:
        facts = self._ports.stage.idle(self._stream, self._ports.clock.wall_ms())
        highest: dict[TopicPartition, int | None] = {}
        for source in listing:
            run = load.runs.get(source)
            end = self._position(source) if run is None else run.end
            idle_ms = idle_through_ms(facts, source, end, self._ids.generations.get(source, 0))
            loaded_ms = highest_timestamp_ms(self._found(source), end)
            highest[source] = max((ms for ms in (idle_ms, loaded_ms) if ms is not None), default=None)
        return valid_through_ms(highest)

    # Settle.

    def _settle(self, listing: Listing) -> None:
        keep_after_ms = self._ports.clock.wall_ms() - int(self._settings.marker_retention_s * 1000)

        def finished(source: TopicPartition) -> Position | None:
            return self._tables.floor(source, self._position(source))

        def candidates(source: TopicPartition) -> tuple[MarkerName, ...]:
            return settle_candidates(listing[source].modified_ms, finished(source), keep_after_ms)

        if not any(map(candidates, listing)):
            return
        # A table that went back since the last look may want them again, and other loaders obey answers too.
        self._tables.look()
        if self._stands(listing):
            return
        ended: dict[TopicPartition, tuple[MarkerName, ...]] = {}
        gone: list[Found] = []
        for source in listing:
            position, names = finished(source), candidates(source)
            if position is None or not names:
                continue
            found = self._ports.stage.read(listing, names, self._urls)
            chain = [readable(marker, self._ids.generations) for markers in found.values() for marker in markers]
            ended[source] = settled(chain, position)
            gone += [marker for marker in chain if marker.name in ended[source]]
        self._ports.stage.delete(listing, ended)
        self._ports.stage.delete_waiting(gone)
        self._report.settled = sum(len(names) for names in ended.values())
        if self._report.settled:
            self._ports.metrics.add(catalogue.LOADER_SETTLED, self._report.settled, app_id=self._stream.app_id)
            self._log.info("markers settled", markers=self._report.settled)

    # Tell.

    def _tell_commit(self, commit: TableCommit, outcome: CommitOutcome, duration_s: float) -> None:
        metrics, app_id = self._ports.metrics, self._stream.app_id
        metrics.add(catalogue.LOADER_COMMITS, app_id=app_id, outcome=_OUTCOMES[type(outcome)])
        metrics.observe(catalogue.LOADER_COMMIT_SECONDS, duration_s)
        if not isinstance(outcome, Committed):
            self._log.warning("commit not made", table=commit.target.url, outcome=str(outcome))
            return
        self._patience.reset()
        brought = commit.added + outcome.written
        self._report.commits += 1
        self._report.rows += brought.rows
        self._report.files += brought.files
        metrics.add(catalogue.LOADER_FILES, brought.files, app_id=app_id)
        metrics.add(catalogue.LOADER_ROWS, brought.rows, app_id=app_id)
        metrics.add(catalogue.LOADER_BYTES, brought.size_bytes, app_id=app_id)
        through_ms = commit.metadata.valid_through_ms
        if through_ms is not None:
            metrics.set(catalogue.LOADER_VALID_THROUGH, through_ms / 1000, app_id=app_id)
        self._log.info(
            "committed",
            table=commit.target.url,
            version=outcome.version,
            rows=brought.rows,
            files=brought.files,
            written_by_spark=outcome.written.files,
            partitions=len(commit.advances),
            commit_id=commit.metadata.commit_id,
            seconds=round(duration_s, 3),
        )

    def _tell(self, listing: Listing) -> None:
        metrics, waiting = self._ports.metrics, 0
        for source, listed in listing.items():
            position = self._position(source)
            labels = {"topic": str(source.topic), "partition": str(source.partition)}
            waiting += listed.waiting(position)
            metrics.set(catalogue.LOADER_LOADED_POSITION, position or 0, **labels)
            ends = [marker.span.end for marker in self._found(source) if isinstance(marker, Marker)]
            staged = max([*ends, listed.names[-1].start])
            metrics.set(catalogue.LOADER_LAG, max(0, staged - (position or listed.names[0].start)), **labels)
        metrics.set(catalogue.LOADER_WAITING, waiting, app_id=self._stream.app_id)
        left_out = {*self._tables.failed, *(debt.url for debt in self._tables.debts(listing))}
        metrics.set(catalogue.LOADER_LEFT_OUT, len(left_out), app_id=self._stream.app_id)


_OUTCOMES: dict[type[CommitOutcome], str] = {
    Committed: "committed",
    AlreadyLoaded: "already_loaded",
    Conflicted: "conflicted",
    Failed: "failed",
    NotWritten: "not_written",
}
