"""Rules of the real code, each broken on purpose: a simulation that does not notice a broken rule proves nothing.

Each mutation replaces one decision of the services by a forbidden one while its context is active. ``python -m
tests.simulation.sweep`` counts the histories needed to find each (tests/simulation/sweep.py). Rules that would need a
rarer coincidence, or that other rules back up, have tests of their own in tests/unit/stage_writer/stage/test_staging.py
and are broken in the model (model/).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.restart import Restart, UnchangedPartition, plan_restart
from bootstrap.plans.state import PartitionState
from bootstrap.plans.task_states import TaskStates
from common.errors import BrokerError
from common.ports import AlreadyExists, Created, CreateOutcome, ObjectStore
from common.schema import agreement
from common.settings import Stream, gained_columns
from common.spans import MAX_POSITION, Position, Topic, TopicPartition
from common.stage.leases import Epoch
from common.stage.markers import Manifest, Marker, MarkerName, StagedTable
from common.stage.state_files import EMPTY_STATE, MarkedState, StateFileName, StateFiles, StateKind
from common.tables.transactions import TxnIds
from delta_loader.lease.holder import LoaderLease
from delta_loader.load import commit_load, committer, planning, settling
from delta_loader.load.catch_up import CatchUp
from delta_loader.load.committer import After
from delta_loader.load.refusals import Refusals
from delta_loader.load.refused_to_topic import RefusedToTopic
from delta_loader.load.secondary_tables import SecondaryTables
from delta_loader.load.stream_load import StreamLoad
from delta_loader.plan import chain_positions, plan
from delta_loader.scheduling.schedule import Schedule
from delta_loader.tables import commits
from delta_loader.tables.commits import CommitNaming, CommitOutcome, TableCommit, rows_commit, side_commit
from delta_loader.tables.file_split import FileSplit
from delta_loader.tables.load_modes.refused import RefusedRecord
from delta_loader.tables.merging.elements import ElementStatement
from delta_loader.tables.merging.inputs import MergeInputs
from delta_loader.tables.merging.unmatched_deletes import UnmatchedDeletes
from stage_writer import assignment, background, flushes
from stage_writer.chain_end import Tail
from stage_writer.chains import StagedChains
from stage_writer.changelog.changelog import TopicChangelog
from stage_writer.changelog.ports import Appended, ChangelogMessage
from stage_writer.decode.batch import MessageBatch
from stage_writer.outbox import delivery
from stage_writer.outbox.outlets import KafkaOutlet
from stage_writer.parquet.buffer import Buffer, EncodedFile, TableFormat
from stage_writer.partitions import claim_guards
from stage_writer.partitions.buffers import Buffers
from stage_writer.partitions.claim_guards import TopicMonitor
from stage_writer.partitions.dependency_wait import DependencyWaits
from stage_writer.partitions.flush_decision import FlushReason
from stage_writer.partitions.freshness import Freshness
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import FlushIdentity, FlushOutcome, LostClaim, StateStore
from stage_writer.stage import staging
from stage_writer.stage.state_files import StageState
from stage_writer.tasks import kept
from stage_writer.tasks import topology as tasks_topology
from stage_writer.tasks.kept import KeptTask
from stage_writer.tasks.topology import TopologyConverter, _Changed
from stage_writer.topologies.stores import Changes, TaskStores
from stage_writer.topologies.stores.disk import DiskBackend
from tests.simulation import appearing_mutations, hostile_mutations, operators
from tests.simulation import identity_mutations as broken
from tests.simulation import origin_mutations as origins
from tests.simulation import pause_mutations as pauses
from tests.simulation import replay_mutations as replays
from tests.simulation import shared_mutations as shared
from tests.simulation.changelog import TOPIC_ID, SimulatedTopics, written_after
from tests.simulation.delta_log import DeltaLog
from tests.simulation.editing import CALLED, MOVED, RENAMED, TENDED
from tests.simulation.outgoing import SimulatedTransactions
from tests.simulation.run import run
from tests.simulation.store import SimulatedStore
from tests.simulation.world import (
    BROKEN_TABLES,
    CONTESTED,
    FIRST_LOADS,
    LATE_CLAIMS,
    LATE_COMMITS,
    LATE_LOADS,
    LATE_ORIGINS,
    MACHINES_STOP,
    MANY_REPAIRS,
    MANY_REPLAYS,
    OPERATED,
    OPERATED_EARLY,
    RECREATED,
    REGISTRY_AWAY,
    SIGNS_LOST,
    UNDELIVERED,
    UNSTEADY,
    Chances,
)
from tests.simulation.worlds import Worlds

CEILING = 50
"""Histories within which each broken rule is found."""
MEDIAN = 10
"""The same for half of the rules."""


@dataclass(frozen=True, slots=True)
class Search:
    histories: int
    is_found: bool
    crashes: int
    """Histories in which a service crashed by the broken code: they show nothing."""


@dataclass(frozen=True, slots=True)
class Mutation:
    rule: str
    breaking: Callable[[], AbstractContextManager[object]]
    chances: Chances | None = None
    """The world in which it shows; all of them in turn when absent."""
    worlds: Worlds = Worlds.PLAIN

    def search(self, first: int = 0, most: int = CEILING) -> Search:
        """Run histories, at most ``most``, until one finds the broken rule, starting at a seed."""
        crashes = 0
        for number, seed in enumerate(range(first, first + most), 1):
            is_caught = self.is_caught(seed)
            if is_caught:
                return Search(number, is_found=True, crashes=crashes)
            crashes += is_caught is None
        return Search(most, is_found=False, crashes=crashes)

    def is_caught(self, seed: int) -> bool | None:
        """Whether the invariants or the final check reject one history; None where a service crashed by the broken
        code."""
        with self.breaking():
            try:
                verdict = run(seed, self.worlds, self.chances)
            except Exception:  # noqa: BLE001 - any error of broken code
                return None
        return None if verdict.crashed else bool(verdict.problems)


def _create_is_not_exclusive() -> AbstractContextManager[object]:
    def create(self: SimulatedStore, path: str, data: bytes) -> CreateOutcome:
        self.write(path, data)
        return Created()

    return patch.object(SimulatedStore, "create", create)


def _a_lost_claim_is_ignored() -> AbstractContextManager[object]:
    return patch.object(StagedChains, "claim", lambda self, name, data: self._store.create(name.path, data) or True)


def _the_marker_comes_before_the_files() -> AbstractContextManager[object]:
    run, upload = staging.Job.run, staging.ObjectStage.upload

    @contextmanager
    def broken() -> Iterator[None]:
        def claim_first(self: staging.Job) -> FlushOutcome:
            marker, data = self._seal(self._encode())
            if not self._stage.chains.claim(marker.name, data):
                return LostClaim()
            return run(self)

        with patch.object(staging.Job, "run", claim_first), patch.object(staging.ObjectStage, "upload", upload):
            yield

    return broken()


def _memory_is_trusted_after_a_lost_claim() -> AbstractContextManager[object]:
    def restart(_self: assignment.AssignedPartitions, owned: AssignedPartition) -> None:
        owned.in_flight = None

    return patch.object(assignment.AssignedPartitions, "restart", restart)


def _repeated_records_are_taken() -> AbstractContextManager[object]:
    return patch.object(MessageBatch, "after", lambda self, _position: self)


def _two_flushes_at_once() -> AbstractContextManager[object]:
    start = flushes.Flushes.start

    def start_regardless(self: flushes.Flushes, owned: AssignedPartition, reason: FlushReason) -> None:
        owned.in_flight = None
        start(self, owned, reason)

    return patch.object(flushes.Flushes, "start", start_regardless)


def _the_next_buffer_begins_after_its_first_record() -> AbstractContextManager[object]:
    begin = Buffer.begin.__func__  # type: ignore[attr-defined]
    return patch.object(
        Buffer, "begin", classmethod(lambda cls, start, *more: begin(cls, Position(start + (start > 0)), *more))
    )


def _gaps_are_stepped_over() -> AbstractContextManager[object]:
    real = plan.next_run

    def next_run(
        position: Position | None, chain: list[plan.AnyMarker], origin: Position | None = None
    ) -> plan.NextRun:
        outcome = real(position, chain, origin)
        return real(outcome.next_start, chain) if isinstance(outcome, plan.Gap) else outcome

    def claims_the_last_only(self: StagedChains, partition: TopicPartition) -> Tail | None:
        tail = real_tail(self, partition)
        return None if tail is None else replace(tail, end=Position(tail.end + 1))

    real_tail = StagedChains.tail

    @contextmanager
    def broken() -> Iterator[None]:
        with (
            patch.object(planning, "next_run", next_run),
            patch.object(chain_positions, "next_run", next_run),
            patch.object(StagedChains, "tail", claims_the_last_only),
        ):
            yield

    return broken()


def _an_overlap_is_added_whole() -> AbstractContextManager[object]:
    return patch.object(
        commits, "split_files_at", lambda url, marker, _start, **_how: FileSplit(plan.files_for(url, marker))
    )


def _txn_versions_are_not_compared() -> AbstractContextManager[object]:
    return patch.object(DeltaLog, "changed", lambda _self, _commit: None)


def _the_last_marker_is_settled() -> AbstractContextManager[object]:
    """Writers do not check whether the marker exists, which would repair most of it."""

    def everything(
        names: Sequence[MarkerName], _written: object, position: Position | None, _keep: int
    ) -> Iterable[MarkerName]:
        return () if position is None else tuple(name for name in names if name.start < position)

    @contextmanager
    def broken() -> Iterator[None]:
        with (
            patch.object(settling, "settle_candidates", everything),
            patch.object(background.Background, "_check_quiet", lambda _self: None),
        ):
            yield

    return broken()


def _dead_letters_come_after_the_rows() -> AbstractContextManager[object]:
    def carry_out(self: commit_load.LoadCommits, planned: plan.Load) -> None:
        context, tables = self._context, self._context.tables
        context.preparation.ensure(planned)
        naming = CommitNaming(context.ids, context.ports.new_id())
        self.commit(rows_commit(tables.targets[context.stream.table], naming, planned, None))
        dead_letters = tables.targets.get(context.stream.dead_letters)
        late = None if dead_letters is None else side_commit(dead_letters, naming, planned)
        if late is not None:
            self.commit(late)

    return patch.object(commit_load.LoadCommits, "carry_out", carry_out)


def _a_loser_deletes_its_files() -> AbstractContextManager[object]:
    """It does not recognize its own marker, either, when the answer to its claim was lost."""
    claim, create = staging.Job._claim, SimulatedStore.create

    def delete_what_lost(self: staging.Job, marker: Marker, data: bytes, files: list[staging.NewFile]) -> FlushOutcome:
        outcome = claim(self, marker, data, files)
        if isinstance(outcome, LostClaim):
            for file in files:
                self._stage._tables(file.table.url).delete([file.staged.path])
        return outcome

    def forgetful(self: SimulatedStore, path: str, data: bytes) -> CreateOutcome:
        there = path.startswith("done/") and self._full(path) in self._bucket.objects
        return AlreadyExists() if there else create(self, path, data)

    @contextmanager
    def broken() -> Iterator[None]:
        with patch.object(staging.Job, "_claim", delete_what_lost), patch.object(SimulatedStore, "create", forgetful):
            yield

    return broken()


def _a_conflict_is_taken_for_done() -> AbstractContextManager[object]:
    commit = committer.Committer.commit

    def go_on(self: committer.Committer, planned: TableCommit) -> After:
        commit(self, planned)
        return After.GO_ON

    return patch.object(committer.Committer, "commit", go_on)


def _no_standby_takes_a_lease_over() -> AbstractContextManager[object]:
    create = LoaderLease._create

    def only_the_first(self: LoaderLease, epoch: Epoch, *, released: bool) -> None:
        if self._state.observed is None or self._state.holds_grant:
            create(self, epoch, released=released)

    return patch.object(LoaderLease, "_create", only_the_first)


def _dead_letters_are_not_staged() -> AbstractContextManager[object]:
    manifest = staging.ObjectStage.manifest

    def rows_only(
        self: staging.ObjectStage,
        flush: FlushIdentity,
        tables: tuple[StagedTable, ...],
        state: MarkedState | None,
        outboxes: tuple[str, ...],
    ) -> Manifest:
        return manifest(self, flush, tables[:1], state, outboxes)

    return patch.object(staging.ObjectStage, "manifest", rows_only)


def _a_position_is_one_too_far() -> AbstractContextManager[object]:
    def further(*arguments: object) -> TableCommit:
        commit = rows_commit(*arguments)  # type: ignore[arg-type]
        return replace(commit, advances={app_id: last + 1 for app_id, last in commit.advances.items()})

    return patch.object(commit_load, "rows_commit", further)


def _positions_move_without_their_rows() -> AbstractContextManager[object]:
    real = DeltaLog.commit

    def commit(self: DeltaLog, commit: TableCommit) -> CommitOutcome:
        bare = replace(commit, files=()) if len(commit.files) > 1 else commit
        if bare is not commit:
            real(self, bare)
        return real(self, commit)

    return patch.object(DeltaLog, "commit", commit)


def _a_span_reaches_too_far() -> AbstractContextManager[object]:
    manifest = staging.ObjectStage.manifest

    def longer(
        self: staging.ObjectStage,
        flush: FlushIdentity,
        tables: tuple[StagedTable, ...],
        state: MarkedState | None,
        outboxes: tuple[str, ...],
    ) -> Manifest:
        made = manifest(self, flush, tables, state, outboxes)
        return replace(made, span=replace(made.span, end=Position(made.span.end + 1)))

    return patch.object(staging.ObjectStage, "manifest", longer)


def _file_names_are_not_unique() -> AbstractContextManager[object]:
    new_file = staging.ObjectStage.new_file

    def named(
        self: staging.ObjectStage, partition: TopicPartition, buffer: Buffer, table: TableFormat, file: EncodedFile
    ) -> staging.NewFile:
        with patch.object(self, "_unique", lambda: "00000000-0000-4000-8000-000000000000"):
            return new_file(self, partition, buffer, table, file)

    return patch.object(staging.ObjectStage, "new_file", named)


def _repairs_are_not_exclusive() -> AbstractContextManager[object]:
    @contextmanager
    def regardless(self: RepairLocks, _source: TopicPartition, _work: str) -> Iterator[ObjectStore]:
        yield self._store

    return patch.object(RepairLocks, "locked", regardless)


def _deferred_ranges_are_not_recorded() -> AbstractContextManager[object]:
    return patch.object(SecondaryTables, "with_deferred", lambda _self, commit, _load: commit)


def _deferred_ranges_are_settled() -> AbstractContextManager[object]:
    return patch.object(SecondaryTables, "floor", lambda _self, _source, position: position)


def _later_records_come_before_deferred_ranges() -> AbstractContextManager[object]:
    """Without catching up at the beginning of a pass, which mostly comes first."""

    def at_once(self: SecondaryTables, url: str, naming: CommitNaming, load: plan.Load) -> object:
        target = self._tables.targets.get(url)
        return None if target is None else side_commit(target, naming, load)

    @contextmanager
    def broken() -> Iterator[None]:
        with patch.object(SecondaryTables, "side_commit", at_once), patch.object(CatchUp, "run", lambda _self: None):
            yield

    return broken()


def _rows_go_to_the_main_table_only() -> AbstractContextManager[object]:
    return patch.object(SecondaryTables, "side_commit", lambda *_arguments: None)


def _topic_ids_are_not_compared() -> AbstractContextManager[object]:
    @contextmanager
    def broken() -> Iterator[None]:
        with (
            patch.object(assignment, "is_other", lambda _lineage, _topic_id: False),
            patch.object(background, "is_other", lambda _lineage, _topic_id: False),
            patch.object(claim_guards, "is_other", lambda _lineage, _topic_id: False),
        ):
            yield

    return broken()


def _topic_ids_are_not_read_before_a_claim() -> AbstractContextManager[object]:
    """It is looked up when a partition is assigned, and at times, which is too late."""
    return patch.object(TopicMonitor, "since", lambda _self, _topic, _moment_s: None)


def _a_recreated_topic_keeps_its_generation() -> AbstractContextManager[object]:
    def same_generation(state: PartitionState, *, give_up: bool) -> Restart | UnchangedPartition:
        plan = plan_restart(state, give_up=give_up)
        if isinstance(plan, UnchangedPartition) or plan.chain_origin is None:
            return plan
        return replace(plan, chain_origin=replace(plan.chain_origin, generation=state.generation))

    return patch.object(operators, "plan_restart", same_generation)


def _a_silent_writer_claims() -> AbstractContextManager[object]:
    return patch.object(Freshness, "is_fresh", lambda _self, _now_s: True)


def _the_end_of_a_waiting_partition_counts() -> AbstractContextManager[object]:
    reach_end = AssignedPartition.reach_end

    def regardless(self: AssignedPartition, position: Position) -> None:
        wait, self.wait = self.wait, None
        reach_end(self, position)
        self.wait = wait

    return patch.object(AssignedPartition, "reach_end", regardless)


def _dropped_records_are_not_read_again() -> AbstractContextManager[object]:
    resume_ready = DependencyWaits.resume_ready

    def without_seeking(self: DependencyWaits, *arguments: object, **named: bool) -> None:
        with patch.object(self._source, "seek", lambda *_: None):
            resume_ready(self, *arguments, **named)  # type: ignore[arg-type]

    return patch.object(DependencyWaits, "resume_ready", without_seeking)


def _new_fields_stay_in_the_rescue_column() -> AbstractContextManager[object]:
    return patch.object(Buffers, "dependency_of", lambda *_: None)


def _columns_are_published_and_not_added() -> AbstractContextManager[object]:
    def agree(*arguments: object) -> agreement.Agreement:
        return replace(agreement.agree(*arguments), added=())  # type: ignore[arg-type]

    return patch.object(gained_columns, "agree", agree)


def _a_task_begins_without_state() -> AbstractContextManager[object]:
    real = TopologyConverter.restored

    def restored(self: TopologyConverter, partition: TopicPartition, _: StateFiles, store: StateStore) -> KeptTask:
        return real(self, partition, EMPTY_STATE, store)

    return patch.object(TopologyConverter, "restored", restored)


def _the_marker_names_the_state_before_it() -> AbstractContextManager[object]:
    real = kept.TaskChange.write

    def write(self: kept.TaskChange, store: StateStore, name: Callable[[StateKind], StateFileName]) -> MarkedState:
        return replace(real(self, store, name), files=self._before)

    return patch.object(kept.TaskChange, "write", write)


def _a_topic_is_read_to_its_end() -> AbstractContextManager[object]:
    """As Kafka Streams restores: including everything written after the position that the marker names."""
    real = StageState.changes

    def to_the_end(self: StageState, partition: TopicPartition, state: StateFiles) -> Iterator[tuple[str, bytes]]:
        yield from real(self, partition, state)
        if state.in_topics and isinstance(self._changelog, TopicChangelog):
            last = state.in_topics[-1]
            yield from written_after(self._changelog, last.place, last.spans[-1].end, partition)

    return patch.object(StageState, "changes", to_the_end)


def _acknowledgements_are_not_awaited() -> AbstractContextManager[object]:
    """A message's offset is guessed as soon as it was sent."""
    real = SimulatedTopics.append

    def append(
        self: SimulatedTopics, topic: Topic, task: TopicPartition, pieces: Sequence[ChangelogMessage]
    ) -> Appended:
        place = self.place(topic, task)
        first = len(self.logs[place].messages) if place in self.logs else 0
        with suppress(BrokerError):
            real(self, topic, task, pieces)
        return Appended(place, TOPIC_ID, tuple(Position(first + number) for number in range(len(pieces))))

    return patch.object(SimulatedTopics, "append", append)


