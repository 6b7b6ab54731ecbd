"""Rules of the real code, each broken on purpose: a simulation that does not notice a broken rule proves nothing.

Each mutation replaces one decision of the services by a forbidden one while its context is active. ``python -m
tests.simulation.sweep`` counts the histories needed to find each (tests/simulation/sweep.py). Rules that would need a
rarer coincidence, or that other rules back up, have tests of their own in tests/unit/stage_writer/stage/test_staging.py
and are broken in the model (model/).
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any
from unittest.mock import patch

from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.restart import Restart, UnchangedPartition
from bootstrap.plans.state import PartitionState
from bootstrap.plans.task_states import TaskStates
from common.errors import BrokerError
from common.ports import AlreadyExists, Created, CreateOutcome, ObjectStore
from common.schema.agreement import Agreement
from common.settings import Stream
from common.settings import columns as settings_columns
from common.spans import MAX_POSITION, Position, Topic, TopicPartition
from common.stage.leases import Epoch
from common.stage.markers import Manifest, Marker, MarkerName
from common.stage.task_files import EMPTY_STATE, MarkedState, StateFiles
from delta_loader.lease.holder import LoaderLease
from delta_loader.load import commit_load, committer, settling
from delta_loader.load.catch_up import CatchUp
from delta_loader.load.committer import NextStep
from delta_loader.load.refusals import Refusals
from delta_loader.load.refused_to_topic import RefusedToTopic
from delta_loader.load.secondary_tables import SecondaryTables
from delta_loader.load.stream_load import StreamLoad
from delta_loader.plan import chain_positions, plan
from delta_loader.scheduling.schedule import Schedule
from delta_loader.tables import commits
from delta_loader.tables.commits import CommitNaming, CommitOutcome, TableCommit, rows_commit, secondary_commit
from delta_loader.tables.file_split import FileSplit
from delta_loader.tables.merging.elements import ElementStatement
from delta_loader.tables.merging.inputs import MergeInputs
from delta_loader.tables.merging.unmatched_deletes import UnmatchedDeletes
from stage_writer import assignment, background, flushes
from stage_writer.chain_end import Tail
from stage_writer.chains import StagedChains
from stage_writer.changelog.changelog import Appended, ChangelogMessage, TopicChangelog
from stage_writer.decode.batch import MessageBatch
from stage_writer.outbox import delivery
from stage_writer.outbox.outlets import KafkaOutlet
from stage_writer.parquet.buffer import Buffer
from stage_writer.partitions import claim_guards
from stage_writer.partitions.buffers import Buffers
from stage_writer.partitions.claim_guards import TopicMonitor
from stage_writer.partitions.dependency_wait import DependencyWaits
from stage_writer.partitions.flush_decision import FlushReason
from stage_writer.partitions.freshness import Freshness
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import FlushOutcome, LostClaim
from stage_writer.stage import staging
from stage_writer.stage.state_files import StageState
from stage_writer.tasks import kept
from stage_writer.tasks import topology as tasks_topology
from stage_writer.tasks.topology import TopologyConverter
from stage_writer.topologies.stores import TaskStores
from stage_writer.topologies.stores.disk import DiskBackend
from tests.simulation import (
    appearing_mutations,
    hostile_mutations,
    identity_mutations,
    operators,
    origin_mutations,
    pause_mutations,
    replay_mutations,
    shared_mutations,
)
from tests.simulation.changelog import TOPIC_ID, SimulatedTopics, written_after
from tests.simulation.delta_log import DeltaLog
from tests.simulation.mutation import Mutation, changed, wrapped
from tests.simulation.outgoing import SimulatedTransactions
from tests.simulation.store import SimulatedStore
from tests.simulation.world import (
    BROKEN_TABLES,
    CONTESTED,
    FIRST_LOADS,
    LATE_CLAIMS,
    LATE_COMMITS,
    MACHINES_STOP,
    MANY_REPAIRS,
    OPERATED,
    RECREATED,
    REGISTRY_AWAY,
    SIGNS_LOST,
    UNDELIVERED,
    UNSTEADY,
)
from tests.simulation.worlds import Worlds

# Claims and flushes.


def _create_anyway(self: SimulatedStore, path: str, data: bytes) -> CreateOutcome:
    self.write(path, data)
    return Created()


def _claim_first(real: Callable[..., FlushOutcome], self: staging.Job) -> FlushOutcome:
    marker, data = self._seal(self._encode())
    return real(self) if self._stage.chains.claim(marker.name, data) else LostClaim()


def _forget_the_flush(_self: assignment.AssignedPartitions, owned: AssignedPartition) -> None:
    owned.in_flight = None


def _start_regardless(
    real: Callable[..., None], self: flushes.Flushes, owned: AssignedPartition, why: FlushReason
) -> None:
    owned.in_flight = None
    real(self, owned, why)


def _delete_what_lost(
    real: Callable[..., FlushOutcome], self: staging.Job, marker: Marker, data: bytes, files: list[staging.NewFile]
) -> FlushOutcome:
    outcome = real(self, marker, data, files)
    if isinstance(outcome, LostClaim):
        for file in files:
            self._stage._tables(file.table.url).delete([file.staged.path])
    return outcome


def _forget_own_marker(
    real: Callable[..., CreateOutcome], self: SimulatedStore, path: str, data: bytes
) -> CreateOutcome:
    """When the answer to its claim was lost."""
    there = path.startswith("done/") and self._full(path) in self._bucket.objects
    return AlreadyExists() if there else real(self, path, data)


def _longer(manifest: Manifest) -> Manifest:
    return replace(manifest, span=replace(manifest.span, end=Position(manifest.span.end + 1)))


def _named_alike(real: Callable[..., staging.NewFile], self: staging.ObjectStage, *file: object) -> staging.NewFile:
    with patch.object(self, "_unique", lambda: "00000000-0000-4000-8000-000000000000"):
        return real(self, *file)


def _reach_end_regardless(real: Callable[..., None], self: AssignedPartition, position: Position) -> None:
    wait, self.wait = self.wait, None
    real(self, position)
    self.wait = wait


def _resume_without_seeking(real: Callable[..., None], self: DependencyWaits, *given: object, **named: bool) -> None:
    with patch.object(self._source, "seek", lambda *_: None):
        real(self, *given, **named)


_begin: Callable[..., Buffer] = Buffer.begin.__func__  # type: ignore[attr-defined]
_begin_later = classmethod(lambda cls, start, *more: _begin(cls, Position(start + (start > 0)), *more))
_same_topic = tuple(changed(module, "is_other", lambda *_: False) for module in (assignment, background, claim_guards))


# Loads and commits.


def _next_run(
    real: Callable[..., plan.NextRun],
    position: Position | None,
    chain: list[plan.AnyMarker],
    origin: Position | None = None,
) -> plan.NextRun:
    outcome = real(position, chain, origin)
    return real(outcome.next_start, chain) if isinstance(outcome, plan.Gap) else outcome


def _tail_with_a_gap(real: Callable[..., Tail | None], *of: object) -> Tail | None:
    tail = real(*of)
    return None if tail is None else replace(tail, end=Position(tail.end + 1))


def _settle_all(
    names: Sequence[MarkerName], _written: object, position: Position | None, _keep: int
) -> Iterable[MarkerName]:
    return () if position is None else tuple(name for name in names if name.start < position)


def _commit_dead_letters_late(self: commit_load.LoadCommits, planned: plan.Load) -> None:
    context, tables = self._context, self._context.tables
    context.preparation.ensure(planned)
    naming = CommitNaming(context.ids, context.ports.new_id())
    self.commit(rows_commit(tables.targets[context.stream.table], naming, planned, None))
    dead_letters = tables.targets.get(context.stream.dead_letters)
    late = None if dead_letters is None else secondary_commit(dead_letters, naming, planned)
    if late is not None:
        self.commit(late)


def _create_the_first(real: Callable[..., None], self: LoaderLease, epoch: Epoch, *, released: bool) -> None:
    if self._state.observed is None or self._state.holds_grant:
        real(self, epoch, released=released)


def _one_further(commit: TableCommit) -> TableCommit:
    return replace(commit, advances={app_id: last + 1 for app_id, last in commit.advances.items()})


def _commit_positions_first(real: Callable[..., CommitOutcome], self: DeltaLog, commit: TableCommit) -> CommitOutcome:
    if len(commit.files) > 1:
        real(self, replace(commit, files=()))
    return real(self, commit)


def _secondary_commit_at_once(self: SecondaryTables, url: str, naming: CommitNaming, load: plan.Load) -> object:
    target = self._tables.targets.get(url)
    return None if target is None else secondary_commit(target, naming, load)


@contextmanager
def _locked_regardless(self: RepairLocks, *_work: object) -> Iterator[ObjectStore]:
    yield self._store


def _in_the_same_generation(
    real: Callable[..., Restart | UnchangedPartition], state: PartitionState, *, give_up: bool
) -> Restart | UnchangedPartition:
    plan = real(state, give_up=give_up)
    if isinstance(plan, UnchangedPartition) or plan.chain_origin is None:
        return plan
    return replace(plan, chain_origin=replace(plan.chain_origin, generation=state.generation))


def _without_columns(agreement: Agreement) -> Agreement:
    return replace(agreement, added=())


_later: dict[str, Callable[[], NextStep]] = {}


def _put_off(real: Callable[..., NextStep], *given: object) -> NextStep:
    """Dead letters come with the next load that has some: a loader that dies does not write them."""
    waiting = _later.pop("write", None)
    _later["write"] = partial(real, *given)
    if waiting is not None:
        waiting()
    return NextStep.GO_ON


def _deliver_again(
    real: Callable[..., int],
    self: RefusedToTopic,
    stream: Stream,
    transactions: SimulatedTransactions,
    *more: Any,  # noqa: ANN401 - the method's
) -> int:
    generation, goal, _ = more
    return real(self, stream, replace(transactions, delivered={}), generation, goal, None)


_OPPOSITE = {"ASC": "DESC", "DESC": "ASC"}
_NOTHING = "(SELECT * FROM before WHERE false)"
_all_doubtful = property(lambda self: f"SELECT d.* FROM {self.doubtful} AS d")  # noqa: S608 - names of ours


# Tasks and their state.


def _changes_to_the_end(
    real: Callable[..., Iterator[tuple[str, bytes]]], self: StageState, partition: TopicPartition, state: StateFiles
) -> Iterator[tuple[str, bytes]]:
    """As Kafka Streams restores: including everything written after the position that the marker names."""
    yield from real(self, partition, state)
    if state.in_topics and isinstance(self._changelog, TopicChangelog):
        last = state.in_topics[-1]
        yield from written_after(self._changelog, last.place, last.spans[-1].end, partition)


def _append_unacknowledged(
    real: Callable[..., Appended],
    self: SimulatedTopics,
    topic: Topic,
    task: TopicPartition,
    pieces: Sequence[ChangelogMessage],
) -> Appended:
    """A message's offset is guessed as soon as it was sent."""
    place = self.place(topic, task)
    first = len(self.logs[place].messages) if place in self.logs else 0
    with suppress(BrokerError):
        real(self, topic, task, pieces)
    return Appended(place, TOPIC_ID, tuple(Position(first + number) for number in range(len(pieces))))


