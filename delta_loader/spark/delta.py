"""Delta tables through PySpark's gateway: `delta_loader.ports.DeltaTables` over Delta's own `OptimisticTransaction`.

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
5. A checkpoint that is due after a commit is written in the background if that is configured
   (delta_loader/spark/checkpoints.py), otherwise by Delta within the commit.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from delta import DeltaTable
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import AnalysisException, PySparkException

from common.schema import nullable_columns, quote_name, quote_text, schema_from_json, schema_to_json
from common.schema.types import Primitive, uses
from common.tables.commit_metadata import CommitMetadata
from common.tables.history import read_history
from common.tables.rollback import turning_points
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape
from delta_loader.spark.checkpoints import LoadTransactions
from delta_loader.spark.gateway import CONFLICTS, Gateway, Java, first_line, table_errors
from delta_loader.spark.merging.merge_writes import merge_within
from delta_loader.spark.new_tables import clustered_by, clustering_actions, layout_properties
from delta_loader.spark.session_conf import spark_url
from delta_loader.spark.spark_writes import WriteInputs, WriteSessions, write_within
from delta_loader.spark.state_sessions import StateSessions
from delta_loader.spark.transactions import ABSENT, transactions_of, versions_within
from delta_loader.tables.commits import (
    AlreadyLoaded,
    CommitOutcome,
    Committed,
    Conflicted,
    Failed,
    LoadedTotals,
    NotWritten,
    Unknown,
)
from delta_loader.tables.load_modes.layout import Layout, Template
from delta_loader.tables.load_modes.load_mode import Refused, choose_load_mode, through_spark
from delta_loader.tables.load_modes.variants import variants_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from common.ports import Clock
    from common.schema.evolution import Addition
    from common.schema.types import DataType
    from common.tables.history import LoggedCommit
    from delta_loader.spark.checkpoint_threads import Checkpoints
    from delta_loader.tables.commits import TableCommit
    from delta_loader.tables.load_modes.casting import Widening

_TYPE_WIDENING = "delta.enableTypeWidening"
_TIMESTAMP_NTZ = "timestampNtz"

_errors = partial(table_errors, remedy="check the table, the store and Spark's rights to it; the log has more")


class SparkDeltaTables:
    """Delta tables by URL, in one Spark session."""

    def __init__(
        self, spark: SparkSession, clock: Clock, stage_url: str = "", checkpoints: Checkpoints | None = None
    ) -> None:
        """Over a session from `delta_loader.spark.session.build_session`; mixed files are below ``stage_url``."""
        self._stage_url = stage_url
        self._spark = spark
        self._clock = clock
        self._gateway = Gateway(spark)
        self._sessions = StateSessions(self._gateway)
        self._writers = WriteSessions(spark)
        self._beside = None
        if checkpoints is not None:
            self._beside = LoadTransactions(self._gateway, self._sessions, checkpoints)

    def alive(self) -> bool:
        """Whether the JVM still answers. A JVM that is gone does not come back within this process."""
        try:
            self._gateway.class_of("java.lang.System").nanoTime()
        except (Py4JError, OSError):
            return False
        return True

    def state(self, url: str) -> TableState | None:
        """The newest state of a table; None when it does not exist. Raises TableError."""
        with _errors("read", url):
            snapshot = self._log(url).update(False, self._gateway.none, self._gateway.none)  # noqa: FBT003 - Java knows no keywords
            version = int(snapshot.version())
            if version < 0:
                return None
            known = transactions_of(self._gateway, self._sessions, snapshot)
            return self._state_of(version, snapshot.metadata(), snapshot.protocol(), known)

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        """The table's commits from a version down. Raises TableError."""
        with _errors("read the history of", url):
            log = self._log(url)
            store, configuration = log.store(), log.newDeltaHadoopConf()
            names = self._gateway.delta.util.FileNames

        def lines(version: int) -> Iterator[str] | None:
            path = names.unsafeDeltaFile(log.logPath(), version)
            try:
                return _texts_of(store.read(path, configuration))
            except Py4JJavaError as error:
                if error.java_exception.getClass().getSimpleName() == "FileNotFoundException":
                    return None
                raise

        def commits() -> Iterator[LoggedCommit]:
            with _errors("read the history of", url):
                yield from read_history(newest, lines)

        return commits()

    def create(self, url: str, shape: TableShape) -> None:
        """Create an empty table; does nothing when one exists. Raises TableError."""
        self.make(url, shape, Layout(), nullable=True)

    def make(self, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
        """The same with properties and clustering. Raises TableError."""
        if nullable:
            columns = schema_to_json(nullable_columns(schema_from_json(shape.schema)))
            shape = TableShape(columns, shape.partition_by)
        with _errors("create", url):
            transaction = self._log(url).startTransaction()
            if int(transaction.readVersion()) >= 0:
                return
            # CREATE TABLE would refuse the folder: it already contains staged files.
            table_id = str(self._gateway.jvm.java.util.UUID.randomUUID())
            metadata = self._gateway.metadata(table_id, shape, self._clock.wall_ms(), layout_properties(layout))
            transaction.updateMetadataForNewTable(metadata)
            actions, cluster_by = clustering_actions(self._gateway, transaction, layout.cluster_by)
            operations = self._gateway.delta.DeltaOperations
            operation = operations.CreateTable(transaction.metadata(), False, False, cluster_by)  # noqa: FBT003
            try:
                transaction.commit(self._gateway.scala(actions), operation)
            except (Py4JError, PySparkException):
                if self.state(url) is None:  # Otherwise another loader was faster.
                    raise

    def template(self, url: str) -> Template | None:
        """The table to use as a template. Raises TableError."""
        state = self.state(url)
        if state is None:
            return None
        with _errors("read", url):
            return Template(state, clustered_by(self._gateway, self._log(url).unsafeVolatileSnapshot()))

    def add_columns(self, url: str, added: Sequence[Addition]) -> None:
        """Add columns to a table, also inside its structs, by one commit. Raises TableError."""
        columns = ", ".join(map(str, added))
        with _errors("add columns to", url):
            self._support(url, [one.type for one in added])
            self._spark.sql(f"ALTER TABLE delta.{quote_name(spark_url(url))} ADD COLUMNS ({columns})")

    def set_property(self, url: str, key: str, value: str) -> None:
        """Set a table's property by one commit. Raises TableError."""
        with _errors("set a property of", url):
            given = f"{quote_text(key)} = {quote_text(value)}"
            self._spark.sql(f"ALTER TABLE delta.{quote_name(spark_url(url))} SET TBLPROPERTIES ({given})")

    def widen(self, url: str, widening: Widening) -> None:
        """Give a column a wider type, enabling the table's type widening. Raises TableError."""
        table = f"ALTER TABLE delta.{quote_name(spark_url(url))}"
        with _errors("widen a column of", url):
            state = self.state(url)
            if state is None or state.properties.get(_TYPE_WIDENING) != "true":
                self._spark.sql(f"{table} SET TBLPROPERTIES ('{_TYPE_WIDENING}' = 'true')")
            self._support(url, [widening.type])
            self._spark.sql(f"{table} ALTER COLUMN {widening}")

    def _support(self, url: str, types: Iterable[DataType]) -> None:
        """Enable the feature that Delta requires to add a TIMESTAMP_NTZ to an existing table."""
        if any(uses(one, Primitive.TIMESTAMP_NTZ) for one in types):
            state = self.state(url)
            if state is None or _TIMESTAMP_NTZ not in state.features:
                self.set_property(url, f"delta.feature.{_TIMESTAMP_NTZ}", "supported")

    def commit(self, commit: TableCommit) -> CommitOutcome:
        """Carry out a commit, if the table is unchanged since the plan. Raises TableError if the result is unknown."""
        url = commit.target.url
        with _errors("commit to", url):
            transaction = self._begin(url)
            changed = self._changed(transaction, commit)
        if changed is not None:
            return changed
        adds, written = None, LoadedTotals()
        if commit.written or commit.letters:
            try:
                adds, written = self._write(transaction, commit)
            except (Py4JError, PySparkException) as error:
                return self._not_written(transaction, commit, error)
        with _errors("commit to", url):
            read_version = int(transaction.readVersion())
            actions, operation = self._actions(commit, adds), self._operation(commit, read_version)
        try:
            return Committed(self._commit_within(transaction, commit, actions, operation), written)
        except (Py4JError, PySparkException) as error:
            return self._resolve(commit, read_version, written, error)

    def _begin(self, url: str) -> Java:
        log = self._log(url)
        return log.startTransaction() if self._beside is None else self._beside.begin(log, self._gateway.none)

    def _write(self, transaction: Java, commit: TableCommit) -> tuple[Java, LoadedTotals]:
        """Write the rows that go through Spark."""
        url, shape = commit.target.url, commit.target.shape
        work = WriteInputs(self._stage_url, shape.partition_by, commit.target.way, variants_of(shape.schema))
        if commit.merges:
            return merge_within(self._writers, transaction, commit.written, work, url=url)
        return write_within(self._writers, transaction, commit, work)

    def _not_written(self, transaction: Java, commit: TableCommit, error: Exception) -> CommitOutcome:
        """A merge reads the table: after another commit, the rows it read may be gone or have other columns."""
        if commit.merges:
            state = self.state(commit.target.url)
            if state is None or state.version != int(transaction.readVersion()):
                return Conflicted(f"the table was changed meanwhile: {first_line(error)}")
        return NotWritten(first_line(error))

    def _commit_within(self, transaction: Java, commit: TableCommit, actions: Java, operation: Java) -> int:
        version = self._version_within(transaction, commit, actions, operation)
        if self._beside is not None:
            self._beside.committed(transaction, commit.target.url)
        return version

    def _version_within(self, transaction: Java, commit: TableCommit, actions: Java, operation: Java) -> int:
        if not commit.merges:
            return int(transaction.commit(actions, operation))
        # The same values for row tracking as Delta's MERGE, which the steps here preserve.
        tracking = self._gateway.singleton("RowTracking")
        none = self._gateway.jvm.scala.Predef.Map().empty()
        tags = tracking.addPreservedRowTrackingTagIfNotSet(transaction.snapshot(), none)
        return int(transaction.commit(actions, operation, tags))

    def _state_of(self, version: int, metadata: Java, protocol: Java, transactions: dict[str, int]) -> TableState:
        return TableState(
            version=version,
            table_id=str(metadata.id()),
            schema=str(metadata.schemaString()),
            partition_by=self._gateway.texts(metadata.partitionColumns()),
            properties=self._gateway.properties(metadata),
            reader_version=int(protocol.minReaderVersion()),
            writer_version=int(protocol.minWriterVersion()),
            features=frozenset(self._gateway.texts(protocol.readerAndWriterFeatureNames())),
            transactions=transactions,
        )

    def _changed(self, transaction: Java, commit: TableCommit) -> CommitOutcome | None:
        """What the transaction sees that the plan did not; None when nothing has changed (rule 1)."""
        versions = versions_within(self._gateway, self._sessions, transaction, commit.expected)
        read_version, target = int(transaction.readVersion()), commit.target
        state = self._state_of(read_version, transaction.metadata(), transaction.protocol(), versions)
        if state.table_id != target.table_id:
            return Conflicted("another table is there now, with another id")
        if TableShape(state.schema, state.partition_by) != target.shape:
            return Conflicted("the table's columns were changed")
        back = self._went_back(commit, read_version)
        if back is not None:
            return back
        way = choose_load_mode(state)
        may_not = isinstance(way, Refused) or (through_spark(way) and commit.files)
        if may_not and not commit.is_answer:  # A constraint changes neither the id nor the columns.
            return Conflicted(way.reason)
        if not commit.is_answer and all(versions[app_id] >= last for app_id, last in commit.advances.items()):
            return AlreadyLoaded(read_version)
        moved = [
            app_id
            for app_id, expected in commit.expected.items()
            if versions[app_id] != (ABSENT if expected is None else expected)
        ]
        return Conflicted(f"another loader moved {', '.join(moved)}") if moved else None

    def _went_back(self, commit: TableCommit, read_version: int) -> Conflicted | None:
        """A RESTORE or a replacement that the plan had not seen (rule 4); for a resolution, any commit at all."""
        looked_at = commit.target.version
        if looked_at is None or looked_at >= read_version:
            return None
        if commit.is_answer:
            # Another loader may have carried it out, and have loaded up to the very positions that this commit expects.
            return Conflicted(f"version {read_version} came after what the answer is about")
        found = turning_points(self.history(commit.target.url, read_version), looked_at)
        return Conflicted(f"version {found[-1].version} of the table is a {found[-1].operation}") if found else None

    def _resolve(
        self, commit: TableCommit, read_version: int, written: LoadedTotals, error: Exception
    ) -> CommitOutcome:
        """The result of a commit that ended with an exception (rule 3)."""
        unresolved = _unresolved(error)
        state = self.state(commit.target.url)
        if state is None:
            return Conflicted("the table is gone")
        if state.table_id == commit.target.table_id and all(
            commit.is_answer or state.transactions.get(app_id, ABSENT) >= last
            for app_id, last in commit.advances.items()
        ):
            version = self._version_of(commit, state.version - read_version)
            if version is None and commit.is_answer:
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

    def _log(self, url: str) -> Java:
        return self._gateway.log(url)

    def _actions(self, commit: TableCommit, written: Java | None = None) -> Java:
        """A Scala list of all actions of the commit; ``written`` is a Java list of what Spark wrote."""
        now_ms = self._clock.wall_ms()
        actions = self._gateway.adds(commit.files, now_ms)
        if written is not None:
            actions.addAll(written)
        transactions = [
            {"appId": app_id, "version": last, "lastUpdated": now_ms} for app_id, last in commit.advances.items()
        ]
        actions.addAll(self._gateway.parse("SetTransaction", transactions))
        return self._gateway.scala(actions)

    def _operation(self, commit: TableCommit, read_version: int) -> Java:
        metadata = self._gateway.some(commit.metadata.to_json())
        modes = self._gateway.class_of("org.apache.spark.sql.streaming.OutputMode")
        mode = modes.Update() if commit.merges else modes.Append()
        operations = self._gateway.delta.DeltaOperations
        return operations.StreamingUpdate(mode, commit.app_id, read_version + 1, metadata)


def _unresolved(error: Exception) -> Conflicted | Failed | Unknown:
    """What an exception from a commit means while the table does not show the commit.

    Only Delta's own exceptions are conclusive. With any other, of the store or of the JVM, a request may still be in
    transit.
    """
    problem = first_line(error)
    if isinstance(error, CONFLICTS):
        return Conflicted(problem)
    return Failed(problem) if isinstance(error, AnalysisException) else Unknown(problem)


def _texts_of(lines: Java) -> Iterator[str]:
    """The first line by itself, because it is usually the only one used; the others as one text over the gateway."""
    if lines.nonEmpty():
        yield str(lines.head())
        yield from str(lines.tail().mkString("\n")).splitlines()
