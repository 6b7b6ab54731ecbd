"""Carries out ``delta-loader verify``: reads the history, and queries Spark for the offsets and, with --kafka, Kafka.

Rules:

1. The main table is read at one version, the secondary tables at later ones: they are committed to first, so everything
   that belongs to the main table's version is there. Later commits are left out one by one.
2. Nothing is changed, and a running loader is not queried.
3. Whether the files in the log exist is checked first: Spark fails at a missing file, or counts its rows by the log.
   Only this check detects a VACUUM that deleted a file while it was committed (tables/vacuum.py).
4. A stream that cannot be verified does not hide the others.
5. For a stream that merges only the log can be checked: no table records which events a row comes from. That each key
   has one row, or one current version, is checked in the table, by the keys that its rows were merged by.
6. A topic whose id in Kafka differs from the id that a position belongs to is named, and not read: its offsets say
   nothing about the table (delta_loader/inspect/verify/same_records.py).
7. Tables that the commits name and the settings no longer do are read too (delta_loader/inspect/verify/reconcile.py,
   rule 6).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Protocol

from common.errors import KafkaDeltaExpressError, StoreError, UsageError
from common.remedies import CONFIG, delta_table, quoted
from common.schema import schema_from_json
from common.schema.ddl import backticks
from common.settings import Settings, Stream
from common.settings.envelopes import is_envelope_open, may_have_several_rows
from common.settings.merging import merge_by_of
from common.sizes import agreeing, counted
from common.spans import Position, Span, Topic, TopicPartition
from common.stage.markers import TableKind
from common.stage.merged import ids_together, inputs_of, is_merged, topics_of
from common.tables.changes import IS_CURRENT, MergeBy
from common.tables.deferred_ranges import DeferredRange, deferred_of
from common.tables.delta_log import read_table_state
from common.tables.stream_history import read_identity
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.inspect.history import read_versions
from delta_loader.inspect.verify.findings import Finding, PartitionReport, Verdict, VerifiedStream
from delta_loader.inspect.verify.ledger import Ledger
from delta_loader.inspect.verify.offsets import Bucket, Ranges
from delta_loader.inspect.verify.reconcile import Reconciliation, walk
from delta_loader.inspect.verify.reconcile_facts import BucketTotals, Explained, FilteredRecords, Shape, Tables
from delta_loader.inspect.verify.same_records import other_records, other_topic, staged_spans
from delta_loader.load.merged_keys import KeyReader, how_merged
from delta_loader.ports import OpenScannedStore, ParallelMap
from delta_loader.tables.history import TableVersion

_NAMED = 8  # files and ranges named in one sentence


def chosen(settings: Settings, app_id: str | None) -> tuple[Stream, ...]:
    """The streams to verify. Raises UsageError for an unknown one."""
    streams = tuple(stream for stream in settings.streams if app_id in (None, stream.app_id))
    if not streams:
        names = ", ".join(stream.app_id for stream in settings.streams)
        raise UsageError(f"there is no stream {app_id!r}", f"the config has {names}")
    return streams


def verifier_of(
    settings: Settings, stack: ExitStack, open_store: OpenScannedStore, parallel: ParallelMap, *, with_kafka: bool
) -> Verifier:
    """A verifier over Spark and, with ``with_kafka``, Kafka; ``stack`` closes both."""
    # Spark is needed only to read tables, and for nothing else when this command line starts.
    from delta_loader.inspect.verify.kafka_offsets import KafkaOffsets  # noqa: PLC0415
    from delta_loader.inspect.verify.table_offsets import SparkContents  # noqa: PLC0415
    from delta_loader.spark.session import build_session  # noqa: PLC0415

    kafka = KafkaOffsets(settings) if with_kafka else None
    if kafka is not None:
        stack.callback(kafka.close)
    spark = build_session(settings)
    stack.callback(spark.stop)
    return Verifier(open_store, parallel, SparkContents(spark), kafka)


class Offsets(Protocol):
    """The offset columns of one table at one version."""

    def sources(self) -> list[TopicPartition]:
        """The Kafka partitions that have rows in it."""

    def nameless(self) -> int:
        """How many rows do not name their record."""

    def buckets(self, partition: TopicPartition) -> Iterator[Bucket]:
        """One partition's offsets, in order."""

    def timestamp_ms(self, partition: TopicPartition, offset: int) -> int | None:
        """The timestamp in a record's rows, or None."""

    def loaded_twice(self, partition: TopicPartition, spans: Sequence[Span]) -> list[tuple[int, tuple[str, ...]]]:
        """Offsets that occur more than once, and the files that contain them; the first ones only."""

    def files(self, partition: TopicPartition, spans: Sequence[Span]) -> list[str]: ...

    def close(self) -> None: ...


