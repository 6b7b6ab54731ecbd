"""The writer's current state, for its status page and its gauges.

Rule: all of it is read from another thread than the loop's, from copies of its dictionaries; so the values of two
partitions may be from slightly different times, and this module must not change the writer.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from common import metrics as all_metrics
from common.http.pages import Pausing, release
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
    Violations,
    added,
)
from common.pages.problems import held_problems, paused_problem, resident_bytes, stream_pauses
from common.ports import Clock
from common.remedies import CONFIG
from common.sizes import counted
from common.spans import Position, TopicPartition
from common.stage import undeclared
from common.stage.paused_streams import PausedStreams
from stage_writer.partitions.flush_decision import BackpressureState
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.runtime import FAILING_REMEDY, LoopSnapshot
from stage_writer.telemetry import DEAD_LETTERS_REMEDY

_BEHIND_S = 60.0
STOPS = ("Staged", "Read", "In Kafka")


@dataclass(frozen=True, slots=True)
class _Partition:
    partition: TopicPartition
    app_id: str
    state: State
    staged: Position | None
    read: Position | None
    note: str = ""


class WriterView:
    """Makes the status, and sets the gauges that depend on time."""

    def __init__(
        self,
        history: EndHistory,
        clock: Clock,
        metrics: Metrics,
        pausing: Pausing,
        *,
        flush_after_s: Callable[[str], float],
        paused: PausedStreams,
    ) -> None:
        """The caller updates ``history``; ``flush_after_s`` gives a stream's allowed latency."""
        self._history = history
        self._clock = clock
        self._metrics = metrics
        self._pausing = pausing
        self._flush_after_s = flush_after_s
        self._paused = paused
        self._started_ms = clock.wall_ms()

    def refresh(self, snapshot: LoopSnapshot) -> None:
        """Set the gauges of lag and of held partitions."""
        metrics, now_s = self._metrics, self._clock.monotonic_s()
        for metric in (all_metrics.WRITER_KAFKA_END, all_metrics.WRITER_LAG_RECORDS, all_metrics.WRITER_LAG_SECONDS):
            metrics.forget(metric)
        for partition in _partitions(snapshot):
            labels = {"topic": str(partition.partition.topic), "partition": str(partition.partition.partition)}
            end = self._history.end(partition.partition)
            lag = self._lag(partition, partition.staged, now_s)
            for metric, value in (
                (all_metrics.WRITER_KAFKA_END, end),
                (all_metrics.WRITER_LAG_RECORDS, lag.records),
                (all_metrics.WRITER_LAG_SECONDS, lag.seconds),
            ):
                if value is not None:
                    metrics.set(metric, value, **labels)
        metrics.forget(all_metrics.WRITER_HELD)
        for reason, count in Counter(held.reason for held in snapshot.held.values()).items():
            metrics.set(all_metrics.WRITER_HELD, count, reason=reason)

    def status(self, snapshot: LoopSnapshot) -> Status:
        now_s = self._clock.monotonic_s()
        partitions = _partitions(snapshot)
        rows = [self._row(partition, now_s) for partition in partitions]
        problems = self._problems(snapshot)
        by_stream: dict[str, list[_Partition]] = {}
        for partition in partitions:
            by_stream.setdefault(partition.app_id, []).append(partition)
        tables = {assigned.converter.stream.app_id: assigned.converter.stream.table for assigned in snapshot.assigned}
        return Status(
            service="stage-writer",
            version=release(),
            now_ms=self._clock.wall_ms(),
            started_ms=self._started_ms,
            state="paused" if self._pausing.is_on else "staging" if snapshot.joined else "joining the group",
            verdict=_verdict(len(partitions), len(by_stream), joined=snapshot.joined),
            figures=_figures(snapshot),
            problems=tuple(problems),
            streams=tuple(
                self._flow(app_id, tables.get(app_id, ""), rows, now_s) for app_id, rows in sorted(by_stream.items())
            ),
            stops=STOPS,
            partitions=tuple(rows),
            events_title="Recent flushes",
            events=tuple(reversed(snapshot.telemetry.flushes.copy())),
            dead_letters=_dead_letters(snapshot),
            violations=_violations(snapshot),
            is_known=snapshot.joined,
        )

    def _lag(self, partition: _Partition, position: Position | None, now_s: float) -> Lag:
        return Lag.behind(self._history, partition.partition, position, now_s)

    def _row(self, partition: _Partition, now_s: float) -> PartitionRow:
        lag = self._lag(partition, partition.staged, now_s)
        late = partition.state is State.WELL and (lag.seconds or 0.0) > max(
            _BEHIND_S, 3 * self._flush_after_s(partition.app_id)
        )
        end = self._history.end(partition.partition)
        return PartitionRow(
            stream=partition.app_id,
            topic=str(partition.partition.topic),
            partition=int(partition.partition.partition),
            state=State.BEHIND if late else partition.state,
            positions=(partition.staged, partition.read, None if end is None else max(end, partition.read or end)),
            lag=lag,
            note=partition.note,
        )

    def _flow(self, app_id: str, table: str, rows: Sequence[_Partition], now_s: float) -> StreamFlow:
        held = sum(partition.state is State.HELD for partition in rows)
        read = added([self._lag(partition, partition.read, now_s) for partition in rows])
        unstaged_s = [self._lag(partition, partition.staged, now_s).seconds for partition in rows]
        buffered = [
            partition.read - partition.staged
            for partition in rows
            if partition.read is not None and partition.staged is not None
        ]
        staged = Lag(sum(buffered), max((seconds for seconds in unstaged_s if seconds is not None), default=None))
        return StreamFlow(
            app_id=app_id,
            table=table,
            way=f"{counted(len(rows), 'partition')} here{', paused' if app_id in self._paused.pauses else ''}",
            stops=(
                FlowStep("Kafka", None),
                FlowStep("Read", read, "in buffers"),
                FlowStep("Staged", staged, "sealed by markers"),
            ),
            partitions=len(rows),
            held=held,
            valid_through_ms=None,
            level=ProblemLevel.ERROR if held else ProblemLevel.WARNING if app_id in self._paused.pauses else None,
        )

    def _problems(self, snapshot: LoopSnapshot) -> list[Problem]:
        problems = list(held_problems(snapshot.held))
        waits = [assigned for assigned in snapshot.assigned if assigned.wait is not None]
        if waits and waits[0].wait is not None:
            error = waits[0].wait.error
            problem = Problem(
                ProblemLevel.ERROR, f"{waits[0].partition} waits", error.problem, error.remedy, also=len(waits) - 1
            )
            problems.append(problem)
        if snapshot.is_failing:
            text = "Flushes or reads of chains fail, and are tried again; the writer ends if that lasts for minutes."
            problems.append(Problem(ProblemLevel.WARNING, "The store or Kafka fails", text, FAILING_REMEDY))
        problems += [
            Problem(ProblemLevel.ERROR, "Records for Kafka topics wait", problem.problem, problem.remedy)
            for problem in snapshot.undelivered
        ]
        remedy = f"`stage-writer check {CONFIG}` says whether it exists, and whether this user may write to it"
        title = "Notifications go to the stage"
        problems += [Problem(ProblemLevel.WARNING, title, note, remedy) for note in snapshot.notes]
        title, remedy = (
            "A changelog topic does not retain state",
            "follow the remedy in its message; the writer checks again every minute",
        )
        problems += [Problem(ProblemLevel.ERROR, title, note, remedy) for note in snapshot.changelogs]
        problems += [
            Problem(ProblemLevel.ERROR, f"A topic of {app_id} is not read", error.problem, error.remedy)
            for app_id, error in snapshot.telemetry.hidden.items()
        ]
        problems += [
            Problem(ProblemLevel.ERROR, f"The topic {topic} is not read", error.problem, error.remedy)
            for topic, error in snapshot.telemetry.unsubscribed_topics.items()
        ]
        problems += [
            Problem(
                ProblemLevel.WARNING, f"Many records of {app_id} are dead letters", alarm.sentence, DEAD_LETTERS_REMEDY
            )
            for app_id, alarm in snapshot.telemetry.alarms.raised.items()
        ]
        problems += [
            Problem(ProblemLevel.WARNING, f"Fields of {app_id} are dropped", sentence, undeclared.REMEDY)
            for app_id, sentence in snapshot.telemetry.drops.items()
        ]
        if self._pausing.is_on:
            problems.append(paused_problem("Reading from Kafka is paused"))
        problems += stream_pauses(self._paused.pauses)
        return problems


