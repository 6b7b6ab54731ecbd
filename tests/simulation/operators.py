"""An operator in the simulated world: the real plans and repairs of `bootstrap`, next to running writers and loaders.

The world gives Kafka's ends and the table's position, as Kafka and the Delta log do for `bootstrap.work`. Changes of
the stage are subject to the world's faults, so a repair may end half-way. Several operators may repair one partition at
once; of any two repairs that reported success, one was planned after the other's last change.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise

from bootstrap.apply import stage as staging
from bootstrap.apply.loaders import (
    require_loaded_alike,
    require_no_load_begun,
    require_not_loaded,
    require_not_loading,
)
from bootstrap.apply.partition_state import lacking_in_others, partition_state, table_position
from bootstrap.apply.repair_lock import RepairLocks
from bootstrap.plans.repair import RewindPlan, plan_rewind, plan_skip
from bootstrap.plans.restart import Restart, plan_restart
from bootstrap.plans.state import Author, Ends, PartitionState
from bootstrap.plans.task_states import TaskStates
from common.errors import KafkaDeltaExpressError
from common.settings import Stream
from common.spans import Position, Span, TopicPartition
from common.stage.merged import is_merged
from common.stage.repair_lock import last_repair
from tests.simulation.delta_log import SimulatedTables
from tests.simulation.kafka import Broker
from tests.simulation.store import SimulatedStore
from tests.simulation.world import Crash, Fault, World


@dataclass(slots=True)
class GivenUpPositions:
    """Positions that an operator gave up: their records may be missing, or present."""

    spans: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)

    def has(self, partition: TopicPartition, offset: int) -> bool:
        """Whether its record may be missing."""
        return _is_within(self.spans.get(partition, ()), offset)

    def give(self, partition: TopicPartition, start: int, end: int) -> None:
        self.spans.setdefault(partition, []).append((start, end))

    def want(self, partition: TopicPartition, start: int) -> None:
        self.spans[partition] = [(first, min(end, start)) for first, end in self.spans.get(partition, ())]


def _is_within(spans: Iterable[tuple[int, int]], offset: int) -> bool:
    return any(start <= offset < end for start, end in spans)


@dataclass(slots=True)
class Repairs:
    """The repairs that reported success: from the state that each was planned on, to its last change."""

    done: dict[TopicPartition, list[tuple[int, int]]] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """Repairs that overlapped, and so may have undone each other's work."""
        problems: list[str] = []
        for partition, times in self.done.items():
            ordered = sorted(times)
            for (_, end_ms), (begin_ms, _) in pairwise(ordered):
                if begin_ms < end_ms:
                    problems.append(
                        f"a repair of {partition} was planned at {begin_ms} while another went on to {end_ms}"
                    )
        return problems