def _state_has_no_file_in_the_stage() -> AbstractContextManager[object]:
    """A state without a file in the stage: when its markers are gone, nothing refers to it."""
    real = kept.KeptTask._is_snapshot_due

    def is_due(self: kept.KeptTask, changes: Changes) -> bool:
        return bool(self._files.changes) and real(self, changes)

    return patch.object(kept.KeptTask, "_is_snapshot_due", is_due)


def _a_repair_drops_the_state() -> AbstractContextManager[object]:
    return patch.object(TaskStates, "at", lambda self, _: EMPTY_STATE if self.known else None)


def _route_tables_have_the_main_tables_layout() -> AbstractContextManager[object]:
    return patch.object(Stream, "at", lambda self, url: self.model_copy(update={"table": url}))


def _the_position_of_a_secondary_table_is_ignored() -> AbstractContextManager[object]:
    return patch.object(commits, "_start", lambda _target, _ids, load, marker: load.start_of(marker))


def _the_first_event_of_a_key_wins() -> AbstractContextManager[object]:
    place = MergeInputs.place
    opposite = {"ASC": "DESC", "DESC": "ASC"}
    return patch.object(MergeInputs, "place", lambda self, direction: place(self, opposite[direction]))


def _elements_are_rows_of_their_own() -> AbstractContextManager[object]:
    """Each by its own events: elements that a record has lost stay."""
    return patch.object(ElementStatement, "events", MergeInputs.events)


