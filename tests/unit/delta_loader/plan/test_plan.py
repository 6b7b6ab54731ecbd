"""The planner on cases one would draw on a whiteboard."""

from dataclasses import replace

import pytest

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin, StagedFile, StagedTable, TableKind
from delta_loader.plan.held import held
from delta_loader.plan.plan import (
    Gap,
    Limits,
    MissingOrigin,
    Overlap,
    Run,
    UnreadableMarker,
    UnsplittableOverlap,
    UpToDate,
    for_tables,
    has_mixed,
    next_run,
    plan_load,
    require_splittable,
)
from tests.builders import instance, required

SOURCE = TopicPartition(Topic("orders"), Partition(0))
LIMITS = Limits(max_files=100, max_bytes=10_000)


def name(start: int, partition: TopicPartition = SOURCE) -> MarkerName:
    return MarkerName(partition, Position(start))


def by_hand(offset: int) -> Marker:
    return Marker(name(offset), None)


def marker(
    start: int,
    end: int,
    previous: int | None = 0,
    *,
    files: int = 1,
    schema: str = "{}",
    partition: int = 0,
    created_ms: int | None = None,
    table: str = "/t",
    size_bytes: int = 10,
) -> Marker:
    topic_partition = TopicPartition(Topic("orders"), Partition(partition))
    staged = tuple(StagedFile(f"f{start}-{index}", {}, size_bytes, 1, "{}") for index in range(files))
    manifest = Manifest(
        span=Span(Position(start), Position(end)),
        previous=None if previous is None else Position(previous),
        app_id="orders",
        origin=Origin.FLUSH,
        writer="w",
        created_ms=start if created_ms is None else created_ms,
        tables=(StagedTable(table, TableKind.ROWS, schema, (), staged),),
    )
    return Marker(name(start, topic_partition), manifest)


def run_of(*markers: Marker) -> Run:
    return Run(markers)


FIRST, SECOND, FAR = marker(10, 20), marker(20, 30), marker(40, 50)
BROKEN = UnreadableMarker(name(20), "no JSON")
ROOT, ROOTLESS, STRADDLING, BY_HAND = marker(5, 9, None), marker(5, 9, 3), marker(5, 15), by_hand(41)
RUNS: dict[str, tuple[int | None, list[Marker | UnreadableMarker], object]] = {
    "a run is unbroken": (10, [FAR, SECOND, FIRST], run_of(FIRST, SECOND)),
    "a gap": (30, [FAR, SECOND, FIRST], Gap(Position(30), Position(40))),
    "all is loaded": (50, [FAR, SECOND, FIRST], UpToDate()),
    "nothing is staged for a new table": (None, [], UpToDate()),
    "nothing is staged": (7, [], UpToDate()),
    "a marker made by hand covers one position": (
        None,
        [marker(42, 50, 41), BY_HAND],
        run_of(BY_HAND, marker(42, 50, 41)),
    ),
    "a new table begins at a root": (None, [ROOT], run_of(ROOT)),
    "a new table begins nowhere else": (None, [ROOTLESS], MissingOrigin(ROOTLESS)),
    "a straddling marker": (10, [STRADDLING], Overlap(Position(10), STRADDLING)),
    "a straddling marker and what follows it": (10, [STRADDLING, marker(15, 20)], Overlap(Position(10), STRADDLING)),
    "a straddling marker and an exact one": (10, [STRADDLING, marker(10, 12)], run_of(marker(10, 12))),
    "before an unreadable marker": (10, [FAR, BROKEN, FIRST], run_of(FIRST)),
    "at an unreadable marker": (20, [FAR, BROKEN, FIRST], BROKEN),
    "behind an unreadable marker": (40, [FAR, BROKEN, FIRST], run_of(FAR)),
    "an unreadable marker for a new table": (None, [BROKEN], BROKEN),
    "of two names for a position the one with content": (41, [BY_HAND, marker(41, 50)], run_of(marker(41, 50))),
}


@pytest.mark.parametrize(("position", "staged", "outcome"), RUNS.values(), ids=RUNS)
def test_next_run_is_the_unbroken_chain_at_the_position(
    position: int | None, staged: list[Marker | UnreadableMarker], outcome: object
) -> None:
    assert next_run(None if position is None else Position(position), staged) == outcome


def test_chain_with_a_lowered_origin_has_a_gap_before_its_first_marker() -> None:
    first, by_operator = marker(5, 9, None), by_hand(7)
    assert next_run(None, [first], Position(0)) == Gap(Position(0), Position(5))
    assert next_run(None, [first], Position(5)) == next_run(None, [first], Position(7)) == run_of(first)
    made = replace(first, manifest=replace(required(first.manifest), origin=Origin.BOOTSTRAP))
    for authored in (by_operator, made):
        assert next_run(None, [authored], Position(0)) == run_of(authored), "its author chose where the chain begins"
    assert next_run(Position(5), [first], Position(0)) == run_of(first), "the table's position decides where it has one"


