"""Records that legitimately have no row or several: filtered by `where`, or split into rows by `explode`.

Rules:

1. Commits do not say which records were filtered, only how many. The records of an offset range that Kafka has and no
   table has are therefore compared with that number: if there are more, some are lost; if fewer, some were compacted or
   deleted in Kafka since.
2. There are as many rows beyond the first of each record as the commits counted; any more are duplicates.
3. Where a commit does not count, or rows were deleted legitimately, nothing is claimed.
"""

from collections.abc import Iterator, Sequence

from common.sizes import counted
from common.spans import Span, TopicPartition
from delta_loader.inspect.verify.findings import Finding, Verdict
from delta_loader.inspect.verify.reconcile_facts import FilteredRecords, Tables


def filtered_findings(
    tables: Tables, partition: TopicPartition, left_out: FilteredRecords, excused: Sequence[Span]
) -> Iterator[Finding]:
    """Whether no more records are in Kafka and in no table than were filtered (rule 1).

    ``excused`` are spans for which other findings say why records are in no table.
    """
    offset_ranges = tables.offset_ranges(partition) if left_out.spans else []
    shape = tables.shape.of(offset_ranges)
    for offset_range in offset_ranges:
        if offset_range.is_merged:
            continue
        have, most = left_out.tally.within(offset_range.span), offset_range.filtered(may_be=shape.filters)
        text = f"Kafka has {counted(have, 'record')} of {offset_range.span} of {partition} that neither table has"
        if have and most is None:
            text += "; the commits that loaded the others do not count those that `where` filtered out"
            yield Finding(Verdict.UNPROVED, "filtered_uncounted", text, tables.url, partition, (offset_range.span,))
        elif most is not None and have > most:
            versions = ", ".join(str(load.version) for load in offset_range.loaded)
            text += f"; version {versions} of {tables.url} counted {most:,} that `where` filtered out"
            by_right = [removal.by_right for _, removal in tables.touching(partition, offset_range.span)]
            is_excused = any(
                span.start <= offset_range.span.start and offset_range.span.end <= span.end for span in excused
            )
            verdict, kind = Verdict.FAULT, "missing_from_tables"
            if is_excused or (by_right and all(by_right)):
                verdict, kind = Verdict.UNPROVED, "may_be_deleted"
            yield Finding(verdict, kind, text, tables.url, partition, (offset_range.span,), offset_range.version)


def exploded_findings(tables: Tables, partition: TopicPartition, extra_rows: int) -> Iterator[Finding]:
    """Whether a partition has as many rows beyond the first one of each record as were staged (rule 2)."""
    offset_ranges = tables.offset_ranges(partition)
    shape = tables.shape.of(offset_ranges)
    if not shape.explodes:
        return
    counts = [offset_range.exploded(may_be=True) for offset_range in offset_ranges]
    staged = sum(count for count in counts if count is not None)
    text = f"{partition} has {counted(extra_rows, 'row')} more than records"
    unreadable = any(
        offset_range.is_merged or offset_range.other_tables & tables.unread for offset_range in offset_ranges
    )
    if None in counts or (unreadable and extra_rows < staged):
        text += "; not every commit that loaded them counts the rows per record"
        yield Finding(Verdict.UNPROVED, "exploded_uncounted", text, tables.url, partition)
    elif extra_rows > staged:
        text += f", but the commits counted {staged:,}: some rows occur more than once"
        yield Finding(Verdict.FAULT, "rows_twice", text, tables.url, partition)
    elif extra_rows < staged:
        yield _fewer(tables, partition, f"{text}, but the commits counted {staged:,}")


def _fewer(tables: Tables, partition: TopicPartition, text: str) -> Finding:
    """Rows beyond the first one of a record are missing."""
    spans = [offset_range.span for offset_range in tables.offset_ranges(partition)]
    removals = [removal for span in spans for _, removal in tables.touching(partition, span)]
    if any(tables.tables_lacking(partition, span, dead=False) for span in spans):
        text += "; a table still waits for some"
        return Finding(Verdict.UNPROVED, "table_waits", text, tables.url, partition)
    if removals and all(removal.by_right for removal in removals):
        text += "; another program has deleted rows since, so the rest cannot be counted"
        return Finding(Verdict.UNPROVED, "exploded_deleted", text, tables.url, partition)
    version = max((removal.version for removal in removals), default=None)
    return Finding(Verdict.FAULT, "rows_missing", f"{text}: some are missing", tables.url, partition, (), version)