class Contents(KeyReader, Protocol):
    def offsets(self, *tables: tuple[str, int], stamped: bool) -> Offsets:
        """The offset columns of several tables together, each by URL and version; ``stamped``: with timestamps."""

    def count(self, url: str, version: int) -> int: ...


class KafkaRecords(Protocol):
    def ends(self, partition: TopicPartition) -> tuple[Position, Position]:
        """The first position that Kafka still has, and the end."""

    def buckets(self, partition: TopicPartition, start: Position, end: Position) -> Iterator[tuple[Bucket, Bucket]]:
        """Records with a value, with the timestamps of all, and tombstones."""

    def timestamp_ms(self, partition: TopicPartition, offset: int) -> int | None: ...

    def partitions(self, topic: str) -> list[TopicPartition]: ...

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        """The id of each existing topic; None from a broker without topic ids."""


@dataclass(frozen=True, slots=True)
class Verifier:
    open_store: OpenScannedStore
    parallel: ParallelMap
    contents: Contents
    kafka: KafkaRecords | None
    advance: Callable[[int], None] = lambda _: None
    """Called after each verified partition."""

    def verify(self, stream: Stream) -> VerifiedStream:
        try:
            return self._verify(stream)
        except KafkaDeltaExpressError as error:
            return VerifiedStream(stream.app_id, stream.table, None, None, failure=str(error))

    def _verify(self, stream: Stream) -> VerifiedStream:
        rows = self._ledger(stream, stream.table, dead_letters=False)
        if rows.version is None:
            return VerifiedStream(stream.app_id, stream.table, None, None, failure=f"there is no table {stream.table}")
        dead = self._ledger(stream, stream.dead_letters, dead_letters=True)
        has_dead = dead.version is not None
        routed = [self._ledger(stream, url, own=rows) for url in stream.row_tables[1:]]
        former, unread = self._former(stream, rows)
        former_rows = tuple(ledger for ledger, kind in former if kind is TableKind.ROWS)
        former_dead = tuple(ledger for ledger, kind in former if kind is TableKind.DEAD_LETTERS)
        every = (rows, *routed, *former_rows, dead, *former_dead)
        gone = [finding for ledger in every if ledger.version is not None for finding in self._gone(ledger)]
        if gone:
            return VerifiedStream(
                stream.app_id, stream.table, rows.version, rows.first_version, _by_the_log(rows), tuple(gone)
            )
        made = stream.topology is not None  # a topology may do both
        filters = stream.shaping.where is not None or stream.record.has_events or is_envelope_open(stream)
        explodes = stream.shaping.explode is not None or may_have_several_rows(stream)
        shape = Shape(filters=made or filters, explodes=made or explodes)
        tables = Tables(
            rows,
            dead if has_dead else None,
            stream.table,
            stream.dead_letters,
            shape,
            (*(ledger for ledger in routed if ledger.version is not None), *former_rows),
            former_dead,
            unread,
            all(ledger.version is not None for ledger in routed),
            self._deferred(stream, rows),
        )
        findings = [finding for ledger in (*tables.row_ledgers, dead, *former_dead) for finding in ledger.findings]
        other_topics = self._other_topics(tables)
        findings += [*_cleaned(tables), *_deferred_findings(tables), *other_topics.values()]
        findings += _former_findings(tables, [ledger.url for ledger, _ in former])
        if stream.merge is not None:
            partitions, more = self._merged(stream, tables)
        elif not stream.kafka_columns:
            partitions, more = self._without_columns(tables, rows.version)
        else:
            partitions, more = self._with_columns(stream, tables, other_topics)
        report = VerifiedStream(stream.app_id, stream.table, rows.version, rows.first_version, partitions)
        versions = {ledger.url: ledger.version for ledger in tables.routed if ledger.version is not None}
        return replace(report, findings=tuple(findings + more), routed=versions)

    def _ledger(self, stream: Stream, url: str, *, dead_letters: bool = False, own: Ledger | None = None) -> Ledger:
        """A table's ledger; for a secondary table, up to the versions that belong to the main table's (rule 1)."""
        ids = TxnIds(stream.app_id, stream.several_topics)
        merged = stream.merge is not None and not dead_letters
        ledger = Ledger(
            url,
            ids,
            tuple(map(stream.chain_of, stream.topics)),
            dead_letters=dead_letters,
            sparse=own is not None,
            merged=merged,
        )
        for version in read_versions(self.open_store(url), self.parallel):
            if own is not None and _is_later(version, own, stream.app_id):
                break
            ledger.take(version)
        return ledger

    def _former(self, stream: Stream, own: Ledger) -> tuple[list[tuple[Ledger, TableKind]], frozenset[str]]:
        """The ledgers of tables that the commits name and the settings no longer do, and those that cannot be read.

        A table that was copied to where the settings name it now is not read a second time.
        """
        known = {comparable(url) for url in stream.tables}
        ids: set[str] | None = None
        former: list[tuple[Ledger, TableKind]] = []
        unread: set[str] = set()
        for url, kind in own.other_tables.items():
            if comparable(url) in known:
                continue
            dead_letters = kind is TableKind.DEAD_LETTERS
            try:
                state = read_table_state(self.open_store(url))
                if ids is None and state is not None:
                    states = [read_table_state(self.open_store(named)) for named in stream.tables]
                    ids = {named.table_id for named in states if named is not None}
                if state is not None and state.table_id in (ids or ()):
                    continue
                ledger = self._ledger(stream, url, dead_letters=dead_letters, own=None if dead_letters else own)
            except StoreError:
                ledger = None
            if ledger is None or ledger.version is None:
                unread.add(url)
            else:
                former.append((ledger, kind))
        return former, frozenset(unread)

    def _gone(self, ledger: Ledger) -> Iterator[Finding]:
        """Findings for files of the table that do not exist."""
        waiting = dict(ledger.live())
        for item in self.open_store(ledger.url).scan(""):
            waiting.pop(item.path, None)
        if waiting:
            names = sorted(waiting.items(), key=lambda item: (item[1], item[0]))
            paths, version = tuple(path for path, _ in names), names[0][1]
            text = (
                f"{counted(len(names), 'data file')} {agreeing(len(names), 'is', 'are')} gone (a VACUUM without "
                f"retention can delete staged files): {_files(names)}. Restore the table to the version before "
                f"(RESTORE TABLE {delta_table(ledger.url)} TO VERSION AS OF {version - 1}), and load again what that "
                f"removes (`bootstrap accept {CONFIG} --stream {quoted(ledger.ids.app_id)} --replay --yes`)"
            )
            yield Finding(Verdict.FAULT, "files_gone", text, ledger.url, version=version, files=paths)

    def _deferred(self, stream: Stream, own: Ledger) -> tuple[DeferredRange, ...]:
        """The ranges that secondary tables may still lack, by the main table's txn actions."""
        transactions = own.transactions
        if own.first_version:
            state = read_table_state(self.open_store(stream.table))
            transactions = transactions if state is None else {**state.transactions, **transactions}
        ids = replace(own.ids, generations=own.generations)
        return deferred_of(ids, transactions, stream.secondary_tables, own.positions)

    def _other_topics(self, tables: Tables) -> dict[TopicPartition, Finding]:
        """The Kafka partitions whose topic is not the topic of the table's rows (rule 6)."""
        if self.kafka is None:
            return {}
        partitions, kafka = tables.rows.positions, self.kafka
        ids = kafka.topic_ids({topic for partition in partitions for topic in topics_of(partition.topic)})
        findings = {
            partition: other_topic(
                tables,
                partition,
                ids_together(partition.topic, ids),
                lambda chain: all(each in kafka.partitions(each.topic) for each in inputs_of(chain)),
            )
            for partition in partitions
        }
        return {partition: finding for partition, finding in findings.items() if finding is not None}

    def _merged(self, stream: Stream, tables: Tables) -> tuple[tuple[PartitionReport, ...], list[Finding]]:
        """The report on tables whose rows are the last of many events (rule 5)."""
        text = (
            "events are merged by key, so their rows cannot be counted; that each was merged once is proved by the "
            "log alone, whose spans have no gap and no overlap"
        ) + self._note_ids_only()
        findings = [Finding(Verdict.UNPROVED, "merged", text, tables.url)]
        for ledger in tables.row_ledgers:
            by = merge_by_of(stream.at(ledger.url))
            findings += () if by is None else self._keys_twice(stream, ledger, by)
            for removal in (removal for removal in ledger.removals if removal.rows and not removal.by_right):
                text = f"version {removal.version} ({removal.words}) removed {counted(removal.rows or 0, 'row')}"
                findings.append(Finding(Verdict.UNPROVED, "rows_removed", text, ledger.url, version=removal.version))
        return _by_the_log(tables.rows), findings

    def _keys_twice(self, stream: Stream, ledger: Ledger, by: MergeBy) -> Iterator[Finding]:
        """Whether several rows of a table have one key of those by which it was merged (rule 5)."""
        version, store = ledger.version, self.open_store(ledger.url)
        state = read_table_state(store)
        if version is None or state is None:
            return
        before = read_identity(stream, state, store).merged_by
        keys, history = by.sql_keys, by.history
        if before is None and not keys:
            return  # a table that the settings no longer have
        if before is not None:
            history = before.history
            if before.keys != by.keys:
                keys = tuple(map(backticks, before.keys))
                names = {name.casefold() for name in schema_from_json(state.schema).names}
                if not names.issuperset(key.casefold() for key in before.keys):
                    text = f"its rows were {how_merged(before)}: whether each has one row is not checked"
                    yield Finding(Verdict.UNPROVED, "merged_otherwise", text, ledger.url, version=version)
                    return
        twice = self.contents.repeated_keys(
            ledger.url, version, keys, f"coalesce({IS_CURRENT}, true)" if history else None
        )
        if not twice:
            return
        named = ", ".join(twice[:_NAMED]) + (f" and {len(twice) - _NAMED:,} more" if len(twice) > _NAMED else "")
        text = f"several rows have the same key, so another program wrote some of them: {named}"
        verdict = Verdict.FAULT
        if before is None:
            verdict = Verdict.UNPROVED
            text = (
                f"several rows have the same key: {named}. According to the commits, the rows were not merged; the "
                "loader does not merge into them until each key has one row"
            )
        yield Finding(verdict, "keys_twice", text, ledger.url, version=version)

    def _without_columns(self, tables: Tables, version: int) -> tuple[tuple[PartitionReport, ...], list[Finding]]:
        """The report on a table whose rows do not name their records."""
        text = "the stream's kafka_columns are off; that each record is there once is proved by the log alone"
        text += self._note_ids_only()
        findings = [Finding(Verdict.UNPROVED, "no_offset_columns", text, tables.url)]
        expected = _counted(tables)
        have = self.contents.count(tables.url, version)
        have += sum(
            self.contents.count(ledger.url, ledger.version) for ledger in tables.routed if ledger.version is not None
        )
        foreign = tables.deferred or any(ledger.has_foreign_rows for ledger in tables.row_ledgers)
        if expected is not None and expected == have:
            text = f"the table has {counted(have, 'row')}, as many as the commits loaded"
            findings.append(Finding(Verdict.PROVED, "rows_reconciled", text, tables.url))
        elif expected is not None:
            verdict = Verdict.UNPROVED if foreign else Verdict.FAULT
            text = f"the table has {counted(have, 'row')}, but the commits loaded {expected:,}"
            if foreign:
                text += (
                    "; some are deferred" if tables.deferred else "; another program has added or deleted rows since"
                )
            findings.append(Finding(verdict, "rows_differ", text, tables.url, version=version))
        return _by_the_log(tables.rows), findings

    def _note_ids_only(self) -> str:
        return "" if self.kafka is None else "; only the ids of Kafka's topics were compared"

    def _with_columns(
        self, stream: Stream, tables: Tables, other_topics: Collection[TopicPartition]
    ) -> tuple[tuple[PartitionReport, ...], list[Finding]]:
        stamped = self.kafka is not None
        rows = self.contents.offsets(*_versions(tables.row_ledgers), stamped=stamped)
        dead_letter_tables = _versions(tables.dead_ledgers)
        dead = self.contents.offsets(*dead_letter_tables, stamped=stamped) if dead_letter_tables else None
        explained, explained_dead = Explained(), Explained()
        partitions: list[PartitionReport] = []
        findings: list[Finding] = []
        try:
            nameless = rows.nameless()
            merged = {
                partition for chain in tables.rows.positions if is_merged(chain.topic) for partition in inputs_of(chain)
            }
            for topic_partition in sorted(
                {*tables.rows.positions, *(stream.chain_at(chain) for chain in rows.sources())} - merged
            ):
                is_unknown = topic_partition not in tables.rows.positions and not is_merged(topic_partition.topic)
                if is_unknown and not stream.takes(topic_partition.topic):
                    text = f"the rows of {topic_partition} are of a topic that this stream does not read"
                    findings.append(Finding(Verdict.NOTED, "rows_of_other_topics", text, tables.url, topic_partition))
                    continue
                same_offsets = _merged(tables, topic_partition) or _recreated(tables, topic_partition)
                if same_offsets is not None:
                    findings.append(same_offsets)
                    partitions.append(_positions_only(tables.rows, topic_partition))
                    continue
                kafka = None if topic_partition in other_topics else self.kafka
                seen = _walk(tables, topic_partition, rows, dead, kafka)
                self.advance(1)
                reconciliation = Reconciliation(tables, topic_partition, seen)
                report, problems = reconciliation.of_tables(explained, explained_dead)
                problems += [*reconciliation.exploded(), *_duplicates(tables, topic_partition, seen, rows, dead)]
                if kafka is not None:
                    problems += reconciliation.of_kafka(problems)
                    problems += _other_records(tables, topic_partition, seen, (rows, dead), kafka)
                wrong = topic_partition in other_topics or any(finding.verdict is Verdict.FAULT for finding in problems)
                partitions.append(replace(report, proved=report.proved and not wrong))
                findings += problems
        finally:
            rows.close()
            if dead is not None:
                dead.close()
        findings += explained.nameless_findings(tables, nameless)
        findings += explained.findings(tables.url)
        findings += explained_dead.findings(tables.dead_letters_url)
        return tuple(partitions), findings


