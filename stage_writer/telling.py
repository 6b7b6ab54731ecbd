"""What the writer's metrics and log say about what was taken in and what was sealed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common import metrics as catalogue
from common.markers import TableKind

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

    from common.metrics import Metrics
    from common.ports import Clock
    from stage_writer.core.batch import MessageBatch
    from stage_writer.core.flushing import FlushReason
    from stage_writer.core.parquet.buffer import StagedRows
    from stage_writer.ports import Sealed


class Teller:
    """Counts and logs; decides nothing."""

    def __init__(self, clock: Clock, log: FilteringBoundLogger, metrics: Metrics) -> None:
        self._clock = clock
        self._log = log
        self._metrics = metrics

    def polled(self, batch: MessageBatch, new: MessageBatch) -> None:
        """A batch came, of which some may have been there before."""
        topic = batch.source.topic
        self._metrics.add(catalogue.WRITER_RECORDS, len(batch), topic=topic)
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
