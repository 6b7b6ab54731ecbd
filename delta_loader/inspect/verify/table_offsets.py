"""A table's offsets as bitmaps, computed by Spark.

Rules:

1. Rows are never collected: each task turns its files into bitmaps of 32,768 offsets, and only these are shuffled.
   "Each exactly once" is then a comparison of each bitmap's rows with its bits.
2. The bitmaps are computed once for a table, at one version, and cached by Spark, on disk if necessary. The driver sees
   one Kafka partition at a time, bitmap by bitmap.
3. Only where a bitmap shows a fault are rows grouped by offset, with the files that contain them.
4. Timestamps are read only to compare them with Kafka's, and are bitmaps like the offsets
   (delta_loader/inspect/verify/offsets.py). A table whose column is not a timestamp has none.
"""

from collections.abc import Iterator, Sequence
from functools import partial, reduce
from urllib.parse import unquote

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import TimestampType

from common.errors import TableError
from common.remedies import CONFIG
from common.settings.stream import KAFKA_COLUMNS
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.merged import kafka_topic
from delta_loader.inspect.verify.offsets import BUCKET, NO_STAMPS, STAMP_DIGITS, STAMP_PRIME, Bucket, Stamps
from delta_loader.spark.bridge import spark_url, table_errors
from delta_loader.spark.merging.validation import RepeatedKeys

_PLACE = KAFKA_COLUMNS[:3]
_TIME = KAFKA_COLUMNS[3]
_DIGITS = tuple(f"digit_{digit}" for digit in range(STAMP_DIGITS))
_MOST_ROWS = 2000  # checked closely for one fault

_errors = partial(
    table_errors, remedy=f"if a data file is missing, the message names it; see also `delta-loader status {CONFIG}`"
)


class SparkOffsets:
    """The offset columns of some tables, each at one version; `close` releases Spark's cache."""

    def __init__(self, spark: SparkSession, tables: Sequence[tuple[str, int]], *, stamped: bool) -> None:
        """Reads lazily; ``stamped`` says whether timestamps are read, too."""
        self._stamped = stamped
        self._url = ", ".join(url for url, _ in tables)
        with _errors("read", self._url):
            frames = [_offsets_of(spark, url, version) for url, version in tables]
            self._frame: DataFrame = reduce(lambda first, other: first.unionByName(other), frames)
            self._named = self._frame.where("topic IS NOT NULL AND partition IS NOT NULL AND offset >= 0")
            # Spark counts buckets from 1, and its first bucket starts with 1.
            self._bitmaps = (
                self._named.selectExpr(
                    "topic",
                    "partition",
                    "bitmap_bucket_number(offset + 1) - 1 AS bucket",
                    "bitmap_bit_position(offset + 1) AS bit",
                    f"pmod(time_ms, {STAMP_PRIME}) AS stamp",
                )
                .groupBy("topic", "partition", "bucket")
                .agg(
                    functions.expr("count(*) AS amount"),
                    functions.expr("bitmap_construct_agg(bit) AS bits"),
                    *(_stamps() if stamped else ()),
                )
                .persist(StorageLevel.MEMORY_AND_DISK)
            )

    def sources(self) -> list[TopicPartition]:
        with _errors("read", self._url):
            rows = self._bitmaps.select("topic", "partition").distinct().collect()
        return sorted(TopicPartition(Topic(topic), Partition(partition)) for topic, partition in rows)

    def nameless(self) -> int:
        with _errors("read", self._url):
            named = self._bitmaps.agg(functions.sum("amount")).collect()[0][0] or 0
            return int(self._frame.count()) - int(named)

    def buckets(self, partition: TopicPartition) -> Iterator[Bucket]:
        with _errors("read", self._url):
            columns = ("bucket", "amount", "bits", *(("known", *_DIGITS) if self._stamped else ()))
            frame = self._bitmaps.where(_is(partition)).orderBy("bucket").select(*columns)
            for bucket, amount, *bitmaps in frame.toLocalIterator():
                bits, *stamps = (int.from_bytes(bitmap, "little") for bitmap in bitmaps)
                stamped = Stamps(stamps[0], tuple(stamps[1:])) if stamps else NO_STAMPS
                yield Bucket(int(bucket) * BUCKET, int(amount), bits, stamped)

    def timestamp_ms(self, partition: TopicPartition, offset: int) -> int | None:
        with _errors("read", self._url):
            span = Span(Position(offset), Position(offset + 1))
            earliest_ms = self._within(partition, [span]).agg(functions.min("time_ms")).collect()[0][0]
        return None if earliest_ms is None else int(earliest_ms)

    def loaded_twice(self, partition: TopicPartition, spans: Sequence[Span]) -> list[tuple[int, tuple[str, ...]]]:
        with _errors("read", self._url):
            rows = (
                self._within(partition, spans)
                .groupBy("offset")
                .agg(functions.count("*").alias("amount"), functions.collect_set("file").alias("files"))
                .where("amount > 1")
                .orderBy("offset")
                .limit(_MOST_ROWS)
                .collect()
            )
        return [(int(row["offset"]), tuple(sorted(map(unquote, row["files"])))) for row in rows]

    def files(self, partition: TopicPartition, spans: Sequence[Span]) -> list[str]:
        with _errors("read", self._url):
            rows = self._within(partition, spans).select("file").distinct().limit(_MOST_ROWS).collect()
        return sorted(unquote(row["file"]) for row in rows)

    def close(self) -> None:
        self._bitmaps.unpersist()

    def _within(self, partition: TopicPartition, spans: Sequence[Span]) -> DataFrame:
        within = " OR ".join(f"(offset >= {span.start} AND offset < {span.end})" for span in spans) or "false"
        return self._named.where(_is(partition)).where(within)