def _the_rows_of_a_record_in_the_table_are_ignored() -> AbstractContextManager[object]:
    """Later events delete only rows of the same load."""
    together = ElementStatement._together
    nothing = "(SELECT * FROM before WHERE false)"
    return patch.object(ElementStatement, "_together", lambda self: together(replace(self, before=nothing)))


def _refused_records_are_forgotten() -> AbstractContextManager[object]:
    return patch.object(Refusals, "_known", lambda *_arguments: [])


def _a_soft_delete_is_checked_without_earlier_events() -> AbstractContextManager[object]:
    def text(self: UnmatchedDeletes) -> str:
        return f"SELECT d.* FROM {self.doubtful} AS d"  # noqa: S608 - names of ours

    return patch.object(UnmatchedDeletes, "text", property(text))


def _refused_records_are_left_to_delta() -> AbstractContextManager[object]:
    return patch.object(Refusals, "without", lambda _self, commit, _ids: commit)


def _rows_come_before_their_dead_letters() -> AbstractContextManager[object]:
    """Its dead letters come with the next load that has some: a loader that dies does not write them."""
    write = Refusals._write_dead_letters

    @contextmanager
    def broken() -> Iterator[None]:
        later: list[Callable[[], After]] = []

        def put_off(self: Refusals, fresh: Sequence[RefusedRecord], commit: TableCommit, ids: TxnIds) -> After:
            waiting, later[:] = list(later), [lambda: write(self, fresh, commit, ids)]
            for put_off in waiting:
                put_off()
            return After.GO_ON

        with patch.object(Refusals, "_write_dead_letters", put_off):
            yield

    return broken()


