"""The planner's laws, on every chain that Hypothesis can generate."""

from hypothesis import given
from hypothesis import strategies as st

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Marker
from common.tables.changes import MergedBy
from common.tables.commit_metadata import CommitMetadata
from common.tables.counts import Counts, Replaced
from common.tables.transactions import TxnIds
from delta_loader.load.settle import settle_candidates, settled
from delta_loader.plan.plan import (
    AnyMarker,
    Limits,
    Load,
    Overlap,
    Run,
    UnreadableMarker,
    UpToDate,
    next_run,
    plan_load,
)
from tests.builders import required
from tests.unit.delta_loader.plan.test_plan import by_hand, marker, name

POSITIONS = st.integers(0, 60)


@st.composite
def found_markers(draw: st.DrawFn) -> list[AnyMarker]:
    """Any content of a listing: chains, strays, overlaps, hand-made and broken markers."""
    starts = draw(st.lists(POSITIONS, max_size=12, unique=True))
    markers: list[AnyMarker] = []
    for start in starts:
        kind = draw(st.sampled_from(["flush", "flush", "flush", "hand", "broken"]))
        if kind == "hand":
            markers.append(by_hand(start))
        elif kind == "broken":
            markers.append(UnreadableMarker(name(start), "torn"))
        else:
            markers.append(marker(start, start + draw(st.integers(1, 15)), draw(st.none() | POSITIONS)))
    return markers


@st.composite
def chains(draw: st.DrawFn) -> list[Marker]:
    """A whole chain: from a root, each marker starts where the one before it ends."""
    start = draw(POSITIONS)
    chain = [marker(start, start + draw(st.integers(1, 9)), None)]
    for _ in range(draw(st.integers(0, 10))):
        last = chain[-1]
        chain.append(marker(last.span.end, last.span.end + draw(st.integers(1, 9)), last.span.start))
    return chain


@given(st.none() | POSITIONS, found_markers())
def test_run_never_skips_and_never_overlaps(position: int | None, markers: list[AnyMarker]) -> None:
    start = None if position is None else Position(position)
    outcome = next_run(start, markers)
    if isinstance(outcome, Overlap):
        assert outcome.start == start
        assert outcome.marker.span.start < outcome.position < outcome.marker.span.end
        assert not any(isinstance(marker, Marker) and marker.span.start == start for marker in markers)
    if isinstance(outcome, Run):
        assert start is None or outcome.start == start
        ends = [marker.span.end for marker in outcome.markers[:-1]]
        assert ends == [marker.span.start for marker in outcome.markers[1:]]
        assert all(marker in markers for marker in outcome.markers)


@given(st.none() | POSITIONS, found_markers(), st.data())
def test_run_is_independent_of_the_listing_order(
    position: int | None, markers: list[AnyMarker], data: st.DataObject
) -> None:
    start = None if position is None else Position(position)
    assert next_run(start, data.draw(st.permutations(markers))) == next_run(start, markers)


@given(POSITIONS, found_markers())
def test_run_is_the_longest(position: int, markers: list[AnyMarker]) -> None:
    outcome = next_run(Position(position), markers)
    if isinstance(outcome, Run):
        again = next_run(outcome.end, markers)
        assert not isinstance(again, Run)


@given(chains(), st.data())
def test_loading_a_chain_adds_each_position_once_and_ends_up_to_date(chain: list[Marker], data: st.DataObject) -> None:
    partition = chain[0].name.topic_partition
    limits = Limits(data.draw(st.integers(1, 5)), data.draw(st.integers(1, 60)))
    position: Position | None = None
    loaded: list[Marker] = []
    while isinstance(run := next_run(position, chain), Run):
        load = required(plan_load({partition: run}, limits))
        assert load.runs[partition].start == run.start
        loaded += load.markers
        position = load.runs[partition].end
    assert run == UpToDate()
    assert loaded == chain


@given(chains(), st.data())
def test_window_of_a_chain_plans_a_prefix_of_its_run(chain: list[Marker], data: st.DataObject) -> None:
    run = next_run(None, chain)
    window = next_run(None, chain[: data.draw(st.integers(1, len(chain)))])
    assert isinstance(run, Run)
    assert isinstance(window, Run)
    assert run.markers[: len(window.markers)] == window.markers


@st.composite
def many_runs(draw: st.DrawFn) -> dict[TopicPartition, Run]:
    runs = {}
    for partition in draw(st.lists(st.integers(0, 9), unique=True, min_size=1, max_size=4)):
        markers = [
            marker(
                start,
                start + 1,
                partition=partition,
                files=draw(st.integers(0, 4)),
                schema=draw(st.sampled_from(["old", "old", "new"])),
                created_ms=draw(st.integers(0, 9)),
                size_bytes=draw(st.integers(0, 40)),
            )
            for start in range(draw(st.integers(1, 8)))
        ]
        runs[markers[0].name.topic_partition] = Run(tuple(markers))
    return runs


