"""The stage writer: poll, convert, flush, finish.

    poll Kafka ─► intake: convert, buffer ─► flushes: start what is due ─► finish: sealed, lost, or failed

The parts, in the order of a round:

- intake.py: converts what was polled, and buffers the rows.
- background.py: what is checked and reported periodically.
- assignment.py: partitions start at their chain's end, and are held when they cannot continue.
- flushes.py: seals buffers, and acts on the outcome.
- backpressure.py: what to flush, and what not to read now.

On revoke a partition's buffer is flushed within a bounded time and dropped otherwise; on loss it is dropped. Nothing is
lost by that: the next owner reads from the chain's end.
"""

from collections.abc import Collection, Mapping

from common.errors import StoreError
from common.http.pages import Health, with_remedy
from common.sizes import counted
from common.spans import Position, TopicPartition
from stage_writer.assignment import AssignedPartitions
from stage_writer.background import Background
from stage_writer.backpressure import Backpressure
from stage_writer.flushes import Flushes
from stage_writer.intake import Intake
from stage_writer.partitions.buffers import Buffers
from stage_writer.partitions.catching_up import FLUSHED_WITHIN_S, CatchingUp, require_all
from stage_writer.partitions.claim_guards import ClaimGuards, TopicMonitor
from stage_writer.partitions.dependency_wait import DependencyWaits
from stage_writer.partitions.dependency_wait import problems as waited_for
from stage_writer.partitions.flush_decision import FlushReason
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.partitions.pauses import Pauses
from stage_writer.partitions.resume_points import ResumePoints
from stage_writer.partitions.startup import PartitionStartup
from stage_writer.ports import Converter, RecordSource, Sealed, Workers
from stage_writer.runtime import FAILING_REMEDY, POLL_S, Attachments, LoopSnapshot, Runtime, WriterOptions
from stage_writer.schemas import Schemas
from stage_writer.stage.staging import ObjectStage


