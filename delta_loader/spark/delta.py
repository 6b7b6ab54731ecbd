"""Delta tables through Spark: `delta_loader.ports.DeltaTables` over Delta's own transactions.

Rules:

1. Everything that a commit depends on is read *inside* the transaction that commits: the txn versions, the table's id
   and columns, and whether files may be added to it at all. Delta then refuses the commit if another commit changed any
   of them in the meantime, from any driver on any machine.
2. Except for a merge (delta_loader/spark/merging/) the commit is a blind append: only txn versions are read from the
   table. It therefore never conflicts with OPTIMIZE, DELETE or MERGE, nor they with it, unless the table's isolation is
   Serializable. Rows that go through Spark (delta_loader/spark/spark_writes.py) are read from outside the table and
   written by Delta's own writer within the same transaction: one commit has those files, the added ones and the txn
   actions.
3. An exception from ``commit`` is not conclusive: a log store may have written the commit and lost the response, and
   Delta's own retry then conflicts with that very commit. The table is read before a result is returned. If it does not
   show the commit and Delta itself has not refused it, the result is unknown: the request may still arrive.
4. A table that was restored since the plan read it is detected by the commits between its version and the
   transaction's. (A restore during the commit is detected right after: common/tables/rollback.py.)
5. A checkpoint that is due after a commit is written in the background if that is configured, otherwise by Delta
   within the commit. Delta still decides which versions get one (`delta.checkpointInterval`), and writes it as usual,
   with the cleaning of its log after it. It is the state right after the commit, including what others may have
   committed by then. The checksum stays in the commit: the next load reads it, and it costs one small file.
"""

from collections.abc import Iterator, Sequence
from functools import partial

from delta import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import SparkSession

from common.ports import Clock
from common.stage.data_files import ESCAPED, LONGEST_BYTES
from common.tables.commit_metadata import CommitMetadata
from common.tables.history import LoggedCommit, read_history
from common.tables.rollback import turning_points
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape
from delta_loader.spark.bridge import (
    CONFLICTS,
    Line,
    LoadTransaction,
    add_lines,
    first_line,
    spark_url,
    table_errors,
    with_cause,
)
from delta_loader.spark.checkpoint_threads import Checkpoints, DueCheckpoint
from delta_loader.spark.definitions import REMEDY, TableDefinitions
from delta_loader.spark.merging.merge_writes import merge_within
from delta_loader.spark.spark_writes import WriteInputs, WriteSessions, write_within
from delta_loader.tables.commits import (
    AlreadyLoaded,
    CommitOutcome,
    Committed,
    Conflicted,
    Failed,
    LoadedTotals,
    NotWritten,
    TableCommit,
    Unknown,
)
from delta_loader.tables.load_modes.casting import variants_of
from delta_loader.tables.load_modes.layout import Layout
from delta_loader.tables.load_modes.load_mode import Refused, choose_load_mode

ABSENT = -1
"""Stands for an app id without a txn action."""

_errors = partial(table_errors, remedy=REMEDY)