def _versions(ledgers: Iterable[Ledger]) -> list[tuple[str, int]]:
    return [(ledger.url, ledger.version) for ledger in ledgers if ledger.version is not None]


def _walk(
    tables: Tables, partition: TopicPartition, rows: Offsets, dead: Offsets | None, kafka: KafkaRecords | None
) -> BucketTotals:
    offset_ranges = tables.offset_ranges(partition)
    position = tables.rows.positions.get(partition, Position(0))
    first, kafka_end = (Position(0), None) if kafka is None else kafka.ends(partition)
    seen = walk(
        [span for offset_range in offset_ranges for span in offset_range.spans],
        position,
        rows.buckets(partition),
        () if dead is None else dead.buckets(partition),
        kafka=None if kafka is None else kafka.buckets(partition, first, position),
        kafka_first=first,
        left_out=FilteredRecords.in_ranges(offset_ranges, tables.shape.of(offset_ranges)),
        staged=staged_spans(offset_ranges),
    )
    seen.kafka_end = kafka_end
    return seen


def _other_records(
    tables: Tables,
    partition: TopicPartition,
    seen: BucketTotals,
    offsets: Iterable[Offsets | None],
    kafka: KafkaRecords,
) -> Iterator[Finding]:
    if seen.other_times.count:
        start = seen.other_times.spans[0].start
        loaded = (
            None if offsets_of_table is None else offsets_of_table.timestamp_ms(partition, start)
            for offsets_of_table in offsets
        )
        loaded_ms = next((chain for chain in loaded if chain is not None), None)
        yield other_records(tables, partition, seen, loaded_ms, kafka.timestamp_ms(partition, start))


