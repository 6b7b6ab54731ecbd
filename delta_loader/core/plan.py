"""Which markers to load next: the heart of the loader, as pure functions.

Rules:

1. A marker is loadable only when its start is exactly the table's position. So a run never skips a position and never
   brings one twice, in whatever order a listing gave the markers.
2. Covered markers are passed over. So is one that straddles the position, as long as another marker begins exactly
   there: whoever staged those records, Kafka's records are the same. One that straddles, where no other begins, is
   loadable from the position on: Spark leaves out the rows below it, by their offset column. (Not of a chain of several
   topics, whose rows were in another order: `cuttable`.)
3. A table without a position for a Kafka partition begins at the chain's first marker, if that one is a root. A first
   marker that names a marker before it is the rest of something that was lost, and is held.
4. One commit brings one schema, the oldest that waits; a marker with another schema ends its run.
5. A commit stays within its limits, but for a single marker that is larger than they are: progress comes first.
   Partitions take turns, the one that waits longest first, so that a backlog of one does not starve the others.
6. A marker that straddles is a load of its own, after all runs: it costs a Spark job, and what keeps Spark from reading
   its files may hold its own Kafka partition and no other.
7. A marker of another stream or topic holds its Kafka partition, wherever it lies: not even what the table's position
   seems to cover may be passed over.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from common.errors import SchemaError
from common.schema.spark_json import schema_from_json
from common.stage.markers import Marker, MarkerName, StagedFile, StagedTable
from common.stage.merged import is_merged
from common.tables.urls import comparable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from common.spans import Position, TopicPartition
    from common.tables.changes import MergeBy

_SCHEMAS = 256
"""Of these it is remembered that they are some: markers repeat a few."""


@dataclass(frozen=True, slots=True)
class UnreadableMarker:
    """A marker whose content says nothing that could be trusted."""

    name: MarkerName
    problem: str
    is_newer: bool = False
    """Whether it is well, and of a newer release than this one."""
    app_id: str | None = None
    """The stream that it was staged for; None where its content does not say."""


@dataclass(frozen=True, slots=True)
class ForeignMarker:
    """A marker whose positions are not the table's, but another stream's or topic's (delta_loader/core/identity.py).

    It is never loaded, never covered, and nothing beyond it is loaded.
    """

    name: MarkerName
    reason: str
    """The short name."""
    problem: str
    remedy: str


Found = Marker | UnreadableMarker | ForeignMarker


def for_tables(marker: Marker, tables: Mapping[str, str]) -> Found:
    """The marker with its tables' URLs spelled as the stream spells them.

    ``tables`` maps the comparable form of a URL (`comparable`) to the stream's spelling. Files for any other table
    would be passed over in silence, so such a marker is one that cannot be read. So is one whose table has no columns:
    it would fail its stream, and not its Kafka partition alone.
    """
    if marker.manifest is None:
        return marker
    strange = [table.url for table in marker.tables if table.files and comparable(table.url) not in tables]
    app_id = marker.manifest.app_id
    if strange:
        problem = f"it stages files for {strange[0]}, which is not a table of this stream"
        return UnreadableMarker(marker.name, problem, app_id=app_id)
    problem = next((why for table in marker.tables if (why := _no_schema(table.schema)) is not None), "")
    if problem:
        return UnreadableMarker(marker.name, problem, app_id=app_id)
    staged = tuple(replace(table, url=tables.get(comparable(table.url), table.url)) for table in marker.tables)
    return replace(marker, manifest=replace(marker.manifest, tables=staged))


@lru_cache(_SCHEMAS)
def _no_schema(schema: str) -> str | None:
    try:
        schema_from_json(schema)
    except SchemaError as error:
        return error.problem
    return None


@dataclass(frozen=True, slots=True)
class Run:
    """Markers of one Kafka partition that follow one another without a gap; never empty."""

    markers: tuple[Marker, ...]

    @property
    def start(self) -> Position:
        """The first position that it brings."""
        return self.markers[0].span.start

    @property
    def end(self) -> Position:
        """The table's position after it."""
        return self.markers[-1].span.end

    def first(self, count: int) -> Run | None:
        """Its first markers; None for no marker."""
        return Run(self.markers[:count]) if count else None


