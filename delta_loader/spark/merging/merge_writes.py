"""Merges staged events by Delta's own MERGE, which runs whole in the load's transaction.

Delta's command starts its own transaction and commits it with at most one txn action, so a load of several Kafka
partitions could not be exactly once. Here it is given the load's transaction instead, in which its commit is the load's
(`LoadTransaction.java`): the changed rows and the positions of all partitions are one commit of Delta's log, and no
crash comes between them.

Rules:

1. The table is read through the transaction: the command records the condition's predicates and the files, so any
   commit that changed rows which the merge has read, or would have read, is a conflict.
2. Nothing of a merge is done here: a statement goes in, and constraints, generated columns, deletion vectors, change
   data, row tracking and lost copies of the source are Delta's.
3. The staged files are read as those of any load are (`delta_loader.spark.spark_writes`).
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

from pyspark.sql import DataFrame, functions

from common.schema import backticks, schema_from_json, schema_to_json
from common.tables.changes import MergeBy, staged_columns
from delta_loader.spark.bridge import Bridge, LoadTransaction, sql_table
from delta_loader.spark.long_values import needs_other_folders
from delta_loader.spark.spark_writes import WriteInputs, WriteSessions, codec_of, rows_of, with_variants
from delta_loader.tables.commits import TableCommit
from delta_loader.tables.file_split import SparkWrite
from delta_loader.tables.merging.bounds import bounded_keys, key_bounds
from delta_loader.tables.merging.elements import element_statement
from delta_loader.tables.merging.history import HistoryStatement
from delta_loader.tables.merging.statement import MergeStatement


def merge_within(
    sessions: WriteSessions,
    transaction: LoadTransaction,
    commit: TableCommit,
    work: WriteInputs,
    load: Mapping[str, object],
) -> int:
    """Merge a commit's writes into its table, and commit the load with them; the table's new version.

    Raises what Spark raises.
    """
    writes = commit.written
    by = writes[0].shape.merge
    if by is None or any(write.shape != writes[0].shape for write in writes):
        raise ValueError("writes of different shapes cannot be merged together")
    view = f"staged_events_{uuid.uuid4().hex}"
    columns = schema_from_json(writes[0].shape.schema)
    files = [file for write in writes for file in write.files]
    bounds = key_bounds(files, columns, bounded_keys(by), backticks)
    table = sql_table(commit.target.url)
    before = f"{table} VERSION AS OF {work.table.version}"
    statement: MergeStatement | HistoryStatement
    if by.element:
        statement = element_statement(table, view, columns.names, by, bounds, before=before)
    elif by.history:
        statement = HistoryStatement(table, view, columns.names, by, bounds, before=before)
    else:
        statement = MergeStatement(table, view, columns.names, by, bounds)
    writer = sessions.writer(optimized=True, codec=codec_of(work.table))
    events = with_variants(events_of(writer, writes, by, work.stage_url), work.variants)
    if needs_other_folders(events, work.table.partition_by, work.table.properties):
        transaction.use_random_folders()
    if by.truncate is not None and not events.where(functions.col(by.truncate)).isEmpty():
        statement = statement.with_truncated(before)
    events.createOrReplaceTempView(view)
    try:
        return transaction.merge(events, statement.text, load)
    finally:
        writer.spark.catalog.dropTempView(view)


def events_of(
    bridge: Bridge, writes: Sequence[SparkWrite], by: MergeBy, stage_url: str, *, lossless: bool = False
) -> DataFrame:
    """All staged events; ``lossless`` is as in `rows_of`."""
    return rows_of(bridge, event_writes(writes, by), stage_url, lossless=lossless)


def event_writes(writes: Sequence[SparkWrite], by: MergeBy) -> list[SparkWrite]:
    """The writes with all columns of their files; files that are needed in full are read as one."""
    shape = writes[0].shape
    shape = replace(shape, schema=schema_to_json(staged_columns(schema_from_json(shape.schema), by)), merge=None)
    plain = [write for write in writes if write.start is None and not write.without]
    whole = tuple(file for write in plain for file in write.files)
    parts = [replace(plain[0], shape=shape, files=whole)] if whole else []
    return parts + [replace(write, shape=shape) for write in writes if write not in plain]
