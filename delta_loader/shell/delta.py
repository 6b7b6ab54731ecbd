"""Delta tables through PySpark's gateway: `delta_loader.ports.DeltaTables` over Delta's own `OptimisticTransaction`.

Rules:

1. Every txn version that a commit stands on is read *inside* of the transaction that commits. Delta then refuses the
   commit if another one changed any of them meanwhile, whoever made it and however far apart the two drivers are.
2. The commit is a blind append: nothing of the table is read but txn versions. So it never conflicts with OPTIMIZE,
   DELETE or MERGE, and they do not conflict with it.
3. An exception out of ``commit`` says nothing certain: a log store may have written the commit and lost the answer, and
   Delta's own retry then meets that very commit. The table is asked before anything is said.
4. A table that was put back since the plan looked at it is noticed by the commits between its version and the
   transaction's. (One that is put back while the transaction commits is noticed right after: common/went_back.py.)
5. Lists cross the gateway as one JSON text and are parsed by Delta's own JSON mapper: three calls for 10,000 files.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from delta import DeltaTable
from delta.exceptions import DeltaConcurrentModificationException
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from common.commit_metadata import CommitMetadata
from common.data_files import delta_path
from common.delta_log import TableState
from common.errors import TableError
from common.schema.spark_json import schema_from_json, schema_to_json
from common.table_history import read_history
from common.went_back import turning_points
from delta_loader.core.commits import AlreadyLoaded, CommitOutcome, Committed, Conflicted, Failed
from delta_loader.core.fit import nullable_columns
from delta_loader.shell.spark import spark_url

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

    from common.ports import Clock
    from common.table_history import LoggedCommit
    from delta_loader.core.commits import TableCommit
    from delta_loader.core.plan import TableShape

_ACTIONS = "org.apache.spark.sql.delta.actions."
_ABSENT = -1  # what Delta's txnVersion says for an app id without a txn action

# The border to the JVM: whatever lies behind it has no type that Python could know.
Java = Any  # type: ignore[explicit-any,unused-ignore]


class SparkDeltaTables:
    """Delta tables by URL, in one Spark session."""

    def __init__(self, spark: SparkSession, clock: Clock) -> None:
        """Over a session that `delta_loader.shell.spark.build_session` made."""
        self._spark = spark
        self._clock = clock
        self._jvm: Java = spark.sparkContext._jvm  # noqa: SLF001 - PySpark's only way to Delta's transactions
        self._none = self._jvm.scala.Option.empty()
        self._converters = self._jvm.scala.jdk.javaapi.CollectionConverters

    def alive(self) -> bool:
        """Whether the JVM still answers. One that is gone does not come back within this process."""
        try:
            self._jvm.java.lang.System.nanoTime()
        except (Py4JError, OSError):
            return False
        return True

    def state(self, url: str) -> TableState | None:
        """The newest state of a table; None when there is none. Raises TableError."""
        with _errors("read", url):
            snapshot = self._log(url).update(False, self._none, self._none)  # noqa: FBT003 - Java knows no keywords
            version = int(snapshot.version())
            if version < 0:
                return None
            metadata, protocol = snapshot.metadata(), snapshot.protocol()
            return TableState(
                version=version,
                table_id=str(metadata.id()),
                schema=str(metadata.schemaString()),
                partition_by=self._texts(metadata.partitionColumns()),
                properties=dict(self._converters.asJava(metadata.configuration())),
                reader_version=int(protocol.minReaderVersion()),
                writer_version=int(protocol.minWriterVersion()),
                features=frozenset(self._texts(protocol.readerAndWriterFeatureNames())),
                transactions=dict(self._converters.asJava(snapshot.transactions())),
            )

    def history(self, url: str, newest: int) -> Iterator[LoggedCommit]:
        """The table's commits from a version down. Raises TableError."""
        with _errors("read the history of", url):
            log = self._log(url)
            store, configuration = log.store(), log.newDeltaHadoopConf()
            names = self._jvm.org.apache.spark.sql.delta.util.FileNames

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
        """Make an empty table; nothing happens when there is one. Raises TableError."""
        with _errors("create", url):
            transaction = self._log(url).startTransaction()
            if int(transaction.readVersion()) >= 0:
                return
            # CREATE TABLE would refuse the folder: it holds staged files already.
            transaction.updateMetadataForNewTable(self._metadata(shape))
            operations = self._jvm.org.apache.spark.sql.delta.DeltaOperations
            operation = operations.CreateTable(transaction.metadata(), False, False, self._none)  # noqa: FBT003
            try:
                transaction.commit(self._converters.asScala(self._jvm.java.util.ArrayList()).toList(), operation)
            except (Py4JError, PySparkException):
                if self.state(url) is None:  # Else another loader was faster.
                    raise

    def commit(self, commit: TableCommit) -> CommitOutcome:
        """Carry a commit out, if the table is still what it stands on. Raises TableError when the end is unknown."""
        url = commit.target.url
        with _errors("commit to", url):
            transaction = self._log(url).startTransaction()
            actions = self._actions(commit)
            operation = self._operation(commit, int(transaction.readVersion()))
            changed = self._changed(transaction, commit)
        if changed is not None:
            return changed
        try:
            return Committed(int(transaction.commit(actions, operation)))
        except (Py4JError, PySparkException) as error:
            return self._resolve(commit, int(transaction.readVersion()), error)

    def _changed(self, transaction: Java, commit: TableCommit) -> CommitOutcome | None:
        """What the transaction sees that the plan did not; None when it is the same (rule 1)."""
        versions = {app_id: int(transaction.txnVersion(app_id)) for app_id in commit.expected}
        metadata, target = transaction.metadata(), commit.target
        if str(metadata.id()) != target.table_id:
            return Conflicted("another table is there now, with another id")
        if (str(metadata.schemaString()), self._texts(metadata.partitionColumns())) != (
            target.shape.schema,
            target.shape.partition_by,
        ):
            return Conflicted("the table's columns were changed")
        back = self._went_back(commit, int(transaction.readVersion()))
        if back is not None:
            return back
        if not commit.is_answer and all(versions[app_id] >= last for app_id, last in commit.advances.items()):
            return AlreadyLoaded(int(transaction.readVersion()))
        moved = [
            app_id
            for app_id, expected in commit.expected.items()
            if versions[app_id] != (_ABSENT if expected is None else expected)
        ]
        return Conflicted(f"another loader moved {', '.join(moved)}") if moved else None

    def _went_back(self, commit: TableCommit, read_version: int) -> Conflicted | None:
        """A RESTORE or a replacement that the plan had not looked at (rule 4)."""
        looked_at = commit.target.version
        if looked_at is None or looked_at >= read_version:
            return None
        found = turning_points(self.history(commit.target.url, read_version), looked_at)
        return Conflicted(f"version {found[-1].version} of the table is a {found[-1].operation}") if found else None

    def _resolve(self, commit: TableCommit, read_version: int, error: Exception) -> CommitOutcome:
        """What became of a commit that ended in an exception (rule 3)."""
        problem = _first_line(error)
        state = self.state(commit.target.url)
        if state is None:
            return Conflicted("the table is gone")
        if state.table_id == commit.target.table_id and all(
            commit.is_answer or state.transactions.get(app_id, _ABSENT) >= last
            for app_id, last in commit.advances.items()
        ):
            version = self._version_of(commit, state.version - read_version)
            if version is None and commit.is_answer:
                return Conflicted(problem)
            return AlreadyLoaded(state.version) if version is None else Committed(version)
        return Conflicted(problem) if isinstance(error, DeltaConcurrentModificationException) else Failed(problem)

    def _version_of(self, commit: TableCommit, versions: int) -> int | None:
        """The version among the newest that carries our commit id."""
        with _errors("read the history of", commit.target.url):
            table = DeltaTable.forPath(self._spark, spark_url(commit.target.url))
            history = table.history(max(1, versions)).select("version", "userMetadata").collect()
        for version, text in history:
            metadata = CommitMetadata.from_json(text or "")
            if metadata is not None and metadata.commit_id == commit.metadata.commit_id:
                return int(version)
        return None

    def _log(self, url: str) -> Java:
        session = self._spark._jsparkSession  # noqa: SLF001 - PySpark's only way to Delta's transactions
        return self._jvm.org.apache.spark.sql.delta.DeltaLog.forTable(session, spark_url(url))

    def _actions(self, commit: TableCommit) -> Java:
        now_ms = self._clock.wall_ms()
        files = [
            {
                "path": delta_path(file.path),
                "partitionValues": dict(file.partition_values),
                "size": file.size_bytes,
                "modificationTime": now_ms,
                "dataChange": True,
                "stats": file.statistics,
            }
            for file in commit.files
        ]
        transactions = [
            {"appId": app_id, "version": last, "lastUpdated": now_ms} for app_id, last in commit.advances.items()
        ]
        actions = self._parse("AddFile", files)
        actions.addAll(self._parse("SetTransaction", transactions))
        return self._converters.asScala(actions).toList()

    def _parse(self, action: str, values: list[dict[str, object]]) -> Java:
        """A Java list of actions of one kind (rule 5)."""
        mapper = self._jvm.org.apache.spark.sql.delta.util.JsonUtils.mapper()
        kind = mapper.getTypeFactory().constructCollectionType(
            self._class("java.util.ArrayList"), self._class(_ACTIONS + action)
        )
        return mapper.readValue(json.dumps(values), kind)

    def _class(self, name: str) -> Java:
        loader = self._jvm.java.lang.Thread.currentThread().getContextClassLoader()
        return self._jvm.java.lang.Class.forName(name, True, loader)  # noqa: FBT003 - Java knows no keywords

    def _metadata(self, shape: TableShape) -> Java:
        """Delta's metaData action for a new table, every column nullable."""
        content = {
            "id": str(self._jvm.java.util.UUID.randomUUID()),
            "format": {"provider": "parquet", "options": {}},
            "schemaString": schema_to_json(nullable_columns(schema_from_json(shape.schema))),
            "partitionColumns": list(shape.partition_by),
            "configuration": {},
            "createdTime": self._clock.wall_ms(),
        }
        return self._jvm.org.apache.spark.sql.delta.actions.Action.fromJson(json.dumps({"metaData": content}))

    def _operation(self, commit: TableCommit, read_version: int) -> Java:
        metadata = self._jvm.scala.Some(commit.metadata.to_json())
        append = self._jvm.org.apache.spark.sql.streaming.OutputMode.Append()
        operations = self._jvm.org.apache.spark.sql.delta.DeltaOperations
        return operations.StreamingUpdate(append, commit.app_id, read_version + 1, metadata)

    def _texts(self, collection: Java) -> tuple[str, ...]:
        return tuple(str(item) for item in self._converters.asJava(collection))


@contextmanager
def _errors(verb: str, url: str) -> Iterator[None]:
    try:
        yield
    except (Py4JError, PySparkException) as error:
        msg = f"cannot {verb} the Delta table {url}: {_first_line(error)}"
        raise TableError(msg, "check the table, the store and Spark's rights to it; the log has more") from error


def _texts_of(lines: Java) -> Iterator[str]:
    """The first line by itself, because it is the one that is wanted; the others as one text over the gateway."""
    if lines.nonEmpty():
        yield str(lines.head())
        yield from str(lines.tail().mkString("\n")).splitlines()


def _first_line(error: Exception) -> str:
    """The Java exception's own sentence, without the gateway's."""
    java = getattr(error, "java_exception", None)
    text = str(java.toString()) if java is not None else str(error)
    return text.strip().splitlines()[0][:500] if text.strip() else type(error).__name__
