"""Decides which markers to load next: the heart of the loader, as pure functions.

Rules:

1. A marker is loadable only when its start is exactly the table's position. A run therefore never skips a position and
   never loads one twice, regardless of the listing's order.
2. Covered markers are passed over. A marker *overlaps* the position if it starts before it and ends after it. It is
   passed over too, as long as another marker starts exactly at the position: Kafka's records are the same, whichever
   writer staged them. When no other marker starts there, the overlapping marker is loadable from the position on: Spark
   filters out the rows below it by their offset column. (This does not apply to a chain of several topics, where the
   rows may have been in another order: `require_splittable`.)
3. When a table has no position for a Kafka partition, loading starts at the chain's first marker, if that marker is a
   root. In three cases, something before it is missing, and the partition is held:
   - The first marker names a marker before it: the start of the chain was lost.
   - A writer made the first marker, and the chain's origin is recorded at a lower position. A rewind moved the origin
     while that writer was still reading from the old one, and what lies between is a gap. (Origins are read after the
     markers were listed.)
   - The origin names markers below itself that are gone (common/stage/chain_origins.py, rule 8).
4. One commit loads one schema, the longest-waiting one; a marker with another schema ends its run.
5. A commit stays within its limits, except for a single marker that is larger than they are: progress comes first.
   Partitions take turns, the longest-waiting one first, so one partition's backlog does not starve the others.
6. An overlapping marker is loaded by itself, after all runs. It costs a Spark job, and if Spark cannot read its files,
   only its own Kafka partition may be held.
7. A marker of another stream or topic holds its Kafka partition at any position: it may not be passed over even where
   the table's position seems to cover it.
8. Of chains that have a Kafka partition in common (a topology's topics were edited), only the longest-waiting one is in
   a load: both have the same records. Once the table has it, the others are of another topic (rule 7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from common.errors import SchemaError
from common.schema.spark_json import schema_from_json
from common.spans import Position, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin, StagedFile, StagedTable
from common.stage.merged import inputs_of, is_merged
from common.tables.changes import MergeBy
from common.tables.urls import comparable

_SCHEMAS = 256
"""How many parsed schemas are remembered as valid: markers repeat only a few."""


@dataclass(frozen=True, slots=True)
class UnreadableMarker:
    """A marker whose content cannot be trusted."""

    name: MarkerName
    problem: str
    is_newer: bool = False
    """Whether it is valid, but written by a newer release than this one."""
    app_id: str | None = None
    """The stream that it was staged for; None where the content does not name it."""
    table: str | None = None
    """The table with files in it that is not one of the stream's; None where it has another problem."""


@dataclass(frozen=True, slots=True)
class ForeignMarker:
    """A marker whose positions are not the table's, but another stream's or topic's (delta_loader/stage/identity.py).

    It is never loaded, never covered, and nothing after it is loaded.
    """

    name: MarkerName
    reason: str
    """The reason's short name."""
    problem: str
    remedy: str


AnyMarker = Marker | UnreadableMarker | ForeignMarker


def is_by_hand(marker: AnyMarker) -> bool:
    """Whether a marker has no content, so that it only moves the position."""
    return isinstance(marker, Marker) and marker.manifest is None


def manifests_of(markers: Iterable[AnyMarker]) -> Iterator[Manifest]:
    """The contents of those markers that have one."""
    return (marker.manifest for marker in markers if isinstance(marker, Marker) and marker.manifest is not None)


def for_tables(marker: Marker, tables: Mapping[str, str]) -> AnyMarker:
    """The marker with its tables' URLs spelled as the stream spells them.

    ``tables`` maps the comparable form of a URL (`comparable`) to the stream's spelling. Files for any other table
    would be dropped silently, so such a marker is returned as unreadable. So is a marker with a table without columns:
    it would fail the whole stream instead of its Kafka partition alone.
    """
    if marker.manifest is None:
        return marker
    strange = [table.url for table in marker.tables if table.files and comparable(table.url) not in tables]
    app_id = marker.manifest.app_id
    if strange:
        problem = f"it stages files for {strange[0]}, which is not a table of this stream"
        return UnreadableMarker(marker.name, problem, app_id=app_id, table=strange[0])
    problem = next((why for table in marker.tables if (why := _no_schema(table.schema)) is not None), "")
    if problem:
        return UnreadableMarker(marker.name, problem, app_id=app_id)
    urls = [tables.get(comparable(table.url), table.url) for table in marker.tables]
    if urls == [table.url for table in marker.tables]:
        return marker
    staged = tuple(replace(table, url=url) for table, url in zip(marker.tables, urls, strict=True))
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
        """The first position that it loads."""
        return self.markers[0].span.start

    @property
    def end(self) -> Position:
        """The table's position after it."""
        return self.markers[-1].span.end

    def first(self, count: int) -> Run | None:
        """Its first ``count`` markers; None for a count of 0."""
        return Run(self.markers[:count]) if count else None


