"""``stage-writer replay``: converts the records of a range again, and asks the loader to replace the old ones.

Rules:

1. Records are converted as the service would convert them, by the settings as they are *now*: a fixed expression or
   column list fixes old rows.
2. No table is touched. Data files lie below the stage, and the request (common/stage/replacements.py) is created after
   them, exclusively; the loader picks it up.
3. A range that Kafka no longer has completely is refused: the missing rows could only be deleted.
4. Without ``--yes`` everything except writing is done, so the numbers shown are those that would be staged.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from common.errors import StoreError, UsageError
from common.kafka.reader import KafkaReader
from common.ports import AlreadyExists, Clock, ObjectStore
from common.remedies import CONFIG
from common.settings import Settings, Stream
from common.settings.values import duration_text, parse_timestamp_ms
from common.sizes import counted
from common.spans import Position, Span, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.data_files import DataFileName, waiting_path
from common.stage.markers import TableKind
from common.stage.replacements import (
    Replacement,
    ReplacementFile,
    ReplacementName,
    ReplacementTable,
    replacement_to_bytes,
)
from common.stage.stored import beyond_bounds
from stage_writer.convert_by_table import RecordConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch.consumer_properties import consumer_properties
from stage_writer.fetch.fetched import batch_of
from stage_writer.parquet.buffer import Buffer, StagedRows, TableFormat


@dataclass(frozen=True, slots=True)
class OffsetRanges:
    start: Position
    end: Position


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Records from the first one at or after ``since_ms`` up to the first one at or after ``until_ms``."""

    since_ms: int
    until_ms: int


ReplaySelection = OffsetRanges | TimeRange


class Records(Protocol):
    """The source of a replay's records: Kafka, or an export of dead letters."""

    def batches(self, partition: TopicPartition, span: Span) -> Iterator[MessageBatch]:
        """The records of a range, in order."""


@dataclass(frozen=True, slots=True)
class Range:
    partition: TopicPartition
    span: Span
    only: tuple[Span, ...] = ()
    """The selected runs of offsets, as in `Replacement.only`; none for all of the span."""

    @property
    def words(self) -> str:
        few = f"{self.positions:,} offsets of " if self.only else ""
        return f"{self.partition}  {few}{self.span}"

    @property
    def positions(self) -> int:
        return sum(run.positions for run in self.only) if self.only else self.span.positions


@dataclass(slots=True)
class Replayed:
    """The records of a range by what they became; those of each batch are added."""

    range: Range
    records: int = 0
    tombstones: int = 0
    exploded: int = 0
    dead_letters: Counter[str] = field(default_factory=Counter)
    filtered_spans: list[Span] = field(default_factory=list)
    offsets_of_dead_letters: list[NDArray[np.int64]] = field(default_factory=list)
    files: int = 0
    path: str | None = None
    """The request; None after a dry run."""

    @property
    def filtered(self) -> int:
        return sum(span.positions for span in self.filtered_spans)

    @property
    def rows(self) -> int:
        """The number of rows made from the other records."""
        without = self.tombstones + self.filtered + sum(self.dead_letters.values())
        return self.records - without + self.exploded

    @property
    def inconvertible(self) -> NDArray[np.int64]:
        """The offsets of its dead letters, rising."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self.offsets_of_dead_letters]))

    def add(self, staged: StagedRows, dead_letters_index: int) -> None:
        """Add one batch; ``dead_letters_index`` is the index of the dead letters among its tables.

        Raises UsageError for a record that may not be staged.
        """
        if staged.stop is not None:
            msg = f"the record at offset {staged.end} breaks a rule with on_fail: hold: {staged.stop}"
            remedy = f"choose a range without it, or change the rule or its on_fail in streams[].expect of {CONFIG}"
            raise UsageError(msg, remedy)
        if staged.dead_letters:
            self.offsets_of_dead_letters.append(staged.rows[dead_letters_index]["_kafka_offset"].to_numpy())
        self.records += staged.records
        self.tombstones += staged.tombstones
        self.exploded += staged.exploded
        self.dead_letters.update(staged.dead_letters)
        offsets = staged.filtered_offsets
        for run in np.split(offsets, np.flatnonzero(np.diff(offsets) != 1) + 1) if len(offsets) else ():
            self.filtered_spans.append(Span(Position(int(run[0])), Position(int(run[-1]) + 1)))


def replay_selection(start: int | None, end: int | None, since: str | None, until: str | None) -> ReplaySelection:
    """The range of a command line's options. Raises UsageError."""
    offsets, moments = (start, end), (since, until)
    if None not in offsets and moments == (None, None) and start is not None and end is not None and start < end:
        return OffsetRanges(Position(start), Position(end))
    if since is not None and until is not None and offsets == (None, None):
        try:
            times = TimeRange(parse_timestamp_ms(since), parse_timestamp_ms(until))
        except ValueError as error:
            msg = f"--since {since} and --until {until}: {error}"
            raise UsageError(msg, "write times as in 2026-03-01T00:00:00Z") from error
        if times.since_ms < times.until_ms:
            return times
    msg = "a replay needs a range that is not empty"
    raise UsageError(msg, "give --from OFFSET and --to OFFSET, or --since TIME and --until TIME")


