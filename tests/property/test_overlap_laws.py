"""A chain that was lost and staged again with other markers: each record still reaches its table once."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin, StagedFile, StagedTable, TableKind
from common.tables.transactions import TxnIds
from delta_loader.plan.plan import (
    Limits,
    Load,
    Overlap,
    Run,
    TableShape,
    UnsplittableOverlap,
    UpToDate,
    next_run,
    plan_load,
    require_splittable,
)
from delta_loader.tables.commits import CommitNaming, TableCommit, Target, rows_commit, secondary_commit
from delta_loader.tables.file_split import split_files_at
from tests.builders import required
from tests.unit.delta_loader.plan.test_plan import by_hand, marker

SOURCE = TopicPartition(Topic("orders"), Partition(0))
ROWS, DEAD = "/rows", "/dead"
SHAPE = TableShape("{}", ())
IDS = TxnIds("orders", several_topics=False)
NAMING = CommitNaming(IDS, "c")
RECORDS = 40
KINDS = st.lists(st.sampled_from([ROWS, ROWS, DEAD, "tombstone"]), min_size=RECORDS, max_size=RECORDS)


@dataclass
class Lake:
    """Two tables as counts of offsets, and the content of every file."""

    files: dict[str, list[int]] = field(default_factory=dict)
    targets: dict[str, Target] = field(
        default_factory=lambda: {url: Target(url, url, SHAPE, {}, 0) for url in (ROWS, DEAD)}
    )
    rows: dict[str, Counter[int]] = field(default_factory=lambda: {ROWS: Counter(), DEAD: Counter()})
    zero_copy: int = 0

    def commit(self, commit: TableCommit) -> None:
        url = commit.target.url
        assert commit.target is self.targets[url]
        for file in commit.files:
            self.rows[url].update(self.files[file.path])
        for write in commit.written:
            start = write.start or 0
            offsets_of_files = [self.files[file.path] for file in write.files]
            assert all(min(offsets) < start for offsets in offsets_of_files), "a file that could be added as it is"
            self.rows[url].update(offset for offsets in offsets_of_files for offset in offsets if offset >= start)
        self.targets[url] = self.targets[url].after(commit, 1)

    @property
    def position(self) -> Position | None:
        return IDS.position(self.targets[ROWS].transactions, SOURCE)


@st.composite
def chains(draw: st.DrawFn, lake: Lake, name: str, kinds: Sequence[str], start: int) -> list[Marker]:
    """The records from ``start`` on, staged by some writer in any markers and files."""
    cuts = draw(st.lists(st.integers(start + 1, RECORDS), max_size=6, unique=True))
    edges = [start, *sorted({*cuts, RECORDS} - {start})]
    chain: list[Marker] = []
    for begin, end in pairwise(edges):
        tables = []
        for url, kind in ((ROWS, TableKind.ROWS), (DEAD, TableKind.DEAD_LETTERS)):
            of_kind = [offset for offset in range(begin, end) if kinds[offset] == url]
            scattered = draw(st.integers(1, 3))  # over partition values, or one after the other
            groups = [of_kind[index::scattered] for index in range(scattered)]
            files = []
            for index, offsets in enumerate(group for group in groups if group):
                path = f"{name}-{url}-{begin}-{index}"
                lake.files[path] = offsets
                bounds = {"minValues": {"_kafka_offset": offsets[0]}, "maxValues": {"_kafka_offset": offsets[-1]}}
                files.append(StagedFile(path, {}, 10, len(offsets), json.dumps(bounds)))
            tables.append(StagedTable(url, kind, "{}", (), tuple(files)))
        span = Span(Position(begin), Position(end))
        previous = chain[-1].span.start if chain else None
        manifest = Manifest(span, previous, "orders", Origin.FLUSH, "w", begin, tables=tuple(tables))
        chain.append(Marker(MarkerName(SOURCE, Position(begin)), manifest))
    return chain


def load_all(lake: Lake, chain: list[Marker], *, dies_after: int | None = None) -> None:
    """Runs the loader until it has made ``dies_after`` commits or is up to date."""
    commits = 0
    while isinstance(outcome := next_run(lake.position, chain), Run | Overlap):
        load = required(plan_load({SOURCE: outcome}, Limits(3, 10_000)))
        for url in (DEAD, ROWS):
            target = lake.targets[url]
            commit = secondary_commit(target, NAMING, load) if url == DEAD else rows_commit(target, NAMING, load, 1)
            if commit is not None:
                lake.commit(commit)
                commits += 1
                if commits == dies_after:
                    return
        assert lake.position == load.runs[SOURCE].end
    assert outcome == UpToDate()


@given(KINDS, st.integers(0, 12), st.data())
def test_chain_staged_again_loads_each_record_once(kinds: list[str], dies_after: int, data: st.DataObject) -> None:
    lake = Lake()
    first = data.draw(chains(lake, "first", kinds, 0))
    load_all(lake, first, dies_after=dies_after or None)
    # The stage is lost; records are read again from anywhere that leaves no gap.
    begin = data.draw(st.integers(0, lake.position or 0))
    load_all(lake, data.draw(chains(lake, "second", kinds, min(begin, RECORDS - 1))))
    assert lake.position == RECORDS
    for url in (ROWS, DEAD):
        assert lake.rows[url] == Counter(offset for offset, kind in enumerate(kinds) if kind == url)


@given(KINDS, st.data())
def test_record_that_changed_its_kind_is_not_loaded_again(kinds: list[str], data: st.DataObject) -> None:
    """The columns were changed between the two stagings: the record that the table has at a position wins."""
    lake = Lake()
    load_all(lake, data.draw(chains(lake, "first", kinds, 0)), dies_after=data.draw(st.integers(1, 6)))
    loaded = lake.position or 0
    otherwise = [*({ROWS: DEAD, DEAD: ROWS}.get(kind, kind) for kind in kinds[:loaded]), *kinds[loaded:]]
    load_all(lake, data.draw(chains(lake, "second", otherwise, 0)))
    both = lake.rows[ROWS] + lake.rows[DEAD]
    assert both == Counter(offset for offset, kind in enumerate(kinds) if kind != "tombstone")


@given(KINDS, st.integers(0, RECORDS), st.data())
def test_split_keeps_records_from_the_position_and_rewrites_only_cut_files(
    kinds: list[str], start: int, data: st.DataObject
) -> None:
    lake = Lake()
    for flush_marker in data.draw(chains(lake, "first", kinds, 0)):
        for url in (ROWS, DEAD):
            share = split_files_at(url, flush_marker, Position(start))
            assert all(min(lake.files[file.path]) >= start for file in share.added)
            for write in share.written:
                for file in write.files:
                    assert min(lake.files[file.path]) < start <= max(lake.files[file.path])
            left_out = {file.path for table in flush_marker.tables if table.url == url for file in table.files}
            left_out -= {file.path for file in share.files}
            assert all(max(lake.files[path]) < start for path in left_out)


def test_file_without_offset_statistics_goes_through_spark() -> None:
    marker_of_files = marker(5, 15, files=2, table=ROWS)
    share = split_files_at(ROWS, marker_of_files, Position(10))
    assert (share.added, [len(write.files) for write in share.written]) == ((), [2])
    assert split_files_at(ROWS, marker_of_files, Position(5)).added == marker_of_files.tables[0].files
    assert split_files_at(ROWS, marker_of_files, Position(15)).files == ()


@given(st.integers(6, 14))
def test_rows_without_offsets_cannot_be_split(position: int) -> None:
    straddle = Overlap(Position(position), marker(5, 15, table=ROWS))
    assert require_splittable(straddle, [ROWS], kafka_columns=True) == straddle
    assert require_splittable(straddle, [ROWS], kafka_columns=False) == UnsplittableOverlap(
        straddle.position, straddle.marker
    )
    # Dead letters always have the columns, and a marker without files only moves the position.
    assert require_splittable(straddle, [DEAD], kafka_columns=False) == straddle
    without = replace(straddle, marker=marker(5, 15, files=0, table=ROWS))
    assert require_splittable(without, [ROWS], kafka_columns=False) == without
    target = Target(ROWS, "id", SHAPE, {"orders-0": position - 1}, 0)
    commit = rows_commit(target, NAMING, Load({SOURCE: without}), None)
    assert (commit.files, commit.written, commit.advances) == ((), (), {"orders-0": 14})
    assert commit.metadata.spans == {SOURCE: Span(Position(position), Position(15))}


def test_runs_are_loaded_before_overlaps_and_each_overlap_alone() -> None:
    run = Run((by_hand(3),))
    others = [TopicPartition(Topic("orders"), Partition(number)) for number in (1, 2)]
    straddles = {
        partition: Overlap(Position(7), marker(5, 15, partition=partition.partition, created_ms=partition.partition))
        for partition in others
    }
    load = plan_load({**straddles, SOURCE: run}, Limits(10, 10))
    assert load == Load({SOURCE: run})
    load = plan_load(straddles, Limits(10, 10))
    assert load == Load({others[0]: straddles[others[0]]})
    assert load.until(lambda _: True) is None
    assert load.until(lambda _: False) == load