@given(many_runs(), st.integers(1, 12), st.integers(1, 200))
def test_load_respects_its_limits_and_advances(runs: dict[TopicPartition, Run], max_files: int, max_bytes: int) -> None:
    load = required(plan_load(runs, Limits(max_files, max_bytes)))
    assert load.markers
    for partition, run in load.runs.items():
        assert run.markers == runs[partition].markers[: len(run.markers)]
    files = [file for marker in load.markers for table in marker.tables for file in table.files]
    with_files = [marker for marker in load.markers if any(table.files for table in marker.tables)]
    within = len(files) <= max_files and sum(file.size_bytes for file in files) <= max_bytes
    assert within or len(with_files) == 1
    assert len({table.schema for marker in with_files for table in marker.tables}) <= 1


@given(many_runs(), st.integers(1, 12))
def test_loads_terminate_and_leave_nothing(runs: dict[TopicPartition, Run], max_files: int) -> None:
    left = dict(runs)
    loaded: dict[TopicPartition, list[Marker]] = {partition: [] for partition in runs}
    while left:
        load = required(plan_load(left, Limits(max_files, 10_000)))
        for partition, run in load.runs.items():
            loaded[partition] += run.markers
            rest = left.pop(partition).markers[len(run.markers) :]
            if rest:
                left[partition] = Run(rest)
    assert {partition: tuple(markers) for partition, markers in loaded.items()} == {
        partition: run.markers for partition, run in runs.items()
    }


@given(many_runs(), st.integers(0, 7))
def test_shortened_load_has_only_prefixes(runs: dict[TopicPartition, Run], stop: int) -> None:
    load = Load(runs).until(lambda marker: marker.span.start == stop)
    for partition, run in runs.items():
        kept = () if load is None or partition not in load.runs else load.runs[partition].markers
        assert kept == run.markers[: min(stop, len(run.markers))]


@given(found_markers(), POSITIONS, st.integers(0, 60))
def test_settling_never_deletes_a_marker_that_is_needed(
    markers: list[AnyMarker], position: int, keep_after_ms: int
) -> None:
    written_ms = {marker.name: int(marker.name.start) for marker in markers}
    candidates = set(settle_candidates(sorted(written_ms), written_ms, Position(position), keep_after_ms))
    gone = set(settled([marker for marker in markers if marker.name in candidates], Position(position)))
    kept = [marker for marker in markers if marker.name not in gone]
    if markers:
        assert max(marker.name for marker in markers) not in gone
    assert all(marker.span.end <= position for marker in markers if marker.name in gone and isinstance(marker, Marker))
    # Every marker that could be loaded before can be loaded after.
    before, after = next_run(Position(position), markers), next_run(Position(position), kept)
    assert before == after


@given(
    st.dictionaries(
        st.builds(
            TopicPartition, st.text("ab.-_", min_size=1, max_size=4).map(Topic), st.integers(0, 99).map(Partition)
        ),
        st.tuples(st.integers(0, 2**40), st.integers(1, 99)).map(
            lambda pair: Span(Position(pair[0]), Position(pair[0] + pair[1]))
        ),
        max_size=4,
    ),
    st.none() | st.integers(0, 2**43),
    st.text(max_size=8),
    st.lists(st.integers(0, 2**40), min_size=6, max_size=6),
)
def test_commit_metadata_round_trips(
    spans: dict[TopicPartition, Span], valid_through_ms: int | None, app_id: str, numbers: list[int]
) -> None:
    records, rows, tombstones, dead_letters, filtered, exploded = numbers
    counts = Counts(records, rows, tombstones, dead_letters, tuple(spans.values()), filtered, exploded)
    replaced = {partition: Replaced(span, app_id, counts) for partition, span in spans.items()}
    for metadata in (
        CommitMetadata("c-1", app_id, spans, valid_through_ms),
        CommitMetadata("c-1", app_id, spans, valid_through_ms, dict.fromkeys(spans, counts), replaced),
        CommitMetadata("c-1", app_id, spans, None, generations=dict.fromkeys(spans, 1 + numbers[0])),
        CommitMetadata("c-1", app_id, spans, None, merged_by=MergedBy((app_id, "a"), app_id or None, rows % 2 == 0)),
    ):
        assert CommitMetadata.from_json(metadata.to_json()) == metadata


@given(st.text("ab-", min_size=1, max_size=4), st.integers(0, 99), st.integers(1, 2**62), st.booleans())
def test_txn_action_version_round_trips(app_id: str, partition: int, end: int, several_topics: bool) -> None:  # noqa: FBT001
    ids = TxnIds(app_id, several_topics)
    topic_partition = TopicPartition(Topic("t"), Partition(partition))
    last = int(Span(Position(0), Position(end)).last_offset)
    assert ids.position({ids.of(topic_partition): last}, topic_partition) == end
