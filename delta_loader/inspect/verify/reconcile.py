"""Reconciles one Kafka partition: its offsets in the tables against what the history says was loaded.

Rules:

1. Loaded and replaced rows are counted by offset range (delta_loader/inspect/verify/offset_ranges.py).
2. If a range has fewer rows than expected, a commit that could reach them may have removed them legitimately. Such a
   commit explains the missing rows. The sum of the explained rows never exceeds the number that these commits removed.
   Other missing rows are a fault, which names the commit that removed them or, if no commit did, the commit that loaded
   them.
3. Each offset is in the tables once: in every bucket, the number of rows is compared with the number of bits. No offset
   is both a row and a dead letter. For a stream that leaves records out, or makes several rows of one, see
   count_findings.py. For whether the record that Kafka has at an offset is the loaded one, see same_records.py.
4. Records that no commit counted are not proved, and never a fault. Another program may have loaded records without any
   row in that range that names its record: kafka-delta-ingest has no columns for that. That is no fault either.
5. If records are routed to several tables, the rows of these are counted together: each offset is in one of them, once.
   A table's deferred ranges (common/tables/deferred_ranges.py) are not proved. Rows that a secondary table has past the
   main table's position belong to a load that has not reached the main table yet.
6. The settings that a range was loaded with count, not the current ones. Where events were merged, no rows are
   expected. Rows that were loaded without offset columns are counted over all partitions. Tables that the settings no
   longer name are read as far as the commits name them. What such tables have of a range is not proved if it is
   unknown.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import reduce

from common.sizes import agreeing, counted
from common.spans import Position, Span, TopicPartition
from delta_loader.inspect.verify.count_findings import filtered_findings
from delta_loader.inspect.verify.findings import Finding, PartitionReport, Verdict
from delta_loader.inspect.verify.ledger import Ledger
from delta_loader.inspect.verify.offset_ranges import OffsetRange, joined_spans
from delta_loader.inspect.verify.offsets import NO_STAMPS, Bucket, Ranges, SpanTally, Stamps, between, in_step, ranges
from delta_loader.inspect.verify.reconcile_facts import MOST_RANGES, BucketTotals, Explained, FilteredRecords, Tables
from delta_loader.inspect.verify.same_records import compared


def walk(
    spans: Iterable[Span],
    position: Position,
    rows: Iterable[Bucket],
    dead_letters: Iterable[Bucket],
    *,
    kafka: Iterable[tuple[Bucket, Bucket]] | None = None,
    kafka_first: int = 0,
    left_out: FilteredRecords | None = None,
    staged: Sequence[Span] = (),
) -> BucketTotals:
    """Walk over the tables' and Kafka's offsets in parallel.

    ``kafka`` yields records with a value, with the timestamps of all, and tombstones; it is compared from
    ``kafka_first`` up to ``position``, and timestamps within ``staged``. None when it is not to be compared.
    """
    known = list(spans)
    seen = BucketTotals(
        SpanTally(known), SpanTally(known), left_out=FilteredRecords() if left_out is None else left_out
    )
    live_buckets: dict[int, Bucket] = {}

    def values() -> Iterator[Bucket]:
        for live, gone in kafka or ():
            live_buckets[live.start] = gone
            yield live

    for start, (row, dead, live) in in_step(rows, dead_letters, values()):
        _count(seen, row, dead, position)
        if kafka is None:
            continue
        have = (row.bits if row else 0) | (dead.bits if dead else 0)
        seen.expired += between(have, start, 0, kafka_first).bit_count()
        in_kafka = 0
        if live is not None:
            gone = live_buckets.pop(start)
            in_kafka = live.bits | gone.bits
            seen.kafka_records += live.distinct + gone.distinct
            seen.kafka_tombstones += gone.distinct
            missing = between(live.bits & ~have, start, kafka_first, position)
            for low, high in ranges(seen.left_out.take(missing, start), start):
                seen.missing.add(low, high)
            both = between(have & in_kafka, start, kafka_first, position)
            _compare_times(seen, both, live, [bucket.stamps for bucket in (row, dead) if bucket is not None], staged)
        seen.vanished += between(have & ~in_kafka, start, kafka_first, position).bit_count()
    return seen


def _compare_times(
    seen: BucketTotals, both: int, live: Bucket, tables: Iterable[Stamps], staged: Sequence[Span]
) -> None:
    """Compare the timestamps of the offsets that Kafka and the tables have in one bucket."""
    stamps = reduce(Stamps.joined, tables, NO_STAMPS)
    known = both & stamps.known & live.stamps.known
    comparable = 0
    for span in staged if known else ():
        comparable |= between(known, live.start, span.start, span.end)
    differing = comparable & stamps.differing(live.stamps)
    for low, high in ranges(differing, live.start):
        seen.other_times.add(low, high)
    seen.same_times += (comparable & ~differing).bit_count()
    seen.without_times += (both & ~comparable).bit_count()


def _count(seen: BucketTotals, row: Bucket | None, dead: Bucket | None, position: Position) -> None:
    if row is not None:
        seen.rows.add(row)
        seen.total += row.rows
        seen.distinct += row.distinct
        offsets = row.bits
        lowest = row.start + (offsets & -offsets).bit_length() - 1
        seen.lowest = lowest if seen.lowest is None else seen.lowest
        seen.highest = row.start + offsets.bit_length() - 1
        if row.rows > row.distinct:
            seen.twice.add(row.span.start, row.span.end)
    if dead is not None:
        # Offsets past the position belong to a load that has not reached the main table yet.
        seen.dead_letters.add(dead)
        seen.dead_total += between(dead.bits, dead.start, 0, position).bit_count()
        if dead.rows > dead.distinct:
            seen.twice_dead.add(dead.span.start, dead.span.end)
    if row is not None and dead is not None:
        for low, high in ranges(row.bits & dead.bits, row.start):
            seen.both.add(low, high)


def reconcile(
    tables: Tables, partition: TopicPartition, seen: BucketTotals, explained: Explained, explained_dead: Explained
) -> tuple[PartitionReport, list[Finding]]:
    """One Kafka partition's report and findings, except for duplicates, which need another read of the table."""
    ledger, ranges = tables.rows, tables.offset_ranges(partition)
    findings: list[Finding] = []
    unproved = 0
    for offset_range in ranges:
        if not offset_range.is_merged:
            findings += _replaced_as_counted(tables, partition, offset_range, seen)
        for dead in (False, True):
            expected = offset_range.expected(dead_letters=dead)
            if expected is None:
                unproved += not dead and not offset_range.is_merged
                continue
            have = (seen.dead_letters if dead else seen.rows).within(offset_range.span)
            if expected and not have and not dead and offset_range.lacks_offset_statistics:
                explained.nameless += expected
                continue
            if have != expected:
                account = explained_dead if dead else explained
                findings.append(_difference(tables, partition, offset_range, (expected, have), account, dead=dead))
    if unproved:
        findings.append(_uncounted(tables, partition, ranges, unproved))
    findings += _loaded_otherwise(tables, partition, ranges, seen)
    findings += _unexplained_rows(tables, partition, ranges, seen)
    findings += _given_up(tables, partition)
    counts = [loaded.counts for loaded in ledger.loaded.get(partition, [])]
    counted = [count for count in counts if count is not None]
    all_counted = len(counted) == len(counts)
    report = PartitionReport(
        partition=partition,
        begins=ledger.begins.get(partition),
        position=ledger.positions.get(partition),
        rows=seen.total,
        distinct=seen.distinct,
        lowest=seen.lowest,
        highest=seen.highest,
        dead_letters=seen.dead_total,
        counted_records=sum(bucket.records for bucket in counted) if all_counted else None,
        counted_tombstones=sum(bucket.tombstones for bucket in counted) if all_counted else None,
        counted_filtered=sum(bucket.filtered for bucket in counted) if all_counted else None,
        proved=not any(finding.verdict in (Verdict.FAULT, Verdict.UNPROVED) for finding in findings),
    )
    return report, findings


