"""A loader's status page, and the gauges that change with time.

Rule: all of it comes from what passes found (delta_loader/load/load_stats.py), the lease, and Kafka's answers, which
others read; so a page costs no request to any store. Conclusions about writers are those of
delta_loader/status/writers.py.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from common import metrics as all_metrics
from common.http.pages import release
from common.lagging.history import EndHistory
from common.metrics import Metrics
from common.pages.model import (
    DeadLetters,
    Figure,
    FlowStep,
    Lag,
    PartitionRow,
    Problem,
    ProblemLevel,
    State,
    Status,
    StreamFlow,
    Unit,
    added,
)
from common.pages.problems import held_problems, paused_problem, resident_bytes, stream_pauses
from common.ports import Clock
from common.remedies import CONFIG
from common.settings import Stream
from common.sizes import counted
from common.spans import Position, TopicPartition
from common.stage import undeclared
from delta_loader.check_result import Level as CheckLevel
from delta_loader.lease.holder import REMEDY as LEASE_REMEDY
from delta_loader.load.load_stats import LoadStats, StreamStats
from delta_loader.loader import Loader
from delta_loader.plan.chain_positions import PartitionProgress
from delta_loader.plan.held import Held
from delta_loader.scheduling.jobs import REMEDY as JOB_REMEDY
from delta_loader.service import FAILURES_TO_RED, STUCK_REMEDY
from delta_loader.spark.checkpoint_threads import FAILING_REMEDY
from delta_loader.status.writers import (
    Chains,
    KafkaAnswers,
    Unstaged,
    held_by_writers,
    late_after_s,
    unstaged,
    without_chain,
)

STOPS = ("Loaded", "Staged", "In Kafka")
_KAFKA_IS_AWAY = "Kafka has not responded, so lag behind Kafka and the state of writers are unknown."


@dataclass(frozen=True, slots=True)
class WriterProblems:
    held: Mapping[TopicPartition, Held]
    waits: Sequence[Unstaged]

    def problems(self) -> Iterator[Problem]:
        yield from held_problems(self.held, "is held by its writers")
        if self.waits:
            worst = self.waits[0]
            records = counted(worst.records, "record")
            text = (
                f"{records} of {worst.partition} waited in Kafka for {worst.seconds // 60:,.0f} minutes when the stage "
                "was last inspected, and no writer had staged them."
            )
            remedy = (
                "check that writers run, and see their page, `/healthcheck` or log; `stage-writer check "
                f"{CONFIG}` tests what they need. Healthy ones are too slow or too few, or share their "
                "`writer.group_id` with those of another stage (runbook: StagingLags)"
            )
            title = f"{worst.partition} waits to be staged"
            yield Problem(ProblemLevel.WARNING, title, text, remedy, also=len(self.waits) - 1)


class WritersView:
    """Judges by the newest information. It is called from threads other than the loader's and the watch's."""

    def __init__(
        self, streams: Sequence[Stream], ends: EndHistory, answers: KafkaAnswers, flush_after_s: float
    ) -> None:
        """``ends`` and ``answers`` are updated by their owner."""
        self._streams = {stream.app_id: stream for stream in streams}
        self._ends = ends
        self._answers = answers
        self._flush_after_s = flush_after_s

    @property
    def are_known(self) -> bool:
        """Whether anything is known of them: Kafka answers."""
        return self._answers.is_answering

    def without_chain(self, entry: StreamStats) -> set[TopicPartition]:
        return set(without_chain(self._streams[entry.app_id], entry.seen, self._answers.partitions))

    def of(self, entry: StreamStats) -> WriterProblems:
        if entry.refreshed_s is None:
            return WriterProblems({}, ())
        stream, chains = self._streams[entry.app_id], Chains(entry.seen, entry.refreshed_s)
        held = held_by_writers(chains, self._answers)
        limit_s = late_after_s(self._flush_after_s if stream.pace.flush_after_s is None else stream.pace.flush_after_s)
        waits = unstaged(stream, chains, self._ends, self._answers, limit_s)
        return WriterProblems(held, [unstaged for unstaged in waits if unstaged.partition not in held])


class LoaderView:
    """Makes the status. It is called from threads other than the loader's."""

    def __init__(
        self,
        streams: Sequence[Stream],
        loader: Callable[[], Loader | None],
        history: EndHistory,
        writers: WritersView,
        *,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        """``loader`` is None while it starts; ``history`` is updated by its owner."""
        self._streams = streams
        self._loader = loader
        self._history = history
        self._writers = writers
        self._clock = clock
        self._metrics = metrics
        self._started_ms = clock.wall_ms()

    @property
    def partitions(self) -> set[TopicPartition]:
        return {partition for entry in self._entries().values() for partition in entry.seen}

    @property
    def watched(self) -> set[TopicPartition]:
        """The partitions of the last passes, and those of which nothing is staged yet."""
        return self.partitions.union(*map(self._writers.without_chain, self._entries().values()))

    def of_writers(self) -> Mapping[str, WriterProblems]:
        """The writers' problems, as far as they show here, by stream; empty on a standby, which reads nothing."""
        loader = self._loader()
        here = frozenset() if loader is None else loader.loaded_here
        return {app_id: self._writers.of(entry) for app_id, entry in self._entries().items() if app_id in here}

    def _entries(self) -> Mapping[str, StreamStats]:
        loader = self._loader()
        return {} if loader is None else loader.service.stats.entries

    def refresh(self) -> None:
        """Set the gauges of lag."""
        loader, metrics = self._loader(), self._metrics
        if loader is None:
            return
        now_s = self._clock.monotonic_s()
        for metric in _MOVED_BY_TIME:
            metrics.forget(metric)
        for entry in loader.service.stats.entries.values():
            for partition, seen in entry.seen.items():
                labels = {"topic": str(partition.topic), "partition": str(partition.partition)}
                if entry.is_current:
                    metrics.set(all_metrics.LOADER_LAG_SECONDS, self._waited_s(seen), **labels)
                end, lag = self._history.end(partition), self._behind_kafka(partition, seen, now_s)
                for metric, value in zip(_MOVED_BY_TIME[1:], (end, lag.records, lag.seconds), strict=True):
                    if value is not None:
                        metrics.set(metric, value, **labels)

    def status(self) -> Status:
        loader = self._loader()
        if loader is None:
            return self._starting()
        stats, now_s = loader.service.stats, self._clock.monotonic_s()
        writers = self.of_writers()
        of_writers = (problem for writer in writers.values() for problem in writer.problems())
        problems = _sorted([*_problems(loader, stats), *of_writers, *_dropped(self._streams, stats)])
        levels = {app_id: ProblemLevel.WARNING for app_id, facts in writers.items() if facts.waits}
        levels |= dict.fromkeys(loader.paused.pauses, ProblemLevel.WARNING)
        levels |= {app_id: ProblemLevel.ERROR for app_id, facts in writers.items() if facts.held}
        levels |= {app_id: ProblemLevel.ERROR for app_id, entry in stats.entries.items() if entry.held}
        levels |= {
            app_id: ProblemLevel.ERROR for app_id, entry in stats.entries.items() if entry.failures >= FAILURES_TO_RED
        }
        helds = {entry.app_id: _held_at_all(entry, writers) for entry in stats.entries.values()}
        verdict = _verdict(
            stats.entries.values(), len(self.partitions), sum(map(len, helds.values())), len(loader.loaded_elsewhere)
        )
        return Status(
            service="delta-loader",
            version=release(),
            now_ms=self._clock.wall_ms(),
            started_ms=self._started_ms,
            state=_state(loader),
            verdict=verdict if self._writers.are_known else f"{verdict} {_KAFKA_IS_AWAY}",
            figures=self._figures(loader, stats),
            problems=tuple(problems),
            streams=tuple(
                self._flow(
                    stream,
                    stats.entries[stream.app_id],
                    len(helds[stream.app_id]),
                    levels,
                    now_s,
                    more=_more(loader, stream.app_id),
                )
                for stream in self._streams
            ),
            stops=STOPS,
            partitions=tuple(
                self._row(entry.app_id, partition, seen, helds[entry.app_id].get(partition), now_s)
                for entry in stats.entries.values()
                for partition, seen in sorted(entry.seen.items())
            ),
            events_title="Recent commits",
            events=tuple(stats.events),
            dead_letters=_dead_letters(stats.dead_letters),
            is_known=loader.may_load() and all(stats.entries[app_id].is_known for app_id in loader.loaded_here),
        )

    def _starting(self) -> Status:
        return Status(
            service="delta-loader",
            version=release(),
            now_ms=self._clock.wall_ms(),
            started_ms=self._started_ms,
            state="starting",
            verdict="Spark is starting, or a store is unavailable; see /ready.",
            is_known=False,
        )

    def _figures(self, loader: Loader, stats: LoadStats) -> tuple[Figure, ...]:
        waiting = sum(seen.waiting for entry in stats.entries.values() for seen in entry.seen.values())
        due = loader.trigger.due
        succeeded_s = loader.service.last_success_s
        return (
            Figure("Last successful load", None if succeeded_s is None else succeeded_s * 1000, Unit.SINCE),
            Figure("Next full scan", None if due is None else int(due.timestamp() * 1000), Unit.UNTIL),
            Figure("Markers waiting", waiting, Unit.COUNT),
            Figure("Rows and dead letters since the start", stats.rows, Unit.COUNT),
            Figure("Memory, without Spark's JVM", resident_bytes(), Unit.BYTES),
        )

    def _flow(
        self,
        stream: Stream,
        entry: StreamStats,
        held: int,
        levels: Mapping[str, ProblemLevel],
        now_s: float,
        *,
        more: str,
    ) -> StreamFlow:
        seen = entry.seen
        waiting = sum(partition.waiting for partition in seen.values())
        records = sum(partition.lag for partition in seen.values())
        staged = added(
            [self._lag(partition, partition_seen.staged, now_s) for partition, partition_seen in seen.items()]
        )
        loaded = (
            Lag(records, max((self._waited_s(partition_seen) for partition_seen in seen.values()), default=None))
            if seen
            else None
        )
        left_out = f", {counted(entry.left_out, 'table')} left out" if entry.left_out else ""
        staged_text = f"{counted(waiting, 'marker')} waiting" if waiting else "nothing waits" if entry.is_known else ""
        version = "no commit since the start" if entry.version is None else f"version {entry.version:,}"
        return StreamFlow(
            app_id=stream.app_id,
            table=stream.table,
            way=counted(len(seen), "Kafka partition") + more + left_out,
            stops=(
                FlowStep("Kafka", None),
                FlowStep("Staged", staged, staged_text),
                FlowStep("Loaded", loaded or Lag(None, None), version),
            ),
            partitions=len(seen),
            held=held,
            valid_through_ms=entry.valid_through_ms,
            level=levels.get(stream.app_id),
        )

    def _row(
        self, app_id: str, partition: TopicPartition, seen: PartitionProgress, held: Held | None, now_s: float
    ) -> PartitionRow:
        lag = self._behind_kafka(partition, seen, now_s)
        if lag.records is None:  # Kafka has not been queried, or does not answer
            lag = Lag(seen.lag, self._waited_s(seen))
        end = self._history.end(partition)
        state = State.HELD if held is not None else State.BEHIND if seen.waiting else State.WELL
        return PartitionRow(
            stream=app_id,
            topic=str(partition.topic),
            partition=int(partition.partition),
            state=state,
            positions=(seen.loaded, seen.staged, None if end is None else max(end, seen.staged)),
            lag=lag,
            note="" if held is None else held.problem,
        )

    def _lag(self, partition: TopicPartition, position: Position | None, now_s: float) -> Lag:
        return Lag.behind(self._history, partition, position, now_s)

    def _behind_kafka(self, partition: TopicPartition, seen: PartitionProgress, now_s: float) -> Lag:
        lag = self._lag(partition, seen.loaded, now_s)
        return Lag(lag.records, None if lag.seconds is None else max(lag.seconds, self._waited_s(seen)))

    def _waited_s(self, seen: PartitionProgress) -> float:
        """How long the oldest marker has waited, in seconds."""
        return 0.0 if seen.oldest_ms is None else max(0.0, (self._clock.wall_ms() - seen.oldest_ms) / 1000)


_MOVED_BY_TIME = (
    all_metrics.LOADER_LAG_SECONDS,
    all_metrics.LOADER_KAFKA_END,
    all_metrics.LOADER_KAFKA_LAG_RECORDS,
    all_metrics.LOADER_KAFKA_LAG_SECONDS,
)


def _problems(loader: Loader, stats: LoadStats) -> Sequence[Problem]:
    problems: list[Problem] = []
    for entry in stats.entries.values():
        if entry.failure is not None:
            level = ProblemLevel.ERROR if entry.failures >= FAILURES_TO_RED else ProblemLevel.WARNING
            title = f"{entry.app_id} failed" + (f" {entry.failures:,} times in a row" if entry.failures > 1 else "")
            problems.append(Problem(level, title, entry.failure.problem, entry.failure.remedy))
        problems += held_problems(entry.held)
        if entry.left_out:
            text = f"{entry.left_out} of its tables failed, or lack rows that others have; they get those first."
            remedy = f"its log says why, and `delta-loader check {CONFIG}` what to fix; no repair is needed afterward"
            problems.append(
                Problem(ProblemLevel.WARNING, f"{entry.app_id} has tables that were left out", text, remedy)
            )
    problems += [
        Problem(ProblemLevel.ERROR, f"{check.app_id} is not ready to load", check.message, check.remedy)
        for check in loader.readiness_check.not_ready
        if check.level is CheckLevel.ERROR
    ]
    stuck = loader.service.unfinished.stuck
    problems += [Problem(ProblemLevel.ERROR, "A load hangs", text, STUCK_REMEDY) for text in stuck]
    problems += [
        Problem(ProblemLevel.ERROR, "Checkpoints fail", text, FAILING_REMEDY) for text in loader.checkpoints.problems
    ]
    problems += [
        Problem(ProblemLevel.WARNING, "A job is taking long", text, JOB_REMEDY) for text in loader.jobs.long_running
    ]
    if loader.lease is not None and loader.lease.problem is not None:
        problems.append(Problem(ProblemLevel.ERROR, "The lease is unreachable", loader.lease.problem, LEASE_REMEDY))
    if loader.control_problem is not None:
        text = (
            f"{loader.control_problem.problem}. The stage is scanned instead, "
            "in part each second, and in full once a minute."
        )
        problems.append(
            Problem(ProblemLevel.WARNING, "The control topic is unreachable", text, loader.control_problem.remedy)
        )
    if loader.pausing.is_on:
        problems.append(paused_problem("Loading is paused"))
    problems += stream_pauses(loader.paused.pauses)
    return problems


def _dropped(streams: Iterable[Stream], stats: LoadStats) -> Iterator[Problem]:
    for stream in streams:
        seen = stats.entries[stream.app_id].seen.values()
        fields = undeclared.together(of.undeclared for of in seen if of.undeclared is not None)
        if fields is not None and not stream.record.drops_on_purpose:
            title = f"Fields of {stream.app_id} are dropped"
            yield Problem(ProblemLevel.WARNING, title, fields.sentence, undeclared.REMEDY)


def _more(loader: Loader, app_id: str) -> str:
    """Further notes on a stream."""
    other = ", loaded by another loader" if app_id in loader.loaded_elsewhere else ""
    return f"{other}, paused" if app_id in loader.paused.pauses else other


def _sorted(problems: Iterable[Problem]) -> list[Problem]:
    """The problems, the worst first."""
    return sorted(problems, key=lambda problem: problem.level is not ProblemLevel.ERROR)


def _held_at_all(entry: StreamStats, writers: Mapping[str, WriterProblems]) -> Mapping[TopicPartition, Held]:
    """The Kafka partitions that the loader or the writers hold."""
    of_stream = writers.get(entry.app_id)
    return entry.held if of_stream is None else {**of_stream.held, **entry.held}


def _state(loader: Loader) -> str:
    if not loader.may_load():
        holder = None if loader.lease is None else loader.lease.holder
        return f"standing by for {holder}" if holder else "standing by"
    if loader.pausing.is_on:
        return "paused"
    return "loading" if loader.service.is_loading else "waiting for the next load"


def _verdict(entries: Collection[StreamStats], partitions: int, held: int, elsewhere: int) -> str:
    streams = len(entries)
    if elsewhere == streams:
        return "Another loader holds the lease and loads; this one takes over when that one ends."
    if elsewhere:
        return f"{elsewhere:,} of {streams:,} streams are loaded by another loader; this one loads the others."
    if held:
        are = "is" if held == 1 else "are"
        return f"{held:,} of {counted(partitions, 'Kafka partition')} {are} held; loading of the others continues."
    if not any(entry.is_known for entry in entries):
        return f"{counted(streams, 'stream')}; no load has ended since the start."
    return f"{counted(partitions, 'Kafka partition')} of {counted(streams, 'stream')}, as of the last load."


def _dead_letters(counts: Mapping[tuple[str, str], int]) -> tuple[DeadLetters, ...]:
    sorted_counts = sorted(counts.items(), key=lambda item: -item[1])
    return tuple(DeadLetters(app_id, error_class, count) for (app_id, error_class), count in sorted_counts)
