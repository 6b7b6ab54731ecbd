"""The table services through Spark: `delta_loader.maintenance.services.ports.ServiceWork`.

Rules:

1. They have their own session, so their settings affect no load: one file is written at a time (one task, so a load
   finds a free one), commits are split by size, VACUUM logs its work in the table's log, and a table's state is built
   in parts that match its size.
2. All their jobs are in one group, which `cancel` ends, and in one scheduler pool separate from the loads'.
3. A conflict that Delta does not resolve by itself is `GivenUp`. Blind appends are not conflicts: a load and an
   OPTIMIZE commit one after the other, in either order.
4. VACUUM is never given a retention: Delta's own check and the table's own property decide.
5. Statistics come from Delta's own collector. The files that get them count as read, so Delta refuses the commit when
   another one removed one of them in the meantime; otherwise it would reappear. Files are identified by their names,
   which are unique; those with a deletion vector are left alone, as Delta itself does.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, assert_never
from urllib.parse import unquote

from delta import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, functions
from pyspark.sql.classic.column import Column

from common.schema import quote_name, schema_from_json
from common.settings.services import VacuumMode
from delta_loader.maintenance.services.facts import Service
from delta_loader.maintenance.services.outcomes import Done, GivenUp, Outcome, TaskFailed
from delta_loader.maintenance.services.sql import where, z_order_by
from delta_loader.spark.gateway import CONFLICTS, Gateway, first_line, table_errors
from delta_loader.spark.session_conf import spark_url
from delta_loader.spark.state_sessions import StateSessions

if TYPE_CHECKING:
    from pyspark.sql import Row, SparkSession

    from delta_loader.maintenance.services.due import CommitPiece, TableRules
    from delta_loader.spark.gateway import Java

POOL = "table_services"
_GROUP = "kafka-delta-express-table-services"
_DELTA = "spark.databricks.delta."
_CANNOT_LITE = "DELTA_CANNOT_VACUUM_LITE"
_STATISTICS_FILES = 1_000


class SparkServices:
    """Carries out tasks, one at a time."""

    def __init__(self, spark: SparkSession) -> None:
        """Over a session from `delta_loader.spark.session.build_session`."""
        self._spark = spark.newSession()
        self._gateway = Gateway(self._spark)
        self._sessions = StateSessions(self._gateway)
        self._cancelled = False

    def carry_out(self, piece: CommitPiece, rules: TableRules) -> Outcome:
        """Carry out a task; never raises Spark's exceptions."""
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        context.setJobGroup(_GROUP, f"{piece.service.value} of {piece.url}", False)  # noqa: FBT003 - Spark's own
        try:
            self._set_up(piece.url, rules)
            return self._done(piece, rules)
        except CONFLICTS as error:
            return GivenUp(first_line(error))
        except (Py4JError, PySparkException) as error:
            return GivenUp("it was stopped") if self._cancelled else TaskFailed(first_line(error))

    def would_take(self, piece: CommitPiece) -> str:
        """The result of a dry run of a task that only deletes. Raises TableError."""
        mode = VacuumMode.FULL if piece.mode is VacuumMode.FULL else VacuumMode.LITE
        with table_errors("ask VACUUM about", piece.url, "see Spark's log"):
            count = self._vacuum(piece.url, mode, " DRY RUN", fall_back=piece.mode is VacuumMode.AUTO)
        return f"{len(count):,} files would be deleted"

    def cancel(self) -> None:
        """End the running task; to be called from another thread."""
        self._cancelled = True
        self._spark.sparkContext.cancelJobGroup(_GROUP)

    def _set_up(self, url: str, rules: TableRules) -> None:
        self._sessions.set_for(self._snapshot(url))
        wanted = rules.settings.optimize
        for key, value in {
            "optimize.maxThreads": 1,
            "optimize.maxFileSize": wanted.target_file_bytes,
            "optimize.minFileSize": rules.small_below_bytes,
            "optimize.batchSize": wanted.piece_bytes,
            "vacuum.logging.enabled": "true",
            "commitInfo.userMetadata": json.dumps({"kafka_delta_express_service": {"version": 1}}),
        }.items():
            self._spark.conf.set(_DELTA + key, str(value))

    def _done(self, piece: CommitPiece, rules: TableRules) -> Outcome:
        match piece.service:
            case Service.OPTIMIZE:
                return self._optimize(piece)
            case Service.VACUUM:
                mode = VacuumMode.FULL if piece.mode is VacuumMode.FULL else VacuumMode.LITE
                before = int(self._snapshot(piece.url).version())
                self._vacuum(piece.url, mode, "", fall_back=piece.mode is VacuumMode.AUTO)
                return self._deleted(piece.url, before)
            case Service.CHECKPOINT:
                # Delta's own `checkpoint` logs a failure and returns.
                self._log(piece.url).checkpointAndCleanUpDeltaLog(self._snapshot(piece.url), self._gateway.none)
                return Done()
            case Service.STATISTICS:
                return self._statistics(piece.url, rules)
            case _:
                assert_never(piece.service)

    def _optimize(self, piece: CommitPiece) -> Outcome:
        schema = schema_from_json(str(self._snapshot(piece.url).metadata().schemaString()))
        condition = where(piece.partitions, {field.name: field.type for field in schema})
        restricted = f" WHERE {condition}" if condition else ""
        (row,) = self._sql(f"OPTIMIZE {_table(piece.url)}{restricted}{z_order_by(piece.z_order)}")
        metrics = row["metrics"]
        return Done(
            int(metrics["numFilesRemoved"]),
            int(metrics["numFilesAdded"]),
            int(metrics["filesRemoved"]["totalSize"] or 0),
            int(metrics["filesAdded"]["totalSize"] or 0),
        )

    def _vacuum(self, url: str, mode: VacuumMode, ending: str, *, fall_back: bool) -> list[Row]:
        try:
            return self._sql(f"VACUUM {_table(url)} {mode.value.upper()}{ending}")
        except (Py4JError, PySparkException) as error:
            if not fall_back or _CANNOT_LITE not in str(error):
                raise
            return self._sql(f"VACUUM {_table(url)} FULL{ending}")

    def _deleted(self, url: str, before: int) -> Outcome:
        """What a VACUUM recorded in the log."""
        files = size_bytes = 0
        history = DeltaTable.forPath(self._spark, spark_url(url)).history(20)
        for row in history.where(f"version > {before}").select("operation", "operationMetrics").collect():
            metrics = row["operationMetrics"] or {}
            if row["operation"] == "VACUUM END":
                files = int(metrics.get("numDeletedFiles", 0))
            elif row["operation"] == "VACUUM START":
                size_bytes = int(metrics.get("sizeOfDataToDelete", 0))
        return Done(files_removed=files, bytes_removed=size_bytes)

    def _statistics(self, url: str, rules: TableRules) -> Outcome:
        """Compute statistics for files that have none, by a commit that changes nothing else (rule 5)."""
        log = self._log(url)
        transaction = log.startTransaction()
        bare = transaction.snapshot().allFiles().where("stats IS NULL AND deletionVector IS NULL")
        chosen, size_bytes = self._gateway.new_list(), 0
        for file in bare.limit(_STATISTICS_FILES).collectAsList():
            size_bytes += int(file.size())
            if chosen.size() and size_bytes > rules.settings.statistics.max_bytes:
                break
            chosen.add(file)
        files = self._gateway.scala(chosen)
        transaction.trackFilesRead(files)
        statistics = self._statistics_of(log, transaction, files)
        adds = [json.loads(str(file.json()))["add"] for file in chosen]
        known = [(add, statistics.get(_name(add["path"]))) for add in adds]
        named = [{**add, "stats": stats, "dataChange": False} for add, stats in known if stats is not None]
        if named:
            actions = self._gateway.scala(self._gateway.parse("AddFile", named))
            nothing = self._gateway.scala(self._gateway.new_list())
            transaction.commit(actions, self._gateway.delta.DeltaOperations.ComputeStats(nothing))
        return Done()

    def _statistics_of(self, log: Java, transaction: Java, files: Java) -> dict[str, str]:
        """Statistics by file name, from Delta's own collector."""
        rows = DataFrame(log.createDataFrame(transaction.snapshot(), files, False, self._gateway.none), self._spark)  # noqa: FBT003
        collector = functions.to_json(Column(transaction.statsCollector()))
        found = rows.groupBy(functions.col("_metadata.file_path").alias("path")).agg(collector.alias("stats")).collect()
        return {_name(row["path"]): str(row["stats"]) for row in found}

    def _sql(self, text: str) -> list[Row]:
        found: list[Row] = self._spark.sql(text).collect()
        return found

    def _log(self, url: str) -> Java:
        return self._gateway.log(url)

    def _snapshot(self, url: str) -> Java:
        return self._log(url).update(False, self._gateway.none, self._gateway.none)  # noqa: FBT003 - Java knows no keywords


def _name(path: str) -> str:
    """A file's own name, regardless of how its path is spelled."""
    return unquote(path.rpartition("/")[2])


def _table(url: str) -> str:
    return f"delta.{quote_name(spark_url(url))}"