class Operator:
    """An operator who runs one command."""

    def __init__(
        self,
        world: World,
        broker: Broker,
        *,
        stream: Stream,
        store: SimulatedStore,
        tables: SimulatedTables,
        given_up: GivenUpPositions,
        repairs: Repairs,
        alone: Callable[[], bool],
    ) -> None:
        self._world = world
        self._broker = broker
        self._stream = stream
        self._store = store
        self._tables = tables
        self._given_up = given_up
        self._repairs = repairs
        self._planned_ms = 0
        self._alone = alone

    def repair(self, partition: TopicPartition) -> None:
        """A rewind or a skip somewhere, needed or not."""
        rng = self._world.rng
        try:
            state = self._read_state(partition)
            if is_merged(partition.topic):
                places = [state.table or Position(0), *(state.end_of(marker) for marker in state.staged)]
                self._rewind(state, rng.choice(places), below_table=False)
                return
            if rng.random() < 0.3:
                self._skip(state)
                return
            below_table = rng.random() < 0.3
            low = 0 if below_table else state.table or 0
            high = max([low, *(state.end_of(marker) for marker in state.staged)])
            self._rewind(state, Position(rng.randint(low, high)), below_table=below_table)
        except KafkaDeltaExpressError as error:
            self._world.note(f"an operator reads: {error.problem}")
        except Crash:
            return

    def follow_remedy(self, partition: TopicPartition, *, give_up: bool) -> None:
        """Follow the remedy that the loader and the writers name for a held partition: stage again what the tables
        lack.

        A recreated topic gets a new chain; with ``give_up`` also where some of the old one is not loaded.
        """
        try:
            state = self._read_state(partition)
            if state.chain_topic_id in {None, state.topic_id}:
                # A table that waits for records that are no longer staged names a position below the main table's.
                to = self._held_at(state)
                if self._stream.topology is not None and TaskStates.from_chain(state).at(to) is None:
                    to = Position(0)  # the remedy of a writer that no longer knows the state
                self._rewind(state, to, below_table=to != state.table)
            else:
                self._restart(state, give_up=give_up)
        except KafkaDeltaExpressError as error:
            self._world.note(f"an operator reads: {error.problem}")
        except Crash:
            return

    def _read_state(self, partition: TopicPartition) -> PartitionState:
        self._locks = self._new_locks(partition)
        repairs = self._locks.read_last(partition)
        self._planned_ms = self._world.now_ms
        table = self._tables.state(self._stream.table)
        ends = Ends(self._broker.begin(partition), self._broker.end(partition))
        topic_id = self._broker.id_of(partition.topic)
        return partition_state(
            self._store, self._stream, partition, ends=ends, table=table, topic_id=topic_id, repairs=repairs
        )

    def _new_locks(self, partition: TopicPartition) -> RepairLocks:
        """A lock that was not released is taken over when its holders are dead."""
        last = last_repair(self._store, partition)
        unique = f"{self._world.rng.getrandbits(128):032x}"
        return RepairLocks(self._store, self._author(), unique, take_over=last.number if self._alone() else None)

    def _skip(self, state: PartitionState) -> None:
        known = [state.table, state.chain.end]
        begin = max([position for position in known if position is not None], default=Position(0))
        plan = plan_skip(state, Position(begin + self._world.rng.randrange(1, 6)), self._author())
        span = plan.marker.span
        self._given_up.give(state.partition, int(span.start), int(span.end))
        self._world.faults[Fault.SKIP] += 1
        self._world.note(f"an operator gives up {span} of {state.partition}")
        with self._locks.locked(state.partition, "skip") as store:
            staging.make(store, plan.marker)
            self._done(state.partition)

    def _rewind(self, state: PartitionState, to: Position, *, below_table: bool) -> None:
        plan = plan_rewind(state, to, self._author(), below_table=below_table)
        if state.table is None and plan.marker is not None and all(marker in plan.put_aside for marker in state.staged):
            # Nothing is left below: it says where the chain begins, and earlier records are not required.
            self._given_up.give(state.partition, 0, int(plan.position))
        self._world.faults[Fault.REWIND] += 1
        self._world.note(f"an operator rewinds {state.partition} to {plan.position}")
        plan = self._with_tables_ahead(state, plan)
        for span in filter(None, (plan.to_replay, plan.tables_ahead)):
            self._replay(plan.partition, span)
        with self._locks.locked(state.partition, "rewind") as store:
            require_not_loading(store, plan, partial(self._position, state.partition, [self._stream.table]))
            everywhere = partial(self._position, state.partition, self._stream.tables)
            require_no_load_begun(plan, everywhere)
            staging.rewind(store, plan)
            require_not_loaded(plan, everywhere)
            self._done(state.partition)
            require_loaded_alike(plan, partial(self._lacking_in_others, plan), partial(self._loaded_ahead, plan))
        if plan.chain_start is not None:
            self._given_up.want(state.partition, int(plan.position))

    def _lacking_in_others(self, plan: RewindPlan) -> Span | None:
        span = lacking_in_others(self._store, self._stream, plan.partition, self._tables.state(self._stream.table))
        if span is not None and span.end > plan.position:
            self._replay(plan.partition, span)
        return span

    def _with_tables_ahead(self, _state: PartitionState, plan: RewindPlan) -> RewindPlan:
        return plan

    def _loaded_ahead(self, _plan: RewindPlan) -> Span | None:
        return None

    def _replay(self, partition: TopicPartition, span: Span) -> None:
        """Follow the advice of a rewind: the config may have been edited."""

    def _position(self, partition: TopicPartition, urls: Iterable[str]) -> Position | None:
        positions = (table_position(self._store, self._stream, partition, self._tables.state(url)) for url in urls)
        return max((position for position in positions if position is not None), default=None)

    def _held_at(self, state: PartitionState) -> Position:
        """Where the loader says that the chain is to be staged again."""
        if state.in_all_tables is not None:
            return state.in_all_tables
        has_begun = self._position(state.partition, self._stream.secondary_tables) is not None
        return state.staged[0].name.start if has_begun and state.staged else Position(0)

    def _restart(self, state: PartitionState, *, give_up: bool) -> None:
        plan = plan_restart(state, give_up=give_up)
        if isinstance(plan, Restart):
            self._world.note(f"an operator begins a new chain of {state.partition}")
            with self._locks.locked(state.partition, "restart") as store:
                staging.restart(store, plan)
                self._done(state.partition)

    def _done(self, partition: TopicPartition) -> None:
        self._repairs.done.setdefault(partition, []).append((self._planned_ms, self._world.now_ms))

    def _author(self) -> Author:
        return Author("operator", self._world.now_ms)
