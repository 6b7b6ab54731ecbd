from hypothesis import given
from hypothesis import strategies as st

from common.spans import MAX_POSITION, Partition, Position, Span, Topic, TopicPartition
from common.stage.changelogs import TopicChanges, changes_digest
from common.stage.markers import (
    Manifest,
    MarkerName,
    Origin,
    StagedFile,
    StagedTable,
    TableKind,
    manifest_from_bytes,
    manifest_to_bytes,
)
from common.stage.state_files import MarkedState, StateFileName, StateFiles, StateKind
from common.tables.changes import MergeBy

# JSON is UTF-8: a lone surrogate is no character.
texts = st.text(st.characters(codec="utf-8"), max_size=30)
counts = st.integers(0, 2**62)
times = st.none() | st.integers(-(2**62), 2**62)
topics = st.from_regex(r"[A-Za-z0-9._-]{1,249}", fullmatch=True).filter(lambda name: name not in {".", ".."})
sources = st.builds(TopicPartition, topics.map(Topic), st.integers(0, 2**31 - 1).map(Partition))
names = st.builds(MarkerName, sources, st.integers(0, MAX_POSITION - 1).map(Position))
steps = texts.map(lambda text: text.translate({ord(char): "_" for char in "/\\\0:"})).filter(
    lambda step: step not in {"", ".", "..", "_delta_log"}
)
paths = st.lists(steps, min_size=1, max_size=3).map("/".join)
mixed_files = st.builds(StagedFile, paths.map("data/{}".format), st.none(), counts, counts, texts)


def tables_by(partition_by: tuple[str, ...]) -> st.SearchStrategy[StagedTable]:
    values = st.fixed_dictionaries({column: st.none() | texts for column in partition_by})
    files = st.builds(StagedFile, paths, values, counts, counts, texts)
    return st.builds(
        StagedTable,
        texts.filter(bool),
        st.sampled_from(TableKind),
        texts,
        st.just(partition_by),
        st.lists(files | mixed_files, max_size=3).map(tuple),
        place=st.none() | st.tuples(texts, texts, texts),
    )


tables = st.lists(texts, max_size=3, unique=True).map(tuple).flatmap(tables_by)

merges = st.builds(
    MergeBy,
    st.lists(texts, min_size=1, max_size=3).map(tuple),
    st.tuples(texts, texts, texts),
    *[st.none() | texts] * 2,
)
merged_tables = st.builds(
    StagedTable, texts.filter(bool), st.just(TableKind.ROWS), texts, st.just(()), st.just(()), merges
) | st.builds(
    StagedTable, texts.filter(bool), st.just(TableKind.ROWS), texts, st.just(()), st.tuples(mixed_files), merges
)


def state_names(source: TopicPartition, kind: StateKind) -> st.SearchStrategy[StateFileName]:
    positions = st.integers(0, MAX_POSITION - 1).map(Position)
    uniques = st.from_regex(r"[0-9A-Za-z-]{1,64}", fullmatch=True)
    return st.builds(StateFileName, st.just(source), positions, st.integers(0, 10**9), uniques, st.just(kind))


def _runs(cuts: list[int]) -> tuple[Span, ...]:
    return tuple(Span(Position(start), Position(end)) for start, end in zip(cuts[0::2], cuts[1::2], strict=False))


topic_changes = st.builds(
    TopicChanges,
    sources,
    st.none() | texts,
    st.lists(st.integers(0, MAX_POSITION), min_size=2, max_size=6, unique=True).map(sorted).map(_runs),
    counts,
    st.binary().map(changes_digest),
    st.integers(0, 2**62),
)


@st.composite
def states(draw: st.DrawFn, source: TopicPartition) -> MarkedState:
    changes = state_names(source, StateKind.CHANGES).map(lambda name: name.path)
    snapshots = state_names(source, StateKind.SNAPSHOT).map(lambda name: name.path)
    either = changes | topic_changes
    made = st.builds(StateFiles, st.none() | snapshots, st.lists(either, max_size=3).map(tuple))
    before = draw(made)
    return MarkedState(draw(made | either.map(before.with_changes)), before)


@st.composite
def manifests(draw: st.DrawFn, source: TopicPartition, start: Position) -> Manifest:
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
        dead_letters=draw(st.dictionaries(texts, counts, max_size=3)),
        lowest_timestamp_ms=draw(times),
        highest_timestamp_ms=draw(times),
        tables=tuple(draw(st.lists(tables | merged_tables, max_size=3))),
        state=draw(st.none() | states(source)),
    )


@given(names)
def test_a_name_is_read_as_it_was_written(name: MarkerName) -> None:
    assert MarkerName.parse(name.path) == name


@given(names)
def test_a_name_needs_no_padding(name: MarkerName) -> None:
    source = name.topic_partition
    assert MarkerName.parse(f"done/{source.topic}/{source.partition}/{name.start}.done") == name


@given(names, names)
def test_paths_of_one_partition_sort_as_their_positions_do(one: MarkerName, other: MarkerName) -> None:
    other = MarkerName(one.topic_partition, other.start)
    assert (one.path < other.path) == (one.start < other.start)


@given(st.data(), sources, st.sampled_from(StateKind))
def test_a_state_file_s_name_is_read_as_it_was_written(
    data: st.DataObject, source: TopicPartition, kind: StateKind
) -> None:
    name = data.draw(state_names(source, kind))
    assert StateFileName.parse(name.path) == name


@given(st.data(), names)
def test_a_manifest_is_read_as_it_was_written(data: st.DataObject, name: MarkerName) -> None:
    manifest = data.draw(manifests(name.topic_partition, name.start))
    assert manifest_from_bytes(name, manifest_to_bytes(name.topic_partition, manifest)) == manifest
