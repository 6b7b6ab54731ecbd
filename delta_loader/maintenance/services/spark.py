"""The table services through Spark: `delta_loader.maintenance.services.runs.ServiceWork`.

Rules:

1. They have their own session, so their settings affect no load: one file is written at a time (one task, so a load
   finds a free one), commits are split by size, VACUUM logs its work in the table's log, and a table's state is built
   in parts that match its size.
2. All their jobs are in one group, which `cancel` ends, and in one scheduler pool separate from the loads'.
3. A conflict that Delta does not resolve by itself is `TaskAborted`. Blind appends are not conflicts: a load and an
   OPTIMIZE commit one after the other, in either order.
4. VACUUM is never given a retention: Delta's own check and the table's own property decide.
5. Statistics are added by `DeltaBridge.java`.
"""

import json
from typing import assert_never

from delta import DeltaTable
from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import Row, SparkSession

from common.schema import schema_from_json
from common.settings.services import VacuumMode
from delta_loader.maintenance.services.due import (
    Done,
    MaintenanceTask,
    Outcome,
    TableRules,
    TaskAborted,
    TaskFailed,
    where,
    z_order_by,
)
from delta_loader.maintenance.services.facts import Service
from delta_loader.spark.bridge import CONFLICTS, Bridge, first_line, spark_url, sql_table, table_errors

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
        self._bridge = Bridge(self._spark)
        self._cancelled = False

    def carry_out(self, task: MaintenanceTask, rules: TableRules) -> Outcome:
        context = self._spark.sparkContext
        context.setLocalProperty("spark.scheduler.pool", POOL)
        context.setJobGroup(_GROUP, f"{task.service.value} of {task.url}", False)  # noqa: FBT003 - Spark's own
        try:
            self._set_up(task.url, rules)
            return self._done(task, rules)
        except CONFLICTS as error:
            return TaskAborted(first_line(error))
        except (Py4JError, PySparkException) as error:
            return TaskAborted("it was stopped") if self._cancelled else TaskFailed(first_line(error))

    def dry_run(self, task: MaintenanceTask) -> str:
        """The result of a dry run of a task that only deletes. Raises TableError."""
        mode = VacuumMode.FULL if task.mode is VacuumMode.FULL else VacuumMode.LITE
        with table_errors("ask VACUUM about", task.url, "see Spark's log"):
            count = self._vacuum(task.url, mode, " DRY RUN", fall_back=task.mode is VacuumMode.AUTO)
        return f"{len(count):,} files would be deleted"

    def cancel(self) -> None:
        self._cancelled = True
        self._spark.sparkContext.cancelJobGroup(_GROUP)

    def _set_up(self, url: str, rules: TableRules) -> None:
        self._bridge.size_session(url)
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

    def _done(self, task: MaintenanceTask, rules: TableRules) -> Outcome:
        match task.service:
            case Service.OPTIMIZE:
                return self._optimize(task)
            case Service.VACUUM:
                mode = VacuumMode.FULL if task.mode is VacuumMode.FULL else VacuumMode.LITE
                before = self._bridge.version(task.url)
                self._vacuum(task.url, mode, "", fall_back=task.mode is VacuumMode.AUTO)
                return self._deleted(task.url, before)
            case Service.CHECKPOINT:
                self._bridge.checkpoint(task.url)
                return Done()
            case Service.STATISTICS:
                self._bridge.add_statistics(task.url, _STATISTICS_FILES, rules.settings.statistics.max_bytes)
                return Done()
            case _:
                assert_never(task.service)

    def _optimize(self, task: MaintenanceTask) -> Outcome:
        schema = schema_from_json(self._spark.read.format("delta").load(spark_url(task.url)).schema.json())
        condition = where(task.partitions, {field.name: field.type for field in schema})
        restricted = f" WHERE {condition}" if condition else ""
        (row,) = self._sql(f"OPTIMIZE {sql_table(task.url)}{restricted}{z_order_by(task.z_order)}")
        metrics = row["metrics"]
        return Done(
            int(metrics["numFilesRemoved"]),
            int(metrics["numFilesAdded"]),
            int(metrics["filesRemoved"]["totalSize"] or 0),
            int(metrics["filesAdded"]["totalSize"] or 0),
        )

    def _vacuum(self, url: str, mode: VacuumMode, ending: str, *, fall_back: bool) -> list[Row]:
        try:
            return self._sql(f"VACUUM {sql_table(url)} {mode.value.upper()}{ending}")
        except (Py4JError, PySparkException) as error:
            if not fall_back or _CANNOT_LITE not in str(error):
                raise
            return self._sql(f"VACUUM {sql_table(url)} FULL{ending}")

    def _deleted(self, url: str, before: int) -> Outcome:
        """The count and size of the files that a VACUUM deleted, from the log."""
        files = size_bytes = 0
        history = DeltaTable.forPath(self._spark, spark_url(url)).history(20)
        for row in history.where(f"version > {before}").select("operation", "operationMetrics").collect():
            metrics = row["operationMetrics"] or {}
            if row["operation"] == "VACUUM END":
                files = int(metrics.get("numDeletedFiles", 0))
            elif row["operation"] == "VACUUM START":
                size_bytes = int(metrics.get("sizeOfDataToDelete", 0))
        return Done(files_removed=files, bytes_removed=size_bytes)

    def _sql(self, text: str) -> list[Row]:
        rows: list[Row] = self._spark.sql(text).collect()
        return rows