def _difference(
    tables: Tables,
    partition: TopicPartition,
    offset_range: OffsetRange,
    numbers: tuple[int, int],
    explained: Explained,
    *,
    dead: bool,
) -> Finding:
    expected, have = numbers
    span = offset_range.span
    url = tables.dead_letters_url if dead else tables.url
    what, location = ("dead letter" if dead else "row"), f"{span} of {partition}"
    if have > expected:
        text = f"{location} has {counted(have, what)}; {_versions(tables, offset_range)} staged {expected:,}"
        return _blamed_on_load("too_many_rows", text, tables, partition, offset_range, dead=dead)
    fewer = expected - have
    missing, are = f"{fewer:,} of {counted(expected, what)} in {location}", agreeing(fewer, "is", "are")
    waiting = tables.tables_lacking(partition, span, dead=dead)
    if waiting:
        text = f"{missing} {are} staged, and may be deferred for {', '.join(waiting)}"
        return Finding(Verdict.UNPROVED, "table_waits", text, waiting[0], partition, (span,))
    elsewhere = _elsewhere(tables, partition, offset_range, fewer, dead=dead)
    if elsewhere is not None:
        text = f"{missing} {are} not in the tables that the stream names: {elsewhere}"
        return Finding(Verdict.UNPROVED, "in_other_tables", text, url, partition, (span,))
    after = min((load.version for load in offset_range.loaded), default=-1)
    explanations = tables.dead_touching(partition, span) if dead else tables.touching(partition, span, after)
    wrong = [(by, removal) for by, removal in explanations if not removal.by_right]
    if wrong:
        by, last = wrong[-1]
        text = (
            f"{missing} {are} gone: version {last.version} ({last.words}) removed files of that range, which "
            f"{_versions(tables, offset_range)} had loaded"
        )
        files = last.touches(partition, span)
        return Finding(Verdict.FAULT, "rows_removed", text, by.url, partition, (span,), last.version, files)
    if explanations:
        explained.rows += fewer
        explained.removals |= {(by.url, removal.version): removal for by, removal in explanations}
        removals = [removal for _, removal in explanations]
        names = "; ".join(f"version {removal.version} ({removal.words})" for removal in removals[-3:])
        text = f"{missing} {agreeing(fewer, 'was', 'were')} deleted by {names}"
        return Finding(Verdict.NOTED, "deleted", text, url, partition, (span,), removals[-1].version)
    text = f"{missing} {are} missing: {_versions(tables, offset_range)} counted all, and no later commit removed any"
    return _blamed_on_load("rows_missing", text, tables, partition, offset_range, dead=dead)


