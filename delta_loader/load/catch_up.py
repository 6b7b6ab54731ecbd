"""Loads into tables the ranges that they were left out of, from the markers that are kept for them.

Rules:

1. A deferred range is loaded in order, from the higher of its start and the table's own position, over an unbroken run
   of markers, as any load is (plan/plan.py). Where the run breaks (an operator's rewind that writers have not staged
   again yet, a deleted marker), the table waits and reports it; no other table waits.
2. Once the table has the whole range, the main table's log records it, in a separate commit: until then nothing of the
   range is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import TableError
from common.remedies import repair
from common.stage.merged import is_merged
from common.tables.commit_metadata import CommitMetadata
from delta_loader.load.deferred import first_part, with_caught_up
from delta_loader.plan.held import START_OVER
from delta_loader.plan.plan import Overlap, Run, next_run, plan_load, require_splittable
from delta_loader.tables.commits import CommitNaming, TableCommit

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.settings import Stream
    from common.spans import Position, TopicPartition
    from common.tables.deferred_ranges import DeferredRange
    from common.tables.transactions import TxnIds
    from delta_loader.load.ports import Ports
    from delta_loader.load.stream_tables import StreamTables
    from delta_loader.plan.plan import Limits, Load, NextRun
    from delta_loader.stage.identity import StreamIdentity
    from delta_loader.stage.listed import Listing

_WINDOW = 16


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The deferred ranges of one stream in one pass."""

    stream: Stream
    tables: StreamTables
    ports: Ports
    limits: Limits
    commit: Callable[[TableCommit], object]
    """Carries out one commit; what is left is planned again here."""
    identity: StreamIdentity
    must_end: Callable[[TopicPartition], bool]
    """Whether nothing more of a Kafka partition may be committed in this pass."""

    def run(self, listing: Listing, ids: TxnIds) -> None:
        """Load what can be loaded, and leave out a table that cannot take its range. Raises KafkaDeltaExpressError."""
        for missing in self.tables.deferred(listing):
            if missing.url not in self.tables.failed:
                with self.tables.tried(missing.url):
                    self._load(missing, listing, ids)

    def _load(self, missing: DeferredRange, listing: Listing, ids: TxnIds) -> None:
        start = missing.span.start
        while True:
            if self.must_end(missing.partition) or missing.url in self.tables.failed:
                return
            start = max(start, self.tables.position(missing.url, missing.partition) or start)
            if start >= missing.span.end:
                break
            load = self._next(missing, start, listing)
            self.tables.ensure(load, [missing.url])
            load = self._whole(missing, load)
            commit = self.tables.side_commit(missing.url, CommitNaming(ids, self.ports.new_id()), load, catch_up=True)
            if commit is None:
                start = load.runs[missing.partition].end if missing.url in self.tables.targets else start
            else:
                self.commit(commit)
        self._note(missing, ids)

    def _note(self, missing: DeferredRange, ids: TxnIds) -> None:
        """Record the end of a range (rule 2), unless another loader has extended it in the meantime."""
        own, now = self.tables.own, self.tables.deferred([missing.partition], [missing.url])
        if own is not None and [deferred.span.end for deferred in now] == [missing.span.end]:
            metadata = CommitMetadata(self.ports.new_id(), ids.app_id, {}, None)
            with self.tables.tried(own.url):
                self.commit(with_caught_up(TableCommit(own, ids.app_id, (), {}, {}, metadata), missing, ids))

    def _next(self, missing: DeferredRange, start: Position, listing: Listing) -> Load:
        """The range's next load, for this table alone. Raises TableError where there is none (rule 1)."""
        outcome = self._staged(missing, start, listing)
        if isinstance(outcome, Run | Overlap):
            load = plan_load({missing.partition: first_part(outcome, missing.span.end)}, self.limits)
            if load is not None:
                return load
        span = f"{start} to {missing.span.end} of {missing.partition}"
        problem = f"it lacks what came from {span}, which is not staged any more"
        raise _waits(missing, start, problem)

    def _staged(self, missing: DeferredRange, start: Position, listing: Listing) -> NextRun | None:
        if missing.partition not in listing:
            return None
        with self.tables.tried(self.stream.table):  # a failure of the stage is not a failure of the table
            names = listing[missing.partition].window_at(start, _WINDOW)
            read = self.ports.stage.read(listing, names, self.tables.urls)
        markers = self.identity.younger(missing.partition, [marker for name in names for marker in read.get(name, ())])
        has_offsets = self.stream.kafka_columns or missing.url == self.stream.dead_letters
        return require_splittable(next_run(start, markers), [missing.url], kafka_columns=has_offsets)

    def _whole(self, missing: DeferredRange, load: Load) -> Load:
        """The load up to the first marker with a missing file. Raises TableError when that is the first of all."""
        gone = self.tables.missing_files(load, [missing.url])
        left = load.until(lambda marker: gone(marker) is not None)
        if left is None:
            raise _waits(missing, load.start_of(load.markers[0]), "a data file of what it lacks is gone")
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
        f"{repair('rewind', partition, start, '--below-table', '--yes')} has it staged again from Kafka; the other "
        "tables pass over it",
    )
