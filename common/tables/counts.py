"""The counts in a commit's user metadata, which reconcile a table with the records staged for it.

Rules:

1. Counts are summed by Kafka partition over the markers that a commit loads: each record has rows, or is a dead letter,
   a tombstone or filtered (`Counts.add_up`). They are an addition to the metadata: older commits have none, and older
   programs ignore them.
2. Positions that an operator gave up, or declared done before the chain started, are named as ranges: they must not
   count as proved.
3. If a marker is loaded in part, it is not counted which of its records these are: its partition has no counts in that
   commit, and the table's own statistics are used.
4. If records are routed to several tables, ``rows`` counts the rows of all tables, and ``here`` this table's.
5. A commit that replaces rows names the range and counts the rows that it wrote; Delta's own metrics count the rows
   that it deleted.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from common.spans import Position, Span
from common.stage.markers import Marker, Origin, TableKind
from common.stored_types import StoredSpan, omit_defaults


@dataclass(frozen=True, slots=True)
class Counts:
    """The counts of the Kafka records of one span."""

    records: int
    rows: int
    tombstones: int
    dead_letters: int
    given_up: tuple[StoredSpan, ...] = ()
    """Positions that no writer staged: an operator skipped them or started after them."""
    filtered: int = 0
    """Records that the stream's condition left out."""
    exploded: int = 0
    """Rows beyond the first one of their record."""
    here: int | None = None
    """How many of the rows went into the very table of the commit; None for all of them (rule 4)."""

    _without_empty = omit_defaults("here")

    @property
    def records_with_rows(self) -> int:
        """Records that have at least one row."""
        return self.rows - self.exploded

    @property
    def add_up(self) -> bool:
        """Whether each record is accounted for, once."""
        return self.records == self.records_with_rows + self.tombstones + self.dead_letters + self.filtered

    @property
    def rows_here(self) -> int:
        """Rows that the commit added."""
        return self.rows if self.here is None else self.here


@dataclass(frozen=True, slots=True)
class Replaced:
    """A range whose rows a commit deleted and wrote again."""

    span: StoredSpan
    request: str
    counts: Counts
    positions: int | None = None
    """How many of the span's positions it was about; None for all of them."""

    @property
    def words(self) -> str:
        return str(self.span) if self.positions is None else f"{self.positions:,} offsets of {self.span}"


def counts_of(markers: Iterable[Marker], start: Position, url: str) -> Counts | None:
    """The sums over the markers of one Kafka partition, in order, from ``start`` on; None if one is cut (rule 3).

    ``url`` is the table that they are loaded into.
    """
    records = rows = tombstones = dead_letters = filtered = exploded = 0
    here: int | None = None
    given_up: list[Span] = []
    for marker in markers:
        manifest, begin = marker.manifest, max(start, marker.span.start)
        if manifest is None or manifest.origin is not Origin.FLUSH:
            joins = given_up and given_up[-1].end == begin
            given_up.append(Span(given_up.pop().start if joins else begin, marker.span.end))
        if manifest is not None:
            if manifest.records and begin > marker.span.start:
                return None
            records += manifest.records
            tombstones += manifest.tombstones
            filtered += manifest.filtered
            exploded += manifest.exploded
            dead_letters += sum(manifest.dead_letters.values())
            for table in (table for table in marker.tables if table.kind is TableKind.ROWS):
                rows += table.rows
                here = (here or 0) + table.rows if table.url == url else here
    here = None if here == rows else here
    return Counts(records, rows, tombstones, dead_letters, tuple(given_up), filtered, exploded, here)