def _versions(tables: Tables, offset_range: OffsetRange) -> str:
    return f"version {', '.join(str(load.version) for load in offset_range.loaded)} of {tables.url}"


def _blamed_on_load(
    kind: str, text: str, tables: Tables, partition: TopicPartition, offset_range: OffsetRange, *, dead: bool
) -> Finding:
    """A fault that names the commit which loaded the range, and its files."""
    ledger, version = tables.dead_letters if dead else tables.rows, offset_range.version
    files = () if ledger is None else ledger.files_of(version, partition, offset_range.span)
    url = tables.dead_letters_url if dead else tables.url
    return Finding(Verdict.FAULT, kind, text, url, partition, (offset_range.span,), version, files)


def _replaced_as_counted(
    tables: Tables, partition: TopicPartition, offset_range: OffsetRange, seen: BucketTotals
) -> Iterator[Finding]:
    """Whether a replaced range holds more rows than were staged for it, or fewer although nothing was deleted since."""
    last = offset_range.last_replacement
    if last is None or last.replaced.positions is not None:
        return  # changes of single offsets of a range are in the sum of the offset range
    span, counts = last.replaced.span, last.replaced.counts
    for tally, ledger, what, url, expected in (
        (seen.rows, tables.rows, "row", tables.url, counts.records_with_rows),
        (seen.dead_letters, tables.dead_letters, "dead letter", tables.dead_letters_url, counts.dead_letters),
    ):
        have = tally.within(span)
        touched = tables.touching(partition, span) if ledger is tables.rows else []
        deleted = touched or (ledger is not tables.rows and tables.dead_touching(partition, span))
        if have > expected or (have < expected and not deleted):
            text = f"{span} of {partition} has {counted(have, what)}; version {last.version} put {expected:,} there"
            yield Finding(Verdict.FAULT, "replaced_otherwise", text, url, partition, (span,), last.version)


