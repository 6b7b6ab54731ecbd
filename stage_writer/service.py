"""The stage writer's loop: take, land, launch, breathe.

    poll Kafka ─► take: convert, buffer ─► launch: flush what is due ─► land: sealed, lost or failed

Rules:

1. The chain decides. On assignment it is read, and reading starts at its end; after a lost claim the partition is
   dropped with everything it holds until the chain was read again. Kafka's group offsets are never used.
2. A partition has at most one flush in progress; what arrives meanwhile waits in the next buffer.
3. On revoke the partition's buffers are flushed within a bounded time and dropped otherwise; on loss they are dropped.
   Dropping loses nothing: the next owner reads from the chain's end.
4. A failed store, or a Kafka that does not return the start position, is tried again with growing pauses while the
   member stays in the group; when it fails for too long, the service ends with the error.
5. A partition that cannot continue (its marker is unreadable, Kafka no longer has its position, its topic was recreated
   or has lost records) is held and reported; the others continue. Its chain is checked periodically: when it ends
   elsewhere, it was fixed. One that an operator put ahead of Kafka resumes when Kafka has reached that position.
6. Nothing is claimed without a check of the topic's id *after* its records were read: no record of a topic that was
   deleted and recreated gets into the old one's chain, although Kafka's client keeps reading.
7. Nothing is claimed by a process that the group may have given up (core/freshness.py), or for a partition that was
   revoked.
8. A rewind is noticed at the next claim. A partition without new records makes none, so the marker that it continues
   from is checked periodically; at most one partition per round, because the store may be slow.
9. An unexpected exception in a flush or a conversion holds its partitions and does not end the service.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, assert_never

from common import metrics as catalogue
from common.errors import BrokerError, KafkaDeltaExpressError, MarkerError, StoreError
from common.http.pages import Health, with_remedy
from stage_writer.changelog.ports import NO_WATCH
from stage_writer.core.flushing import FlushLimits, FlushReason, Pressure, age_share_of, decide
from stage_writer.core.freshness import Freshness
from stage_writer.core.parquet.buffer import FIRST_GUESS, Buffer, Filing
from stage_writer.intake import Intake, together_by_converter
from stage_writer.notifications.ports import NO_NOTIFIER
from stage_writer.outbox.ports import NO_OUTLETS
from stage_writer.partitions.catching_up import CatchingUp, require_all
from stage_writer.partitions.dependency_wait import DependencyWaits
from stage_writer.partitions.dependency_wait import problems as waited_for
from stage_writer.partitions.idle_reports import Idling
from stage_writer.partitions.partition import Flight, HeldPartition, Owned
from stage_writer.partitions.resume_points import ResumePoint, ResumePoints, is_other, of_chain, other_topic, unexpected
from stage_writer.partitions.startup import TakenUp, TakingUp, Unfit, topic_ids
from stage_writer.partitions.state_renewal import Renewing
from stage_writer.partitions.topic_monitor import TopicLook
from stage_writer.ports import (
    OUT_OF_RANGE,
    UNEXPECTED,
    Incompatible,
    LostClaim,
    OtherTopic,
    PartitionFault,
    Postponed,
    Sealed,
)
from stage_writer.schemas import Schemas
from stage_writer.stopping import ConversionInterruptedError, Stopping
from stage_writer.telemetry import WriterTelemetry
from stage_writer.web.view import FAILING_REMEDY, LoopSnapshot

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from structlog.typing import FilteringBoundLogger

    from common.http.pausing import Pausing
    from common.metrics import Metrics
    from common.ports import Clock
    from common.spans import Position, TopicPartition
    from common.stage.markers import LastRecord
    from stage_writer.changelog.ports import WatchesTopics
    from stage_writer.core.batch import MessageBatch
    from stage_writer.notifications.ports import Notifier
    from stage_writer.outbox.ports import Outlets
    from stage_writer.ports import ClaimGuard, Converter, RecordSource, Workers, WriterStage

POLL_S = 0.2
GIVE_UP_AFTER_S = 300.0
LOOK_AT_HELD_S = 30.0
LOOK_AT_TOPICS_S = 30.0
LOOK_AT_QUIET_S = 60.0
SESSION_S = 45.0
"""librdkafka's default."""