def _partitions(snapshot: LoopSnapshot) -> list[_Partition]:
    partitions = [_owned(assigned, snapshot.backpressure) for assigned in snapshot.assigned]
    partitions += [
        _Partition(
            topic_partition, starting.converter.stream.app_id, State.WAITING, None, None, "its chain is being read"
        )
        for topic_partition, starting in snapshot.starting.items()
    ]
    for topic_partition, held in snapshot.held.items():
        staged = None if held.resume_point is None else held.resume_point.position
        partitions.append(
            _Partition(topic_partition, held.converter.stream.app_id, State.HELD, staged, staged, held.problem)
        )
    return sorted(partitions, key=lambda partition: partition.partition)


def _owned(assigned: AssignedPartition, backpressure: BackpressureState) -> _Partition:
    app_id, buffer, in_flight = assigned.converter.stream.app_id, assigned.buffer, assigned.in_flight
    staged, read = buffer.start, max(buffer.end, assigned.taken)
    if in_flight is not None and assigned.tail is not None:
        staged = assigned.tail.end
    if assigned.wait is not None:
        return _Partition(assigned.partition, app_id, State.WAITING, staged, read, assigned.wait.error.problem)
    if assigned.partition in backpressure.paused:
        return _Partition(assigned.partition, app_id, State.PAUSED, staged, read, "not read now")
    if in_flight is not None:
        return _Partition(
            assigned.partition, app_id, State.FLUSHING, staged, read, f"flush for {in_flight.reason.value}"
        )
    return _Partition(assigned.partition, app_id, State.WELL, staged, read)