def _elsewhere(
    tables: Tables, partition: TopicPartition, offset_range: OffsetRange, fewer: int, *, dead: bool
) -> str | None:
    """Where missing rows may be that the stream put into tables which it no longer names; None for nowhere (rule 6)."""
    unread = sorted(offset_range.other_tables & tables.unread)
    ledger = tables.dead_letters
    loaded = () if ledger is None else ledger.loaded.get(partition, ())
    accounted = (
        any(offset_range.span.overlaps(load.span) for load in loaded) if dead else not offset_range.rows_unaccounted
    )
    if unread and not accounted:
        return f"its commits also name {', '.join(unread)}, which could not be read"
    if offset_range.other_tables:
        return None
    text = "an older release wrote rows to other tables and did not name these"
    if not dead:
        return text if tables.is_whole and fewer <= offset_range.rows_unaccounted else None
    begins = None if ledger is None else ledger.begins.get(partition, offset_range.span.end)
    return text if begins is not None and begins >= offset_range.span.end else None


def _loaded_otherwise(
    tables: Tables, partition: TopicPartition, ranges: list[OffsetRange], seen: BucketTotals
) -> Iterator[Finding]:
    """The ranges that were loaded with settings by which their rows cannot be named or counted (rule 6)."""
    merged = [offset_range.span for offset_range in ranges if offset_range.is_merged]
    if merged:
        text = (
            f"{_text(merged)} of {partition} were merged by key, or merged into later, so their rows cannot be "
            "counted; only the log proves that each was loaded once"
        )
        yield Finding(Verdict.UNPROVED, "merged", text, tables.url, partition, tuple(merged))
    nameless = [span for span, by_another_program in _nameless(ranges, seen) if not by_another_program]
    if nameless:
        text = (
            f"{_text(nameless)} of {partition} were loaded without the offset columns: their rows are only counted, "
            "together with those of all partitions"
        )
        yield Finding(Verdict.UNPROVED, "no_offset_columns", text, tables.url, partition, tuple(nameless))


def _text(spans: Iterable[Span]) -> str:
    joined = joined_spans(spans)
    return ", ".join(map(str, joined[:20])) + (" …" if len(joined) > 20 else "")  # noqa: PLR2004 - a screenful


def _uncounted(tables: Tables, partition: TopicPartition, ranges: list[OffsetRange], unproved: int) -> Finding:
    last = [offset_range for offset_range in ranges if offset_range.expected(dead_letters=False) is None][-1]
    text = (
        f"commits that do not count their records loaded {unproved} of {counted(len(ranges), 'span')} of {partition}, "
        f"the last one {last.span}: a missing row would go unnoticed there"
    )
    return Finding(Verdict.UNPROVED, "not_counted", text, tables.url, partition, (last.span,))


def _unexplained_rows(
    tables: Tables, partition: TopicPartition, ranges: list[OffsetRange], seen: BucketTotals
) -> Iterator[Finding]:
    """Findings for rows in positions that no commit of the history loaded."""
    ledger = tables.rows
    history_start = ranges[0].span.start if ranges else ledger.positions.get(partition)
    whole = all(ledger.first_version == 0 and not ledger.is_copy for ledger in tables.row_ledgers)
    for start, end, count in seen.rows.outside():
        if any(offset_range.span.covers(Position(start)) for offset_range in ranges):
            continue
        position = ledger.positions.get(partition)
        if (
            position is not None
            and start >= position
            and any(ledger.positions.get(partition, position) > position for ledger in tables.routed)
        ):
            continue  # rule 5
        location = f"[{start}, {'…' if end is None else end}) of {partition}"
        older = history_start is None or start < history_start
        if older and not whole:
            text = (
                f"the table has {counted(count, 'row')} in {location} from before the history, which begins with "
                f"version {ledger.first_version}: none occurs twice; whether one is missing cannot be proved"
            )
            yield Finding(Verdict.UNPROVED, "older_than_history", text, tables.url, partition)
        else:
            span = Span(Position(start), Position(max(start, seen.highest or start) + 1 if end is None else end))
            text = f"the table has {counted(count, 'row')} in {location} that no commit of the loader added"
            yield Finding(Verdict.FAULT, "unknown_rows", text, tables.url, partition, (span,))