class SparkDeltaTables(TableDefinitions):
    """Delta tables by URL, in one Spark session."""

    def __init__(
        self, spark: SparkSession, clock: Clock, stage_url: str = "", checkpoints: Checkpoints | None = None
    ) -> None:
        """Over a session from `delta_loader.spark.session.build_session`; mixed files are below ``stage_url``."""
        super().__init__(spark, clock)
        self._stage_url = stage_url
        self._writers = WriteSessions(spark)
        self._checkpoints = checkpoints

    def alive(self) -> bool:
        """Whether the JVM still answers. A JVM that is gone does not come back within this process."""
        return self._bridge.is_alive()

    def state(self, url: str) -> TableState | None:
        with _errors("read", url):
            return self._bridge.state(url)

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        def commits() -> Iterator[LoggedCommit]:
            with _errors("read the history of", url):
                yield from read_history(newest, partial(self._bridge.commit_lines, url))

        return commits()

    def create(self, url: str, shape: TableShape) -> None:
        self.make(url, shape, Layout(), nullable=True)

    def commit(self, commit: TableCommit) -> CommitOutcome:
        """Carry out a commit, if the table is unchanged since the plan. Raises TableError if the result is unknown."""
        url = commit.target.url
        with _errors("commit to", url):
            transaction = self._begin(url)
            state = transaction.state(commit.expected)
            changed = self._changed(state, commit)
        if changed is not None:
            return changed
        replaced: list[Line] = []
        written = LoadedTotals()
        if not commit.merges and (commit.written or commit.dead_letter_rows):
            try:
                replaced, written = write_within(self._writers, transaction, commit, self._inputs(commit, state))
            except (Py4JError, PySparkException) as error:
                return NotWritten(with_cause(error))
        load = self._load(commit, replaced)
        try:
            if commit.merges:
                inputs = self._inputs(commit, state)
                version = merge_within(self._writers, transaction, commit, inputs, load)
                written = transaction.merged()
            else:
                version = transaction.commit(load)
            self._request_checkpoint(transaction, url)
            return Committed(version, written)
        except (Py4JJavaError, PySparkException) as error:
            with _errors("commit to", url):
                if commit.merges and not transaction.is_committing():
                    return self._not_merged(commit, state, error)
                return self._resolve(commit, state.version, transaction.merged() if commit.merges else written, error)
        except Py4JError as error:  # Java did not answer, and may still commit.
            return self._resolve(commit, state.version, written, error)

    def _begin(self, url: str) -> LoadTransaction:
        return self._bridge.begin(url, defers_checkpoint=self._checkpoints is not None)

    def _inputs(self, commit: TableCommit, state: TableState) -> WriteInputs:
        return WriteInputs(self._stage_url, state, commit.target.load_mode, variants_of(commit.target.shape.schema))

    def _not_merged(self, commit: TableCommit, read: TableState, error: Exception) -> CommitOutcome:
        """A merge reads the table: after another commit, the rows it read may be gone or have other columns."""
        state = self.state(commit.target.url)
        if state is None or state.version != read.version:
            return Conflicted(f"the table was changed concurrently: {first_line(error)}")
        return NotWritten(with_cause(error))

    def _request_checkpoint(self, transaction: LoadTransaction, url: str) -> None:
        """Have the checkpoint written that is due after a commit (rule 5)."""
        version = transaction.due_checkpoint()
        if self._checkpoints is None or version is None:
            return

        def write() -> None:
            with table_errors("write a checkpoint of", url, "check Spark's rights to the table's log, and its memory"):
                transaction.write_checkpoint()

        self._checkpoints.request(DueCheckpoint(url, version, write))

    def _changed(self, state: TableState, commit: TableCommit) -> CommitOutcome | None:
        """A change that the transaction sees and the plan did not; None if nothing has changed (rule 1)."""
        versions, target = state.transactions, commit.target
        if state.table_id != target.table_id:
            return Conflicted("a table with another id has taken its place")
        if TableShape(state.schema, state.partition_by) != target.shape:
            return Conflicted("the table's columns were changed")
        back = self._rollback_conflict(commit, state.version)
        if back is not None:
            return back
        load_mode = choose_load_mode(state)
        may_not = isinstance(load_mode, Refused) or (load_mode.through_spark and commit.files)
        if may_not and not commit.is_resolution:  # A constraint changes neither the id nor the columns.
            return Conflicted(load_mode.reason)
        if not commit.is_resolution and _has_all(state, commit):
            return AlreadyLoaded(state.version)
        moved = [
            app_id
            for app_id, expected in commit.expected.items()
            if versions.get(app_id, ABSENT) != (ABSENT if expected is None else expected)
        ]
        return Conflicted(f"another loader moved {', '.join(moved)}") if moved else None

    def _rollback_conflict(self, commit: TableCommit, read_version: int) -> Conflicted | None:
        """A RESTORE or a replacement that the plan had not seen (rule 4); for a resolution, any commit at all."""
        planned = commit.target.version
        if planned >= read_version:
            return None
        if commit.is_resolution:
            # Another loader may have carried it out, and have loaded up to the very positions that this commit expects.
            return Conflicted(f"version {read_version} is newer than the one that the resolution is about")
        commits = turning_points(self.history(commit.target.url, read_version), planned)
        return (
            Conflicted(f"version {commits[-1].version} of the table is a {commits[-1].operation}") if commits else None
        )

    def _resolve(
        self, commit: TableCommit, read_version: int, written: LoadedTotals, error: Exception
    ) -> CommitOutcome:
        """The result of a commit that ended with an exception (rule 3)."""
        unresolved = _unresolved(error)
        state = self.state(commit.target.url)
        if state is None:
            return Conflicted("the table is gone")
        if state.table_id == commit.target.table_id and (commit.is_resolution or _has_all(state, commit)):
            version = self._version_of(commit, state.version - read_version)
            if version is None and commit.is_resolution:
                return unresolved
            return AlreadyLoaded(state.version) if version is None else Committed(version, written)
        return unresolved

    def _version_of(self, commit: TableCommit, versions: int) -> int | None:
        """The version among the newest that has our commit id."""
        with _errors("read the history of", commit.target.url):
            table = DeltaTable.forPath(self._spark, spark_url(commit.target.url))
            history = table.history(max(1, versions)).select("version", "userMetadata").collect()
        for version, text in history:
            metadata = CommitMetadata.from_json(text or "")
            if metadata is not None and metadata.commit_id == commit.metadata.commit_id:
                return int(version)
        return None

    def _load(self, commit: TableCommit, replaced: Sequence[Line] = ()) -> dict[str, object]:
        """The content of a transaction; ``replaced`` is the result of `write_within`."""
        now_ms = self._clock.wall_ms()
        return {
            "files": add_lines(commit.files, now_ms),
            "replaced": replaced,
            "transactions": [
                {"txn": {"appId": app_id, "version": last, "lastUpdated": now_ms}}
                for app_id, last in commit.advances.items()
            ],
            "merges": commit.merges,
            "app_id": commit.app_id,
            "metadata": commit.metadata.to_json(),
            "escaped": ESCAPED,
            "longest_bytes": LONGEST_BYTES,
        }


def _has_all(state: TableState, commit: TableCommit) -> bool:
    return all(state.transactions.get(app_id, ABSENT) >= last for app_id, last in commit.advances.items())


def _unresolved(error: Exception) -> Conflicted | Failed | Unknown:
    """What an exception from a commit means while the table does not show the commit.

    Only Delta's own exceptions are conclusive. With any other, of the store or of the JVM, a request may still be in
    transit.
    """
    problem = first_line(error)
    if isinstance(error, CONFLICTS):
        return Conflicted(problem)
    return Failed(problem) if isinstance(error, AnalysisException) else Unknown(problem)