def _all_of_an_outbox_is_delivered() -> AbstractContextManager[object]:
    return patch.object(delivery, "undelivered", lambda outgoing, _known: outgoing.records)


def _state_on_disk_is_always_trusted() -> AbstractContextManager[object]:
    restore = tasks_topology._restore

    def unless_there_is_some(stores: TaskStores, state: StateFiles, changed: _Changed, store: StateStore) -> int:
        return 0 if stores.mark is not None else restore(stores, state, changed, store)

    return patch.object(tasks_topology, "_restore", unless_there_is_some)


def _a_stopped_machine_is_trusted() -> AbstractContextManager[object]:
    return patch.object(DiskBackend, "_is_believed", lambda _self: True)


def _outboxes_of_the_previous_marker_are_forgotten() -> AbstractContextManager[object]:
    return patch.object(KafkaOutlet, "pending", lambda _self: ())


def _sent_dead_letters_are_forgotten() -> AbstractContextManager[object]:
    deliver = RefusedToTopic._deliver_input

    def broken(self: RefusedToTopic, stream: Stream, transactions: SimulatedTransactions, *more: Any) -> int:  # noqa: ANN401 - the method's
        generation, goal, _ = more
        return deliver(self, stream, replace(transactions, delivered={}), generation, goal, None)

    return patch.object(RefusedToTopic, "_deliver_input", broken)