@dataclass(frozen=True, slots=True)
class Overlap:
    """The only marker that has the next record starts before the table's position."""

    position: Position
    marker: Marker

    @property
    def markers(self) -> tuple[Marker, ...]:
        return (self.marker,)

    @property
    def start(self) -> Position:
        """The first position that it loads: the table's."""
        return self.position

    @property
    def end(self) -> Position:
        return self.marker.span.end

    def first(self, count: int) -> Overlap | None:
        """The whole of it; None for a count of 0."""
        return self if count else None


Loadable = Run | Overlap


@dataclass(frozen=True, slots=True)
class Gap:
    """Nothing is staged for ``[position, next_start)``."""

    position: Position
    next_start: Position


@dataclass(frozen=True, slots=True)
class UnsplittableOverlap:
    """An overlapping marker whose rows do not carry their offsets."""

    position: Position
    marker: Marker


@dataclass(frozen=True, slots=True)
class MissingOrigin:
    """The table has no position, and the first marker names a previous marker that is gone."""

    first: Marker


@dataclass(frozen=True, slots=True)
class UpToDate:
    """Everything that is staged is loaded."""


NextRun = Run | Overlap | UnsplittableOverlap | Gap | MissingOrigin | UnreadableMarker | ForeignMarker | UpToDate


def next_run(position: Position | None, chain: Iterable[AnyMarker], origin: Position | None = None) -> NextRun:
    """The longest unbroken run of markers that starts at ``position`` (rules 1 to 3); ``origin`` is the chain's."""
    ordered = sorted(chain, key=_order)
    if position is None:
        first = ordered[0] if ordered else None
        if not isinstance(first, Marker):
            return first or UpToDate()
        if first.previous is not None:
            return MissingOrigin(first)
        by_writer = first.origin is Origin.FLUSH
        position = min(origin, first.span.start) if by_writer and origin is not None else first.span.start
    return _foreign(ordered, position) or _run_from(position, ordered)


def _foreign(ordered: Iterable[AnyMarker], position: Position) -> ForeignMarker | None:
    """A marker below the position that does not belong to the table (rule 7)."""
    below = (marker for marker in ordered if isinstance(marker, ForeignMarker) and _start(marker) < position)
    return next(below, None)


def _run_from(position: Position, ordered: Iterable[AnyMarker]) -> NextRun:
    run: list[Marker] = []
    overlapping: Marker | None = None
    for marker in ordered:
        if _start(marker) > position:
            return _end_of_run(run) or _overlap(position, overlapping) or Gap(position, _start(marker))
        if not isinstance(marker, Marker):
            if marker.name.start == position:
                return _end_of_run(run) or marker
        elif marker.span.start == position:
            run.append(marker)
            position, overlapping = marker.span.end, None
        elif marker.span.end > position:
            overlapping = marker
    return _end_of_run(run) or _overlap(position, overlapping) or UpToDate()


def _start(marker: AnyMarker) -> Position:
    return marker.name.start


def _order(marker: AnyMarker) -> tuple[Position, bool]:
    # Of two names for one position (a hand-typed one without padding), the one with content comes first.
    return marker.name.start, is_by_hand(marker)


def _end_of_run(run: list[Marker]) -> Run | None:
    return Run(tuple(run)) if run else None


def _overlap(position: Position, marker: Marker | None) -> Overlap | None:
    return Overlap(position, marker) if marker is not None else None


def require_splittable(outcome: NextRun, urls: Iterable[str], *, kafka_columns: bool) -> NextRun:
    """The outcome itself, or `UnsplittableOverlap` for an overlap whose rows for ``urls`` have no offset column.

    ``urls`` are tables for rows. Any overlap in a chain of several topics is `UnsplittableOverlap` too: its position
    does not say how far each topic was.
    """
    if not isinstance(outcome, Overlap):
        return outcome
    no_column = not kafka_columns and any(files_for(url, outcome.marker) for url in urls)
    merged = is_merged(outcome.marker.name.topic_partition.topic)
    return UnsplittableOverlap(outcome.position, outcome.marker) if no_column or merged else outcome


def files_for(url: str, marker: Marker) -> tuple[StagedFile, ...]:
    return tuple(file for table in marker.tables if table.url == url for file in table.files)


def has_mixed(marker: Marker) -> bool:
    """Whether some of its files have to go through Spark because their rows have many partition values."""
    return any(file.is_mixed for table in marker.tables for file in table.files)


@dataclass(frozen=True, slots=True)
class TableShape:
    schema: str
    """JSON, as in Delta's metaData action."""
    partition_by: tuple[str, ...]
    merge: MergeBy | None = None
    """How staged rows change the table's rows; None where rows are only added, and for the shape of a table."""