@dataclass(frozen=True, slots=True)
class Straddle:
    """The only marker with the next record begins before the table's position."""

    position: Position
    marker: Marker

    @property
    def markers(self) -> tuple[Marker, ...]:
        """The one."""
        return (self.marker,)

    @property
    def start(self) -> Position:
        """The first position that it brings: the table's."""
        return self.position

    @property
    def end(self) -> Position:
        """The table's position after it."""
        return self.marker.span.end

    def first(self, count: int) -> Straddle | None:
        """All of it; None for no marker."""
        return self if count else None


Loadable = Run | Straddle


@dataclass(frozen=True, slots=True)
class Gap:
    """Nothing is staged for ``[position, next_start)``."""

    position: Position
    next_start: Position


@dataclass(frozen=True, slots=True)
class Uncuttable:
    """A marker that straddles, and whose rows do not tell their offsets."""

    position: Position
    marker: Marker


@dataclass(frozen=True, slots=True)
class Rootless:
    """The table has no position, and the first marker names one before it that is gone."""

    first: Marker


@dataclass(frozen=True, slots=True)
class Idle:
    """Everything that is staged is loaded."""


NextRun = Run | Straddle | Uncuttable | Gap | Rootless | UnreadableMarker | ForeignMarker | Idle


def next_run(position: Position | None, chain: Iterable[Found]) -> NextRun:
    """The longest unbroken run of markers that begins at ``position`` (rules 1 to 3)."""
    ordered = sorted(chain, key=_order)
    if position is None:
        first = ordered[0] if ordered else None
        if not isinstance(first, Marker):
            return first or Idle()
        if first.previous is not None:
            return Rootless(first)
        position = first.span.start
    return _foreign(ordered, position) or _run_from(position, ordered)


def _foreign(ordered: Iterable[Found], position: Position) -> ForeignMarker | None:
    """What position seems to cover, and is none of the table's (rule 7)."""
    below = (found for found in ordered if isinstance(found, ForeignMarker) and _start(found) < position)
    return next(below, None)


def _run_from(position: Position, ordered: Iterable[Found]) -> NextRun:
    run: list[Marker] = []
    straddling: Marker | None = None
    for found in ordered:
        if _start(found) > position:
            return _end_of_run(run) or _straddle(position, straddling) or Gap(position, _start(found))
        if not isinstance(found, Marker):
            if found.name.start == position:
                return _end_of_run(run) or found
        elif found.span.start == position:
            run.append(found)
            position, straddling = found.span.end, None
        elif found.span.end > position:
            straddling = found
    return _end_of_run(run) or _straddle(position, straddling) or Idle()


def _start(found: Found) -> Position:
    return found.name.start


def _order(found: Found) -> tuple[Position, bool]:
    # Of two names for one position (a hand-typed one without padding), the one with content comes first.
    return found.name.start, isinstance(found, Marker) and found.manifest is None


def _end_of_run(run: list[Marker]) -> Run | None:
    return Run(tuple(run)) if run else None


def _straddle(position: Position, marker: Marker | None) -> Straddle | None:
    return Straddle(position, marker) if marker is not None else None


def cuttable(outcome: NextRun, urls: Iterable[str], *, kafka_columns: bool) -> NextRun:
    """The outcome itself, but for a straddle whose rows for ``urls``, tables for rows, have no offset column.

    And for any straddle of a chain of several topics: a position of it does not say how far each of them was.
    """
    if not isinstance(outcome, Straddle):
        return outcome
    no_column = not kafka_columns and any(files_for(url, outcome.marker) for url in urls)
    merged = is_merged(outcome.marker.name.topic_partition.topic)
    return Uncuttable(outcome.position, outcome.marker) if no_column or merged else outcome


def files_for(url: str, marker: Marker) -> tuple[StagedFile, ...]:
    """The files that a marker staged for one table."""
    return tuple(file for table in marker.tables if table.url == url for file in table.files)


def has_mixed(marker: Marker) -> bool:
    """Whether some of its files go through Spark, because their rows have many partition values."""
    return any(file.is_mixed for table in marker.tables for file in table.files)


@dataclass(frozen=True, slots=True)
class TableShape:
    """What a staged file must agree on with its table."""

    schema: str
    """JSON, as in Delta's metaData action."""
    partition_by: tuple[str, ...]
    merge: MergeBy | None = None
    """How staged rows change the table's; None where they are added, and of a table."""