def replayable(settings: Settings, topic: str) -> Stream:
    """The stream whose rows can be replaced. Raises UsageError."""
    stream = settings.stream_of(topic)
    if stream is None:
        raise UsageError(f"no stream of the config reads the topic {topic!r}", "use a topic of streams[].topics")
    if stream.merge is not None:
        msg = (
            f"the stream {stream.app_id!r} merges change events: a row is the result of many events, and replacing "
            "a range would undo later events"
        )
        remedy = "rebuild the table (another app_id, table and stage, with start: earliest), or correct rows with SQL"
        raise UsageError(msg, remedy)
    if stream.topology is not None:
        msg = (
            f"the stream {stream.app_id!r} has a topology, whose state depends on all earlier records: rows of a range "
            "cannot be rebuilt alone"
        )
        rewind = f"`bootstrap rewind {CONFIG}` with --topic, --partition and --to"
        raise UsageError(msg, f"rewind the chain ({rewind}), or rebuild the table (another app_id, table and stage)")
    if not stream.kafka_columns:
        msg = f"the stream {stream.app_id!r} has kafka_columns: off, so the rows to replace cannot be identified"
        raise UsageError(msg, "load the range into another table, and merge it by a key of your own")
    return stream


def chains_of_dead_letters(settings: Settings, app_id: str | None, topics: Sequence[str]) -> list[Topic]:
    """The chains of a stream's dead letters. Raises UsageError where several may be meant.

    ``app_id`` is None for an export of an older release. One of a stream that is not in the config, or reads another
    topic by now, says as little.
    """
    streams = [stream for stream in settings.streams if stream.app_id == app_id]
    if streams and all(streams[0].reads(topic) for topic in topics):
        return [streams[0].chain_of(topic) for topic in topics]
    _require_unshared(settings, topics)
    return [chain for topic in topics for chain in settings.chains_of(topic) or [Topic(topic)]]


def _require_unshared(settings: Settings, topics: Iterable[str]) -> None:
    for topic in topics:
        reading = [stream for stream in settings.streams if stream.reads(topic)]
        if len(reading) > 1:
            named = " and ".join(repr(stream.app_id) for stream in reading)
            msg = (
                f"the streams {named} share the topic {topic!r}, and the export does not say to which of them the dead "
                "letters are"
            )
            chains = " or ".join(f"--topic {stream.chain_of(topic)}" for stream in reading)
            remedy = (
                "export again with this release, or replay the range from Kafka: `stage-writer replay "
                f"{CONFIG}` with {chains}"
            )
            raise UsageError(msg, remedy)


def spans_of(
    kafka: ReplayKafka, topic: str, partition: int | None, selection: ReplaySelection
) -> list[tuple[TopicPartition, Span]]:
    """The range of each partition, without empty ones. Raises UsageError (rule 3)."""
    partitions = [
        chain_partition for chain_partition in kafka.partitions(topic) if partition in (None, chain_partition.partition)
    ]
    if not partitions:
        msg = f"Kafka has no topic {topic!r}" + ("" if partition is None else f" with a partition {partition}")
        raise UsageError(msg, "fix --topic and --partition")
    spans: list[tuple[TopicPartition, Span]] = []
    for topic_partition in partitions:
        low, high = kafka.ends(topic_partition)
        if isinstance(selection, TimeRange):
            start = kafka.position_at(topic_partition, selection.since_ms, high)
            end = kafka.position_at(topic_partition, selection.until_ms, high)
            _require_whole(topic_partition, selection, kafka, low, high)
        else:
            start, end = selection.start, selection.end
            if start < low or end > high:
                msg = f"Kafka has [{low}, {high}) of {topic_partition}, but [{start}, {end}) is to be replaced"
                raise UsageError(msg, "choose a range that Kafka has; deleted records cannot be replayed")
        if start < end:
            spans.append((topic_partition, Span(start, end)))
    return spans