def _verdict(partitions: int, streams: int, *, joined: bool) -> str:
    if not joined:
        return "This writer has not joined its group yet."
    if partitions == 0:
        return "This writer has no partitions: other members of its group have all of them."
    return f"This writer stages {counted(partitions, 'Kafka partition')} of {counted(streams, 'stream')}."


def _figures(snapshot: LoopSnapshot) -> tuple[Figure, ...]:
    flights = [assigned.in_flight for assigned in snapshot.assigned]
    repair_running = [in_flight.job.memory_bytes for in_flight in flights if in_flight is not None]
    used = sum(assigned.buffer.memory_bytes for assigned in snapshot.assigned) + sum(repair_running)
    flushes = snapshot.telemetry.flushes.copy()
    return (
        Figure("Buffers", used, Unit.BYTES, of=snapshot.memory_bytes),
        Figure("Memory of the process", resident_bytes(), Unit.BYTES),
        Figure("Paused", len(snapshot.backpressure.paused), Unit.COUNT, of=len(snapshot.partitions)),
        Figure("Flushes in progress", len(repair_running), Unit.COUNT),
        Figure("Last flush", flushes[-1].time_ms if flushes else None, Unit.SINCE),
    )


def _dead_letters(snapshot: LoopSnapshot) -> tuple[DeadLetters, ...]:
    samples, counts = snapshot.telemetry.samples, dict(snapshot.telemetry.dead_letters)
    return tuple(
        DeadLetters(app_id, error_class, count, () if samples is None else samples.of(app_id, error_class))
        for (app_id, error_class), count in sorted(counts.items(), key=lambda item: -item[1])
    )


def _violations(snapshot: LoopSnapshot) -> tuple[Violations, ...]:
    counts = snapshot.telemetry.violations.copy()
    return tuple(Violations(app_id, rule, count) for (app_id, rule), count in counts.most_common())
