"""What the writer's metrics and log say about what was taken in and what was sealed."""

from __future__ import annotations

from collections import Counter, deque
from typing import TYPE_CHECKING

from common import metrics as catalogue
from common.pages.model import Event
from common.stage.markers import TableKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from structlog.typing import FilteringBoundLogger

    from common.metrics import Metrics
    from common.pages.samples import Samples
    from common.ports import Clock
    from stage_writer.core.batch import MessageBatch
    from stage_writer.core.flushing import FlushReason
    from stage_writer.core.parquet.buffer import StagedRows
    from stage_writer.ports import Sealed

_FLUSHES = 50


class Teller:
    """Counts and logs; decides nothing."""

    def __init__(
        self, clock: Clock, log: FilteringBoundLogger, metrics: Metrics, samples: Samples | None = None
    ) -> None:
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self.samples = samples
        """None where none are kept."""
        self.flushes: deque[Event] = deque(maxlen=_FLUSHES)
        """The last ones, for the status page."""
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """By stream and class, since the start."""

    def took(self, records: int, seconds: float) -> None:
        """Records of one stream were converted together."""
        self._metrics.observe(catalogue.WRITER_BATCH_RECORDS, records)
        self._metrics.observe(catalogue.WRITER_CONVERT_SECONDS, seconds)

    def polled(self, batch: MessageBatch, new: MessageBatch) -> None:
        """A batch came, of which some may have been there before."""
        topic = batch.source.topic
        self._metrics.add(catalogue.WRITER_RECORDS, len(batch), topic=topic)
        self._metrics.add(catalogue.WRITER_VALUE_BYTES, batch.values.nbytes, topic=topic)
        if len(new) < len(batch):
            self._metrics.add(catalogue.WRITER_REPEATED, len(batch) - len(new), topic=topic)

    def converted(self, batch: MessageBatch, app_id: str, staged: StagedRows) -> None:
        """A batch was converted."""
        if staged.tombstones:
            self._metrics.add(catalogue.WRITER_TOMBSTONES, staged.tombstones, topic=batch.source.topic)
        if staged.filtered:
            self._metrics.add(catalogue.WRITER_FILTERED, staged.filtered, app_id=app_id)
        for error_class, count in staged.dead_letters.items():
            self._metrics.add(catalogue.WRITER_DEAD_LETTERS, count, app_id=app_id, error_class=error_class)
            self.dead_letters[app_id, error_class] += count
        if staged.dead_letters and self.samples is not None:
            self.samples.add(app_id, _letters(staged.rows[-1]))

    def sealed(self, app_id: str, sealed: Sealed, reason: FlushReason, seconds: float) -> None:
        """A flush has its marker."""
        source, span, manifest = sealed.marker.name.topic_partition, sealed.marker.span, sealed.marker.manifest
        tables = () if manifest is None else manifest.tables
        rows = sum(table.rows for table in tables if table.kind is TableKind.ROWS)
        self._log.info(
            "sealed",
            partition=str(source),
            start=span.start,
            end=span.end,
            rows=rows,
            files=sealed.files,
            size_bytes=sealed.size_bytes,
            reason=reason.value,
        )
        what = f"{source} {span}"
        bytes_, time_ms = sealed.size_bytes, self._clock.wall_ms()
        self.flushes.append(Event(time_ms, app_id, what, rows, sealed.files, bytes_, seconds, reason.value))
        metrics = self._metrics
        metrics.add(catalogue.WRITER_FLUSHES, app_id=app_id, reason=reason.value)
        metrics.add(catalogue.WRITER_FILES, sealed.files, app_id=app_id)
        metrics.add(catalogue.WRITER_BYTES, sealed.size_bytes, app_id=app_id)
        metrics.add(catalogue.WRITER_ROWS, rows, app_id=app_id)
        metrics.observe(catalogue.WRITER_FLUSH_SECONDS, seconds)
        for table in sealed.marker.tables:
            for file in table.files:
                metrics.observe(catalogue.WRITER_FILE_BYTES, file.size_bytes)
        metrics.set(catalogue.WRITER_LAST_FLUSH, self._clock.wall_ms() / 1000)
        labels = {"topic": str(source.topic), "partition": str(source.partition)}
        metrics.set(catalogue.WRITER_STAGED_POSITION, span.end, **labels)


def _letters(rows: pa.Table) -> Iterator[tuple[str, str, bytes | None]]:
    """Class, place and value of the last dead letters of a batch."""
    for row in rows.slice(max(0, rows.num_rows - _FLUSHES)).to_pylist():
        place = f"{row['_kafka_topic']}/{row['_kafka_partition']} @ {row['_kafka_offset']:,}"
        yield str(row["error_class"]), place, row["value"]