def _given_up(tables: Tables, partition: TopicPartition) -> Iterator[Finding]:
    for loaded in tables.rows.loaded.get(partition, []):
        for span in () if loaded.counts is None else loaded.counts.given_up:
            text = f"{span} of {partition} was given up or declared done by an operator (version {loaded.version})"
            yield Finding(Verdict.NOTED, "given_up", text, tables.url, partition, (span,), loaded.version)


def kafka_findings(
    tables: Tables, partition: TopicPartition, seen: BucketTotals, findings: Iterable[Finding]
) -> Iterator[Finding]:
    """Records that Kafka has and the tables do not, apart from those that other findings explain."""
    excused = joined_spans(
        span
        for finding in findings
        if finding.partition == partition
        and finding.kind in ("deleted", "given_up", "older_than_history", "table_waits", "in_other_tables")
        for span in finding.spans
    )
    start, ranges = tables.rows.begins.get(partition), tables.offset_ranges(partition)
    uncounted = [offset_range.span for offset_range in ranges if offset_range.expected(dead_letters=False) is None]
    nameless = [span for span, _ in _nameless(ranges, seen)]
    older, lost, deleted, unnamed = Ranges(MOST_RANGES), list[Span](), list[Span](), list[Span]()
    for span in seen.missing.spans:
        if start is not None and span.start < start:
            older.add(span.start, min(span.end, start))
        first = span.start if start is None else max(span.start, start)
        if first >= span.end or any(excuse.start <= first and span.end <= excuse.end for excuse in excused):
            continue
        rest = Span(first, span.end)
        if any(span.start <= rest.start and rest.end <= span.end for span in nameless):
            unnamed.append(rest)
            continue
        is_uncounted = any(map(rest.overlaps, uncounted))
        removals = [removal for _, removal in tables.touching(partition, rest)] if is_uncounted else []
        (deleted if removals and all(removal.by_right for removal in removals) else lost).append(rest)
    yield from _older_in_kafka(tables, partition, older)
    if unnamed:
        count = sum(span.positions for span in unnamed)
        text = (
            f"commits loaded {counted(count, 'record')} of {partition} in rows that do not identify their records: "
            "which one is missing, if any, cannot be proved"
        )
        yield Finding(Verdict.UNPROVED, "brought_without_offsets", text, tables.url, partition, tuple(unnamed))
    if deleted:
        lacking = counted(sum(span.positions for span in deleted), "record")
        text = f"Kafka has {lacking} of {partition} that neither table has; the deletion may be intended"
        yield Finding(Verdict.UNPROVED, "may_be_deleted", text, tables.url, partition, tuple(deleted))
    if lost:
        yield _lost(tables, partition, lost)
    if not seen.missing.is_whole:
        lacking = counted(seen.missing.count, "record")
        text = f"Kafka has {lacking} of {partition} that neither table has; not all could be named"
        yield Finding(Verdict.FAULT, "too_many_missing", text, tables.url, partition)
    yield from _kafka_differs(tables, partition, seen)
    filtered = list(filtered_findings(tables, partition, seen.left_out, excused))
    yield from filtered
    if not lost and seen.missing.is_whole and not filtered and not seen.other_times.count:
        *fates, last_fate = _possible_outcomes(seen, ranges)
        text = (
            f"{partition}, records that Kafka has from {start or 0} up to the table's position: each of the "
            f"{seen.kafka_records - older.count:,} is {', '.join(fates)} or {last_fate}, unless another finding names "
            f"it; {compared(seen)}"
        )
        yield Finding(Verdict.PROVED, "all_in_tables", text, tables.url, partition)