def _require_whole(
    partition: TopicPartition, selection: TimeRange, kafka: ReplayKafka, low: Position, high: Position
) -> None:
    """Refuse a time range whose start Kafka may have deleted: its first record is not older than ``since``."""
    if low > 0 and kafka.position_at(partition, selection.since_ms, high) <= low:
        msg = f"Kafka has {partition} from {low} on, and records since {selection.since_ms} ms may be older than that"
        raise UsageError(msg, f"choose a later --since, or use --from {low} for the records that Kafka still has")


def require_same_topic(partition: TopicPartition, chain: str | None, broker: str | None) -> None:
    """Refuse a recreated topic: its records are not the table's. Raises UsageError."""
    if chain is not None and broker is not None and chain != broker:
        msg = f"the topic of {partition} was deleted and created again: its id is {broker}, the staged one was {chain}"
        raise UsageError(msg, "the new topic has other records at these offsets; the old topic cannot be replayed")


def require_first_chain(partition: TopicPartition, origin: ChainOrigin | None) -> None:
    """Refuse a chain that was started again, as the loader does: its rows have the offsets of the old chain's."""
    if origin is not None and origin.generation:
        msg = f"the chain of {partition} was started again, and rows of the old and the new one have the same offsets"
        raise UsageError(msg, "correct the rows with SQL; --topic and --partition select others")


class Replay:
    def __init__(
        self,
        converter: RecordConverter,
        records: Records,
        store: ObjectStore,
        clock: Clock,
        unique: Callable[[], str],
        *,
        writer: str,
        file_bytes: int,
        longest_s: float,
    ) -> None:
        """``unique`` gives 32 hexadecimal digits, ``file_bytes`` is the approximate Parquet memory held at a time.

        A request that takes longer than ``longest_s`` is not made: a clean-up may have removed its first files.
        """
        self._converter = converter
        self._records = records
        self._store = store
        self._clock = clock
        self._unique = unique
        self._writer = writer
        self._file_bytes = file_bytes
        self._longest_s = longest_s
        # All columns are in the files: the table's own partitioning places the rows when they are loaded.
        self._formats = [replace(table, partition_by=()) for table in converter.formats]
        self._letters = next(
            index for index, table_format in enumerate(self._formats) if table_format.kind is TableKind.DEAD_LETTERS
        )
        self._routed: dict[str, TableFormat] = {}

    def count(self, requested: Range) -> Replayed:
        """The dry run: read and convert, and write nothing."""
        replayed = Replayed(requested)
        for batch in self._records.batches(requested.partition, requested.span):
            for part in self._converter.slices([batch]):
                replayed.add(part[-1][1], self._letters)
        return replayed

    def stage(self, requested: Range) -> Replayed:
        """Write the data files, then the request (rule 2)."""
        partition, span, began_s = requested.partition, requested.span, self._clock.monotonic_s()
        replayed, files = Replayed(requested), {table.url: list[ReplacementFile]() for table in self._formats}
        buffer = Buffer.begin(span.start, self._formats)
        for batch in self._records.batches(partition, span):
            for ((_, staged),) in self._converter.slices([batch]):
                replayed.add(staged, self._letters)
                buffer.add(self._with_all_columns(staged), 0.0)
                if buffer.parquet_bytes >= self._file_bytes:
                    self._write(partition, buffer, files)
                    buffer = Buffer.begin(buffer.end, self._formats)
        self._write(partition, buffer, files)
        name = ReplacementName(partition, span.start, self._unique())
        replacement = Replacement(
            span=span,
            app_id=self._converter.stream.app_id,
            writer=self._writer,
            created_ms=self._clock.wall_ms(),
            records=replayed.records,
            tombstones=replayed.tombstones,
            dead_letters=dict(replayed.dead_letters),
            filtered=tuple(replayed.filtered_spans),
            exploded=replayed.exploded,
            only=requested.only,
            tables=tuple(
                ReplacementTable(table.url, table.kind, table.schema, tuple(files.get(table.url, ())))
                for table in (*self._formats, *self._routed.values())
            ),
        )
        data = replacement_to_bytes(name, replacement)
        problem = beyond_bounds(data)
        if problem is not None:
            msg = f"the request for {requested.words} was not written, because it {problem}"
            raise UsageError(
                msg, f"choose a smaller range; `delta-loader clean {CONFIG} --yes` removes the files of this one"
            )
        if self._clock.monotonic_s() - began_s > self._longest_s:
            msg = (
                f"the request for {requested.words} was not written, because it took longer than "
                f"{duration_text(self._longest_s)}: a clean-up may have removed its first files"
            )
            raise UsageError(msg, "choose a smaller range, or a longer loader.marker_retention")
        if isinstance(self._store.create(name.path, data), AlreadyExists):
            raise StoreError(f"the request {name.path} exists already", "run the command again")
        replayed.files, replayed.path = sum(map(len, files.values())), name.path
        return replayed

    def _write(self, partition: TopicPartition, buffer: Buffer, files: dict[str, list[ReplacementFile]]) -> None:
        for rows in buffer.tables:
            for file in rows.finish():
                path = waiting_path(rows.table.url, DataFileName(partition, buffer.start, self._unique()))
                self._store.upload(path, file.data)
                files.setdefault(rows.table.url, []).append(ReplacementFile(path, file.rows, file.data.size_bytes))

    def _with_all_columns(self, staged: StagedRows) -> StagedRows:
        """The rows, with all columns for the tables of routes too, which appear with their rows."""
        for table, _ in staged.routed:
            self._routed.setdefault(table.url, replace(table, partition_by=()))
        return replace(staged, routed=tuple((self._routed[table.url], rows) for table, rows in staged.routed))


