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
7. JSON text becomes VARIANT by Spark's own parser. No row is refused and nothing is lost: text that Spark does not
   accept (a duplicate key in an object, nesting deeper than its parser supports, larger than a VARIANT may be) is kept
   as a VARIANT that is this text. Numbers become what Spark makes of them: exact up to 38 digits, the nearest DOUBLE
   beyond.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial, reduce
from threading import Lock

from pyspark.sql import DataFrame, SparkSession, functions
from pyspark.sql.types import StringType

from common.schema import backticks, quote_text, schema_from_json, schema_to_json
from common.schema.ddl import quote_name
from common.tables.changes import IdentityColumns, identity_fields
from common.tables.state import TableState
from delta_loader.plan.plan import TableShape
from delta_loader.spark.bridge import Bridge, Line, LoadTransaction
from delta_loader.spark.long_values import digestible, needs_other_folders, with_digests, with_values
from delta_loader.tables.commits import DeadLetterRow, LoadedTotals, TableCommit
from delta_loader.tables.file_split import OFFSET_COLUMN, RecordPosition, SparkWrite
from delta_loader.tables.load_modes.casting import Cast
from delta_loader.tables.load_modes.load_mode import LoadMode


@dataclass(frozen=True, slots=True)
class WriteInputs:
    stage_url: str
    """Where mixed files are stored."""
    table: TableState
    load_mode: LoadMode
    variants: tuple[str, ...] = ()
    """The table's columns that are converted from JSON text."""


_UNFORGIVING = {"spark.sql.files.ignoreMissingFiles": "false", "spark.sql.files.ignoreCorruptFiles": "false"}
_CODEC_PROPERTY = "delta.parquet.compression.codec"
_CODEC = "spark.sql.parquet.compression.codec"
_CODECS = ("uncompressed", "none", "snappy", "gzip", "lz4", "lz4_raw", "zstd")
_OPTIMIZED = "spark.databricks.delta.optimizeWrite.enabled"


def write_within(
    sessions: WriteSessions, transaction: LoadTransaction, commit: TableCommit, work: WriteInputs
) -> tuple[list[Line], LoadedTotals]:
    """Write what goes through Spark. The actions to commit instead of the files' own, and the new files' counts.

    The caller commits them in the transaction. Raises what Spark raises.
    """
    writer, table = sessions.writer(optimized=work.load_mode.through_spark, codec=codec_of(work.table)), work.table
    if commit.dead_letter_rows:
        frame = dead_letters_frame(writer.spark, commit.dead_letter_rows, schema_from_json(table.schema).names)
    else:
        frame = with_variants(rows_of(writer, commit.written, work.stage_url), work.variants)
    is_mixed = any(write.root is None for write in commit.written)
    if is_mixed and table.partition_by and not work.load_mode.through_spark:
        # Rows of one partition value together (rule 4).
        frame = frame.repartition(*(functions.col(backticks(name)) for name in table.partition_by))
    digested = digestible(frame, table)
    others = [name for name in table.partition_by if name not in digested]
    if needs_other_folders(frame, others, table.properties):
        transaction.use_random_folders()
    lines = transaction.write(with_digests(frame, digested))
    return with_values(lines, frame, digested), sum(map(_totals, lines), start=LoadedTotals())


def rows_of(
    bridge: Bridge, writes: Sequence[SparkWrite], stage_url: str, *, lossless: bool = False, placed: bool = False
) -> DataFrame:
    """All rows of some writes, with the table's types; missing columns are null.

    A value that its type cannot represent makes the job fail; with ``lossless``, its row is left out. ``placed`` is as
    in `staged_rows`.
    """
    return reduce(
        partial(DataFrame.unionByName, allowMissingColumns=True),
        (_cast(staged_rows(bridge, write, stage_url, placed=placed), write.casts, lossless) for write in writes),
    )


def _cast(rows: DataFrame, casts: Sequence[Cast], lossless: bool) -> DataFrame:  # noqa: FBT001 - private
    for cast in casts if lossless else ():
        rows = rows.where(f"NOT {cast.loses}")
    for cast in casts:
        guarded = f"CASE WHEN {cast.loses} THEN raise_error({quote_text(cast.problem)}) ELSE {cast.value} END"
        rows = rows.withColumn(cast.column, functions.expr(cast.value if lossless else guarded))
    return rows