def _counted(tables: Tables) -> int | None:
    """How many rows the commits loaded; None if they do not say it, or some were merged or cannot be read."""
    if tables.rows.first_version or tables.unread or any(ledger.last_merge >= 0 for ledger in tables.row_ledgers):
        return None
    counts = [loaded.counts for loads in tables.rows.loaded.values() for loaded in loads]
    rows = [None if count is None else count.rows for count in counts]
    rows += [
        replacement.net_rows
        for ledger in tables.row_ledgers
        for replacements in ledger.replacements.values()
        for replacement in replacements
    ]
    return None if None in rows else sum(count for count in rows if count is not None)


def _by_the_log(rows: Ledger) -> tuple[PartitionReport, ...]:
    """Kafka partitions that are judged by the log alone."""
    return tuple(_positions_only(rows, partition) for partition in sorted(rows.positions))


def _positions_only(rows: Ledger, partition: TopicPartition) -> PartitionReport:
    return PartitionReport(partition, rows.begins.get(partition), rows.positions.get(partition))


def _cleaned(tables: Tables) -> Iterator[Finding]:
    for ledger in (*tables.row_ledgers, tables.dead_letters):
        if ledger is not None and ledger.first_version:
            text = f"the history begins with version {ledger.first_version}: earlier versions were cleaned up"
            yield Finding(Verdict.UNPROVED, "history_cleaned", text, ledger.url, version=ledger.first_version)


