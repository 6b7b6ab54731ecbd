"""The loader's way to Delta's own classes: `DeltaBridge` and its transactions (`delta_loader/java`).

Rules:

1. Java code does what Delta's public API cannot, and is compiled against Delta; Python plans and decides. No other
   module of Python names a class of Delta's or of Spark's internals.
2. What crosses is JSON (file actions as lines of Delta's log) and data frames.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from delta import exceptions
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from common.errors import TableError
from common.schema import quote_name
from common.stage.data_files import delta_path
from common.stage.markers import StagedFile
from common.tables.state import TableState
from common.tables.table_features import COMMITS_OF_A_CATALOG
from delta_loader.plan.plan import TableShape
from delta_loader.tables.commits import LoadedTotals

PROBLEM = "_kafka_delta_express_problem"
"""The column of `Bridge.violations` with the reason why a row is refused."""
FILES_OF_A_PART = 25_000
"""How many files of a table's state are in the heap at once, for each task."""

_MOST_CAUSES = 20
_BY_PATH = "[DELTA_PATH_BASED_ACCESS_TO_CATALOG_MANAGED_TABLE_BLOCKED]"

CONFLICTS = (
    exceptions.ConcurrentAppendException,
    exceptions.ConcurrentDeleteDeleteException,
    exceptions.ConcurrentDeleteReadException,
    exceptions.ConcurrentTransactionException,
    exceptions.ConcurrentWriteException,
    exceptions.DeltaConcurrentModificationException,
    exceptions.MetadataChangedException,
    exceptions.ProtocolChangedException,
)
"""Delta's exceptions for a commit that conflicts. In Python, unlike in Java, none of them is a subclass of another."""

# The border to the JVM: objects behind it have no type that Python could know.
Java = Any  # type: ignore[explicit-any,unused-ignore]

Line = dict[str, dict[str, object]]
"""One action as a line of Delta's log, such as ``{"add": {…}}``."""


class Bridge:
    """Java's `DeltaBridge` over one Spark session. Each method raises what Spark raises."""

    def __init__(self, spark: SparkSession, files_of_a_part: int = FILES_OF_A_PART) -> None:
        self.spark = spark
        jvm, session = spark.sparkContext._jvm, spark._jsparkSession  # noqa: SLF001 - PySpark's only way to Java
        # By its full name: with dots in Python, Java searches all jars for each package on the way to it.
        new = getattr(jvm, "io.github.kafkadeltaexpress.DeltaBridge")
        self._java: Java = new(session, int(LOCAL_STATE_PARTITIONS), files_of_a_part)

    def is_alive(self) -> bool:
        try:
            return bool(self._java.isAlive())
        except (Py4JError, OSError):
            return False

    def state(self, url: str) -> TableState | None:
        """The newest state of a table; None when it does not exist."""
        text = self._java.state(spark_url(url))
        return None if text is None else _state(text)

    def version(self, url: str) -> int:
        """The newest version of a table; -1 when it does not exist."""
        return int(self._java.version(spark_url(url)))

    def clustered_by(self, url: str) -> tuple[str, ...]:
        return tuple(json.loads(self._java.clusteredBy(spark_url(url))))

    def commit_lines(self, url: str, version: int) -> Iterator[str] | None:
        """The lines of a commit in a table's log, or None. Usually only the first one is used."""
        texts = self._java.commit(spark_url(url), version)
        return None if texts is None else _lines(texts)

    def create(self, url: str, metadata: Line, cluster_by: Sequence[str]) -> None:
        """Create an empty table; does nothing when there is one."""
        self._java.create(spark_url(url), json.dumps({**metadata, "clusterBy": list(cluster_by) or None}))

    def begin(self, url: str, *, defers_checkpoint: bool) -> LoadTransaction:
        """Begin a load's transaction at the newest version."""
        return LoadTransaction(self._java.begin(spark_url(url), defers_checkpoint))

    def rows(self, root: str, shape: TableShape, files: Iterable[StagedFile]) -> DataFrame:
        staged = {"metadata": metadata_line("staged", shape, 0), "files": add_lines(files, 0)}
        return DataFrame(self._java.rows(spark_url(root), json.dumps(staged)), self.spark)

    def conditions(self, url: str) -> list[str]:
        conditions: list[str] = json.loads(self._java.conditions(spark_url(url)))
        return conditions

    def violations(
        self, url: str, rows: DataFrame, kept: Sequence[str], only: Collection[str] | None = None
    ) -> DataFrame | None:
        """The rows that a table refuses: the kept columns, and why, in `PROBLEM`; None when it checks nothing.

        ``kept`` are columns that the table may not have; unused columns are not computed. ``only``: limited to checks
        that use no other columns.
        """
        options = {"kept": list(kept), "only": None if only is None else list(only), "problem": PROBLEM}
        rows_refused = self._java.violations(spark_url(url), _java_of(rows), json.dumps(options))
        return None if rows_refused is None else DataFrame(rows_refused, self.spark)

    def save(self, url: str, rows: DataFrame, options: Mapping[str, str], *, random_folders: bool) -> None:
        """Save rows with options of Delta's writer, instead of those that ``replaceWhere`` names, if it is there."""
        self._java.save(spark_url(url), _java_of(rows), json.dumps(options), random_folders)

    def size_session(self, url: str) -> None:
        """From now on, set this session, which must not be shared, to the size of a table's state."""
        self._java.fitSession(spark_url(url))

    def checkpoint(self, url: str) -> None:
        """Write a checkpoint, and clean the log."""
        self._java.checkpoint(spark_url(url))

    def add_statistics(self, url: str, most_files: int, most_bytes: int) -> None:
        """Add statistics to files that have none, by a commit that changes nothing else."""
        self._java.addStatistics(spark_url(url), most_files, most_bytes)