@pytest.mark.parametrize(
    ("position", "chain", "reason", "command"),
    [
        (10, [marker(20, 30)], "gap", "rewind ⟨config⟩ --topic orders --partition 0 --to 10"),
        (10, [marker(20, 30)], "gap", "skip ⟨config⟩ --topic orders --partition 0 --to 20"),
        (None, [marker(5, 30, 2)], "no_root", "skip ⟨config⟩ --topic orders --partition 0 --to 5"),
        (None, [marker(20, 30, 10)], "no_root", "rewind ⟨config⟩ --topic orders --partition 0 --to 0"),
        (
            4,
            [UnreadableMarker(name(4), "torn")],
            "unreadable_marker",
            "rewind ⟨config⟩ --topic orders --partition 0 --to 4",
        ),
    ],
)
def test_held_partition_names_the_command_that_fixes_it(
    position: int | None, chain: list[Marker | UnreadableMarker], reason: str, command: str
) -> None:
    outcome = next_run(None if position is None else Position(position), chain)
    hold = required(held(SOURCE, outcome))
    assert (hold.reason, command in hold.remedy) == (reason, True)


def test_straddle_without_offset_columns_is_held_with_its_remedy() -> None:
    hold = required(held(SOURCE, UnsplittableOverlap(Position(10), marker(5, 30))))
    assert hold.reason == "straddle"
    assert "kafka_columns" in hold.problem
    assert "rewind ⟨config⟩ --topic orders --partition 0 --to 10" in hold.remedy


def test_straddle_in_a_chain_of_several_topics_is_held() -> None:
    partition = TopicPartition(Topic("orders+payments"), Partition(0))
    straddling = replace(marker(5, 30), name=MarkerName(partition, Position(5)))
    hold = required(held(partition, require_splittable(Overlap(Position(10), straddling), ["/t"], kafka_columns=True)))
    assert hold.reason == "straddle"
    assert "another order" in hold.problem
    assert "stray/" in hold.remedy


def test_partition_that_can_progress_is_not_held() -> None:
    assert held(SOURCE, Overlap(Position(10), marker(5, 30))) is None
    assert held(SOURCE, UpToDate()) is None
    assert held(SOURCE, run_of(marker(1, 2))) is None


def test_marker_with_files_for_an_unknown_table_is_unreadable() -> None:
    tables = {"s3://lake/t": "s3://lake/t/"}
    strange = instance(UnreadableMarker, for_tables(marker(0, 5, table="s3://lake/other"), tables))
    assert "s3://lake/other" in strange.problem
    nothing = marker(0, 5, table="s3://lake/other", files=0, schema='{"type":"struct","fields":[]}')
    assert for_tables(nothing, tables) == nothing
    same = for_tables(marker(0, 5, table="s3a://lake/t", schema='{"type":"struct","fields":[]}'), tables)
    assert isinstance(same, Marker)
    assert same.tables[0].url == "s3://lake/t/"
    assert for_tables(by_hand(5), tables) == by_hand(5)


@pytest.mark.parametrize("schema", ["{", "[]", '"STRING"', '{"type":"struct"}', "[" * 100_000])
def test_invalid_schema_makes_only_its_marker_unreadable(schema: str) -> None:
    unreadable = instance(UnreadableMarker, for_tables(marker(0, 5, schema=schema), {"/t": "/t"}))
    assert "table" in unreadable.problem


def test_load_takes_only_the_oldest_schema() -> None:
    old, new = marker(0, 10, schema="old", created_ms=5), marker(10, 20, schema="new", created_ms=7)
    other = marker(0, 9, schema="new", partition=1, created_ms=6)
    load = required(plan_load({SOURCE: run_of(old, new), other.name.topic_partition: run_of(other)}, LIMITS))
    assert load.markers == (old,)


def test_equally_old_schemas_load_by_lowest_partition() -> None:
    first, second = (
        marker(0, 10, schema=schema, partition=partition, created_ms=5)
        for partition, schema in enumerate(("one", "other"))
    )
    load = required(
        plan_load({next_marker.name.topic_partition: run_of(next_marker) for next_marker in (second, first)}, LIMITS)
    )
    assert load.markers == (first,)


def test_load_takes_one_schema_for_each_table() -> None:
    rows = marker(0, 10)
    letters = marker(10, 20, table="/dead", schema="d")
    others = marker(20, 30, table="/dead", schema="d2")
    load = required(plan_load({SOURCE: run_of(rows, letters, others)}, LIMITS))
    assert load.markers == (rows, letters)


def test_marker_without_files_fits_every_schema() -> None:
    old, empty, new = marker(0, 10, schema="old"), marker(10, 20, files=0, schema="new"), marker(20, 30, schema="new")
    load = required(plan_load({SOURCE: run_of(old, empty, new)}, LIMITS))
    assert load.markers == (old, empty)


def test_marker_larger_than_the_limits_is_loaded_alone() -> None:
    large, small = marker(0, 10, files=500), marker(10, 20)
    load = required(plan_load({SOURCE: run_of(large, small)}, LIMITS))
    assert load.markers == (large,)