def staged_rows(bridge: Bridge, write: SparkWrite, stage_url: str, *, placed: bool = False) -> DataFrame:
    """The rows of one write, with the columns and types of the staged schema.

    ``placed``: also with the columns of their record identity, if the schema lacks them.
    """
    shape, more = _with_place(write) if placed or write.without else (write.shape, ())
    rows = bridge.rows(write.root or stage_url, shape, write.files)
    if write.start is not None:
        rows = rows.where(f"`{OFFSET_COLUMN}` >= {write.start}")
    if write.without and write.identity is not None:
        rows = rows.where(_is_none_of(write.without, write.identity))
    return rows if placed else rows.drop(*more)


def _is_none_of(records: Sequence[RecordPosition], identity: IdentityColumns) -> str:
    topic, _, offset = map(backticks, identity)
    by_topic: dict[str, list[str]] = {}
    for partition, offsets in records:
        by_topic.setdefault(partition.topic, []).append(str(offsets))
    conditions = (f"({topic} = {quote_text(name)} AND {offset} IN ({', '.join(of)}))" for name, of in by_topic.items())
    return f"NOT ({' OR '.join(conditions)})"


def _with_place(write: SparkWrite) -> tuple[TableShape, tuple[str, ...]]:
    """The files' shape, with the columns that the schema lacks, and their names."""
    columns = schema_from_json(write.shape.schema)
    more = (
        [field for field in identity_fields(write.identity) if columns.field(field.name) is None]
        if write.identity
        else []
    )
    if not more:
        return write.shape, ()
    return replace(write.shape, schema=schema_to_json(columns.with_fields(more))), tuple(field.name for field in more)


class WriteSessions:
    """The sessions for writes: one for each setting, next to the loader's own, in the same JVM.

    Writes that need different settings thus never wait for one another, and their settings affect no other query.
    """

    def __init__(self, spark: SparkSession) -> None:
        """Derived from a session of `delta_loader.spark.session.build_session`, with the same options."""
        self._spark = spark
        self._lock = Lock()
        self._writers: dict[tuple[bool, str | None], Bridge] = {}

    def writer(self, *, optimized: bool, codec: str | None = None) -> Bridge:
        """The bridge over the session for a kind of write.

        ``codec`` compresses the files; None is the loader's own setting.
        """
        with self._lock:
            writer = self._writers.get((optimized, codec))
            if writer is None:
                session = self._spark.newSession()
                more = {} if codec is None else {_CODEC: codec}
                for key, value in {**_UNFORGIVING, _OPTIMIZED: str(optimized).lower(), **more}.items():
                    session.conf.set(key, value)
                writer = self._writers[optimized, codec] = Bridge(session)
        return writer


def codec_of(table: TableState) -> str | None:
    """The compression that the table asks for, in a property that Delta's own writer does not know."""
    codec = table.properties.get(_CODEC_PROPERTY, "").lower()
    return codec if codec in _CODECS else None


def _totals(line: Line) -> LoadedTotals:
    """The counts of one file action of Delta's writer; change data files are not rows of the table."""
    add = line.get("add")
    if add is None:
        return LoadedTotals()
    rows = json.loads(str(add.get("stats") or "{}")).get("numRecords", 0)
    return LoadedTotals(1, int(rows), int(str(add["size"])))


_COLUMNS = (
    "_kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT, _kafka_timestamp TIMESTAMP, key BINARY, "
    "value BINARY, error_class STRING, error STRING"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def dead_letters_frame(
    spark: SparkSession, dead_letters: Iterable[DeadLetterRow], columns: Collection[str]
) -> DataFrame:
    """A data frame with those columns that the table has: an older table may lack some."""
    rows = [
        (
            letter.partition.topic,
            int(letter.partition.partition),
            int(letter.offset),
            None if letter.timestamp_ms is None else _EPOCH + timedelta(milliseconds=letter.timestamp_ms),
            None if letter.key is None else bytearray(letter.key),
            None if letter.value is None else bytearray(letter.value),
            letter.error_class,
            letter.error,
        )
        for letter in dead_letters
    ]
    frame = spark.createDataFrame(rows, _COLUMNS).coalesce(1)
    return frame.select(*(name for name in frame.columns if name in columns))


def with_variants(rows: DataFrame, names: Collection[str]) -> DataFrame:
    """The rows with those of these columns that were staged, as text, converted to VARIANT."""
    staged = [field.name for field in rows.schema if field.name in names and isinstance(field.dataType, StringType)]
    return rows.withColumns({name: functions.expr(_variant(quote_name(name))) for name in staged}) if staged else rows


def _variant(text: str) -> str:
    return f"coalesce(try_parse_json({text}), CAST({text} AS VARIANT))"
