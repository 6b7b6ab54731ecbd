"""Reconciles one Kafka partition: its offsets in the tables against what the history says was loaded.

Rules:

1. Loaded and replaced rows are counted by offset range (delta_loader/inspect/verify/offset_ranges.py).
2. If a range has fewer rows than expected, a commit that could reach them may have removed them legitimately. Such a
   commit explains the missing rows. The sum of the explained rows never exceeds the number that these commits removed.
   Other missing rows are a fault, which names the commit that removed them or, if no commit did, the commit that loaded
   them.
3. Each offset is in the tables once: in every bucket, the number of rows is compared with the number of bits. No offset
   is both a row and a dead letter. For a stream that leaves records out, or makes several rows of one, rules 7 and 8
   apply. For whether the record that Kafka has at an offset is the loaded one, see same_records.py.
4. Records that no commit counted are not proved, and never a fault. Another program may have loaded records without any
   row in that range that names its record: kafka-delta-ingest has no columns for that. That is no fault either.
5. If records are routed to several tables, the rows of these are counted together: each offset is in one of them, once.
   A table's deferred ranges (common/tables/deferred_ranges.py) are not proved. Rows that a secondary table has past the
   main table's position belong to a load that has not reached the main table yet.
6. The settings that a range was loaded with count, not the current ones. Where events were merged, no rows are
   expected. Rows that were loaded without offset columns are counted over all partitions. Tables that the settings no
   longer name are read as far as the commits name them. What such tables have of a range is not proved if it is
   unknown.
7. Commits do not say which records were filtered by `where`, only how many. The records of an offset range that Kafka
   has and no table has are therefore compared with that number: if there are more, some are lost; if fewer, some were
   compacted or deleted in Kafka since.
8. There are as many rows beyond the first of each record, made by `explode`, as the commits counted; any more are
   duplicates. Where a commit does not count, or rows were deleted legitimately, nothing is claimed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

from common.sizes import agreeing, counted
from common.spans import Position, Span, TopicPartition
from delta_loader.inspect.verify.findings import Finding, PartitionReport, Verdict
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


@dataclass(frozen=True)
class Reconciliation:
    """One Kafka partition: its records in the tables, and in Kafka, against what the history says was loaded."""

    tables: Tables
    partition: TopicPartition
    seen: BucketTotals

    @cached_property
    def ranges(self) -> list[OffsetRange]:
        return self.tables.offset_ranges(self.partition)

    def finding(
        self, verdict: Verdict, kind: str, text: str, *spans: Span, version: int | None = None, url: str = ""
    ) -> Finding:
        """A finding about the partition; by default in the main table."""
        return Finding(verdict, kind, text, url or self.tables.url, self.partition, spans, version)

    def of_tables(self, explained: Explained, explained_dead: Explained) -> tuple[PartitionReport, list[Finding]]:
        """The report and findings, except for duplicates, which need another read of the table."""
        partition, seen, ledger = self.partition, self.seen, self.tables.rows
        findings: list[Finding] = []
        unproved = 0
        for offset_range in self.ranges:
            if not offset_range.is_merged:
                findings += self._replaced_as_counted(offset_range)
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
                    findings.append(self._difference(offset_range, expected, have, account, dead=dead))
        if unproved:
            findings.append(self._uncounted(unproved))
        findings += [*self._loaded_otherwise(), *self._unexplained_rows(), *self._given_up()]
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
        self, offset_range: OffsetRange, expected: int, have: int, explained: Explained, *, dead: bool
    ) -> Finding:
        tables, partition, span = self.tables, self.partition, offset_range.span
        url = tables.dead_letters_url if dead else tables.url
        what, location = ("dead letter" if dead else "row"), f"{span} of {partition}"
        loading = f"version {', '.join(str(load.version) for load in offset_range.loaded)} of {tables.url}"
        if have > expected:
            text = f"{location} has {counted(have, what)}; {loading} staged {expected:,}"
            return self._blamed_on_load("too_many_rows", text, offset_range, dead=dead)
        fewer = expected - have
        missing, are = f"{fewer:,} of {counted(expected, what)} in {location}", agreeing(fewer, "is", "are")
        waiting = tables.tables_lacking(partition, span, dead=dead)
        if waiting:
            text = f"{missing} {are} staged, and may be deferred for {', '.join(waiting)}"
            return self.finding(Verdict.UNPROVED, "table_waits", text, span, url=waiting[0])
        elsewhere = self._elsewhere(offset_range, fewer, dead=dead)
        if elsewhere is not None:
            text = f"{missing} {are} not in the tables that the stream names: {elsewhere}"
            return self.finding(Verdict.UNPROVED, "in_other_tables", text, span, url=url)
        after = min((load.version for load in offset_range.loaded), default=-1)
        explanations = tables.dead_touching(partition, span) if dead else tables.touching(partition, span, after)
        wrong = [(by, removal) for by, removal in explanations if not removal.by_right]
        if wrong:
            by, last = wrong[-1]
            text = (
                f"{missing} {are} gone: version {last.version} ({last.words}) removed files of that range, which "
                f"{loading} had loaded"
            )
            fault = self.finding(Verdict.FAULT, "rows_removed", text, span, version=last.version, url=by.url)
            return replace(fault, files=last.touches(partition, span))
        if explanations:
            explained.rows += fewer
            explained.removals |= {(by.url, removal.version): removal for by, removal in explanations}
            removals = [removal for _, removal in explanations]
            names = "; ".join(f"version {removal.version} ({removal.words})" for removal in removals[-3:])
            text = f"{missing} {agreeing(fewer, 'was', 'were')} deleted by {names}"
            return self.finding(Verdict.NOTED, "deleted", text, span, version=removals[-1].version, url=url)
        text = f"{missing} {are} missing: {loading} counted all, and no later commit removed any"
        return self._blamed_on_load("rows_missing", text, offset_range, dead=dead)

    def _blamed_on_load(self, kind: str, text: str, offset_range: OffsetRange, *, dead: bool) -> Finding:
        """A fault that names the commit which loaded the range, and its files."""
        tables, version, span = self.tables, offset_range.version, offset_range.span
        ledger = tables.dead_letters if dead else tables.rows
        files = () if ledger is None else ledger.files_of(version, self.partition, span)
        url = tables.dead_letters_url if dead else tables.url
        return replace(self.finding(Verdict.FAULT, kind, text, span, version=version, url=url), files=files)

    def _replaced_as_counted(self, offset_range: OffsetRange) -> Iterator[Finding]:
        """Whether a replaced range holds more rows than were staged for it, or fewer and nothing was deleted since."""
        last, tables, partition = offset_range.last_replacement, self.tables, self.partition
        if last is None or last.replaced.positions is not None:
            return  # changes of single offsets of a range are in the sum of the offset range
        span, counts = last.replaced.span, last.replaced.counts
        for tally, ledger, what, url, expected in (
            (self.seen.rows, tables.rows, "row", tables.url, counts.records_with_rows),
            (self.seen.dead_letters, tables.dead_letters, "dead letter", tables.dead_letters_url, counts.dead_letters),
        ):
            have = tally.within(span)
            touched = tables.touching(partition, span) if ledger is tables.rows else []
            deleted = touched or (ledger is not tables.rows and tables.dead_touching(partition, span))
            if have > expected or (have < expected and not deleted):
                text = f"{span} of {partition} has {counted(have, what)}; version {last.version} put {expected:,} there"
                yield self.finding(Verdict.FAULT, "replaced_otherwise", text, span, version=last.version, url=url)

    def _elsewhere(self, offset_range: OffsetRange, fewer: int, *, dead: bool) -> str | None:
        """Where missing rows may be that went into tables which the stream no longer names; None: nowhere (rule 6)."""
        unread = sorted(offset_range.other_tables & self.tables.unread)
        ledger = self.tables.dead_letters
        loaded = () if ledger is None else ledger.loaded.get(self.partition, ())
        accounted = (
            any(offset_range.span.overlaps(load.span) for load in loaded) if dead else not offset_range.rows_unaccounted
        )
        if unread and not accounted:
            return f"its commits also name {', '.join(unread)}, which could not be read"
        if offset_range.other_tables:
            return None
        text = "an older release wrote rows to other tables and did not name these"
        if not dead:
            return text if self.tables.is_whole and fewer <= offset_range.rows_unaccounted else None
        begins = None if ledger is None else ledger.begins.get(self.partition, offset_range.span.end)
        return text if begins is not None and begins >= offset_range.span.end else None

    def _loaded_otherwise(self) -> Iterator[Finding]:
        """The ranges that were loaded with settings by which their rows cannot be named or counted (rule 6)."""
        merged = [offset_range.span for offset_range in self.ranges if offset_range.is_merged]
        if merged:
            text = (
                f"{_text(merged)} of {self.partition} were merged by key, or merged into later, so their rows cannot "
                "be counted; only the log proves that each was loaded once"
            )
            yield self.finding(Verdict.UNPROVED, "merged", text, *merged)
        nameless = [span for span, by_another_program in self._nameless() if not by_another_program]
        if nameless:
            text = (
                f"{_text(nameless)} of {self.partition} were loaded without the offset columns: their rows are only "
                "counted, together with those of all partitions"
            )
            yield self.finding(Verdict.UNPROVED, "no_offset_columns", text, *nameless)

    def _uncounted(self, unproved: int) -> Finding:
        last = [offset_range for offset_range in self.ranges if offset_range.expected(dead_letters=False) is None][-1]
        text = (
            f"commits that do not count their records loaded {unproved} of {counted(len(self.ranges), 'span')} of "
            f"{self.partition}, the last one {last.span}: a missing row would go unnoticed there"
        )
        return self.finding(Verdict.UNPROVED, "not_counted", text, last.span)

    def _unexplained_rows(self) -> Iterator[Finding]:
        """Findings for rows in positions that no commit of the history loaded."""
        tables, partition, ledger = self.tables, self.partition, self.tables.rows
        position = ledger.positions.get(partition)
        history_start = self.ranges[0].span.start if self.ranges else position
        whole = all(ledger.first_version == 0 and not ledger.is_copy for ledger in tables.row_ledgers)
        for start, end, count in self.seen.rows.outside():
            if any(offset_range.span.covers(Position(start)) for offset_range in self.ranges):
                continue
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
                yield self.finding(Verdict.UNPROVED, "older_than_history", text)
            else:
                highest = max(start, self.seen.highest or start) + 1 if end is None else end
                text = f"the table has {counted(count, 'row')} in {location} that no commit of the loader added"
                yield self.finding(Verdict.FAULT, "unknown_rows", text, Span(Position(start), Position(highest)))

    def _given_up(self) -> Iterator[Finding]:
        for loaded in self.tables.rows.loaded.get(self.partition, []):
            for span in () if loaded.counts is None else loaded.counts.given_up:
                text = f"{span} of {self.partition} was given up or declared done by an operator"
                text += f" (version {loaded.version})"
                yield self.finding(Verdict.NOTED, "given_up", text, span, version=loaded.version)

    def of_kafka(self, findings: Iterable[Finding]) -> Iterator[Finding]:
        """Records that Kafka has and the tables do not, apart from those that other findings explain."""
        tables, partition, seen = self.tables, self.partition, self.seen
        excused = joined_spans(
            span
            for finding in findings
            if finding.kind in ("deleted", "given_up", "older_than_history", "table_waits", "in_other_tables")
            for span in finding.spans
        )
        start = tables.rows.begins.get(partition)
        uncounted = [each.span for each in self.ranges if each.expected(dead_letters=False) is None]
        nameless = [span for span, _ in self._nameless()]
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
        yield from self._older_in_kafka(older)
        if unnamed:
            count = sum(span.positions for span in unnamed)
            text = (
                f"commits loaded {counted(count, 'record')} of {partition} in rows that do not identify their records: "
                "which one is missing, if any, cannot be proved"
            )
            yield self.finding(Verdict.UNPROVED, "brought_without_offsets", text, *unnamed)
        if deleted:
            lacking = counted(sum(span.positions for span in deleted), "record")
            text = f"Kafka has {lacking} of {partition} that neither table has; the deletion may be intended"
            yield self.finding(Verdict.UNPROVED, "may_be_deleted", text, *deleted)
        if lost:
            yield self._lost(lost)
        if not seen.missing.is_whole:
            lacking = counted(seen.missing.count, "record")
            text = f"Kafka has {lacking} of {partition} that neither table has; not all could be named"
            yield self.finding(Verdict.FAULT, "too_many_missing", text)
        yield from self._kafka_differs()
        filtered = list(self._filtered(excused))
        yield from filtered
        if not lost and seen.missing.is_whole and not filtered and not seen.other_times.count:
            *fates, last_fate = self._possible_outcomes()
            text = (
                f"{partition}, records that Kafka has from {start or 0} up to the table's position: each of the "
                f"{seen.kafka_records - older.count:,} is {', '.join(fates)} or {last_fate}, unless another finding "
                f"names it; {compared(seen)}"
            )
            yield self.finding(Verdict.PROVED, "all_in_tables", text)

    def _possible_outcomes(self) -> Iterator[str]:
        yield from ("a row", "a dead letter")
        if self.seen.kafka_tombstones:
            yield f"one of {counted(self.seen.kafka_tombstones, 'tombstone')}"
        filtered = sum(self.seen.left_out.tally.within(span.span) for span in self.ranges if not span.is_merged)
        if filtered:
            yield f"one of {counted(filtered, 'filtered record')}"
        if any(span.is_merged for span in self.ranges):
            yield "a merged event"

    def _nameless(self) -> list[tuple[Span, bool]]:
        """Positions loaded as rows that do not name their records, and whether another program did it (rule 4).

        Neighboring ranges are joined.
        """
        joined: list[tuple[Span, bool]] = []
        for offset_range in self.ranges:
            by_another_program = bool(offset_range.loaded) and all(load.is_foreign for load in offset_range.loaded)
            if offset_range.is_merged or self.seen.rows.within(offset_range.span):
                continue
            lacks = offset_range.lacks_offset_statistics and offset_range.expected(dead_letters=False)
            if by_another_program or lacks:
                before = joined and (Span(joined[-1][0].start, offset_range.span.start), by_another_program)
                start = joined.pop()[0].start if joined and joined[-1] == before else offset_range.span.start
                joined.append((Span(start, offset_range.span.end), by_another_program))
        return joined

    def _lost(self, lost: list[Span]) -> Finding:
        count, loads = sum(span.positions for span in lost), self.tables.rows.loaded.get(self.partition, [])
        version = next((load.version for load in loads if load.span.covers(lost[0].start)), None)
        text = f"Kafka has {counted(count, 'record')} of {self.partition} that neither table has: {_text(lost)}"
        if version is not None:
            text += f"; version {version} says that it loaded the first of them"
        return self.finding(Verdict.FAULT, "missing_from_tables", text, *lost, version=version)

    def _kafka_differs(self) -> Iterator[Finding]:
        """Records that the tables have and Kafka does not."""
        position, end = self.tables.rows.positions.get(self.partition), self.seen.kafka_end
        if end is not None and position is not None and end < position:
            text = f"Kafka ends at {end} of {self.partition}, before the table's {position}: the topic lost records"
            yield self.finding(Verdict.FAULT, "kafka_went_back", text, Span(end, position))
        if self.seen.vanished:
            vanished = counted(self.seen.vanished, "record")
            text = f"a table has {vanished} of {self.partition} that Kafka no longer has (compacted or deleted)"
            yield self.finding(Verdict.NOTED, "gone_from_kafka", text)

    def _older_in_kafka(self, older: Ranges) -> Iterator[Finding]:
        """Records that Kafka has from before the first span of the history."""
        if not older.count:
            return
        ledger, records = (
            self.tables.rows,
            f"Kafka has {counted(older.count, 'record')} of {self.partition} from before",
        )
        if ledger.first_version == 0 and not ledger.is_copy:
            text = f"{records} the chain's beginning"
            yield self.finding(Verdict.NOTED, "before_the_chain", text, *older.spans)
        else:
            text = f"{records} the history that neither table has: whether they were ever loaded cannot be proved"
            yield self.finding(Verdict.UNPROVED, "missing_before_history", text, *older.spans)

    def _filtered(self, excused: Sequence[Span]) -> Iterator[Finding]:
        """Whether no more records are in Kafka and in no table than were filtered (rule 7).

        ``excused`` are spans for which other findings say why records are in no table.
        """
        tables, partition, left_out = self.tables, self.partition, self.seen.left_out
        if not left_out.spans:
            return
        shape = tables.shape.of(self.ranges)
        for offset_range in self.ranges:
            if offset_range.is_merged:
                continue
            span, have = offset_range.span, left_out.tally.within(offset_range.span)
            most = offset_range.filtered(may_be=shape.filters)
            text = f"Kafka has {counted(have, 'record')} of {span} of {partition} that neither table has"
            if have and most is None:
                text += "; the commits that loaded the others do not count those that `where` filtered out"
                yield self.finding(Verdict.UNPROVED, "filtered_uncounted", text, span)
            elif most is not None and have > most:
                versions = ", ".join(str(load.version) for load in offset_range.loaded)
                text += f"; version {versions} of {tables.url} counted {most:,} that `where` filtered out"
                by_right = [removal.by_right for _, removal in tables.touching(partition, span)]
                is_excused = any(excuse.start <= span.start and span.end <= excuse.end for excuse in excused)
                verdict, kind = Verdict.FAULT, "missing_from_tables"
                if is_excused or (by_right and all(by_right)):
                    verdict, kind = Verdict.UNPROVED, "may_be_deleted"
                yield self.finding(verdict, kind, text, span, version=offset_range.version)

    def exploded(self) -> Iterator[Finding]:
        """Whether the partition has as many rows beyond the first one of each record as were staged (rule 8)."""
        if not self.tables.shape.of(self.ranges).explodes:
            return
        extra_rows = self.seen.total - self.seen.distinct
        counts = [offset_range.exploded(may_be=True) for offset_range in self.ranges]
        staged = sum(count for count in counts if count is not None)
        text = f"{self.partition} has {counted(extra_rows, 'row')} more than records"
        unreadable = any(each.is_merged or each.other_tables & self.tables.unread for each in self.ranges)
        if None in counts or (unreadable and extra_rows < staged):
            text += "; not every commit that loaded them counts the rows per record"
            yield self.finding(Verdict.UNPROVED, "exploded_uncounted", text)
        elif extra_rows > staged:
            text += f", but the commits counted {staged:,}: some rows occur more than once"
            yield self.finding(Verdict.FAULT, "rows_twice", text)
        elif extra_rows < staged:
            yield self._fewer(f"{text}, but the commits counted {staged:,}")

    def _fewer(self, text: str) -> Finding:
        """Rows beyond the first one of a record are missing."""
        tables, partition = self.tables, self.partition
        spans = [offset_range.span for offset_range in self.ranges]
        removals = [removal for span in spans for _, removal in tables.touching(partition, span)]
        if any(tables.tables_lacking(partition, span, dead=False) for span in spans):
            return self.finding(Verdict.UNPROVED, "table_waits", f"{text}; a table still waits for some")
        if removals and all(removal.by_right for removal in removals):
            text += "; another program has deleted rows since, so the rest cannot be counted"
            return self.finding(Verdict.UNPROVED, "exploded_deleted", text)
        version = max((removal.version for removal in removals), default=None)
        return self.finding(Verdict.FAULT, "rows_missing", f"{text}: some are missing", version=version)


def _text(spans: Iterable[Span]) -> str:
    joined = joined_spans(spans)
    return ", ".join(map(str, joined[:20])) + (" …" if len(joined) > 20 else "")  # noqa: PLR2004 - a screenful