class StageWriter:
    """The service. All of its methods are called from one thread; only flush jobs run elsewhere."""

    def __init__(
        self,
        *,
        converters: Collection[Converter],
        limits: FlushLimits,
        revoke_timeout_s: float,
        report_positions: bool,
        source: RecordSource,
        stage: WriterStage,
        workers: Workers,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
        session_s: float = SESSION_S,
        filing: Filing = Filing(),  # noqa: B008 - frozen
        pausing: Pausing | None = None,
        news: Notifier = NO_NOTIFIER,
        teller: WriterTelemetry | None = None,
        outlets: Outlets = NO_OUTLETS,
        changelogs: WatchesTopics = NO_WATCH,
        stopping: Stopping | None = None,
    ) -> None:
        """``session_s`` is the group's session timeout; ``stopping`` is the one that the converters use."""
        self._converters = tuple(converters)
        self._limits = limits
        self._revoke_timeout_s = revoke_timeout_s
        self._report_positions = report_positions
        self._source = source
        self._stage = stage
        self._workers = workers
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self._teller = teller or WriterTelemetry(clock, log, metrics)
        self._owned: dict[TopicPartition, Owned] = {}
        self._held: dict[TopicPartition, HeldPartition] = {}
        self._places = ResumePoints(source, stage)
        self._schemas = Schemas(self._converters, stage, clock, log)
        self._taking_up = TakingUp(source, self._places, self._schemas, stage, workers, clock=clock, log=log)
        self._freshness = Freshness(session_s)
        self._topics_looked_at_s = clock.monotonic_s()
        self._catching_up: CatchingUp | None = None
        self._joined = False
        self._topic_look = TopicLook(source, clock)
        self._idling = Idling(source, stage, clock, log, [one.stream for one in self._converters])
        self._news = news
        self._renewing = Renewing(stage, workers, clock, log)
        self._changelogs = changelogs
        self._pausing = pausing
        self._waiting = DependencyWaits(source, clock, log)
        self._outlets = outlets
        self._stopping = stopping or Stopping(clock.monotonic_s, revoke_timeout_s)
        self._intake = Intake(self._teller, clock, self._stopping, self._unexpected)
        self._ends: dict[TopicPartition, Position] = {}
        self._pressure = Pressure()
        self._filing = filing
        self._guesses: dict[str, float] = {}
        self._failing_since_s: float | None = None

    def run(self, *, until_caught_up: bool) -> None:
        """Stage until `stop`, or until everything now in Kafka is staged. Raises the error that ends the service."""
        streams = [converter.stream for converter in self._converters]
        if until_caught_up:
            self._catching_up = CatchingUp(self._source, self._clock, streams)
        self._schemas.look()
        self._source.subscribe(streams, self)
        try:
            done = False
            while not done:
                with self._stopping.step():
                    self.step(POLL_S)
                if self._is_done():
                    self._flush_rest()
                    done = self._is_done()  # not if a claim was lost: there may be more to stage
            self._idling.tell(self._owned.values(), now=True)
            held = [one.line for one in self._held.values()]  # closing revokes them
        except BaseException:
            self._let_go([*self._owned, *self._taking_up.waiting], "failed")  # seal nothing on the way out
            raise
        finally:
            self._source.close()
        self._news.end()
        if self._catching_up is not None:
            require_all(held, stopped=self._stopping.is_on)

    def step(self, timeout_s: float) -> None:
        """One round."""
        began_s = self._clock.monotonic_s()
        polled = self._source.poll(0.0 if self._intake.is_busy and not self._pressure.is_full else timeout_s)
        self._freshness.polled(began_s, self._clock.monotonic_s())
        self._take(polled.batches)
        self._reached_ends(polled.ends)
        for fault in polled.faults:
            self._faulty(fault)
        self._look_at_topics()
        self._look_at_quiet()
        self._idling.tell(self._owned.values())
        self._changelogs.look()
        self._renewing.look(self._owned.values())
        self._schemas.look()
        self._read_chains()
        self._waiting.look(self._owned.values(), self._pressure.paused, is_patient=self._catching_up is None)
        self._land()
        self._relieve()
        self._retry()
        self._news.tell()

    def stop(self) -> None:
        """Ask the loop to flush, leave the group and end. Safe to call from a signal handler."""
        self._stopping.begin()

    def health(self) -> Health:
        """Current problems, for ``/healthcheck``."""
        problems = [*(one.line for one in self._held.values()), *waited_for(list(self._owned.values()))]
        problems += [with_remedy(one.problem, one.remedy) for one in self._outlets.problems()]
        if self._failing_since_s is not None:
            problems.append(with_remedy("the store or Kafka fails", FAILING_REMEDY))
        notes = () if self._pausing is None else self._pausing.notes
        return Health(tuple(problems), (*notes, *self._news.notes, *self._changelogs.notes, *self._teller.notes))

    def snapshot(self) -> LoopSnapshot:
        """The current state, for the status page and the gauges. Safe to call from any thread."""
        owned, unread, held = list(self._owned.values()), dict(self._taking_up.waiting), dict(self._held)
        known = (self._pressure, self._joined, self._failing_since_s is not None, self._limits.memory_bytes)
        told = (self._news.notes, self._changelogs.notes, self._outlets.problems())
        return LoopSnapshot(owned, unread, held, *known, self._teller, *told)

    def ready(self) -> Health:
        """Whether this writer is a member of its group."""
        return Health() if self._joined else Health(("not yet a member of the group",))

    def _take(self, batches: Iterable[MessageBatch]) -> None:
        """Pass on what is new and ours for conversion, all of a stream together."""
        fresh: dict[Converter, list[MessageBatch]] = {}
        tasks = False
        for batch in batches:
            owned = self._owned.get(batch.source)
            if owned is None or owned.wait is not None:
                continue  # revoked or held since it was fetched, or due to be read again
            new = batch.after(max(owned.taken, owned.buffer.end))
            if (wait := owned.converter.waits(new)) is not None:
                self._waiting.begin(owned, wait)
                continue
            self._teller.polled(batch, new)
            if len(new):
                owned.taken = new.end
                fresh.setdefault(owned.converter, []).append(new)
                tasks = tasks or owned.task is not None
        for converter, found in together_by_converter(fresh, tasks=tasks):
            self._intake.add(converter, found, {batch.source: self._owned[batch.source] for batch in found})
        if not self._pressure.is_full and not self._stopping.is_on:
            self._intake.work(self._owned)

    def _reached_ends(self, found: Mapping[TopicPartition, Position]) -> None:
        """Kafka's reported ends count only once everything before them is buffered."""
        self._ends |= found
        for source, position in list(self._ends.items()):
            owned = self._owned.get(source)
            if owned is None or owned.taken <= owned.buffer.end:
                del self._ends[source]
                if owned is not None:
                    owned.reach_end(position)

    def _relieve(self) -> None:
        """Flush what is due, and convert what there is room for."""
        fillings = [owned.filling() for owned in self._owned.values()]
        decision = decide(fillings, self._limits, self._clock.monotonic_s(), self._pressure)
        for flush in decision.flushes:
            self._begin(self._owned[flush.source], flush.reason)
        pressure = decision.pressure
        if self._intake.is_busy or (self._pausing is not None and self._pausing.is_on):
            pressure = replace(pressure, paused=frozenset(self._owned))  # what was read is flushed on time
        self._breathe(pressure, sum(filling.memory_bytes + filling.flushing_bytes for filling in fillings))

    def _retry(self) -> None:
        now_s = self._clock.monotonic_s()
        for owned in self._owned.values():
            flight = owned.flight
            if flight is not None and flight.running is None and now_s >= flight.retry_at_s:
                flight.running = self._workers.start(flight.job)

    def _begin(self, owned: Owned, reason: FlushReason) -> None:
        if owned.buffer.is_empty or owned.flight is not None:
            return
        try:
            job = owned.flush_job(self._stage, self._guard(owned))
        except Exception as error:  # noqa: BLE001 - rule 9
            self._unexpected(owned, error)
            return
        arrow_bytes = owned.buffer.arrow_bytes
        owned.flight = Flight(job, reason, self._clock.monotonic_s(), self._workers.start(job), arrow_bytes)
        if owned.taken <= owned.buffer.end:  # otherwise rows with the old columns are on their way into the next buffer
            owned.converter = self._schemas.newest(owned.converter)
        owned.buffer = self._new_buffer(owned.buffer.end, owned.converter)

    def _guard(self, owned: Owned) -> ClaimGuard:
        """The check that a job of this partition makes before it claims (rules 6 and 7); runs in the job's thread."""

        def is_ours() -> bool:
            return self._owned.get(owned.source) is owned and self._freshness.is_fresh(self._clock.monotonic_s())

        return self._topic_look.guard(owned.source, owned.lineage, self._clock.monotonic_s(), is_ours)

    def _land(self) -> None:
        for owned in list(self._owned.values()):
            flight = owned.flight
            if flight is None or flight.running is None or not flight.running.done():
                continue
            try:
                outcome = flight.running.result()
            except (StoreError, BrokerError) as error:
                self._try_later(flight, error)
                continue
            except Exception as error:  # noqa: BLE001 - rule 9
                self._unexpected(owned, error)
                continue
            self._failing_since_s = None
            match outcome:
                case Sealed():
                    owned.flight = None
                    self._sealed(owned, flight, outcome)
                case LostClaim():
                    self._metrics.add(catalogue.WRITER_LOST_CLAIMS, topic=owned.source.topic)
                    self._log.warning("claim lost", partition=str(owned.source))
                    self._begin_again(owned)
                case Postponed():
                    flight.running, flight.retry_at_s = None, self._clock.monotonic_s() + POLL_S
                case OtherTopic():
                    self._topic_went(owned)
                case Incompatible():
                    place = ResumePoint(owned.tail, outcome.start, owned.lineage)
                    self._hold(outcome.fault(owned.source), owned.converter, place, outcome)
                case _:
                    assert_never(outcome)

    def _sealed(self, owned: Owned, flight: Flight, sealed: Sealed) -> None:
        seconds = self._clock.monotonic_s() - flight.began_s
        if flight.arrow_bytes:
            self._guesses[owned.converter.stream.app_id] = sealed.size_bytes / flight.arrow_bytes
        self._teller.sealed(owned.converter.stream.app_id, sealed, flight.reason, seconds)
        self._news.sealed(owned.converter.stream.app_id)
        if sealed.chain_moved:
            self._log.warning("chain moved", partition=str(owned.source))
            self._begin_again(owned)
            return
        owned.tail, owned.looked_at_s = sealed.tail, self._clock.monotonic_s()
        if owned.task is not None:
            owned.task.sealed(sealed.tail.state)
        if owned.outlet is not None:
            owned.outlet.sealed(sealed.tail.outboxes)
        if self._report_positions:
            self._source.report({owned.source: sealed.tail.end})

    def _try_later(self, flight: Flight, error: StoreError | BrokerError) -> None:
        if isinstance(error, StoreError):  # wait for unavailable brokers, as reading does
            self._note_failure(error)
        pause_s = flight.backoff.next_s()
        flight.running, flight.retry_at_s = None, self._clock.monotonic_s() + pause_s
        self._log.warning("flush failed, trying again", error=error.problem, retry_in_s=pause_s)

    def _note_failure(self, error: StoreError | BrokerError) -> None:
        """Raise the error when the store or Kafka has failed for too long (rule 4)."""
        now_s = self._clock.monotonic_s()
        if self._failing_since_s is None:
            self._failing_since_s = now_s
        if now_s - self._failing_since_s > GIVE_UP_AFTER_S:
            # One kind for all, refusals included: access that is denied now may be granted again after a restart.
            raise KafkaDeltaExpressError(error.problem, error.remedy) from error

    def _begin_again(self, owned: Owned) -> None:
        """Drop the partition with everything it holds; `_read_chains` takes it up again (rule 1)."""
        self._metrics.add(catalogue.WRITER_DROPPED, reason="chain")
        self._let_go([owned.source], "chain")
        self._source.pause([owned.source])
        self._taking_up.add(owned.source, owned.converter)

    def _read_chains(self) -> None:
        """Resume the waiting partitions, each from its chain's end."""
        self._look_at_held()
        for source, position in self._take_up().items():
            self._source.seek(source, position)
            self._source.resume([source])

    def _take_up(self, among: Collection[TopicPartition] | None = None) -> dict[TopicPartition, Position]:
        """Own the partitions that can be read now, each from its chain's end."""
        positions: dict[TopicPartition, Position] = {}
        expected: dict[TopicPartition, LastRecord] = {}
        for source, found in self._taking_up.look(among).items():
            match found:
                case StoreError() | BrokerError():
                    self._note_failure(found)
                    continue
                case Unfit(fault, converter, place):
                    self._hold(fault, converter, place)
                case TakenUp(place, converter, task):
                    positions[source] = place.position
                    if place.tail is not None and place.tail.last_record is not None:
                        expected[source] = place.tail.last_record
                    buffer, now_s = self._new_buffer(place.position, converter), self._clock.monotonic_s()
                    share = age_share_of(source)
                    owned = Owned(source, converter, place.tail, place.lineage, buffer, now_s, share, task=task)
                    owned.outlet = self._outlets.open(source, converter.stream, place.tail)
                    self._owned[source] = owned
                case _:
                    assert_never(found)
            self._failing_since_s = None
        self._source.expect(expected)
        return positions

    def _breathe(self, pressure: Pressure, used_bytes: int) -> None:
        """Pause the partitions that must wait, and resume the others."""
        before, self._pressure = self._pressure, pressure
        self._metrics.set(catalogue.WRITER_BUFFERED_BYTES, used_bytes)
        self._metrics.set(catalogue.WRITER_PAUSED, len(pressure.paused))
        if pressure.is_full != before.is_full:
            self._log.info("reading pauses" if pressure.is_full else "reading resumed", buffered_bytes=used_bytes)
        if paused := pressure.paused - before.paused:
            self._metrics.add(catalogue.WRITER_PAUSES, len(paused))
            self._source.pause(paused)
        freed = before.paused - pressure.paused
        if resumed := {source for source, owned in self._owned.items() if source in freed and owned.wait is None}:
            self._source.resume(resumed)

    def _new_buffer(self, start: Position, converter: Converter) -> Buffer:
        guess = self._guesses.get(converter.stream.app_id, FIRST_GUESS)
        return Buffer.begin(start, converter.formats, self._filing, guess)

    # The consumer group's callbacks. The source calls these from poll and close.
    def assigned(self, sources: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Read the chain of each new partition; those whose chain cannot be read now wait, or are held."""
        self._joined = True
        for source in sources:
            self._held.pop(source, None)
            converter = next((found for found in self._converters if found.stream.takes(source.topic)), None)
            if converter is not None:
                self._taking_up.add(source, converter)
        found = self._take_up(sources)
        self._report_group("partitions assigned", sources)
        return found

    def revoked(self, sources: Collection[TopicPartition]) -> None:
        """Flush what these hold, within the time limit, and release them (rule 3)."""
        self._flush_within([self._owned[source] for source in sources if source in self._owned], FlushReason.REVOKED)
        self._let_go(sources, "revoked")
        self._report_group("partitions revoked", sources)

    def lost(self, sources: Collection[TopicPartition]) -> None:
        """Drop what these hold: another member has them already."""
        self._let_go(sources, "lost")
        self._report_group("partitions lost", sources)

    def _let_go(self, sources: Collection[TopicPartition], reason: str) -> None:
        self._pressure = replace(self._pressure, paused=self._pressure.paused.difference(sources))
        for source in sources:
            self._ends.pop(source, None)
            self._held.pop(source, None)
            self._taking_up.drop(source)
            owned = self._owned.pop(source, None)
            if owned is not None and owned.task is not None:
                owned.task.close()
            if owned is not None and owned.outlet is not None:
                owned.outlet.leave()
            if owned is not None and (owned.flight is not None or not owned.buffer.is_empty):
                self._metrics.add(catalogue.WRITER_DROPPED, reason=reason)
                self._log.warning("buffer dropped", partition=str(source), reason=reason)

    def _flush_within(self, leaving: Collection[Owned], reason: FlushReason) -> None:
        """Flush and wait until everything is sealed or the time is over."""
        deadline_s = self._clock.monotonic_s() + self._revoke_timeout_s
        while True:
            self._freshness.sign(self._clock.monotonic_s())
            self._land()
            self._retry()
            waiting = [owned for owned in leaving if self._owned.get(owned.source) is owned]
            for owned in waiting:
                self._begin(owned, reason)
            flights = [owned.flight for owned in waiting if owned.flight is not None]
            left_s = self._stopping.at_most(deadline_s) - self._clock.monotonic_s()
            if not flights or left_s <= 0:
                return
            if running := [flight.running for flight in flights if flight.running is not None]:
                self._workers.wait(running, left_s)
            else:
                self._clock.sleep_s(min(left_s, POLL_S))

    def _flush_rest(self) -> None:
        """Seal everything at the end of the service."""
        reason = FlushReason.STOPPING if self._stopping.is_on else FlushReason.CAUGHT_UP
        while True:
            self._flush_within(list(self._owned.values()), reason)
            unsealed = [source for source, owned in self._owned.items() if owned.flight or not owned.buffer.is_empty]
            if not unsealed:
                return
            if self._stopping.is_on:
                self._let_go(unsealed, "stopped")
                msg = f"{len(unsealed)} partitions could not be flushed within {self._revoke_timeout_s:g} s"
                raise StoreError(msg, "nothing is lost: the next writer reads them again from Kafka")

    def _faulty(self, fault: PartitionFault) -> None:
        """Kafka cannot serve a partition; check whether that is because its topic was recreated."""
        owned = self._owned.get(fault.source)
        if owned is None:
            return
        found = topic_ids(self._source, [fault.source.topic], self._log).get(fault.source.topic)
        if is_other(owned.lineage, found):
            self._topic_went(owned)
        else:
            place = ResumePoint(owned.tail, owned.buffer.end, owned.lineage)
            self._hold(of_chain(fault, place), owned.converter, place)

    def _look_at_topics(self) -> None:
        """Check periodically whether the topics are still the same, so that status and health report it."""
        now_s = self._clock.monotonic_s()
        if now_s - self._topics_looked_at_s < LOOK_AT_TOPICS_S:
            return
        self._topics_looked_at_s = now_s
        found = topic_ids(self._source, {source.topic for source in self._owned}, self._log)
        for owned in list(self._owned.values()):
            if is_other(owned.lineage, found.get(owned.source.topic)):
                self._topic_went(owned)

    def _look_at_quiet(self) -> None:
        """Check whether the chain of a partition with nothing to claim was rewound (rule 8)."""
        now_s = self._clock.monotonic_s()
        quiet = [one for one in self._owned.values() if one.tail and one.flight is None and one.buffer.is_empty]
        owned = min(quiet, key=lambda one: one.looked_at_s, default=None)
        if owned is None or owned.tail is None or now_s - owned.looked_at_s < LOOK_AT_QUIET_S:
            return
        owned.looked_at_s = now_s
        try:
            moved = not self._stage.is_there(owned.tail)
        except StoreError as error:
            self._log.warning("chain not looked at", partition=str(owned.source), problem=error.problem)
            return
        if moved:
            self._log.warning("chain moved", partition=str(owned.source))
            self._begin_again(owned)

    def _topic_went(self, owned: Owned) -> None:
        """Drop rows that may be from another topic, and hold the partition; an empty chain starts over."""
        if owned.tail is None and owned.lineage.generation == 0:
            self._begin_again(owned)
            return
        self._hold(other_topic(owned.source), owned.converter, owned.place)

    def _unexpected(self, owned: Owned, error: Exception) -> None:
        """Hold a partition for an unexpected exception (rule 9); re-raises an expected one."""
        if isinstance(error, ConversionInterruptedError):
            self._log.warning("conversion interrupted", partition=str(owned.source))
            self._let_go([owned.source], "stopped")
            return
        if isinstance(error, KafkaDeltaExpressError):
            raise error
        self._log.error("unexpected exception", partition=str(owned.source), exc_info=error)
        self._hold(unexpected(owned.source, error), owned.converter, owned.place)

    def _hold(
        self,
        fault: PartitionFault,
        converter: Converter,
        place: ResumePoint | None,
        incompatible: Incompatible | None = None,
    ) -> None:
        """Leave a partition where it is (rule 5); ``place`` is the unreadable one, None if unknown."""
        source = fault.source
        self._log.error("partition held", partition=str(source), problem=fault.problem, remedy=fault.remedy)
        if source in self._owned:
            self._let_go([source], "held")
            self._source.pause([source])
        look_at_s = self._clock.monotonic_s() + LOOK_AT_HELD_S
        self._held[source] = HeldPartition(
            fault.problem, converter, place, look_at_s, fault.remedy, fault.reason, incompatible
        )

    def _look_at_held(self) -> None:
        """Resume held partitions whose chain is readable and ends elsewhere, or that Kafka has reached."""
        now_s = self._clock.monotonic_s()
        for source in [source for source, held in self._held.items() if now_s >= held.look_at_s]:
            held = self._held[source]
            held.look_at_s = now_s + LOOK_AT_HELD_S
            try:
                place = self._places.of(source, held.converter.stream)
                reached = held.reason == OUT_OF_RANGE and self._places.is_reached(source, place)
                fixed = held.takes_rows_now(self._stage)
            except (MarkerError, StoreError, BrokerError):
                continue
            if held.place is None or place.differs(held.place) or reached or fixed or held.reason == UNEXPECTED:
                self._log.info("partition resumed", partition=str(source), position=place.position)
                del self._held[source]
                self._taking_up.add(source, held.converter)

    def _is_done(self) -> bool:
        return self._stopping.is_on or self._all_caught_up()

    def _all_caught_up(self) -> bool:
        """Whether what was in Kafka at startup is staged, as far as it is ours; the rest has other owners."""
        goal = self._catching_up
        if goal is None or goal.is_nothing:
            return goal is not None
        is_busy = not self._joined or bool(self._taking_up.waiting) or self._intake.is_busy
        return not is_busy and goal.is_done(self._owned.values())

    def _report_group(self, event: str, sources: Collection[TopicPartition]) -> None:
        self._metrics.set(catalogue.WRITER_PARTITIONS, len(self._owned))
        if sources:
            self._log.info(event, partitions=[str(source) for source in sorted(sources)], owned=len(self._owned))