def shapes_of(marker: Marker) -> Mapping[str, TableShape]:
    """The shape of the staged files, by table URL; tables without files are left out."""
    return {table.url: shape_of(table) for table in marker.tables if table.files}


def shape_of(table: StagedTable) -> TableShape:
    return TableShape(table.schema, table.partition_by, table.merge)


@dataclass(frozen=True, slots=True)
class Limits:
    max_files: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class Load:
    """The content of one commit of each of the stream's tables; all its rows have one shape."""

    runs: Mapping[TopicPartition, Loadable]

    @property
    def markers(self) -> tuple[Marker, ...]:
        """All markers, partition by partition, each in order."""
        return tuple(marker for partition in sorted(self.runs) for marker in self.runs[partition].markers)

    def start_of(self, marker: Marker) -> Position:
        """The first position of a marker that this load covers."""
        return max(marker.span.start, self.runs[marker.name.topic_partition].start)

    def until(self, stops: Callable[[Marker], bool]) -> Load | None:
        """This load, each run cut before the first marker that ``stops`` is true for; None when nothing is left."""
        kept: dict[TopicPartition, Loadable] = {}
        for partition, run in self.runs.items():
            stop = next((index for index, marker in enumerate(run.markers) if stops(marker)), len(run.markers))
            first = run.first(stop)
            if first is not None:
                kept[partition] = first
        return Load(kept) if kept else None


def plan_load(loadable: Mapping[TopicPartition, Loadable], limits: Limits) -> Load | None:
    """The next commit's share of the loadable runs (rules 4 to 6); None when there is nothing to load."""
    waiting = _apart(sorted(loadable.items(), key=lambda item: (_age_ms(item[1].markers[0]), item[0])))
    runs = {partition: run for partition, run in waiting.items() if isinstance(run, Run)}
    if runs:
        return _plan_runs(runs, limits)
    return Load(dict(list(waiting.items())[:1])) if waiting else None


def _apart(waiting: Iterable[tuple[TopicPartition, Loadable]]) -> dict[TopicPartition, Loadable]:
    """Without the chains that share a Kafka partition with one before them (rule 8)."""
    apart: dict[TopicPartition, Loadable] = {}
    taken: set[TopicPartition] = set()
    for partition, run in waiting:
        inputs = inputs_of(partition)
        if taken.isdisjoint(inputs):
            apart[partition] = run
            taken.update(inputs)
    return apart


def _plan_runs(runs: Mapping[TopicPartition, Run], limits: Limits) -> Load:
    """``runs`` are in the order of their age."""
    shapes = _oldest_shapes(runs)
    open_runs = {partition: _prefix(run, shapes) for partition, run in runs.items()}
    taken: dict[TopicPartition, list[Marker]] = {partition: [] for partition in open_runs}
    budget = _Budget(limits)
    while open_runs:
        for partition in list(open_runs):
            waiting = open_runs[partition]
            if waiting and budget.take(waiting[0]):
                taken[partition].append(waiting.pop(0))
            else:
                del open_runs[partition]
    return Load({partition: Run(tuple(markers)) for partition, markers in taken.items() if markers})


class _Budget:
    """The rest of the limits while a load is assembled."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._files = 0
        self._size_bytes = 0

    def take(self, marker: Marker) -> bool:
        files = sum(len(table.files) for table in marker.tables)
        size_bytes = sum(file.size_bytes for table in marker.tables for file in table.files)
        has_room = (
            self._files + files <= self._limits.max_files and self._size_bytes + size_bytes <= self._limits.max_bytes
        )
        if not has_room and self._files:
            return False
        self._files += files
        self._size_bytes += size_bytes
        return True


def _oldest_shapes(runs: Mapping[TopicPartition, Run]) -> dict[str, TableShape]:
    """For each table, the shape that has waited longest among the first markers with files."""
    heads = [next((marker for marker in run.markers if shapes_of(marker)), None) for run in runs.values()]
    with_shape = [head for head in heads if head is not None]
    return dict(shapes_of(min(with_shape, key=lambda head: (_age_ms(head), head.name)))) if with_shape else {}


def _prefix(run: Run, shapes: dict[str, TableShape]) -> list[Marker]:
    """The markers before the first one with another shape.

    Adds the shapes of tables that ``shapes`` does not have yet: a load's first dead letters may come after its first
    rows.
    """
    prefix: list[Marker] = []
    for marker in run.markers:
        if any(shapes.setdefault(url, shape) != shape for url, shape in shapes_of(marker).items()):
            break
        prefix.append(marker)
    return prefix


def _age_ms(marker: Marker) -> int:
    # A marker made by hand counts as older than everything that was staged after it.
    return marker.manifest.created_ms if marker.manifest is not None else 0