def _former_findings(tables: Tables, read: Sequence[str]) -> Iterator[Finding]:
    for url in read:
        text = f"the stream no longer names {url}, which has some of its records, and is read too"
        yield Finding(Verdict.NOTED, "former_table", text, url)
    for url in sorted(tables.unread):
        text = f"the stream no longer names {url}, which has some of its records but cannot be read"
        yield Finding(Verdict.UNPROVED, "former_table", text, url)


def _deferred_findings(tables: Tables) -> Iterator[Finding]:
    for missing in tables.deferred:
        loaded = f"{missing.span} of {missing.partition} was loaded"
        text = f"{missing.url} was left out when {loaded}, and may still lack some of its rows"
        yield Finding(Verdict.UNPROVED, "owed", text, missing.url, missing.partition, (missing.span,))


def _is_later(version: TableVersion, own: Ledger, app_id: str) -> bool:
    """Whether one of this product's commits adds only rows that the main table does not have yet."""
    metadata = version.metadata
    if metadata is None or metadata.app_id != app_id or not metadata.spans:
        return False
    return all(
        metadata.generation(partition) >= own.generations.get(partition, 0)
        and (partition not in own.positions or span.start >= own.positions[partition])
        for partition, span in metadata.spans.items()
    )


def _recreated(tables: Tables, partition: TopicPartition) -> Finding | None:
    if partition not in tables.rows.generations:
        return None
    text = (
        f"the topic of {partition} was recreated (generation {tables.rows.generations[partition]}), so rows of "
        "both topics have the same offsets: that each occurs once is proved by the log alone"
    )
    return Finding(Verdict.UNPROVED, "made_anew", text, tables.url, partition)


