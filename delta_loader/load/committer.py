"""Carries out commits, and says what follows: go on, or plan again from the tables as they are now.

Rules:

1. A commit that another writer's commit got ahead of is never retried as it is: the tables are read and the load is
   planned again. After `CONFLICTS_TO_FAILURE` of them in a row (rule 4) the stream fails until its next pass.
2. A commit whose outcome is unknown ends the pass over the stream: the next pass starts from what the table has.
3. After a first conflict there is no pause: another writer's change of the table is a single event. From the second
   conflict in a row on, another program is writing in a loop, so there is a pause. It is up to twice as long as the
   previous one. Its length is random, because two loaders in lockstep would conflict forever.
4. It is a failure only after many conflicts *and* a long time. A loop of ALTER TABLE during loads may well win ten
   times in a row within a few seconds, and a load that waits some seconds longer does no harm.
5. Nothing waits once a stop is requested. Randomness comes from unique names, so a simulation can control it.
"""

from collections.abc import Callable
from enum import Enum
from typing import assert_never
from zlib import crc32

from common.errors import TableError
from common.ports import Clock
from delta_loader.load.context import LoadContext
from delta_loader.load.merged import MergedLoads
from delta_loader.plan.held import not_written
from delta_loader.ports import NewId
from delta_loader.tables.commits import AlreadyLoaded, Committed, Conflicted, Failed, NotWritten, TableCommit, Unknown


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
        if is_next and not commit.target.load_mode.through_spark:  # Delta's writer may change identity columns, too
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


CONFLICTS_TO_FAILURE = 10
SECONDS_TO_FAILURE = 60.0
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 5.0
_POLL_S = 0.1  # how long a stop may go unnoticed


class ConflictBackoff:
    """Counts one stream's consecutive conflicts, and pauses between them."""

    def __init__(self, clock: Clock, new_id: NewId) -> None:
        self._clock = clock
        self._new_id = new_id
        self._since_s = 0.0
        self.conflicts = 0
        """Consecutive conflicts."""

    def reset(self) -> None:
        """Record a successful commit."""
        self.conflicts = 0

    def wait(self, stop: Callable[[], bool]) -> bool:
        """Count a conflict and pause; False when there were too many (rule 4)."""
        if not self.conflicts:
            self._since_s = self._clock.monotonic_s()
        self.conflicts += 1
        lasted_s = self._clock.monotonic_s() - self._since_s
        if self.conflicts > CONFLICTS_TO_FAILURE and lasted_s >= SECONDS_TO_FAILURE:
            return False
        until_s = self._clock.monotonic_s() + self._pause_s()
        while (left_s := until_s - self._clock.monotonic_s()) > 0 and not stop():
            self._clock.sleep_s(min(left_s, _POLL_S))
        return True

    def _pause_s(self) -> float:
        if self.conflicts == 1:
            return 0.0
        longest_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2.0 ** min(self.conflicts, 20))
        chance = crc32(self._new_id().encode()) / 2**32
        return longest_s * (0.5 + chance / 2)