def test_partitions_share_a_load_evenly() -> None:
    runs = {}
    for partition in (0, 1):
        chain = [marker(start, start + 1, partition=partition) for start in range(100)]
        runs[chain[0].name.topic_partition] = run_of(*chain)
    load = required(plan_load(runs, LIMITS))
    assert [len(run.markers) for run in load.runs.values()] == [50, 50]


def test_load_may_reach_its_limits_exactly() -> None:
    chain = [marker(start, start + 1, files=2, size_bytes=50) for start in range(4)]
    for limits in (Limits(max_files=6, max_bytes=10_000), Limits(max_files=100, max_bytes=300)):
        load = required(plan_load({SOURCE: run_of(*chain)}, limits))
        assert load.markers == tuple(chain[:3])


def test_partition_whose_next_marker_does_not_fit_blocks_no_other() -> None:
    large = [marker(0, 1), marker(1, 2, files=100)]
    small = [marker(start, start + 1, partition=1) for start in range(5)]
    load = required(plan_load({run[0].name.topic_partition: run_of(*run) for run in (large, small)}, LIMITS))
    assert load.markers == (large[0], *small)


@pytest.mark.parametrize("straddles", [False, True])
def test_longest_waiting_partition_loads_first(*, straddles: bool) -> None:
    later, longest = marker(0, 9, created_ms=7), marker(0, 9, partition=1, created_ms=3)
    outcomes = {
        next_marker.name.topic_partition: Overlap(Position(4), next_marker) if straddles else run_of(next_marker)
        for next_marker in (later, longest)
    }
    load = required(plan_load(outcomes, Limits(max_files=1, max_bytes=10_000)))
    assert load.markers == (longest,)


@pytest.mark.parametrize("joined_ms", [3, 7])
def test_of_chains_with_a_common_partition_one_is_in_a_load(joined_ms: int) -> None:
    """The topics of a topology were edited before anything was loaded."""
    joined = TopicPartition(Topic("orders+payments"), Partition(0))
    single, other = marker(0, 9, created_ms=5), marker(0, 9, partition=1, created_ms=9)
    several = marker(0, 20, created_ms=joined_ms)
    runs = {SOURCE: run_of(single), joined: run_of(several), other.name.topic_partition: run_of(other)}
    load = required(plan_load(runs, LIMITS))
    assert load.runs.keys() == {SOURCE if joined_ms > 5 else joined, other.name.topic_partition}


def test_partition_that_starts_with_a_handmade_marker_loads_first() -> None:
    """A handmade marker has no time and counts as the oldest."""
    by_people = [by_hand(0), marker(1, 9, created_ms=7)]
    other = [marker(start, start + 1, partition=1, created_ms=3) for start in range(2)]
    load = plan_load({run[0].name.topic_partition: run_of(*run) for run in (other, by_people)}, Limits(2, 10_000))
    assert required(load).markers == (*by_people, other[0])


def test_plan_without_runs_is_none() -> None:
    assert plan_load({}, LIMITS) is None


def test_load_cut_before_its_first_marker_is_none() -> None:
    first, second = marker(0, 10), marker(10, 20)
    load = required(plan_load({SOURCE: run_of(first, second)}, LIMITS))
    assert load.until(lambda candidate: candidate is first) is None
    assert load.until(lambda candidate: candidate is second) == plan_load({SOURCE: run_of(first)}, LIMITS)


def test_straddle_needs_offset_columns_where_its_table_has_rows() -> None:
    straddle = Overlap(Position(10), marker(5, 30, table="/t"))
    for urls in (["/t", "/other"], ["/other", "/t"]):
        assert require_splittable(straddle, urls, kafka_columns=False) == UnsplittableOverlap(
            Position(10), straddle.marker
        )
    assert require_splittable(straddle, ["/other"], kafka_columns=False) == straddle
    assert require_splittable(straddle, ["/t"], kafka_columns=True) == straddle


def test_marker_is_mixed_when_any_of_its_files_is() -> None:
    whole = marker(0, 10, files=2)
    assert not has_mixed(whole)
    assert whole.manifest is not None
    first, other = whole.tables[0].files
    table = replace(whole.tables[0], files=(first, replace(other, partition_values=None)))
    assert has_mixed(replace(whole, manifest=replace(whole.manifest, tables=(table,))))


def test_equally_old_straddles_load_by_lowest_partition() -> None:
    straddles = {
        marker(5, 30, partition=partition).name.topic_partition: Overlap(
            Position(10), marker(5, 30, partition=partition)
        )
        for partition in (1, 0)
    }
    load = required(plan_load(straddles, LIMITS))
    assert list(load.runs) == [SOURCE]


def test_oldest_marker_without_files_does_not_choose_the_schema() -> None:
    empty, new = marker(0, 10, files=0, created_ms=1), marker(10, 20, schema='{"new":1}', created_ms=30)
    old = marker(0, 10, schema='{"old":1}', partition=1, created_ms=20)
    load = required(plan_load({SOURCE: run_of(empty, new), old.name.topic_partition: run_of(old)}, LIMITS))
    assert load.markers == (empty, old)