def _merged(tables: Tables, partition: TopicPartition) -> Finding | None:
    if not is_merged(partition.topic):
        return None
    text = (
        f"the rows of {partition} come from a topology that reads several topics: that each record is loaded once "
        "is proved by the log alone"
    )
    return Finding(Verdict.UNPROVED, "several_topics", text, tables.url, partition)


def _duplicates(
    tables: Tables, partition: TopicPartition, seen: BucketTotals, rows: Offsets, dead: Offsets | None
) -> Iterator[Finding]:
    explodes = tables.shape.of(tables.offset_ranges(partition)).explodes
    for ranges, offsets, ledgers, url in (
        (Ranges(0) if explodes else seen.twice, rows, tables.row_ledgers, tables.url),
        (seen.twice_dead, dead, tables.dead_ledgers, tables.dead_letters_url),
    ):
        if ranges.count and offsets is not None:
            repeated = offsets.loaded_twice(partition, ranges.spans)
            names = _known(ledgers, {file for _, files in repeated for file in files})
            versions = [version for _, version in names if version is not None]
            offsets_named = _places([offset for offset, _ in repeated])
            occur = agreeing(len(repeated), "occurs", "occur")
            text = f"{offsets_named} of {partition} {occur} more than once: {_files(names)}"
            spans = tuple(Span(Position(offset), Position(offset + 1)) for offset, _ in repeated)
            last = max(versions, default=None)
            yield Finding(
                Verdict.FAULT, "rows_twice", text, url, partition, spans, last, tuple(path for path, _ in names)
            )
    if seen.both.count:
        offsets_named = ", ".join(map(str, seen.both.spans[:_NAMED]))
        records = counted(seen.both.count, "record")
        text = f"{partition} has {records} with both a row and a dead letter: {offsets_named}"
        verdict = Verdict.FAULT
        if explodes and tables.routed:  # a record goes to several tables, and one of them may refuse it
            verdict = Verdict.UNPROVED
            text += "; this is correct only if one of a record's tables refused it"
        yield Finding(verdict, "row_and_dead_letter", text, tables.url, partition, tuple(seen.both.spans))


