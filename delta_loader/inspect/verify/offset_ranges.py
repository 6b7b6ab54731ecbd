"""Positions whose records can be counted together, with the commits' counts.

Rules:

1. Spans that a replacement joined are one *offset range*: expected rows = staged rows + changes by replacements.
2. Of a range that events were merged into, or whose rows a later merge may have changed, no rows are expected.
3. A replacement's change is known in rows. Where a record can have several rows, or legitimately none, an offset range
   can be counted only without replacements, or when the last one replaced all of it; otherwise nothing is claimed.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from common.spans import Span, TopicPartition
from common.tables.counts import Counts
from delta_loader.inspect.verify.ledger import Ledger, LoadedSpan, ReplacedSpan


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """Positions whose rows can be counted together."""

    span: Span
    loaded: tuple[LoadedSpan, ...]
    replacements: tuple[ReplacedSpan, ...]
    dead_letter_replacements: tuple[ReplacedSpan, ...]
    routed_replacements: tuple[ReplacedSpan, ...] = ()
    """The replacements in the tables of the stream's routes, by the same requests as those in the main table."""
    is_merged: bool = False
    """Whether events were merged into the range's table with the range or later (rule 2)."""
    route_loads: tuple[LoadedSpan, ...] = ()
    """The loads of the range into the known tables of the stream's routes."""

    @property
    def version(self) -> int:
        """The version that loaded the start of the range."""
        replacements = (*self.replacements, *self.dead_letter_replacements)
        return min([*(load.version for load in self.loaded), *(replacement.version for replacement in replacements)])

    def expected(self, *, dead_letters: bool) -> int | None:
        """How many records one of the tables should have; None when a commit does not count, or by rules 2 and 3."""
        if self.is_merged and not dead_letters:
            return None
        replacements = self.dead_letter_replacements if dead_letters else self.replacements
        if not dead_letters and replacements and self._any(_exploded):
            whole = self._whole_replacement
            return None if whole is None else whole.replaced.counts.records_with_rows
        nets = [replacement.net_rows for replacement in (replacements if dead_letters else self._row_replacements)]
        covered = sum(load.span.positions for load in self.loaded) >= self.span.positions
        if not covered or any(load.counts is None for load in self.loaded) or None in nets:
            return None
        staged = sum(
            load.counts.dead_letters if dead_letters else load.counts.records_with_rows
            for load in self.loaded
            if load.counts is not None
        )
        return staged + sum(net for net in nets if net is not None)

    @property
    def rows_elsewhere(self) -> int:
        """Rows that the main table's commits count and that went to the tables of routes."""
        return sum(load.counts.rows - load.counts.rows_here for load in self.loaded if load.counts is not None)

    @property
    def rows_unaccounted(self) -> int:
        """Rows that went to the tables of routes, and that no known table's commits count."""
        return self.rows_elsewhere - sum(load.counts.rows_here for load in self.route_loads if load.counts is not None)

    @property
    def other_tables(self) -> frozenset[str]:
        return frozenset(url for load in self.loaded for url in load.other_tables)

    @property
    def lacks_offset_statistics(self) -> bool:
        """Whether no file added for the range has offsets in its statistics: its rows may not name their records."""
        own = [load for load in self.loaded if not load.is_foreign]
        return bool(own) and not any(load.has_offset_statistics for load in own)

    def filtered(self, *, may_be: bool) -> int | None:
        """Records that the stream's condition left out; None when a commit that may have left some out has no count."""
        return self._known(_filtered, may_be=may_be)

    def exploded(self, *, may_be: bool) -> int | None:
        """Rows beyond the first one of their record; None when a commit that may have added some has no count."""
        return self._known(_exploded, may_be=may_be)

    @property
    def spans(self) -> tuple[Span, ...]:
        """The counted ranges: the whole range, and each part that was replaced."""
        replacements = (*self.replacements, *self.dead_letter_replacements)
        return (self.span, *(replacement.replaced.span for replacement in replacements))

    @property
    def last_replacement(self) -> ReplacedSpan | None:
        """The newest replacement of its range."""
        return max(self.replacements, key=lambda replacement: replacement.version, default=None)

    def without_given_up(self) -> Iterator[Span]:
        """The positions that writers staged."""
        start = self.span.start
        given_up = (span for load in self.loaded if load.counts is not None for span in load.counts.given_up)
        for span in sorted(given_up):
            if start < span.start:
                yield Span(start, span.start)
            start = max(start, span.end)
        if start < self.span.end:
            yield Span(start, self.span.end)

    @property
    def _row_replacements(self) -> tuple[ReplacedSpan, ...]:
        return (*self.replacements, *self.routed_replacements)

    @property
    def _whole_replacement(self) -> ReplacedSpan | None:
        last = self.last_replacement
        whole = last is not None and last.replaced.span == self.span and last.replaced.positions is None
        return last if whole else None

    def _counts(self) -> Iterator[Counts | None]:
        yield from (load.counts for load in self.loaded)
        yield from (replacement.replaced.counts for replacement in self.replacements)

    def _any(self, of: Callable[[Counts], int]) -> bool:
        return any(counts is not None and of(counts) for counts in self._counts())

    def _known(self, of: Callable[[Counts], int], *, may_be: bool) -> int | None:
        whole = self._whole_replacement
        if whole is not None:
            return of(whole.replaced.counts)
        uncounted = any(load.counts is None for load in self.loaded)
        if (self.replacements and self._any(of)) or (uncounted and may_be):
            return None
        return sum(of(load.counts) for load in self.loaded if load.counts is not None)


def offset_ranges(
    rows: Ledger, dead_letters: Ledger | None, partition: TopicPartition, routed: Iterable[Ledger] = ()
) -> list[OffsetRange]:
    """The offset ranges of one Kafka partition, in order (rule 1); ``routed`` are the tables of the stream's routes."""
    loaded = rows.loaded.get(partition, [])
    replaced = rows.replacements.get(partition, [])
    dead = [] if dead_letters is None else dead_letters.replacements.get(partition, [])
    ledgers = (rows, *routed)
    others = [replacement for ledger in ledgers[1:] for replacement in ledger.replacements.get(partition, [])]
    merged = [
        load.span
        for ledger in ledgers
        for load in ledger.loaded.get(partition, [])
        if load.version <= ledger.last_merge
    ]
    side = [load for ledger in ledgers[1:] for load in ledger.loaded.get(partition, [])]
    spans = [
        *(load.span for load in loaded),
        *(replacement.replaced.span for replacement in (*replaced, *dead, *others)),
    ]
    return [
        OffsetRange(
            span,
            tuple(load for load in loaded if span.covers(load.span.start)),
            tuple(replacement for replacement in replaced if span.covers(replacement.replaced.span.start)),
            tuple(replacement for replacement in dead if span.covers(replacement.replaced.span.start)),
            tuple(replacement for replacement in others if span.covers(replacement.replaced.span.start)),
            any(map(span.overlaps, merged)),
            tuple(load for load in side if span.covers(load.span.start)),
        )
        for span in joined_spans(spans, neighbors=False)
    ]


def joined_spans(spans: Iterable[Span], *, neighbors: bool = True) -> list[Span]:
    """The spans in order, those that overlap as one; with ``neighbors`` also those that follow one another."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and (span.start < joined[-1].end or (neighbors and span.start == joined[-1].end)):
            joined[-1] = Span(joined[-1].start, max(joined[-1].end, span.end))
        else:
            joined.append(span)
    return joined


def _filtered(counts: Counts) -> int:
    return counts.filtered


def _exploded(counts: Counts) -> int:
    return counts.exploded