def _write_the_state_before(real: Callable[..., MarkedState], self: kept.TaskChange, *to: object) -> MarkedState:
    return replace(real(self, *to), files=self._before)


def _restore_unless_there_is_some(real: Callable[..., int], stores: TaskStores, *state: object) -> int:
    return 0 if stores.mark is not None else real(stores, *state)


_claim_taken = changed(StagedChains, "claim", lambda self, name, data: self._store.create(name.path, data) or True)
_gap_stepped_over = (
    wrapped(chain_positions, "next_run", _next_run),
    wrapped(StagedChains, "tail", _tail_with_a_gap),
)
_added_whole = changed(
    commits, "split_files_at", lambda url, marker, _start, **_how: FileSplit(plan.files_for(url, marker))
)
_uncompared = changed(DeltaLog, "changed", lambda *_: None)
# Writers do not check whether the marker exists, which would repair most of it.
_all_settled = (
    changed(settling, "settle_candidates", _settle_all),
    changed(background.Background, "_check_quiet", lambda _self: None),
)
_loser_deletes = (
    wrapped(staging.Job, "_claim", _delete_what_lost),
    wrapped(SimulatedStore, "create", _forget_own_marker),
)
_conflict_done = wrapped(committer.Committer, "commit", lambda real, *of: real(*of) and NextStep.GO_ON)
_rows_only = wrapped(
    staging.ObjectStage, "manifest", lambda real, self, flush, tables, *more: real(self, flush, tables[:1], *more)
)
_too_long = wrapped(staging.ObjectStage, "manifest", lambda real, *flush: _longer(real(*flush)))
_too_far = wrapped(commit_load, "rows_commit", lambda real, *given: _one_further(real(*given)))
# Without catching up at the beginning of a pass, which mostly comes first.
_later_first = (
    changed(SecondaryTables, "secondary_commit", _secondary_commit_at_once),
    changed(CatchUp, "run", lambda _self: None),
)
_not_added = wrapped(settings_columns, "agree", lambda real, *offers: _without_columns(real(*offers)))
_without_state = wrapped(
    TopologyConverter, "restored", lambda real, self, partition, _, store: real(self, partition, EMPTY_STATE, store)
)
_main_layout = changed(Stream, "at", lambda self, url: self.model_copy(update={"table": url}))
_any_start = changed(commits, "_start", lambda _target, _ids, load, marker: load.start_of(marker))
_first_wins = wrapped(MergeInputs, "place", lambda real, self, direction: real(self, _OPPOSITE[direction]))
# Later events delete only rows of the same load.
_own_load_only = wrapped(ElementStatement, "_together", lambda real, self: real(replace(self, before=_NOTHING)))
_rows_first = wrapped(Refusals, "_write_dead_letters", _put_off), patch.dict(_later, clear=True)
_all_delivered = changed(delivery, "undelivered", lambda outgoing, _known: outgoing.records)
_never_scanned = changed(Schedule, "next_after", lambda *times: times[-1] + timedelta(days=1000))
_same_generation = wrapped(operators, "plan_restart", _in_the_same_generation)
_state_dropped = changed(TaskStates, "at", lambda self, _: EMPTY_STATE if self.known else None)
_unlocked = changed(RepairLocks, "locked", _locked_regardless)
_one_name = wrapped(staging.ObjectStage, "new_file", _named_alike)