class SparkContents(RepeatedKeys):
    """Opens tables' contents in one Spark session."""

    def offsets(self, *tables: tuple[str, int], stamped: bool) -> SparkOffsets:
        return SparkOffsets(self._spark, tables, stamped=stamped)

    def count(self, url: str, version: int) -> int:
        with _errors("read", url):
            return int(self._spark.read.format("delta").option("versionAsOf", version).load(spark_url(url)).count())


def _offsets_of(spark: SparkSession, url: str, version: int) -> DataFrame:
    frame = spark.read.format("delta").option("versionAsOf", version).load(spark_url(url))
    missing = [name for name in _PLACE if name not in frame.columns]
    if missing:
        msg = f"the Delta table {url} has no column {', '.join(missing)}: its rows do not identify their records"
        raise TableError(
            msg,
            f"`delta-loader check {CONFIG}` prints the statement that adds them; kafka_columns: false is for a "
            "table without",
        )
    has_times = _TIME in frame.columns and isinstance(frame.schema[_TIME].dataType, TimestampType)
    return frame.select(
        functions.col("_kafka_topic").alias("topic"),
        functions.col("_kafka_partition").alias("partition"),
        functions.col("_kafka_offset").alias("offset"),
        functions.col("_metadata.file_path").alias("file"),
        functions.expr(f"unix_millis({_TIME})" if has_times else "CAST(NULL AS BIGINT)").alias("time_ms"),
    )


def _stamps() -> list[Column]:
    """A bucket's `Stamps`: which offsets have a timestamp, and the digits of its remainder."""
    conditions = {"known": "stamp IS NOT NULL"} | {
        name: f"getbit(stamp, {digit}) = 1" for digit, name in enumerate(_DIGITS)
    }
    return [
        functions.expr(f"bitmap_construct_agg(bit) FILTER (WHERE {condition}) AS {name}")
        for name, condition in conditions.items()
    ]


def _is(partition: TopicPartition) -> str:
    # A topic's name has letters, digits, dots, dashes and underscores only.
    return f"topic = '{kafka_topic(partition.topic)}' AND partition = {partition.partition}"
