"""An operator who follows the programs' messages: accepts a rollback, rewinds, or gives up what Kafka has lost."""

from collections.abc import Callable
from typing import cast

from bootstrap.accepting import Accepting
from bootstrap.apply import stage as staging
from bootstrap.apply.partition_state import partition_state
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.state import Ends, PartitionState
from common.errors import KafkaDeltaExpressError
from common.spans import Partition, Topic, TopicPartition
from common.storage.store import FsspecStore
from common.tables.commit_metadata import Decision
from common.tables.state import TableState
from tests.simulation.operators import Operator
from tests.simulation.vacuumed_log import VacuumedLog
from tests.simulation.world import Crash, Fault


class RemedyOperator(Operator):
    """Follows the remedies of everything that can hold a stream."""

    def repair(self, partition: TopicPartition) -> None:
        """In the fault phase: a repair, needed or not."""
        if self._world.rng.random() < 0.5:
            self.follow_remedy(partition, give_up=False)
        else:
            super().repair(partition)

    def follow_remedy(self, partition: TopicPartition, *, give_up: bool) -> None:
        """Try the remedies one by one until one is accepted."""
        del give_up
        try:
            if self._accept():
                return
            steps: tuple[Callable[[PartitionState], None], ...] = (
                self._stage_again,
                self._give_up,
                self._rewind_beyond,
            )
            for step in steps:
                try:
                    step(self._read_state(partition))
                except KafkaDeltaExpressError as error:
                    self._world.note(f"an operator reads: {error.problem}")
                else:
                    return
        except KafkaDeltaExpressError as error:
            self._world.note(f"an operator reads: {error.problem}")
        except Crash:
            return

    def _stage_again(self, state: PartitionState) -> None:
        to = self._held_at(state)
        self._rewind(state, to, below_table=to != state.table)

    def _give_up(self, state: PartitionState) -> None:
        """What Kafka has lost, above the staged records or in a gap."""
        low = state.ends.low
        above = [marker.name.start for marker in state.staged if (state.in_all_tables or 0) < marker.name.start < low]
        plan = plan_skip(state, min(above, default=low), self._author())
        self._skipped(state, plan.marker.span.start, plan.marker.span.end)
        with self._locks.locked(state.partition, "skip") as store:
            staging.make(store, plan.marker)
            self._done(state.partition)

    def _rewind_beyond(self, state: PartitionState) -> None:
        """The same for staged records whose files are gone too."""
        to = self._held_at(state)
        plan = plan_rewind(state, to, self._author(), below_table=to != state.table, give_up=True)
        self._skipped(state, to, plan.position)
        with self._locks.locked(state.partition, "rewind") as store:
            staging.rewind(store, plan)
            self._done(state.partition)

    def _skipped(self, state: PartitionState, start: int, end: int) -> None:
        self._given_up.give(state.partition, start, end)
        self._world.faults[Fault.SKIP] += 1
        self._world.note(f"an operator gives up [{start}, {end}) of {state.partition}, which Kafka has no more")

    # Rollbacks.

    def _accept(self) -> bool:
        """`bootstrap accept --replay`, or ``--go-on`` where that is refused; returns whether there was a rollback."""
        world, stream = self._world, self._stream
        tables = {url: state for url in stream.tables if (state := self._tables.state(url)) is not None}
        for decision in (Decision.REPLAY, Decision.GO_ON)[world.rng.randrange(2) :]:
            self._locks = self._new_locks(TopicPartition(Topic("orders"), Partition(0)))
            accepting = Accepting(
                stream, self._open, self._state_of, sorted(self._broker.logs), self._author(), self._store.url
            )
            try:
                plans = accepting.plan(tables, decision, give_up=False)
            except KafkaDeltaExpressError as error:
                world.note(f"an operator reads: {error.problem}")
                continue
            lost = self._lost() if decision is Decision.GO_ON else set()
            accepting.carry_out(self._store, self._locks, plans)
            world.faults[Fault.ACCEPTED] += 1
            world.note(f"an operator accepts {[plan.event.back.kind.value for plan in plans]} with {decision.value}")
            for partition, offset in lost:
                self._given_up.give(partition, offset, offset + 1)
            return True
        return False

    def _state_of(self, partition: TopicPartition, table: TableState) -> PartitionState:
        repairs = self._locks.read_last(partition)
        self._planned_ms = self._world.now_ms
        ends = Ends(self._broker.begin(partition), self._broker.end(partition))
        topic_id = self._broker.id_of(partition.topic)
        return partition_state(
            self._store, self._stream, partition, ends=ends, table=table, topic_id=topic_id, repairs=repairs
        )

    def _lost(self) -> set[tuple[TopicPartition, int]]:
        log = cast("VacuumedLog", self._tables.log)
        topic = Topic("orders")
        return {(TopicPartition(topic, Partition(place.partition)), place.offset) for place in log.lost()}

    def _open(self, url: str) -> FsspecStore:
        return cast("FsspecStore", self._store.at(url))
