"""Carries out commits, and says what follows: go on, or plan again from the tables as they are now.

Rules:

1. A commit that another writer's commit got ahead of is never retried as it is: the tables are read and the load is
   planned again. After `CONFLICTS_TO_FAILURE` of them in a row the stream fails until its next pass.
2. A commit whose outcome is unknown ends the pass over the stream: the next pass starts from what the table has.
"""

from enum import Enum
from typing import assert_never

from common.errors import TableError
from delta_loader.load.conflict_backoff import ConflictBackoff
from delta_loader.load.context import LoadContext
from delta_loader.load.merged import MergedLoads
from delta_loader.plan.held import not_written
from delta_loader.tables.commits import AlreadyLoaded, Committed, Conflicted, Failed, NotWritten, TableCommit, Unknown
from delta_loader.tables.load_modes.load_mode import through_spark


class NextStep(Enum):
    """The next step after a commit."""

    GO_ON = "go_on"
    """The table has the commit's content, and the known state of the tables is up to date."""
    PLAN_AGAIN = "plan_again"
    """The plan may be outdated: a table moved, was rolled back, or a partition is held now."""


class Committer:
    def __init__(self, context: LoadContext, merged: MergedLoads) -> None:
        self._context = context
        self._merged = merged
        self._backoff = ConflictBackoff(context.ports.clock, context.ports.new_id)

    def commit(self, commit: TableCommit) -> NextStep:
        """Carry out a commit whose rows its table accepts. Raises TableError."""
        context, clock = self._context, self._context.ports.clock
        started_s = clock.monotonic_s()
        commit = context.guard.renewed(commit)
        outcome = self._merged.commit(commit, context.ports.tables.commit)
        context.reporter.commit(commit, outcome, clock.monotonic_s() - started_s)
        match outcome:
            case Committed(version):
                self._backoff.reset()
                self._committed(commit, version)
                return NextStep.PLAN_AGAIN if context.tables.rolled_back else NextStep.GO_ON
            case AlreadyLoaded() | Conflicted():
                return self._conflicted(commit)
            case Failed(problem):
                msg = f"a commit to the Delta table {commit.target.url} failed: {problem}"
                raise TableError(msg, "nothing was written; the next run tries again")
            case Unknown(problem):
                msg = f"it is unknown whether a commit to the Delta table {commit.target.url} was made: {problem}"
                raise TableError(
                    msg, "this program reads the table again before it retries, so nothing is loaded twice"
                )
            case NotWritten(problem):
                return self._not_written(commit, problem)
            case _:
                assert_never(outcome)

    def forget_conflicts(self) -> None:
        """The table that they were with is left out."""
        self._backoff.reset()

    def _committed(self, commit: TableCommit, version: int) -> None:
        """Update the known state after a commit; other commits just before it have not been read yet."""
        url, tables = commit.target.url, self._context.tables
        is_next = commit.target.version == version - 1
        if is_next and not through_spark(commit.target.load_mode):  # Delta's writer may change identity columns, too
            tables.targets[url] = commit.target.after(commit, version)
            self._context.rollbacks.record_commit(tables.targets[url], commit.metadata)
        else:
            tables.refresh()

    def _conflicted(self, commit: TableCommit) -> NextStep:
        self._context.reporter.conflict()
        if not self._backoff.wait(self._context.stop):
            msg = f"{self._backoff.conflicts} commits in a row to {commit.target.url} conflicted with other writers'"
            raise TableError(msg, "find out what else loads or alters the table; this program tries again")
        self._context.tables.refresh()
        return NextStep.PLAN_AGAIN

    def _not_written(self, commit: TableCommit, problem: str) -> NextStep:
        """Hold the partition whose rows cannot be written; of several, find out which by one commit each."""
        url, partitions = commit.target.url, {write.partition for write in commit.written}
        if not partitions:
            msg = f"dead letters could not be written to {url}: {problem}"
            raise TableError(msg, "see the log; the next run tries again")
        if len(partitions) > 1:
            self._context.one_at_a_time = True
            return NextStep.PLAN_AGAIN
        (partition,) = partitions
        has_identity = all(write.identity is not None for write in commit.written)
        flags = [write.shape.merge.soft_delete for write in commit.written if write.shape.merge is not None]
        start = commit.metadata.spans[partition].start
        reason = not_written(partition, start, problem, url, has_identity=has_identity, flag=next(iter(flags), None))
        self._context.reporter.held(partition, reason)
        return NextStep.PLAN_AGAIN