def _possible_outcomes(seen: BucketTotals, ranges: Iterable[OffsetRange]) -> Iterator[str]:
    yield from ("a row", "a dead letter")
    if seen.kafka_tombstones:
        yield f"one of {counted(seen.kafka_tombstones, 'tombstone')}"
    filtered = sum(seen.left_out.tally.within(span.span) for span in ranges if not span.is_merged)
    if filtered:
        yield f"one of {counted(filtered, 'filtered record')}"
    if any(span.is_merged for span in ranges):
        yield "a merged event"


def _nameless(ranges: Iterable[OffsetRange], seen: BucketTotals) -> list[tuple[Span, bool]]:
    """Positions loaded as rows that do not name their records, and whether another program loaded them (rule 4).

    Neighboring ranges are joined.
    """
    joined: list[tuple[Span, bool]] = []
    for offset_range in ranges:
        by_another_program = bool(offset_range.loaded) and all(load.is_foreign for load in offset_range.loaded)
        if offset_range.is_merged or seen.rows.within(offset_range.span):
            continue
        if by_another_program or (offset_range.lacks_offset_statistics and offset_range.expected(dead_letters=False)):
            joins = joined and joined[-1] == (Span(joined[-1][0].start, offset_range.span.start), by_another_program)
            start = joined.pop()[0].start if joins else offset_range.span.start
            joined.append((Span(start, offset_range.span.end), by_another_program))
    return joined


def _lost(tables: Tables, partition: TopicPartition, lost: list[Span]) -> Finding:
    count = sum(span.positions for span in lost)
    version = _loading_version(tables.rows, partition, lost[0])
    text = f"Kafka has {counted(count, 'record')} of {partition} that neither table has: {_text(lost)}"
    if version is not None:
        text += f"; version {version} says that it loaded the first of them"
    return Finding(Verdict.FAULT, "missing_from_tables", text, tables.url, partition, tuple(lost), version)


def _kafka_differs(tables: Tables, partition: TopicPartition, seen: BucketTotals) -> Iterator[Finding]:
    """Records that the tables have and Kafka does not."""
    position = tables.rows.positions.get(partition)
    if seen.kafka_end is not None and position is not None and seen.kafka_end < position:
        text = f"Kafka ends at {seen.kafka_end} of {partition}, before the table's {position}: the topic lost records"
        yield Finding(Verdict.FAULT, "kafka_went_back", text, tables.url, partition, (Span(seen.kafka_end, position),))
    if seen.vanished:
        vanished = counted(seen.vanished, "record")
        text = f"a table has {vanished} of {partition} that Kafka no longer has (compacted or deleted)"
        yield Finding(Verdict.NOTED, "gone_from_kafka", text, tables.url, partition)


def _older_in_kafka(tables: Tables, partition: TopicPartition, older: Ranges) -> Iterator[Finding]:
    """Records that Kafka has from before the first span of the history."""
    ledger = tables.rows
    if older.count and ledger.first_version == 0 and not ledger.is_copy:
        text = f"Kafka has {counted(older.count, 'record')} of {partition} from before the chain's beginning"
        yield Finding(Verdict.NOTED, "before_the_chain", text, tables.url, partition, tuple(older.spans))
    elif older.count:
        text = (
            f"Kafka has {counted(older.count, 'record')} of {partition} from before the history that neither table "
            "has: whether they were ever loaded cannot be proved"
        )
        yield Finding(Verdict.UNPROVED, "missing_before_history", text, tables.url, partition, tuple(older.spans))


def _loading_version(ledger: Ledger, partition: TopicPartition, span: Span) -> int | None:
    versions = [load.version for load in ledger.loaded.get(partition, []) if load.span.covers(span.start)]
    return versions[0] if versions else None