def to_text(stream: Stream, replayed: Sequence[Replayed], *, done: bool) -> str:
    """The replay that was done, or would be done, as text."""
    if not replayed:
        return "There are no records in this range: nothing to replace."
    several = len(stream.row_tables) > 1 or stream.routing.route_table is not None
    lines, target = [], f"the tables of {stream.app_id}" if several else stream.table
    for part in replayed:
        dead_letters = ", ".join(f"{count:,} {name}" for name, count in sorted(part.dead_letters.items()))
        lines.append(
            f"{part.range.words}  {counted(part.records, 'record')}: {counted(part.rows, 'row')} for {target}, "
            f"{counted(sum(part.dead_letters.values()), 'dead letter')}{f' ({dead_letters})' if dead_letters else ''}, "
            f"{counted(part.tombstones, 'tombstone')}" + (f", {part.filtered:,} filtered" if part.filtered else "")
        )
        if part.path is not None:
            lines.append(f"  staged {counted(part.files, 'file')}, and the request {part.path}")
        elif done:
            lines.append("  none of them matches; they stay as they are")
    if all(part.path is None for part in replayed) and done:
        lines.append("Nothing was written.")
    elif done:
        lines.append(
            f"The loader replaces the rows of these offsets in its next load (`delta-loader run {CONFIG} --once`)."
        )
        lines.append("To cancel a request before that, delete its object.")
    else:
        lines.append("Nothing was written. The loader counts existing rows when it replaces them. Add --yes to do it.")
    return "\n".join(lines)


def to_json(replayed: Sequence[Replayed], *, done: bool) -> str:
    ranges = [
        {
            **part.range.partition.to_json(),
            "start": int(part.range.span.start),
            "end": int(part.range.span.end),
            "offsets": part.range.positions,
            "records": part.records,
            "rows": part.rows,
            "tombstones": part.tombstones,
            "filtered": part.filtered,
            "dead_letters": part.dead_letters,
            "files": part.files,
            "request": part.path,
        }
        for part in replayed
    ]
    return json.dumps({"done": done, "ranges": ranges}, indent=2)


class ReplayKafka(KafkaReader):
    """The `Records` of Kafka."""

    def __init__(self, settings: Settings, *, with_headers: bool) -> None:
        """Raises ConfigError for properties that librdkafka rejects."""
        super().__init__(consumer_properties(settings), settings.writer.consume_records)
        self._with_headers = with_headers

    def batches(self, partition: TopicPartition, span: Span) -> Iterator[MessageBatch]:
        for messages in self.messages(partition, span):
            yield batch_of(partition, messages, with_headers=self._with_headers).after(span.start)