def _refused_records_are_sent_before_all_tables_have_passed_them() -> AbstractContextManager[object]:
    return patch.object(StreamLoad, "_finished", lambda _self, _partition: Position(MAX_POSITION))


def _outboxes_of_settled_markers_are_forgotten() -> AbstractContextManager[object]:
    return patch.object(TaskStates, "outboxes", lambda _self, _position: ())


def _a_rewind_ignores_loads_in_progress() -> AbstractContextManager[object]:
    return patch.object(operators, "require_not_loading", lambda *_asked: None)


def _markers_without_notification_are_not_scanned_for() -> AbstractContextManager[object]:
    return patch.object(Schedule, "next_after", lambda *times: times[-1] + timedelta(days=1000))


MUTATIONS: tuple[Mutation, ...] = (
    Mutation("the claim is exclusive", _create_is_not_exclusive),
    Mutation("a lost claim is noticed", _a_lost_claim_is_ignored, LATE_CLAIMS),
    Mutation("data files come before the marker", _the_marker_comes_before_the_files),
    Mutation("after a lost claim the chain is read again", _memory_is_trusted_after_a_lost_claim, LATE_CLAIMS),
    Mutation("offsets rise strictly", _repeated_records_are_taken),
    Mutation("one flush of a partition at a time", _two_flushes_at_once),
    Mutation("spans meet", _the_next_buffer_begins_after_its_first_record),
    Mutation("a gap holds its partition", _gaps_are_stepped_over),
    Mutation("of an overlapping marker only missing records are loaded", _an_overlap_is_added_whole, MANY_REPAIRS),
    Mutation("txn versions are compared within the commit", _txn_versions_are_not_compared, LATE_COMMITS),
    Mutation("the last marker stays", _the_last_marker_is_settled),
    Mutation("dead letters are committed before the rows", _dead_letters_come_after_the_rows),
    Mutation("a writer that lost a claim deletes nothing", _a_loser_deletes_its_files),
    Mutation("a conflict is planned again", _a_conflict_is_taken_for_done),
    Mutation("a standby takes the lease over", _no_standby_takes_a_lease_over),
    Mutation("dead letters are staged with the rows", _dead_letters_are_not_staged),
    Mutation("a txn action holds the last offset", _a_position_is_one_too_far),
    Mutation("files and positions change at once", _positions_move_without_their_rows),
    Mutation("a span ends where reading goes on", _a_span_reaches_too_far),
    Mutation("data file names are unique", _file_names_are_not_unique),
    Mutation("repairs of one partition are exclusive", _repairs_are_not_exclusive, MANY_REPAIRS),
    Mutation("a recreated topic is recognized by its id", _topic_ids_are_not_compared, UNSTEADY),
    Mutation("the topic id is read before each claim", _topic_ids_are_not_read_before_a_claim, UNSTEADY),
    Mutation(
        "the chain of a recreated topic gets a new generation", _a_recreated_topic_keeps_its_generation, RECREATED
    ),
    Mutation("a writer without heartbeats polls before it claims", _a_silent_writer_claims),
    Mutation("deferred ranges are recorded", _deferred_ranges_are_not_recorded),
    Mutation("deferred ranges stay staged", _deferred_ranges_are_settled, BROKEN_TABLES, Worlds.ROUTED),
    Mutation("deferred ranges are loaded before later records", _later_records_come_before_deferred_ranges),
    Mutation("the end of a waiting partition does not count", _the_end_of_a_waiting_partition_counts, REGISTRY_AWAY),
    Mutation("dropped records are read again after a wait", _dropped_records_are_not_read_again),
    Mutation("columns are added before the files that need them", _columns_are_published_and_not_added),
    Mutation(
        "a field is in its column from its first record",
        _new_fields_stay_in_the_rescue_column,
        worlds=Worlds.EVOLVING,
    ),
    Mutation("every table gets its rows", _rows_go_to_the_main_table_only),
    Mutation("a task continues from its chain's state", _a_task_begins_without_state, worlds=Worlds.TASKS),
    Mutation("rows and state belong to one marker", _the_marker_names_the_state_before_it, worlds=Worlds.TASKS),
    Mutation("a repair keeps the state of its position", _a_repair_drops_the_state, OPERATED, worlds=Worlds.TASKS),
    Mutation("state on disk is used only at the chain's end", _state_on_disk_is_always_trusted, worlds=Worlds.DISKS),
    Mutation(
        "state on disk is not trusted after a machine stopped",
        _a_stopped_machine_is_trusted,
        MACHINES_STOP,
        worlds=Worlds.DISKS,
    ),
    Mutation("a changelog is read up to what the marker names", _a_topic_is_read_to_its_end, worlds=Worlds.TOPIC),
    Mutation("markers name acknowledged changelog messages", _acknowledgements_are_not_awaited, worlds=Worlds.TOPIC),
    Mutation(
        "a route's table has a layout of its own", _route_tables_have_the_main_tables_layout, worlds=Worlds.FILLING
    ),
    Mutation(
        "a secondary table gets its missing records",
        _the_position_of_a_secondary_table_is_ignored,
        worlds=Worlds.FILLING,
    ),
    Mutation("events are merged once", _txn_versions_are_not_compared, worlds=Worlds.CHANGES),
    Mutation("the last event of a key wins", _the_first_event_of_a_key_wins, worlds=Worlds.CHANGES),
    Mutation("removed elements of a record are deleted", _elements_are_rows_of_their_own, worlds=Worlds.ELEMENTS),
    Mutation("a record's rows are replaced", _the_rows_of_a_record_in_the_table_are_ignored, worlds=Worlds.ELEMENTS),
    Mutation("a refused event is a dead letter once", _refused_records_are_forgotten, CONTESTED, worlds=Worlds.CHANGES),
    Mutation(
        "a soft delete of a row is not refused",
        _a_soft_delete_is_checked_without_earlier_events,
        worlds=Worlds.CHANGES,
    ),
    Mutation(
        "a rewind of several topics yields to loads",
        _a_rewind_ignores_loads_in_progress,
        LATE_LOADS,
        worlds=Worlds.JOINED,
    ),
    Mutation(
        "an origin names undelivered outboxes", _outboxes_of_settled_markers_are_forgotten, UNDELIVERED, Worlds.JOINED
    ),
    Mutation(
        "dead letters of refused records are sent once",
        _sent_dead_letters_are_forgotten,
        worlds=Worlds.DEAD_LETTER_TOPIC,
    ),
    Mutation(
        "dead letters of refused records are sent when all tables have passed them",
        _refused_records_are_sent_before_all_tables_have_passed_them,
        worlds=Worlds.DEAD_LETTER_TOPIC,
    ),
    Mutation(
        "delivered records are not sent again", _all_of_an_outbox_is_delivered, MANY_REPAIRS, worlds=Worlds.JOINED
    ),
    Mutation(
        "a marker names undelivered outboxes", _outboxes_of_the_previous_marker_are_forgotten, worlds=Worlds.JOINED
    ),
    Mutation(
        "a marker without a notification is found",
        _markers_without_notification_are_not_scanned_for,
        SIGNS_LOST,
        worlds=Worlds.NOTIFIED,
    ),
    Mutation(
        "refused records are not written to the table", _refused_records_are_left_to_delta, worlds=Worlds.REFUSING
    ),
    Mutation(
        "dead letters are committed before a position passes them",
        _rows_come_before_their_dead_letters,
        worlds=Worlds.REFUSING,
    ),
    *(
        Mutation(rule, breaking, chances, Worlds.EDITED)
        for rule, breaking, chances in (
            ("a marker belongs to its app_id", broken.markers_of_another_stream_are_loaded, CALLED),
            ("a marker belongs to its topic", broken.topic_ids_are_not_compared, MOVED),
            ("the stream of a marker is checked", broken.marker_identity_is_not_checked, None),
            ("a RESTORE is found at any depth of the log", broken.only_recent_commits_are_searched, TENDED),
            ("a chain counts as new only when proved", broken.a_chain_without_a_position_is_new, TENDED),
            ("a RESTORE since the last pass is found", broken.a_restore_by_others_is_ignored, TENDED),
            ("a lease names topics", broken.a_lease_covers_only_the_app_id, None),
            ("files of another table are not skipped", broken.files_of_other_tables_are_skipped, None),
            ("a new chain begins after the loaded records", broken.a_new_chain_begins_at_kafkas_first_record, CALLED),
        )
    ),
    *(
        Mutation(rule, breaking, chances, Worlds.BACKFILLED)
        for rule, breaking, chances in (
            ("a moved origin is noticed", origins.a_moved_origin_is_ignored, OPERATED_EARLY),
            ("a rewind detects a first load in progress", origins.a_first_load_in_progress_is_ignored, FIRST_LOADS),
        )
    ),
    *(Mutation(rule, breaking, MANY_REPLAYS, Worlds.REPLAYED) for rule, breaking in replays.RULES),
    *(
        Mutation(rule, breaking, Chances(surroundings=surroundings), Worlds.HOSTILE)
        for rule, breaking, surroundings in (*hostile_mutations.RULES, *pauses.RULES)
    ),
    *(Mutation(rule, breaking, chances, Worlds.SHARED) for rule, breaking, chances in shared.RULES),
    *(Mutation(rule, breaking, chances, Worlds.APPEARING) for rule, breaking, chances in appearing_mutations.RULES),
)

