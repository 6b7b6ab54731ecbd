"""Rows that go through Spark: staged files are read, filtered, and written by Delta's own writer in a transaction.

Rules:

1. The files are read as the manifest describes them: their paths, schema and partition values are passed to Delta's own
   reader. Nothing is listed, inferred from a folder's name, or skipped because of a name's prefix.
2. An unreadable file is an error, regardless of the session's settings for missing and damaged files: a row left out
   silently would be lost, because the txn actions move past it.
3. Nothing is read from the *table*, so the commit is a blind append like any other.
4. Rows of many partition values are shuffled by these first, so a commit has one file per value and not one per value
   and staged file. Where Spark writes all rows, Delta's optimized write does it, which handles generated partition
   columns, and combines many small files into a few large ones.
5. A value is cast to the table's type where casting back gives the same one; any other value fails the job.
6. Delta's requirements on rows (generated columns, identity, defaults, constraints) are handled by its writer, in this
   transaction: the metadata that it reads and changes (an identity column's high-water mark) is committed with the
   rows.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, functions

from common.schema import backticks, quote_text, schema_from_json, schema_to_json
from common.stage.row_places import place_fields
from delta_loader.spark.dead_letters import letters_frame
from delta_loader.spark.gateway import Gateway
from delta_loader.spark.long_values import (
    avoid_value_folders,
    digestible,
    needs_other_folders,
    with_digests,
    with_values,
)
from delta_loader.spark.variants import with_variants
from delta_loader.tables.commits import LoadedTotals
from delta_loader.tables.file_split import OFFSET_COLUMN
from delta_loader.tables.load_modes.load_mode import through_spark

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from pyspark.sql import SparkSession

    from common.stage.row_places import Place
    from delta_loader.plan.plan import TableShape
    from delta_loader.spark.gateway import Java
    from delta_loader.tables.commits import TableCommit
    from delta_loader.tables.file_split import RecordPlace, SparkWrite
    from delta_loader.tables.load_modes.load_mode import LoadMode


@dataclass(frozen=True, slots=True)
class WriteInputs:
    """The inputs of a write other than its files."""

    stage_url: str
    """Where mixed files are stored."""
    partition_by: tuple[str, ...]
    """The table's partition columns."""
    way: LoadMode
    variants: tuple[str, ...] = ()
    """The table's columns that are converted from JSON text."""


_UNFORGIVING = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
_CODEC_PROPERTY = "delta.parquet.compression.codec"
_CODEC = "spark.sql.parquet.compression.codec"
_CODECS = ("uncompressed", "none", "snappy", "gzip", "lz4", "lz4_raw", "zstd")
_OPTIMIZED = "spark.databricks.delta.optimizeWrite.enabled"


@dataclass(frozen=True, slots=True)
class Writer:
    """A session with the settings for one kind of write."""

    spark: SparkSession
    gateway: Gateway


def write_within(
    sessions: WriteSessions, transaction: Java, commit: TableCommit, work: WriteInputs
) -> tuple[Java, LoadedTotals]:
    """A Java list of the new files' actions, and their counts; the caller commits them in the transaction.

    Raises what Spark raises.
    """
    with sessions.writing(optimized=through_spark(work.way), codec=codec_of(transaction)) as writer:
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
        if needs_other_folders(frame, others, gateway.properties(transaction.metadata())):
            avoid_value_folders(gateway, transaction)
        written = with_digests(frame, digested)._jdf  # noqa: SLF001 - as below
        adds = with_values(gateway, gateway.java(transaction.writeFiles(written)), frame, digested)
    return adds, sum((_brought(str(add.json())) for add in gateway.items(adds)), start=LoadedTotals())


def _digestible(gateway: Gateway, transaction: Java, rows: DataFrame, partition_by: Sequence[str]) -> list[str]:
    """The partition columns whose long values are replaced by a digest (long_values.py)."""
    metadata = transaction.metadata()
    properties = gateway.properties(metadata)
    features = set(gateway.texts(transaction.protocol().readerAndWriterFeatureNames()))
    return digestible(rows, partition_by, properties, features, str(metadata.schemaString()))


def rows_of(
    gateway: Gateway, writes: Sequence[SparkWrite], stage_url: str, *, lossless: bool = False, placed: bool = False
) -> Java:
    """All rows of some writes as a Java data frame, with the table's types; missing columns are null.

    A value that its type cannot represent makes the job fail; with ``lossless``, its row is left out. ``placed`` is as
    in `staged_rows`.
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
    """Shuffle the rows so that those of one partition value are together (rule 4)."""
    columns = [functions.col(backticks(name)) for name in partition_by]
    return DataFrame(rows, spark).repartition(*columns)._jdf  # noqa: SLF001 - what Delta's transaction takes


def staged_rows(gateway: Gateway, write: SparkWrite, stage_url: str, *, placed: bool = False) -> Java:
    """The rows of one write as a Java data frame, with the columns and types of the staged schema.

    ``placed``: also with the columns of their record identity, if the schema lacks them.
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
    """The files' shape, with the columns that the schema lacks, and their names."""
    columns = schema_from_json(write.shape.schema)
    more = [field for field in place_fields(write.place) if columns.field(field.name) is None] if write.place else []
    if not more:
        return write.shape, ()
    return replace(write.shape, schema=schema_to_json(columns.with_fields(more))), tuple(field.name for field in more)


class WriteSessions:
    """The sessions for writes: one for each setting, next to the loader's own, in the same JVM.

    Writes that need different settings thus never wait for one another, and their settings affect no other query.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Derived from a session of `delta_loader.spark.session.build_session`, with the same options."""
        self._gateway = Gateway(spark)
        self._spark = spark
        self._lock = Lock()
        self._writers: dict[tuple[bool, str | None], Writer] = {
            (optimized, None): _writer(spark, optimized=optimized, codec=None) for optimized in (False, True)
        }

    @contextmanager
    def writing(self, *, optimized: bool, codec: str | None = None) -> Iterator[Writer]:
        """The writer; its session is this thread's active one until the end of the context, then the loader's again.

        ``codec`` compresses the files; None is the loader's own setting.
        """
        with self._lock:
            writer = self._writers.get((optimized, codec))
            if writer is None:
                writer = _writer(self._spark, optimized=optimized, codec=codec)
                self._writers[optimized, codec] = writer
        writer.gateway.activate(writer.gateway.session)
        try:
            yield writer
        finally:
            self._gateway.activate(self._gateway.session)


def codec_of(transaction: Java) -> str | None:
    """The compression that the table asks for, in a property that Delta's own writer does not know."""
    found = transaction.metadata().configuration().get(_CODEC_PROPERTY)
    codec = str(found.get()).lower() if found.isDefined() else None
    return codec if codec in _CODECS else None


def _writer(spark: SparkSession, *, optimized: bool, codec: str | None) -> Writer:
    session = spark.newSession()
    more = {} if codec is None else {_CODEC: codec}
    for key, value in {**_UNFORGIVING, _OPTIMIZED: str(optimized).lower(), **more}.items():
        session.conf.set(key, value)
    return Writer(session, Gateway(session))


def _brought(action: str) -> LoadedTotals:
    """The counts of one file action of Delta's writer; change data files are not rows of the table."""
    add = json.loads(action).get("add")
    if add is None:
        return LoadedTotals()
    return LoadedTotals(1, int(json.loads(add.get("stats") or "{}").get("numRecords", 0)), int(add["size"]))