def shapes_of(marker: Marker) -> Mapping[str, TableShape]:
    """The shape of what a marker staged, by the table's URL; tables without files say nothing."""
    return {table.url: shape_of(table) for table in marker.tables if table.files}


def shape_of(table: StagedTable) -> TableShape:
    """The shape that a staged table was written with."""
    return TableShape(table.schema, table.partition_by, table.merge)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much one commit may bring."""

    max_files: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """What goes into one commit of each of the stream's tables; all its rows have one shape."""

    runs: Mapping[TopicPartition, Loadable]

    @property
    def markers(self) -> tuple[Marker, ...]:
        """All markers, partition by partition, each in order."""
        return tuple(marker for source in sorted(self.runs) for marker in self.runs[source].markers)

    def start_of(self, marker: Marker) -> Position:
        """The first position that the load brings of one of its markers."""
        return max(marker.span.start, self.runs[marker.name.topic_partition].start)

    def until(self, stops: Callable[[Marker], bool]) -> Load | None:
        """The same load, each run cut before the first marker that ``stops`` says; None when nothing is left."""
        kept: dict[TopicPartition, Loadable] = {}
        for source, run in self.runs.items():
            stop = next((index for index, marker in enumerate(run.markers) if stops(marker)), len(run.markers))
            first = run.first(stop)
            if first is not None:
                kept[source] = first
        return Load(kept) if kept else None


def plan_load(loadable: Mapping[TopicPartition, Loadable], limits: Limits) -> Load | None:
    """What the next commit brings out of what could be loaded (rules 4 to 6); None when there is nothing."""
    runs = {source: run for source, run in loadable.items() if isinstance(run, Run)}
    if runs:
        return _plan_runs(runs, limits)
    waiting = sorted(loadable.items(), key=lambda item: (_age_ms(item[1].markers[0]), item[0]))
    return Load(dict(waiting[:1])) if waiting else None


def _plan_runs(runs: Mapping[TopicPartition, Run], limits: Limits) -> Load:
    shapes = _oldest_shapes(runs)
    open_runs = {
        source: _prefix(run, shapes)
        for source, run in sorted(runs.items(), key=lambda item: (_age_ms(item[1].markers[0]), item[0]))
    }
    taken: dict[TopicPartition, list[Marker]] = {source: [] for source in open_runs}
    budget = _Budget(limits)
    while open_runs:
        for source in list(open_runs):
            waiting = open_runs[source]
            if waiting and budget.take(waiting[0]):
                taken[source].append(waiting.pop(0))
            else:
                del open_runs[source]
    return Load({source: Run(tuple(markers)) for source, markers in taken.items() if markers})


class _Budget:
    """What is left of the limits while a load is put together."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._files = 0
        self._size_bytes = 0

    def take(self, marker: Marker) -> bool:
        files = sum(len(table.files) for table in marker.tables)
        size_bytes = sum(file.size_bytes for table in marker.tables for file in table.files)
        fits = self._files + files <= self._limits.max_files and self._size_bytes + size_bytes <= self._limits.max_bytes
        if not fits and self._files:
            return False
        self._files += files
        self._size_bytes += size_bytes
        return True


def _oldest_shapes(runs: Mapping[TopicPartition, Run]) -> dict[str, TableShape]:
    """By table, the shape that has waited longest among the runs' first markers with files."""
    heads = [next((marker for marker in run.markers if shapes_of(marker)), None) for run in runs.values()]
    shaped = [head for head in heads if head is not None]
    return dict(shapes_of(min(shaped, key=lambda head: (_age_ms(head), head.name)))) if shaped else {}


def _prefix(run: Run, shapes: dict[str, TableShape]) -> list[Marker]:
    """The markers before the first one with another shape.

    ``shapes`` learns the tables that it does not know yet: a load's first dead letters may come after its first rows.
    """
    prefix: list[Marker] = []
    for marker in run.markers:
        if any(shapes.setdefault(url, shape) != shape for url, shape in shapes_of(marker).items()):
            break
        prefix.append(marker)
    return prefix


def _age_ms(marker: Marker) -> int:
    # A marker made by hand is older than all that was staged behind it.
    return marker.manifest.created_ms if marker.manifest is not None else 0