RARE: tuple[Mutation, ...] = (
    Mutation("a state has a file in the stage", _state_has_no_file_in_the_stage, OPERATED, worlds=Worlds.TOPIC),
    Mutation(
        "requests for one range run one at a time", replays.requests_overtake_one_another, MANY_REPLAYS, Worlds.REPLAYED
    ),
    Mutation("a started request goes first", replays.requests_are_ordered_by_time_only, MANY_REPLAYS, Worlds.REPLAYED),
    Mutation("an origin is never overwritten", origins.an_origin_is_overwritten, LATE_ORIGINS, Worlds.BACKFILLED),
    Mutation(
        "a rewind detects a first load",
        origins.a_first_load_during_a_rewind_is_ignored,
        OPERATED_EARLY,
        Worlds.BACKFILLED,
    ),
    Mutation(
        "a chain begins at its origin",
        origins.records_before_the_first_marker_are_ignored,
        OPERATED_EARLY,
        Worlds.BACKFILLED,
    ),
    *(
        Mutation(rule, breaking, chances, Worlds.EDITED)
        for rule, breaking, chances in (
            ("a marker of another topic is never covered", broken.markers_below_the_position_are_skipped, MOVED),
            ("the first commit determines the names of txn actions", broken.the_config_names_the_txn_actions, RENAMED),
            ("a forgotten history is not assumed", broken.an_unknown_history_counts_as_good, TENDED),
            ("another topic's txn action is detected", broken.unnamed_txn_actions_are_not_detected, RENAMED),
            ("each commit names all chains", broken.a_commit_names_the_chains_that_it_moves, TENDED),
            ("a doubt stays until it is resolved", broken.a_doubt_is_forgotten_with_the_next_commit, TENDED),
        )
    ),
)
