from hypothesis import given
from hypothesis import strategies as st

from common.spans import MAX_POSITION, Partition, Position, Span, Topic, TopicPartition
from common.stage.data_files import DataFileName, waiting_path
from common.stage.markers import (
    LastRecord,
    Manifest,
    MarkerName,
    Origin,
    StagedFile,
    StagedTable,
    TableKind,
    manifest_from_bytes,
    manifest_to_bytes,
)
from common.stage.task_files import MarkedState, StateFileName, StateFiles, StateKind, TopicChanges, changes_digest
from common.stage.undeclared import UndeclaredFields
from common.tables.changes import MergeBy

# JSON is UTF-8: a lone surrogate is not a character.
texts = st.text(st.characters(codec="utf-8"), max_size=30)
counts = st.integers(0, 2**62)
times = st.none() | st.integers(-(2**62), 2**62)
topics = st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})
partitions = st.builds(TopicPartition, topics.map(Topic), st.integers(0, 2**31 - 1).map(Partition))
names = st.builds(MarkerName, partitions, st.integers(0, MAX_POSITION - 1).map(Position))
urls = texts.filter(lambda url: url and url.rstrip("/").rpartition("/")[2] not in {".", ".."})  # as settings refuse
uniques = st.from_regex(r"[0-9a-f-]{1,36}", fullmatch=True)


def files_of(name: MarkerName, partition_by: tuple[str, ...]) -> st.SearchStrategy[StagedFile]:
    """Files below a table: their names belong to the marker, and their folders to the table's columns."""

    def named(unique: str, values: dict[str, str | None], numbers: tuple[int, int], statistics: str) -> StagedFile:
        path = DataFileName(
            name.topic_partition, name.start, unique, tuple((column, values[column]) for column in partition_by)
        ).path
        return StagedFile(path, values, *numbers, statistics)

    values = st.fixed_dictionaries({column: st.none() | texts for column in partition_by})
    return st.builds(named, uniques, values, st.tuples(counts, counts), texts)


def mixed_files_of(name: MarkerName, url: str) -> st.SearchStrategy[StagedFile]:
    """Files that wait for Spark in their table's folder of the stage."""

    def named(unique: str, numbers: tuple[int, int], statistics: str) -> StagedFile:
        path = waiting_path(url, DataFileName(name.topic_partition, name.start, unique))
        return StagedFile(path, None, *numbers, statistics)

    return st.builds(named, uniques, st.tuples(counts, counts), texts)


@st.composite
def tables_of(draw: st.DrawFn, name: MarkerName) -> StagedTable:
    url, partition_by = draw(urls), tuple(draw(st.lists(texts, max_size=3, unique=True)))
    files = st.lists(files_of(name, partition_by) | mixed_files_of(name, url), max_size=3)
    place = draw(st.none() | st.tuples(texts, texts, texts))
    kind = draw(st.sampled_from(TableKind))
    return StagedTable(url, kind, draw(texts), partition_by, tuple(draw(files)), place=place)


merges = st.builds(
    MergeBy,
    st.lists(texts, min_size=1, max_size=3).map(tuple),
    st.tuples(texts, texts, texts),
    *[st.none() | texts] * 2,
)


@st.composite
def merged_tables_of(draw: st.DrawFn, name: MarkerName) -> StagedTable:
    url = draw(urls)
    files = tuple(draw(st.lists(mixed_files_of(name, url), max_size=1)))
    return StagedTable(url, TableKind.ROWS, draw(texts), (), files, draw(merges))


def state_names(partition: TopicPartition, kind: StateKind) -> st.SearchStrategy[StateFileName]:
    positions = st.integers(0, MAX_POSITION - 1).map(Position)
    uniques = st.from_regex(r"[0-9A-Za-z-]{1,64}", fullmatch=True)
    return st.builds(StateFileName, st.just(partition), positions, st.integers(0, 10**9), uniques, st.just(kind))


def _runs(cuts: list[int]) -> tuple[Span, ...]:
    return tuple(Span(Position(start), Position(end)) for start, end in zip(cuts[0::2], cuts[1::2], strict=False))


topic_changes = st.builds(
    TopicChanges,
    partitions,
    st.none() | texts,
    st.lists(st.integers(0, MAX_POSITION), min_size=2, max_size=6, unique=True).map(sorted).map(_runs),
    counts,
    st.binary().map(changes_digest),
    st.integers(0, 2**62),
)


@st.composite
def states(draw: st.DrawFn, partition: TopicPartition) -> MarkedState:
    changes = state_names(partition, StateKind.CHANGES).map(lambda name: name.path)
    snapshots = state_names(partition, StateKind.SNAPSHOT).map(lambda name: name.path)
    either = changes | topic_changes
    made = st.builds(StateFiles, st.none() | snapshots, st.lists(either, max_size=3).map(tuple))
    before = draw(made)
    return MarkedState(draw(made | either.map(before.with_changes)), before)


last_records = st.builds(LastRecord, st.integers(0, MAX_POSITION - 1), times, st.none() | counts)
undeclared_fields = st.builds(UndeclaredFields, counts, st.dictionaries(texts, counts, max_size=3), counts)


@st.composite
def manifests(draw: st.DrawFn, name: MarkerName) -> Manifest:
    partition, start = name.topic_partition, name.start
    return Manifest(
        span=Span(start, Position(draw(st.integers(start + 1, MAX_POSITION)))),
        previous=draw(st.none() | st.integers(0, MAX_POSITION).map(Position)),
        app_id=draw(texts),
        origin=draw(st.sampled_from(Origin)),
        writer=draw(texts),
        created_ms=draw(st.integers(-(2**62), 2**62)),
        records=draw(counts),
        tombstones=draw(counts),
        filtered=draw(counts),
        exploded=draw(counts),
        offered=draw(st.none() | texts),
        offered_by_route=draw(st.none() | texts),
        dead_letters=draw(st.dictionaries(texts, counts, max_size=3)),
        last_record=draw(st.none() | last_records),
        undeclared=draw(st.none() | undeclared_fields),
        violations=draw(st.dictionaries(texts, counts, max_size=3)),
        lowest_timestamp_ms=draw(times),
        highest_timestamp_ms=draw(times),
        tables=tuple(draw(st.lists(tables_of(name) | merged_tables_of(name), max_size=3))),
        state=draw(st.none() | states(partition)),
    )


@given(names)
def test_marker_name_round_trips(name: MarkerName) -> None:
    assert MarkerName.parse(name.path) == name


@given(names)
def test_marker_name_needs_no_padding(name: MarkerName) -> None:
    partition = name.topic_partition
    assert MarkerName.parse(f"done/{partition.topic}/{partition.partition}/{name.start}.done") == name


@given(names, names)
def test_paths_of_a_partition_sort_like_their_positions(name: MarkerName, other: MarkerName) -> None:
    other = MarkerName(name.topic_partition, other.start)
    assert (name.path < other.path) == (name.start < other.start)


@given(st.data(), partitions, st.sampled_from(StateKind))
def test_state_file_name_round_trips(data: st.DataObject, partition: TopicPartition, kind: StateKind) -> None:
    name = data.draw(state_names(partition, kind))
    assert StateFileName.parse(name.path) == name


@given(st.data(), names)
def test_manifest_round_trips(data: st.DataObject, name: MarkerName) -> None:
    manifest = data.draw(manifests(name))
    assert manifest_from_bytes(name, manifest_to_bytes(name.topic_partition, manifest)) == manifest