MUTATIONS: tuple[Mutation, ...] = (
    Mutation("the claim is exclusive", changed(SimulatedStore, "create", _create_anyway)),
    Mutation("a lost claim is noticed", _claim_taken, LATE_CLAIMS),
    Mutation("data files come before the marker", wrapped(staging.Job, "run", _claim_first)),
    Mutation(
        "after a lost claim the chain is read again",
        changed(assignment.AssignedPartitions, "restart", _forget_the_flush),
        LATE_CLAIMS,
    ),
    Mutation("offsets rise strictly", changed(MessageBatch, "after", lambda self, _position: self)),
    Mutation("one flush of a partition at a time", wrapped(flushes.Flushes, "start", _start_regardless)),
    Mutation("spans meet", changed(Buffer, "begin", _begin_later)),
    Mutation("a gap holds its partition", _gap_stepped_over),
    Mutation("of an overlapping marker only missing records are loaded", _added_whole, MANY_REPAIRS),
    Mutation("txn versions are compared within the commit", _uncompared, LATE_COMMITS),
    Mutation("the last marker stays", _all_settled),
    Mutation(
        "dead letters are committed before the rows",
        changed(commit_load.LoadCommits, "carry_out", _commit_dead_letters_late),
    ),
    Mutation("a writer that lost a claim deletes nothing", _loser_deletes),
    Mutation("a conflict is planned again", _conflict_done),
    Mutation("a standby takes the lease over", wrapped(LoaderLease, "_create", _create_the_first)),
    Mutation("dead letters are staged with the rows", _rows_only),
    Mutation("a txn action holds the last offset", _too_far),
    Mutation("files and positions change at once", wrapped(DeltaLog, "commit", _commit_positions_first)),
    Mutation("a span ends where reading goes on", _too_long),
    Mutation("data file names are unique", _one_name),
    Mutation("repairs of one partition are exclusive", _unlocked, MANY_REPAIRS),
    Mutation("a recreated topic is recognized by its id", _same_topic, UNSTEADY),
    Mutation("the topic id is read before each claim", changed(TopicMonitor, "since", lambda *_: None), UNSTEADY),
    Mutation("the chain of a recreated topic gets a new generation", _same_generation, RECREATED),
    Mutation("a writer without heartbeats polls before it claims", changed(Freshness, "is_fresh", lambda *_: True)),
    Mutation(
        "deferred ranges are recorded", changed(SecondaryTables, "with_deferred", lambda _self, commit, _load: commit)
    ),
    Mutation(
        "deferred ranges stay staged",
        changed(SecondaryTables, "floor", lambda _self, _source, position: position),
        BROKEN_TABLES,
        Worlds.ROUTED,
    ),
    Mutation("deferred ranges are loaded before later records", _later_first),
    Mutation(
        "the end of a waiting partition does not count",
        wrapped(AssignedPartition, "reach_end", _reach_end_regardless),
        REGISTRY_AWAY,
    ),
    Mutation(
        "dropped records are read again after a wait",
        wrapped(DependencyWaits, "resume_ready", _resume_without_seeking),
    ),
    Mutation("columns are added before the files that need them", _not_added),
    Mutation(
        "a field is in its column from its first record",
        changed(Buffers, "dependency_of", lambda *_: None),
        worlds=Worlds.EVOLVING,
    ),
    Mutation("every table gets its rows", changed(SecondaryTables, "secondary_commit", lambda *_: None)),
    Mutation("a task continues from its chain's state", _without_state, worlds=Worlds.TASKS),
    Mutation(
        "rows and state belong to one marker",
        wrapped(kept.TaskChange, "write", _write_the_state_before),
        worlds=Worlds.TASKS,
    ),
    Mutation("a repair keeps the state of its position", _state_dropped, OPERATED, Worlds.TASKS),
    Mutation(
        "state on disk is used only at the chain's end",
        wrapped(tasks_topology, "_restore", _restore_unless_there_is_some),
        worlds=Worlds.DISKS,
    ),
    Mutation(
        "state on disk is not trusted after a machine stopped",
        changed(DiskBackend, "_is_believed", lambda _self: True),
        MACHINES_STOP,
        Worlds.DISKS,
    ),
    Mutation(
        "a changelog is read up to what the marker names",
        wrapped(StageState, "changes", _changes_to_the_end),
        worlds=Worlds.TOPIC,
    ),
    Mutation(
        "markers name acknowledged changelog messages",
        wrapped(SimulatedTopics, "append", _append_unacknowledged),
        worlds=Worlds.TOPIC,
    ),
    Mutation("a route's table has a layout of its own", _main_layout, worlds=Worlds.FILLING),
    Mutation("events are merged once", _uncompared, worlds=Worlds.CHANGES),
    Mutation("the last event of a key wins", _first_wins, worlds=Worlds.CHANGES),
    Mutation(
        "removed elements of a record are deleted",
        changed(ElementStatement, "events", MergeInputs.events),
        worlds=Worlds.ELEMENTS,
    ),
    Mutation("a record's rows are replaced", _own_load_only, worlds=Worlds.ELEMENTS),
    Mutation(
        "a refused event is a dead letter once",
        changed(Refusals, "_known", lambda *_: []),
        CONTESTED,
        Worlds.CHANGES,
    ),
    Mutation(
        "a soft delete of a row is not refused",
        changed(UnmatchedDeletes, "text", _all_doubtful),
        worlds=Worlds.CHANGES,
    ),
    Mutation(
        "dead letters of refused records are sent once",
        wrapped(RefusedToTopic, "_deliver_input", _deliver_again),
        worlds=Worlds.DEAD_LETTER_TOPIC,
    ),
    Mutation(
        "dead letters of refused records are sent when all tables have passed them",
        changed(StreamLoad, "_finished", lambda *_: Position(MAX_POSITION)),
        worlds=Worlds.DEAD_LETTER_TOPIC,
    ),
    Mutation("delivered records are not sent again", _all_delivered, MANY_REPAIRS, Worlds.JOINED),
    Mutation(
        "a marker names undelivered outboxes", changed(KafkaOutlet, "pending", lambda _self: ()), worlds=Worlds.JOINED
    ),
    Mutation("a marker without a notification is found", _never_scanned, SIGNS_LOST, Worlds.NOTIFIED),
    Mutation(
        "refused records are not written to the table",
        changed(Refusals, "without", lambda _self, commit, _ids: commit),
        worlds=Worlds.REFUSING,
    ),
    Mutation("dead letters are committed before a position passes them", _rows_first, worlds=Worlds.REFUSING),
    *identity_mutations.RULES,
    *replay_mutations.RULES,
    *hostile_mutations.RULES,
    *pause_mutations.RULES,
    *shared_mutations.RULES,
    *appearing_mutations.RULES,
)

RARE: tuple[Mutation, ...] = (
    Mutation(
        # When its markers are gone, nothing refers to it.
        "a state has a file in the stage",
        wrapped(kept.KeptTask, "_is_snapshot_due", lambda real, self, of: bool(self._files.changes) and real(self, of)),
        OPERATED,
        Worlds.TOPIC,
    ),
    Mutation("a secondary table gets its missing records", _any_start, worlds=Worlds.FILLING),
    Mutation(
        "a rewind of several topics yields to loads",
        changed(operators, "require_not_loading", lambda *_: None),
        FIRST_LOADS,
        Worlds.JOINED,
    ),
    Mutation(
        "an origin names undelivered outboxes",
        changed(TaskStates, "outboxes", lambda *_: ()),
        UNDELIVERED,
        Worlds.JOINED,
    ),
    *replay_mutations.RARE,
    *origin_mutations.RARE,
    *pause_mutations.RARE,
    *identity_mutations.RARE,
)
