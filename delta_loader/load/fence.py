"""Holds a stream, or single Kafka partitions of it, whose tables were rolled back, until an operator decides.

The rules are those of delta_loader/load/rollback.py; a resolution that the stage has is carried out here.
"""

from common.spans import Position, TopicPartition
from common.stage.resolutions import Resolution
from common.tables.rollback import Rollback, RollbackKind
from delta_loader.load.committer import CONFLICTS_TO_FAILURE, Committer
from delta_loader.load.context import LoadContext
from delta_loader.load.rollback import held_by, held_chains
from delta_loader.plan.chain_positions import ChainPositions
from delta_loader.plan.held import Held
from delta_loader.tables.commits import Target


class RollbackFence:
    def __init__(self, context: LoadContext, committer: Committer) -> None:
        self._context = context
        self._committer = committer

    def holds(self) -> bool:
        """Whether a table was rolled back and there is no resolution yet; a resolution is carried out."""
        context = self._context
        for _ in range(CONFLICTS_TO_FAILURE):
            resolutions = [
                (target, context.rollbacks.resolution(target, back)) for target, back in context.tables.rolled_back
            ]
            answered = next(
                ((target, resolution) for target, resolution in resolutions if resolution is not None), None
            )
            if answered is None or context.stop():
                break
            self._resolve(*answered)
        for target, back in context.tables.rolled_back[:1]:
            reason = held_by(target.url, context.stream, back, self._positions())
            for partition in context.listing:
                if partition not in context.report.held:
                    context.reporter.held(partition, reason)
        return bool(context.tables.rolled_back)

    def partitions(self) -> dict[TopicPartition, Held]:
        """Kafka partitions that most likely had a position in the table and lost it; a resolution is carried out."""
        context, target = self._context, self._context.tables.main
        if target is None:
            return {}
        chains = context.chains()
        events = context.rollbacks.without_txn(target, chains.unplaced())
        loads = bool(chains.loadable())
        context.tables.note_forgotten([*events, *(context.rollbacks.of_other_topics(target) if loads else ())])
        events = (*events, *self._unknown_history(target, chains, loads=loads))
        for back in events:
            resolution = context.rollbacks.resolution(target, back)
            if resolution is not None and not context.stop():
                self._resolve(target, resolution)
                return self.partitions()
        return held_chains(chains, events)

    def _positions(self) -> dict[TopicPartition, Position | None]:
        return {partition: self._context.position(partition) for partition in self._context.listing}

    def _resolve(self, target: Target, resolution: Resolution) -> None:
        context = self._context
        context.log.warning(
            "applying a resolution", table=target.url, version=resolution.version, decision=str(resolution.decision)
        )
        self._committer.commit(context.rollbacks.resolution_commit(target, resolution, context.ports.new_id))
        context.tables.refresh()

    def of_unknown_history(self) -> set[TopicPartition]:
        """Kafka partitions whose markers may not be settled: whether the table has them is unknown."""
        context, target = self._context, self._context.tables.main
        held = {
            partition
            for partition, reason in context.report.held.items()
            if reason.reason == RollbackKind.UNKNOWN.value
        }
        unknown = [] if target is None else self._unknown_history(target, self._context.chains(), loads=True)
        return held.union(*(back.positions for back in unknown))

    def _unknown_history(self, target: Target, chains: ChainPositions, *, loads: bool) -> list[Rollback]:
        """Chains whose position may not be theirs; some of them only once something is to be loaded."""
        back = self._context.rollbacks.unknown(target, chains.placed(), loads=loads)
        return [] if back is None else [back]
