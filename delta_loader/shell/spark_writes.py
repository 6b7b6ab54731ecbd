"""Rows that go through Spark: staged files are read, filtered, and written by Delta's own writer in a transaction.

Rules:

1. The files are read as the manifest describes them: their paths, schema and partition values are given to Delta's own
   reader. Nothing is listed, guessed from a folder's name, or passed over for how its name begins.
2. What cannot be read is an error, whatever the session's settings say of missing and damaged files: a row left out in
   silence would be lost, because the txn actions move over it.
3. Nothing is read of the *table*, so that the commit is a blind append like any other.
4. Rows of many partition values are shuffled by these first, so that a commit has one file for each value and not one
   for each value and staged file. Where Spark writes all rows Delta's optimized write does it, which knows generated
   partition columns, and makes few large files of many small ones.
5. A value is cast to the table's type where casting back gives the same one; any other ends the job.
6. What Delta asks of rows (generated columns, identity, defaults, constraints) its writer sees to, in this transaction:
   the metadata that it reads and moves (an identity column's high-water mark) is committed with the rows.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions

from common.schema import backticks, quote_text, schema_from_json, schema_to_json
from common.stage.row_places import place_fields
from delta_loader.core.commits import Brought
from delta_loader.core.file_split import OFFSET_COLUMN
from delta_loader.core.load_modes.load_mode import through_spark
from delta_loader.shell.dead_letters import letters_frame
from delta_loader.shell.gateway import Gateway
from delta_loader.shell.long_values import (
    avoid_value_folders,
    digestible,
    needs_other_folders,
    with_digests,
    with_values,
)
from delta_loader.shell.variants import with_variants

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from common.stage.row_places import Place
    from delta_loader.core.commits import TableCommit
    from delta_loader.core.file_split import RecordPlace, SparkWrite
    from delta_loader.core.load_modes.load_mode import LoadMode
    from delta_loader.core.plan import TableShape
    from delta_loader.shell.gateway import Java


@dataclass(frozen=True, slots=True)
class Work:
    """What a write has to know beside its files."""

    stage_url: str
    """Where mixed files lie."""
    partition_by: tuple[str, ...]
    """The table's partition columns."""
    way: LoadMode
    variants: tuple[str, ...] = ()
    """The table's columns that are made of JSON text."""


_UNFORGIVING = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
_OPTIMIZED = "spark.databricks.delta.optimizeWrite.enabled"


@dataclass(frozen=True, slots=True)
class Writer:
    """A session whose settings are those of one kind of write."""

    spark: SparkSession
    gateway: Gateway


def write_within(sessions: WriteSessions, transaction: Java, commit: TableCommit, work: Work) -> tuple[Java, Brought]:
    """A Java list of the new files' actions, and what they come to; they are the transaction's to commit.

    Raises what Spark raises.
    """
    with sessions.writing(optimized=through_spark(work.way)) as writer:
        spark, gateway = writer.spark, writer.gateway
        if commit.letters:
            columns = [str(name) for name in transaction.metadata().schema().fieldNames()]
            rows = letters_frame(spark, commit.letters, columns)
        else:
            rows = rows_of(gateway, commit.written, work.stage_url)
            rows = with_variants(DataFrame(rows, spark), work.variants)._jdf  # noqa: SLF001 - as below
        if any(write.root is None for write in commit.written) and not through_spark(work.way):
            rows = _clustered(spark, rows, work.partition_by)
        frame = DataFrame(rows, spark)
        digested = _digestible(gateway, transaction, frame, work.partition_by)
        others = [name for name in work.partition_by if name not in digested]
        if needs_other_folders(frame, others, dict(gateway.java(transaction.metadata().configuration()))):
            avoid_value_folders(gateway, transaction)
        written = with_digests(frame, digested)._jdf  # noqa: SLF001 - as below
        adds = with_values(gateway, gateway.java(transaction.writeFiles(written)), frame, digested)
    return adds, sum((_brought(str(add.json())) for add in adds), start=Brought())


def _digestible(gateway: Gateway, transaction: Java, rows: DataFrame, partition_by: Sequence[str]) -> list[str]:
    """The partition columns whose long values go by a digest (long_values.py)."""
    metadata = transaction.metadata()
    properties = dict(gateway.java(metadata.configuration()))
    features = set(gateway.texts(transaction.protocol().readerAndWriterFeatureNames()))
    return digestible(rows, partition_by, properties, features, str(metadata.schemaString()))