class StageWriter:
    """The service. All of its methods are called from one thread; only flush jobs run elsewhere."""

    def __init__(
        self,
        converters: Collection[Converter],
        options: WriterOptions,
        *,
        source: RecordSource,
        stage: ObjectStage,
        workers: Workers,
        runtime: Runtime,
        attachments: Attachments = Attachments(),  # noqa: B008 - frozen
    ) -> None:
        self._options = options
        self._source = source
        self._stage = stage
        self._runtime = runtime
        self._attachments = attachments
        self._streams = [converter.stream for converter in converters]
        schemas = Schemas(converters, stage, workers, runtime.clock, runtime.log, columns=attachments.columns)
        buffers = Buffers(options.file_policy, schemas)
        resume_points = ResumePoints(source.metadata, stage)
        startup = PartitionStartup(
            source.metadata, resume_points, schemas, stage, workers, clock=runtime.clock, log=runtime.log
        )
        self.assignment = AssignedPartitions(
            converters,
            startup,
            source=source,
            stage=stage,
            buffers=buffers,
            outlets=attachments.outlets,
            runtime=runtime,
        )
        topics = TopicMonitor(source.metadata.topic_ids, runtime.clock)
        self._guards = ClaimGuards(self.assignment.by_partition, topics, runtime.clock, options.session_s)
        self._flushes = Flushes(
            self.assignment,
            stage=stage,
            workers=workers,
            buffers=buffers,
            guards=self._guards,
            sealed=self._sealed,
            runtime=runtime,
        )
        self._background = Background(
            self.assignment,
            self._streams,
            metadata=source.metadata,
            stage=stage,
            workers=workers,
            schemas=schemas,
            changelogs=attachments.changelogs,
            runtime=runtime,
        )
        self._waiting = DependencyWaits(source, runtime.clock, runtime.log)
        self._pauses = Pauses(attachments.pausing, attachments.paused, source, workers, runtime.clock)
        self._intake = Intake(self.assignment, buffers, self._waiting, self._pauses, runtime)
        self._backpressure = Backpressure(self.assignment, options.limits, source, self._pauses, runtime)
        self._catching_up: CatchingUp | None = None
        self._schemas = schemas

    def run(self, *, until_caught_up: bool) -> None:
        """Stage until `stop`, or until everything now in Kafka is staged. Raises the error that ends the service."""
        self.assignment.outage.waits_for_each = until_caught_up
        if until_caught_up:
            streams = self._pauses.read(self._streams)
            alive_after_s = self._options.session_s + min(
                max((self._options.limits.of(stream).flush_after_s for stream in streams), default=0.0),
                FLUSHED_WITHIN_S,
            )
            self._catching_up = CatchingUp(
                self._source.metadata, self._stage, self._runtime.clock, streams, alive_after_s
            )
        self._schemas.refresh()
        self._source.subscribe(self._streams, self)
        try:
            done = False
            while not done:
                with self._runtime.stopping.step():
                    self.step(POLL_S)
                done = self._has_finished()
            with self._runtime.stopping.step():
                self._background.report_idle()
            held = [each.line for each in self.assignment.held.values()]  # closing revokes them
            held += self._pauses.notes
        except BaseException:
            self.assignment.drop_all("failed")  # seal nothing on the way out
            raise
        finally:
            self._source.close()
        self._attachments.notifier.end()
        if self._catching_up is not None:
            require_all([*held, *self._catching_up.notes], stopped=self._runtime.stopping.is_on)

    def step(self, timeout_s: float) -> None:
        """One round, which waits up to ``timeout_s`` for messages."""
        began_s = self._runtime.clock.monotonic_s()
        is_full = self._backpressure.is_full
        polled = self._source.poll(0.0 if self._intake.is_busy and not is_full else timeout_s)
        self._guards.polled(began_s)
        self._intake.take(polled.batches)
        if not is_full and not self._runtime.stopping.is_on:
            self._intake.convert()
        self._intake.reached(polled.ends)
        for fault in polled.faults:
            self.assignment.fault(fault)
        self._background.run()
        self._pauses.refresh()
        self.assignment.resume()
        self._waiting.resume_ready(self.assignment.by_partition.values(), is_patient=self._catching_up is None)
        self._flushes.finish()
        self.assignment.hold_stopped()
        self._backpressure.apply(self._flushes.start, conversion_waits=self._intake.is_busy)
        self._flushes.retry()
        self._attachments.notifier.send_due()

    def stop(self) -> None:
        """Ask the loop to flush, leave the group and end. Safe to call from a signal handler."""
        self._runtime.stopping.begin()

    # The consumer group's callbacks. The source calls these from poll and close.
    def assigned(self, partitions: Collection[TopicPartition]) -> Mapping[TopicPartition, Position]:
        """Returns where each partition that can be read now starts; the others wait, or are held."""
        positions = self.assignment.assigned(partitions)
        self.assignment.report("partitions assigned", partitions)
        return positions

    def revoked(self, partitions: Collection[TopicPartition]) -> None:
        """Flush what these hold, within the time limit, and release them."""
        assigned = self.assignment.by_partition
        leaving = [assigned[partition] for partition in partitions if partition in assigned]
        self._flushes.flush_within(leaving, FlushReason.REVOKED, self._options.revoke_timeout_s)
        self.assignment.drop(partitions, "revoked")
        self.assignment.report("partitions revoked", partitions)

    def lost(self, partitions: Collection[TopicPartition]) -> None:
        """Drop what these hold: another member has them already."""
        self.assignment.drop(partitions, "lost")
        self.assignment.report("partitions lost", partitions)

    def _sealed(self, assigned: AssignedPartition, sealed: Sealed) -> None:
        self._attachments.notifier.sealed(assigned.converter.stream.app_id)
        if self._options.report_positions and not sealed.chain_moved:
            self._source.report({assigned.partition: sealed.tail.end})

    def _flush_rest(self) -> bool:
        """Seal everything at the end of the service. False if it takes longer: the group wants a poll meanwhile."""
        reason = FlushReason.STOPPING if self._runtime.stopping.is_on else FlushReason.CAUGHT_UP
        assigned = self.assignment.by_partition
        self._flushes.flush_within(list(assigned.values()), reason, self._options.revoke_timeout_s)
        unsealed = [each.partition for each in assigned.values() if each.in_flight or not each.buffer.is_empty]
        if unsealed and self._runtime.stopping.is_on:
            self.assignment.drop(unsealed, "stopped")
            seconds = self._options.revoke_timeout_s
            msg = f"{counted(len(unsealed), 'partition')} could not be flushed within {seconds:g} s"
            raise StoreError(msg, "nothing is lost: the next writer reads them again from Kafka")
        return not unsealed

    def _has_finished(self) -> bool:
        """Whether all is done, and everything of ours is sealed; other members may wait for that."""
        goal, assigned = self._catching_up, self.assignment.by_partition
        if not self._is_done():
            return False
        if goal is not None and not self._runtime.stopping.is_on:
            is_left = any(
                each.in_flight or not goal.is_reached(each.partition, each.buffer.start) for each in assigned.values()
            )
            if is_left and not self._flush_rest():
                return False
            ours = {*assigned, *self.assignment.held, *self.assignment.starting}
            if not self._is_done() or not goal.others_have_staged(ours):
                return False
        return self._flush_rest() and self._is_done()  # not if a claim was lost: there may be more to stage

    def _is_done(self) -> bool:
        return self._runtime.stopping.is_on or self._all_caught_up()

    def _all_caught_up(self) -> bool:
        """Whether what was in Kafka at startup is staged, as far as it is ours; the rest has other owners."""
        goal = self._catching_up
        if goal is None or goal.is_nothing:
            return goal is not None
        if not self.assignment.joined:
            goal.require_joining()
        is_busy = not self.assignment.joined or bool(self.assignment.starting) or self._intake.is_busy
        return not is_busy and goal.is_done(self._pauses.not_paused(self.assignment.by_partition.values()))

    def health(self) -> Health:
        """Current problems, for ``/healthcheck``."""
        assignment, more = self.assignment, self._attachments
        problems = [
            *(each.line for each in assignment.held.values()),
            *waited_for(list(assignment.by_partition.values())),
            *(with_remedy(each.problem, each.remedy) for each in more.outlets.problems()),
        ]
        if assignment.outage.is_on:
            problems.append(with_remedy("the store or Kafka fails", FAILING_REMEDY))
        notes = self._pauses.notes
        return Health(
            tuple(problems), (*notes, *more.notifier.notes, *more.changelogs.notes, *self._runtime.telemetry.notes)
        )

    def ready(self) -> Health:
        """Whether this writer is a member of its group."""
        return Health() if self.assignment.joined else Health(("not yet a member of the group",))

    def snapshot(self) -> LoopSnapshot:
        """The current state, for the status page and the gauges. Safe to call from any thread."""
        assignment, more = self.assignment, self._attachments
        return LoopSnapshot(
            assigned=list(assignment.by_partition.values()),
            starting=dict(assignment.starting),
            held=dict(assignment.held),
            backpressure=self._backpressure.current,
            joined=assignment.joined,
            is_failing=assignment.outage.is_on,
            memory_bytes=self._options.limits.memory_bytes,
            telemetry=self._runtime.telemetry,
            notes=more.notifier.notes,
            changelogs=more.changelogs.notes,
            undelivered=more.outlets.problems(),
        )