class LoadTransaction:
    """Java's `LoadTransaction`, which commits a load."""

    def __init__(self, java: Java) -> None:
        self._java = java

    def state(self, app_ids: Iterable[str]) -> TableState:
        """The table, with the txn actions of these app ids, which the transaction depends on from now on."""
        return _state(self._java.state(json.dumps(list(app_ids))))

    def use_random_folders(self) -> None:
        """Write into folders with random names, for values that cannot name one."""
        self._java.useRandomFolders()

    def write(self, rows: DataFrame) -> list[Line]:
        """Write rows to files, and give their actions."""
        lines: list[Line] = json.loads(self._java.write(_java_of(rows)))
        return lines

    def commit(self, load: Mapping[str, object]) -> int:
        """Commit a load (`LoadTransaction.java` has its fields); the table's new version."""
        return int(self._java.commit(json.dumps(load)))

    def merge(self, source: DataFrame, statement: str, load: Mapping[str, object]) -> int:
        """Run a MERGE in the session of ``source``, and commit a load with it; the table's new version."""
        return int(self._java.merge(_java_of(source), statement, json.dumps(load)))

    def is_committing(self) -> bool:
        """Whether a commit was begun, so that it may be in the log."""
        return bool(self._java.isCommitting())

    def merged(self) -> LoadedTotals:
        """The counts of a merge: new files, and changed rows."""
        return LoadedTotals(**json.loads(self._java.totals()))

    def due_checkpoint(self) -> int | None:
        """The version whose checkpoint is to be written now; None when none is due."""
        version = int(self._java.dueCheckpoint())
        return None if version < 0 else version

    def write_checkpoint(self) -> None:
        """Write it, and clean the log."""
        self._java.writeCheckpoint()


def add_lines(files: Iterable[StagedFile], now_ms: int) -> list[Line]:
    return [
        {
            "add": {
                "path": delta_path(file.path),
                "partitionValues": dict(file.partition_values or {}),
                "size": file.size_bytes,
                "modificationTime": now_ms,
                "dataChange": True,
                "stats": file.statistics,
            }
        }
        for file in files
    ]


def metadata_line(
    table_id: str, shape: TableShape, created_ms: int, properties: Mapping[str, str] | None = None
) -> Line:
    """The action that describes a table of Parquet files of one shape."""
    return {
        "metaData": {
            "id": table_id,
            "format": {"provider": "parquet", "options": {}},
            "schemaString": shape.schema,
            "partitionColumns": list(shape.partition_by),
            "configuration": dict(properties or {}),
            "createdTime": created_ms,
        }
    }


def _state(text: str) -> TableState:
    state = json.loads(text)
    return TableState(
        **{**state, "partition_by": tuple(state["partition_by"]), "features": frozenset(state["features"])}
    )


def _lines(texts: Java) -> Iterator[str]:
    first = str(texts.get(0))
    if first:
        yield first
        yield from str(texts.get(1)).splitlines()


def _java_of(rows: DataFrame) -> Java:
    return rows._jdf  # noqa: SLF001 - PySpark's only way to Java


@contextmanager
def table_errors(verb: str, url: str, remedy: str) -> Iterator[None]:
    """Convert exceptions of Spark and its gateway to a TableError with the failed action and the table."""
    try:
        yield
    except (Py4JError, PySparkException) as error:
        problem = first_line(error)
        if _BY_PATH in problem:
            problem, remedy = COMMITS_OF_A_CATALOG
        raise TableError(f"cannot {verb} the Delta table {url}: {problem}", remedy) from error


def first_line(error: Exception) -> str:
    """The Java exception's own sentence, without the gateway's."""
    java = getattr(error, "java_exception", None)
    return _line(str(java.toString()) if java is not None else str(error)) or type(error).__name__


def with_cause(error: Exception) -> str:
    """`first_line`, and its last cause: for a file that cannot be read, the answer of its store."""
    line, cause = first_line(error), None
    java = getattr(error, "java_exception", None) or getattr(error, "_origin", None)  # the latter is PySpark's
    with suppress(Py4JError):
        for _ in range(_MOST_CAUSES):
            java = None if java is None else java.getCause()
            cause = cause if java is None else _line(str(java.toString()))
    return line if cause is None or cause in line else f"{line}; caused by {cause}"


def _line(text: str) -> str:
    return text.strip().splitlines()[0][:500] if text.strip() else ""


STATE_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
LOCAL_STATE_PARTITIONS = "4"
"""Delta splits a table's state into 50 parts by default, which costs two seconds per commit on one machine."""
TRANSACTIONS_IN_CHECKSUM = "spark.databricks.delta.setTransactionsInCrc.maxAllowed"
MOST_TRANSACTIONS = "20000"


def sql_table(url: str) -> str:
    """A table by its URL, as in Spark's SQL."""
    return f"delta.{quote_name(spark_url(url))}"


def spark_url(url: str) -> str:
    """A table's URL as Spark spells it: fsspec's ``s3`` is ``s3a``."""
    for scheme in ("s3://", "s3n://"):
        if url.startswith(scheme):
            return "s3a://" + url.removeprefix(scheme)
    return url