def rows_of(
    gateway: Gateway, writes: Sequence[SparkWrite], stage_url: str, *, lossless: bool = False, placed: bool = False
) -> Java:
    """All rows of some writes as a Java data frame, with the table's types; columns that one lacks are null.

    A value that is none of its type makes the job fail, or with ``lossless`` its row is left out. ``placed`` is as in
    `staged_rows`.
    """
    rows: Java = None
    for write in writes:
        more = staged_rows(gateway, write, stage_url, placed=placed)
        for cast in write.casts if lossless else ():
            more = more.where(f"NOT {cast.loses}")
        for cast in write.casts:
            guarded = f"CASE WHEN {cast.loses} THEN raise_error({quote_text(cast.problem)}) ELSE {cast.value} END"
            expression = gateway.jvm.org.apache.spark.sql.functions.expr(cast.value if lossless else guarded)
            more = more.withColumn(cast.column, expression)
        rows = more if rows is None else rows.unionByName(more, True)  # noqa: FBT003 - Java knows no keywords
    return rows


def _clustered(spark: SparkSession, rows: Java, partition_by: Sequence[str]) -> Java:
    """All rows of a partition value beside one another (rule 4)."""
    columns = [functions.col(backticks(name)) for name in partition_by]
    return DataFrame(rows, spark).repartition(*columns)._jdf  # noqa: SLF001 - what Delta's transaction takes


def staged_rows(gateway: Gateway, write: SparkWrite, stage_url: str, *, placed: bool = False) -> Java:
    """The rows of one write as a Java data frame, with the columns and types of the staged schema.

    ``placed``: also with those that say of which records they are, where the schema has them not.
    """
    log = gateway.log(write.root or stage_url)
    shape, more = _with_place(write) if placed or write.without else (write.shape, ())
    metadata = gateway.metadata("staged", shape, 0)
    staged = gateway.delta.DummySnapshot(log.logPath(), log, metadata, gateway.none, gateway.none)
    files = gateway.scala(gateway.adds(write.files, 0))
    rows = log.createDataFrame(staged, files, False, gateway.none)  # noqa: FBT003 - Java knows no keywords
    if write.start is not None:
        rows = rows.where(f"`{OFFSET_COLUMN}` >= {write.start}")
    if write.without and write.place is not None:
        rows = rows.where(_is_none_of(write.without, write.place))
    for name in () if placed else more:
        rows = rows.drop(name)
    return rows


def _is_none_of(records: Sequence[RecordPlace], place: Place) -> str:
    topic, _, offset = map(backticks, place)
    by_topic: dict[str, list[str]] = {}
    for source, found in records:
        by_topic.setdefault(source.topic, []).append(str(found))
    said = (f"({topic} = {quote_text(name)} AND {offset} IN ({', '.join(of)}))" for name, of in by_topic.items())
    return f"NOT ({' OR '.join(said)})"


def _with_place(write: SparkWrite) -> tuple[TableShape, tuple[str, ...]]:
    """What the files have, with the columns that the schema has not, and which those are."""
    columns = schema_from_json(write.shape.schema)
    more = [field for field in place_fields(write.place) if columns.field(field.name) is None] if write.place else []
    if not more:
        return write.shape, ()
    return replace(write.shape, schema=schema_to_json(columns.with_fields(more))), tuple(field.name for field in more)


class WriteSessions:
    """The sessions that write: one for each setting, next to the loader's own, in the same JVM.

    So writes that need different settings never wait for one another, and what they need concerns no other query.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Next to a session that `delta_loader.shell.spark.build_session` made, whose options they have."""
        self._gateway = Gateway(spark)
        self._writers = {optimized: _writer(spark, optimized=optimized) for optimized in (False, True)}

    @contextmanager
    def writing(self, *, optimized: bool) -> Iterator[Writer]:
        """What to write with; this thread's active session is the writer's meanwhile, and then the loader's again."""
        writer = self._writers[optimized]
        writer.gateway.activate(writer.gateway.session)
        try:
            yield writer
        finally:
            self._gateway.activate(self._gateway.session)


def _writer(spark: SparkSession, *, optimized: bool) -> Writer:
    session = spark.newSession()
    for key, value in {**_UNFORGIVING, _OPTIMIZED: str(optimized).lower()}.items():
        session.conf.set(key, value)
    return Writer(session, Gateway(session))


def _brought(action: str) -> Brought:
    """What one file action of Delta's writer brings; change data files are no rows of the table."""
    add = json.loads(action).get("add")
    if add is None:
        return Brought()
    return Brought(1, int(json.loads(add.get("stats") or "{}").get("numRecords", 0)), int(add["size"]))
