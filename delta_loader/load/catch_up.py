"""Loads into tables the ranges that they were left out of, from the markers that are kept for them.

Rules:

1. A deferred range is loaded in order, over an unbroken run of markers, as any load is (plan/plan.py). The run starts
   at the higher of the range's start and the table's own position. It may be broken, by a deleted marker or by an
   operator's rewind that writers have not staged again yet. The table then waits and reports it; no other table waits.
2. Once the table has the whole range, a separate commit records this in the main table's log. Until then, nothing of
   the range is settled.
"""

from collections.abc import Callable
from dataclasses import dataclass

from common.errors import TableError
from common.remedies import repair
from common.spans import Position
from common.stage.merged import is_merged
from common.tables.commit_metadata import CommitMetadata
from common.tables.deferred_ranges import DeferredRange
from delta_loader.load.context import LoadContext
from delta_loader.load.deferred import first_part, with_caught_up
from delta_loader.plan.held import START_OVER
from delta_loader.plan.plan import Limits, Load, NextRun, Overlap, Run, next_run, plan_load, require_splittable
from delta_loader.tables.commits import CommitNaming, TableCommit, secondary_commit

_WINDOW = 16


@dataclass(frozen=True, slots=True)
class CatchUp:
    context: LoadContext
    limits: Limits
    commit: Callable[[TableCommit], object]
    """Carries out one commit; the rest is planned again here."""

    def run(self) -> None:
        """Load what can be loaded, and leave out a table that cannot take its range. Raises KafkaDeltaExpressError."""
        tables = self.context.tables
        for missing in self.context.secondary.deferred(self.context.listing):
            with tables.tried(missing.url):
                self._load(missing)

    def _load(self, missing: DeferredRange) -> None:
        tables, ids, start = self.context.tables, self.context.ids, missing.span.start
        while True:
            if self._must_end(missing):
                return
            start = max(start, tables.position(missing.url, missing.partition) or start)
            if start >= missing.span.end:
                break
            load = self._next(missing, start)
            self.context.preparation.ensure(load, [missing.url])
            load = self._whole(missing, load)
            target = tables.targets.get(missing.url)
            if target is None:
                continue
            commit = secondary_commit(target, CommitNaming(ids, self.context.ports.new_id()), load)
            if commit is None:
                start = load.runs[missing.partition].end
            else:
                self.commit(commit)
        self._note(missing)

    def _must_end(self, missing: DeferredRange) -> bool:
        """Whether nothing more of the range may be committed in this pass."""
        context = self.context
        is_held = bool(context.tables.rolled_back) or missing.partition in context.report.held
        return context.stop() or is_held or missing.url in context.tables.failed

    def _note(self, missing: DeferredRange) -> None:
        """Record the end of a range (rule 2), unless another loader has extended it in the meantime."""
        tables, ids = self.context.tables, self.context.ids
        main, now = tables.main, self.context.secondary.deferred([missing.partition], [missing.url])
        if main is not None and [deferred.span.end for deferred in now] == [missing.span.end]:
            metadata = CommitMetadata(self.context.ports.new_id(), ids.app_id, {}, None)
            with tables.tried(main.url):
                self.commit(with_caught_up(TableCommit(main, ids.app_id, (), {}, {}, metadata), missing, ids))

    def _next(self, missing: DeferredRange, start: Position) -> Load:
        """The range's next load, for this table alone. Raises TableError without one (rule 1)."""
        outcome = self._staged(missing, start)
        if isinstance(outcome, Run | Overlap):
            load = plan_load({missing.partition: first_part(outcome, missing.span.end)}, self.limits)
            if load is not None:
                return load
        span = f"{start} to {missing.span.end} of {missing.partition}"
        raise _waits(missing, start, f"it lacks the records of {span}, which are no longer staged")

    def _staged(self, missing: DeferredRange, start: Position) -> NextRun:
        context, stream, listing = self.context, self.context.stream, self.context.listing
        with context.tables.tried(stream.table):  # a failure of the stage is not a failure of the table
            names = listing[missing.partition].window_at(start, _WINDOW)
            read = context.ports.stage.read(listing, names, context.tables.urls)
        markers = [marker for name in names for marker in read.get(name, ())]
        markers = context.identity.younger(missing.partition, markers)
        has_offsets = stream.kafka_columns or missing.url == stream.dead_letters
        return require_splittable(next_run(start, markers), [missing.url], kafka_columns=has_offsets)

    def _whole(self, missing: DeferredRange, load: Load) -> Load:
        """The load up to the first marker with a missing file. Raises TableError when that is the first of all."""
        gone = self.context.preparation.missing_files(load, [missing.url])
        left = load.until(lambda marker: gone(marker) is not None)
        if left is None:
            raise _waits(missing, load.start_of(load.markers[0]), "a data file of the range that it lacks is gone")
        return left


def _waits(missing: DeferredRange, start: Position, problem: str) -> TableError:
    partition = missing.partition
    if is_merged(partition.topic):  # the main table has it, so rewind is refused (bootstrap/plans/repair.py, rule 6)
        return TableError(
            f"{missing.url} waits: {problem}",
            f"restore it from a backup of the bucket or an older version of the object, or {START_OVER}: {partition} "
            "is a chain of several topics, and what its tables have of it cannot be staged again",
        )
    return TableError(
        f"{missing.url} waits: {problem}",
        f"{repair('rewind', partition, start, '--below-table', '--yes')} stages it again from Kafka; the other "
        "tables skip it",
    )
