"""Prepares a planned load and commits it to the stream's tables.

Rules:

1. The secondary tables (routes and dead letters) are committed to before the main table (tables/commits.py, rule 3). A
   crash in between leaves some of them ahead, and their own txn actions show it. A table that fails is left out, and
   the range that it lacks is noted (delta_loader/load/secondary_tables.py).
2. A commit is based on the newest read of the tables. If that read has other positions than the plan, or a rollback,
   the load is planned again. Otherwise a rolled-back table that was set to lower positions would get a gap, and the
   commit would hide a RESTORE that the read saw. The load is also planned again after a first commit by another loader,
   which may have had another topic.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from common.spans import MAX_POSITION, Position, TopicPartition
from common.stage.markers import Marker
from delta_loader.load.committer import Committer, NextStep
from delta_loader.load.context import LoadContext
from delta_loader.load.merged import MergedLoads
from delta_loader.load.refusals import Refusals
from delta_loader.load.settle import IdleFacts, highest_timestamp_ms, valid_through_ms
from delta_loader.plan.held import Held, held, no_table
from delta_loader.plan.plan import Load, next_run
from delta_loader.tables.commits import CommitNaming, TableCommit, rows_commit


@dataclass(frozen=True, slots=True)
class _Basis:
    """The basis of a plan: the main table, as it was read."""

    positions: Mapping[TopicPartition, Position | None]
    plain_topic: str | None
    """None before its first commit (common/tables/transactions.py, rule 3)."""


class LoadCommits:
    def __init__(self, context: LoadContext, committer: Committer, merged: MergedLoads) -> None:
        self._context = context
        self._committer = committer
        self._merged = merged
        self._refusals = Refusals.if_supported(context, committer)

    def carry_out(self, planned: Load) -> None:
        """Commit a load, or hold partitions that cannot be committed; the caller plans the rest again."""
        context = self._context
        basis = self._basis(planned.runs)
        context.preparation.ensure(planned)
        load = self._without(planned, partial(self._no_table, planned))
        if load is None:
            return
        missing = context.preparation.missing_files(load)
        if any(map(missing, load.markers)):
            context.tables.refresh()  # another loader may have loaded and deleted them
        load = self._without(load, missing) if self._stands_on(basis) else None
        if load is None:
            return
        try:
            if self._merged.begin(load, basis.positions, context.origin):
                self._commit_to_each(load, basis)
        finally:
            self._merged.end(load, context.position)

    def commit(self, commit: TableCommit) -> NextStep:
        """Carry out a commit, without the records that its table refuses. Raises TableError."""
        accepted = commit if self._refusals is None else self._refusals.without(commit, self._context.ids)
        return NextStep.PLAN_AGAIN if accepted is None else self._committer.commit(accepted)

    def _commit_to_each(self, load: Load, basis: _Basis) -> None:
        context, tables = self._context, self._context.tables
        naming = CommitNaming(context.ids, context.ports.new_id())
        for url in context.stream.secondary_tables:
            commit = context.secondary.secondary_commit(url, naming, load)
            if commit is None:
                continue
            if self._commit_to_secondary(commit) is NextStep.PLAN_AGAIN or not self._stands_on(basis):
                return
        commit = rows_commit(tables.main_to_commit, naming, load, _valid_through_ms(context, load))
        if self.commit(context.secondary.with_deferred(commit, load)) is NextStep.GO_ON:
            context.reporter.loaded(load, tables.targets[context.stream.table].version)

    def _commit_to_secondary(self, commit: TableCommit) -> NextStep:
        """When the commit fails, the table is left out and the load goes on (rule 1)."""
        after = NextStep.GO_ON
        with self._context.tables.tried(commit.target.url):
            after = self.commit(commit)
        if commit.target.url in self._context.tables.failed:
            self._committer.forget_conflicts()
        return after

    def _basis(self, partitions: Iterable[TopicPartition]) -> _Basis:
        main = self._context.tables.main
        positions = {partition: self._context.position(partition) for partition in partitions}
        return _Basis(positions, None if main is None else main.identity.plain_topic)

    def _stands_on(self, basis: _Basis) -> bool:
        """Whether the table, as last read, is still the basis of the plan (rule 2)."""
        return self._basis(basis.positions) == basis and not self._context.tables.rolled_back

    def _without(self, load: Load, reason_of: Callable[[Marker], Held | None]) -> Load | None:
        """The load up to the first marker of each partition that has a reason to wait; None when nothing is left."""
        for partition, run in load.runs.items():
            reason = reason_of(run.markers[0])
            if reason is not None:
                self._context.reporter.held(partition, reason)
        return load.until(lambda marker: reason_of(marker) is not None)

    def _no_table(self, planned: Load, marker: Marker) -> Held | None:
        """Why a marker waits for the main table: what keeps the next markers away, which may have its columns."""
        context, partition = self._context, marker.name.topic_partition
        if context.tables.main is not None:
            return None
        above = held(partition, next_run(planned.runs[partition].end, context.markers(partition)))
        return above or no_table(partition, context.stream.table)


def _valid_through_ms(context: LoadContext, load: Load) -> int | None:
    """The time up to which the main table is complete once it has the load; None if it is unknown."""
    known = context.partitions
    if known is None:
        return None
    idle = IdleFacts(context.idle)
    highest: dict[TopicPartition, int | None] = {}
    for partition in {*context.listing, *known.sources()} - context.unknown_partitions:
        run = load.runs.get(partition)
        end = context.position(partition) if run is None else run.end
        if end is not None and not known.has(partition) and context.listing[partition].names[-1].start < end:
            continue  # of a topic that has fewer partitions now: all of it is loaded, and nothing comes after it
        if end is None and partition not in context.listing:
            end = Position(MAX_POSITION)  # nothing was ever staged: any idle fact covers all of it
        idle_ms = idle.through_ms(partition, end, context.ids.generations.get(partition, 0))
        loaded_ms = highest_timestamp_ms(context.markers(partition), end)
        highest[partition] = max((ms for ms in (idle_ms, loaded_ms) if ms is not None), default=None)
    return valid_through_ms(highest, known.time_ms)