def _known(ledgers: Iterable[Ledger], files: Iterable[str]) -> list[tuple[str, int | None]]:
    """Files by their names in the logs, from several tables with their URLs, and the versions that added them."""
    by_name: dict[str, list[tuple[str, str, int | None]]] = {}
    known = list(ledgers)
    for ledger in known:
        for path, version in ledger.added_by.items():
            shown = path if len(known) == 1 else f"{ledger.url}/{path}"
            by_name.setdefault(path.rpartition("/")[2], []).append((path, shown, version))
    known_files: list[tuple[str, int | None]] = []
    for file in sorted(files):
        same = [known_file for known_file in by_name.get(file.rpartition("/")[2], []) if file.endswith(known_file[0])]
        known_files.append(same[0][1:] if same else (file, None))
    return known_files


def _files(names: Sequence[tuple[str, int | None]] | Sequence[tuple[str, int]]) -> str:
    named = [f"{path} (version {'unknown' if version is None else version})" for path, version in names[:_NAMED]]
    return ", ".join(named) + (" …" if len(names) > _NAMED else "")


def _places(offsets: Sequence[int]) -> str:
    """Offsets as text, neighbors joined."""
    runs: list[list[int]] = []
    for offset in offsets:
        if runs and runs[-1][1] == offset - 1:
            runs[-1][1] = offset
        else:
            runs.append([offset, offset])
    named = [str(low) if low == high else f"{low} to {high}" for low, high in runs[:_NAMED]]
    return f"{counted(len(offsets), 'offset')} ({', '.join(named)}{' …' if len(runs) > _NAMED else ''})"
