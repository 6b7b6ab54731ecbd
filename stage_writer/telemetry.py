"""The writer's metrics and log events about reading and sealing."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping

import pyarrow as pa
from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.errors import BrokerRefusedError, ConfigError
from common.http.pages import with_remedy
from common.metrics import Metrics
from common.pages.model import Event
from common.pages.samples import Samples
from common.ports import Clock
from common.remedies import CONFIG
from common.settings import Stream
from common.settings.overlap import UnsubscribedTopics
from common.stage import undeclared
from common.stage.markers import Manifest, TableKind
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.unknown.census import FieldCensus
from stage_writer.parquet.buffer import StagedRows
from stage_writer.partitions.dead_letter_alarm import AlarmChange, DeadLetterAlarms
from stage_writer.partitions.flush_decision import FlushReason
from stage_writer.ports import BatchConverter, Sealed
from stage_writer.shape.dropped import DroppedFields

_FLUSHES = 50
DEAD_LETTERS_REMEDY = (
    f"`stage-writer check {CONFIG}` says why; fix the stream's settings or code; then "
    f"`delta-loader dead-letters replay {CONFIG}` loads those that are valid now, or names the command for this stream"
)


class WriterTelemetry:
    """Counts and logs; makes no decisions."""

    def __init__(
        self,
        clock: Clock,
        log: FilteringBoundLogger,
        metrics: Metrics,
        samples: Samples | None = None,
        *,
        dead_letter_alarm: float | None = None,
        unsubscribed: UnsubscribedTopics | None = None,
    ) -> None:
        """``dead_letter_alarm`` is the share of records that raises an alarm; None disables it."""
        self._unsubscribed = unsubscribed or UnsubscribedTopics()
        self.hidden: Mapping[str, BrokerRefusedError] = {}
        """By app_id, streams with a topic that this user may not see. Replaced as a whole; any thread may read it."""
        self._clock = clock
        self._log = log
        self._metrics = metrics
        self.samples = samples
        self.flushes: deque[Event] = deque(maxlen=_FLUSHES)
        """The latest dead letters, for the status page."""
        self.dead_letters: Counter[tuple[str, str]] = Counter()
        """By stream and class, since startup."""
        self.violations: Counter[tuple[str, str]] = Counter()
        """By stream and rule of `expect`, since startup."""
        self.alarms = DeadLetterAlarms(dead_letter_alarm)
        self.dropped: dict[str, DroppedFields] = {}
        """By stream."""

    def converted_in(self, records: int, seconds: float) -> None:
        self._metrics.observe(all_metrics.WRITER_BATCH_RECORDS, records)
        self._metrics.observe(all_metrics.WRITER_CONVERT_SECONDS, seconds)

    def polled(self, batch: MessageBatch, new: MessageBatch) -> None:
        """A batch arrived, of which some records may have been read before."""
        topic = batch.partition.topic
        self._metrics.add(all_metrics.WRITER_RECORDS, len(batch), topic=topic)
        self._metrics.add(all_metrics.WRITER_VALUE_BYTES, batch.values.nbytes, topic=topic)
        if len(new) < len(batch):
            self._metrics.add(all_metrics.WRITER_REPEATED, len(batch) - len(new), topic=topic)

    def converted(self, batch: MessageBatch, stream: Stream, staged: StagedRows) -> None:
        app_id = stream.app_id
        if staged.tombstones:
            self._metrics.add(all_metrics.WRITER_TOMBSTONES, staged.tombstones, topic=batch.partition.topic)
        if staged.filtered:
            self._metrics.add(all_metrics.WRITER_FILTERED, staged.filtered, app_id=app_id)
        for rule, count in staged.violations.items():
            self._metrics.add(all_metrics.WRITER_VIOLATIONS, count, app_id=app_id, rule=rule)
            self.violations[app_id, rule] += count
        for error_class, count in staged.dead_letters.items():
            self._metrics.add(all_metrics.WRITER_DEAD_LETTERS, count, app_id=app_id, error_class=error_class)
            self.dead_letters[app_id, error_class] += count
        if staged.dead_letters and self.samples is not None:
            self.samples.add(app_id, _letters(staged.rows[-1]))
        self._watch_dead_letters(app_id, staged)

    def _watch_dead_letters(self, app_id: str, staged: StagedRows) -> None:
        change = self.alarms.add(app_id, staged.records, staged.dead_letters)
        self._metrics.set(all_metrics.WRITER_DEAD_LETTER_SHARE, self.alarms.share(app_id), app_id=app_id)
        if change is AlarmChange.RAISED:
            problem = self.alarms.raised[app_id].sentence
            self._log.warning("many dead letters", app_id=app_id, problem=problem, remedy=DEAD_LETTERS_REMEDY)
        elif change is AlarmChange.ENDED:
            self._log.info("few dead letters again", app_id=app_id, share=self.alarms.share(app_id))

    def sampled(
        self, batch: MessageBatch, converter: BatchConverter, staged: StagedRows, *, begins_flush: bool
    ) -> FieldCensus | None:
        """A batch was converted; records what a sample of it shows of the fields, if a sample was taken."""
        app_id = converter.stream.app_id
        if app_id not in self.dropped or not self.dropped[app_id].is_of(converter.stream):
            json_of = converter.json_of if isinstance(converter, StreamConverter) else None
            self.dropped = {**self.dropped, app_id: DroppedFields(converter.stream, json_of)}
        dropped = self.dropped[app_id]
        census = dropped.census
        if census is None or staged.is_segment:
            return None
        known = len(census.undeclared)
        sample = dropped.sample(batch.values, begins_flush=begins_flush)
        if sample is None:
            return None
        new = list(census.undeclared)[known:]
        if new and not dropped.is_meant:
            self._log.warning("undeclared fields are dropped", app_id=app_id, fields=new, remedy=undeclared.REMEDY)
        self._metrics.set(all_metrics.WRITER_SAMPLED_RECORDS, census.records, app_id=app_id)
        for name, count in census.undeclared.items():
            self._metrics.set(all_metrics.WRITER_SAMPLED_UNDECLARED, count, app_id=app_id, field=name)
        return sample

    @property
    def drops(self) -> Mapping[str, str]:
        """Dropped fields, by stream, as text for operators. Safe to call from any thread."""
        sentences = {app_id: dropped.sentence for app_id, dropped in self.dropped.items() if not dropped.is_meant}
        return {app_id: sentence for app_id, sentence in sentences.items() if sentence is not None}

    def note_hidden(self, hidden: Mapping[str, BrokerRefusedError]) -> None:
        self.hidden = hidden

    @property
    def unsubscribed_topics(self) -> Mapping[str, ConfigError]:
        """Topics that no stream reads, and why. Safe to call from any thread."""
        return self._unsubscribed.problems

    @property
    def notes(self) -> tuple[str, ...]:
        """Topics that are not read, and streams that drop fields or have many dead letters.

        Text for operators; restarting the process fixes none of them. Safe to call from any thread.
        """
        raised = self.alarms.raised.items()
        many_dead_letters = (f"{app_id}: {alarm.sentence} → {DEAD_LETTERS_REMEDY}" for app_id, alarm in raised)
        unsubscribed = (
            with_remedy(f"{config_error.problem}: it is not read", config_error.remedy)
            for config_error in self.unsubscribed_topics.values()
        )
        hidden = (with_remedy(f"{app_id}: {error.problem}", error.remedy) for app_id, error in self.hidden.items())
        return (
            *hidden,
            *unsubscribed,
            *many_dead_letters,
            *(f"{app_id}: {sentence} → {undeclared.REMEDY}" for app_id, sentence in self.drops.items()),
        )

    def sealed(self, app_id: str, sealed: Sealed, reason: FlushReason, seconds: float) -> None:
        """A flush has its marker."""
        partition, span, manifest = sealed.marker.name.topic_partition, sealed.marker.span, sealed.marker.manifest
        tables = () if manifest is None else manifest.tables
        rows = sum(table.rows for table in tables if table.kind is TableKind.ROWS)
        self._log.info(
            "sealed",
            partition=str(partition),
            start=span.start,
            end=span.end,
            rows=rows,
            **_counts(manifest),
            files=sealed.files,
            size_bytes=sealed.size_bytes,
            reason=reason.value,
        )
        what = f"{partition} {span}"
        bytes_, time_ms = sealed.size_bytes, self._clock.wall_ms()
        self.flushes.append(Event(time_ms, app_id, what, rows, sealed.files, bytes_, seconds, reason.value))
        metrics = self._metrics
        metrics.add(all_metrics.WRITER_FLUSHES, app_id=app_id, reason=reason.value)
        metrics.add(all_metrics.WRITER_FILES, sealed.files, app_id=app_id)
        metrics.add(all_metrics.WRITER_BYTES, sealed.size_bytes, app_id=app_id)
        metrics.add(all_metrics.WRITER_ROWS, rows, app_id=app_id)
        metrics.observe(all_metrics.WRITER_FLUSH_SECONDS, seconds)
        for table in sealed.marker.tables:
            for file in table.files:
                metrics.observe(all_metrics.WRITER_FILE_BYTES, file.size_bytes)
        metrics.set(all_metrics.WRITER_LAST_FLUSH, self._clock.wall_ms() / 1000)
        labels = {"topic": str(partition.topic), "partition": str(partition.partition)}
        metrics.set(all_metrics.WRITER_STAGED_POSITION, span.end, **labels)


def _counts(manifest: Manifest | None) -> dict[str, int]:
    """What became of the span's other positions, without the counts that are zero.

    Each position is a record or not; each record has one row and the ``exploded`` ones, or is a dead letter, a
    tombstone (which becomes a row in a stream with `merge`), or filtered.
    """
    if manifest is None:
        return {}
    counts = {
        "exploded": manifest.exploded,
        "dead_letters": sum(manifest.dead_letters.values()),
        "tombstones": manifest.tombstones,
        "filtered": manifest.filtered,
        "without_record": manifest.span.positions - manifest.records,
    }
    return {name: count for name, count in counts.items() if count}


def _letters(rows: pa.Table) -> Iterator[tuple[str, str, bytes | None]]:
    """Class, position and value of the last dead letters of a batch."""
    for row in rows.slice(max(0, rows.num_rows - _FLUSHES)).to_pylist():
        origin = f"{row['_kafka_topic']}/{row['_kafka_partition']} @ {row['_kafka_offset']:,}"
        yield str(row["error_class"]), origin, row["value"]
