"""Merges staged events within a transaction: the steps of Delta's own MERGE, without its commit.

Delta's command opens its own transaction and commits it with at most one txn action, so a load of several Kafka
partitions could not be exactly once. Its steps are methods of the command that take the transaction: here they are
called in its order (``MergeIntoCommand.runMerge``, Delta 4.4) with the loader's transaction, and their actions are
committed with all txn actions.

Rules:

1. The table is read through the transaction: it records the condition's predicates and the files, so any commit that
   changed rows which the merge has read, or would have read, is a conflict.
2. Rows are found, rewritten or marked in deletion vectors, and written by Delta's own code: constraints, generated
   columns, change data and row tracking are handled as in a MERGE statement.
3. The staged files are read as those of any load are (`delta_loader.spark.spark_writes`).
"""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions

from common.schema import backticks, quote_name, schema_from_json, schema_to_json
from common.stage.data_files import shortened
from common.tables.changes import MergeBy, staged_columns
from delta_loader.spark.long_values import avoid_value_folders, needs_other_folders
from delta_loader.spark.session_conf import spark_url
from delta_loader.spark.spark_writes import codec_of, rows_of
from delta_loader.spark.variants import with_variants
from delta_loader.tables.commits import LoadedTotals
from delta_loader.tables.merging.bounds import key_bounds
from delta_loader.tables.merging.statement import MergeStatement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from delta_loader.spark.gateway import Gateway, Java
    from delta_loader.spark.spark_writes import WriteInputs, WriteSessions
    from delta_loader.tables.file_split import SparkWrite


def merge_within(
    sessions: WriteSessions, transaction: Java, writes: Sequence[SparkWrite], work: WriteInputs, *, url: str
) -> tuple[Java, LoadedTotals]:
    """A Java list of the actions that merge the writes into the table at ``url``, and the counts of changed rows.

    The caller commits them in the transaction. Raises what Spark raises.
    """
    by = writes[0].shape.merge
    if by is None or any(write.shape != writes[0].shape for write in writes):
        msg = "writes of different shapes cannot be merged together"
        raise ValueError(msg)
    view = f"staged_events_{uuid.uuid4().hex}"
    columns = schema_from_json(writes[0].shape.schema)
    files = [file for write in writes for file in write.files]
    bounds = key_bounds(files, columns, by.keys, backticks)
    table = f"delta.{quote_name(spark_url(url))}"
    with sessions.writing(optimized=True, codec=codec_of(transaction)) as writer:
        spark, gateway = writer.spark, writer.gateway
        events = with_variants(DataFrame(events_of(gateway, writes, by, work.stage_url), spark), work.variants)
        if needs_other_folders(events, work.partition_by, _properties(gateway, transaction)):
            avoid_value_folders(gateway, transaction)
        statement = MergeStatement(table, view, columns.names, by, bounds)
        if by.truncate is not None and not events.where(functions.col(by.truncate)).isEmpty():
            before = f"{table} VERSION AS OF {int(transaction.readVersion())}"
            statement = replace(statement, bounds=(), truncated=before)
        events.createOrReplaceTempView(view)
        try:
            command = _analysed(gateway, statement.text)
        finally:
            spark.catalog.dropTempView(view)
        return _run(gateway, command, transaction)


def events_of(
    gateway: Gateway, writes: Sequence[SparkWrite], by: MergeBy, stage_url: str, *, lossless: bool = False
) -> Java:
    """All staged events as a Java data frame; ``lossless`` is as in `rows_of`."""
    return rows_of(gateway, event_writes(writes, by), stage_url, lossless=lossless)


def event_writes(writes: Sequence[SparkWrite], by: MergeBy) -> list[SparkWrite]:
    """The writes with all columns of their files; files that are needed in full are read as one."""
    shape = writes[0].shape
    shape = replace(shape, schema=schema_to_json(staged_columns(schema_from_json(shape.schema), by)), merge=None)
    plain = [write for write in writes if write.start is None and not write.without]
    whole = tuple(file for write in plain for file in write.files)
    parts = [replace(plain[0], shape=shape, files=whole)] if whole else []
    return parts + [replace(write, shape=shape) for write in writes if write not in plain]


def _analysed(gateway: Gateway, statement: str) -> Java:
    """Delta's command for a MERGE statement, analyzed and not run."""
    state = gateway.session.sessionState()
    not_run = gateway.class_of("org.apache.spark.sql.execution.CommandExecutionMode").SKIP()
    return state.executePlan(state.sqlParser().parsePlan(statement), not_run).analyzed()


def _run(gateway: Gateway, command: Java, transaction: Java) -> tuple[Java, LoadedTotals]:
    """The part of the command between opening its transaction and committing it."""
    session = gateway.session
    transaction.setTrackHighWaterMarks(command.trackHighWaterMarks())
    clauses = command.matchedClauses(), command.notMatchedClauses()
    command.prepareMergeSource(session, command.source(), command.condition(), *clauses, False)  # noqa: FBT003 - Java
    try:
        actions = gateway.new_list()
        for made in _made(gateway, command, transaction, session):
            actions.addAll(gateway.java(made))
    finally:
        _let_go(command)
    return actions, _brought(gateway.items(actions), command)


def _made(gateway: Gateway, command: Java, transaction: Java, session: Java) -> Iterator[Java]:
    """The lists of actions from Delta's steps."""
    found = command.findTouchedFiles(session, transaction)
    touched, repeated_deletes = found._1(), found._2()  # noqa: SLF001 - a Scala pair
    if not touched.nonEmpty():
        yield command.writeOnlyInserts(session, transaction, False, "numSourceRowsInSecondScan")  # noqa: FBT003 - Java
        return
    _avoid_folders_of(gateway, transaction, touched)
    by_vectors = bool(command.shouldWritePersistentDeletionVectors(session, transaction))
    yield command.writeAllChanges(session, transaction, touched, repeated_deletes, not by_vectors)
    if by_vectors:
        yield command.writeDVs(session, transaction, touched)
    else:
        removes = gateway.new_list()
        for file in gateway.items(gateway.java(touched)):
            removes.add(file.remove())
        yield gateway.scala(removes)


def _avoid_folders_of(gateway: Gateway, transaction: Java, touched: Java) -> None:
    """Rows that are copied from the table may have long values as well (long_values.py, rule 2)."""
    if not gateway.texts(transaction.metadata().partitionColumns()):
        return
    values = {value for file in gateway.plain(touched) for value in file["partitionValues"].values()}
    if any(value is not None and shortened(value) != value for value in values):
        avoid_value_folders(gateway, transaction)


def _properties(gateway: Gateway, transaction: Java) -> dict[str, str]:
    return gateway.properties(transaction.metadata())


def _let_go(command: Java) -> None:
    """Release Delta's cached copy of the source."""
    source = command.getMergeSource()
    if source.isMaterialized():
        source.df().queryExecution().analyzed().rdd().unpersist(False)  # noqa: FBT003 - Java knows no keywords


def _brought(actions: Iterable[Java], command: Java) -> LoadedTotals:
    adds = [found for action in actions if (found := json.loads(str(action.json())).get("add")) is not None]
    metrics = command.metrics()
    changed = ("numTargetRowsInserted", "numTargetRowsUpdated", "numTargetRowsDeleted")
    rows = sum(int(metrics.apply(name).value()) for name in changed)
    return LoadedTotals(len(adds), rows, sum(int(add["size"]) for add in adds))
