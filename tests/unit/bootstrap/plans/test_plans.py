"""The decisions of the bootstrap tool, and their effect on a stage."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap import view
from bootstrap.apply import stage
from bootstrap.apply.loaders import require_loaded_alike, require_no_load_begun, require_not_loaded
from bootstrap.plans.plan import (
    BeginChain,
    Make,
    NoPosition,
    NotNeeded,
    PlannedPartition,
    RefusedPartition,
    StreamPlan,
    check_known,
    plan_partition,
)
from bootstrap.plans.repair import RewindPlan, plan_rewind, plan_skip, with_tables_ahead
from bootstrap.plans.restart import Restart, UnchangedPartition, plan_restart
from bootstrap.plans.sources import FromDelta, FromFile, FromGroup, PositionSource, parse_positions, parse_source
from bootstrap.plans.state import Author, Ends, PartitionState, StagedMarker
from common.errors import UsageError
from common.settings import FromOffsets, FromTimestamp, Start, StartAt
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.chain import read_chain
from common.stage.chain_origins import ChainOrigin, newest_origin, origin_from_bytes, origin_path, origin_to_bytes
from common.stage.markers import Marker, MarkerName, Origin
from common.storage.store import FsspecStore
from delta_loader.plan.plan import Gap, Run, next_run
from tests.builders import required, span
from tests.fakes.markers import ORDERS, by_hand, chain_of, flush, put
from tests.fakes.stores import TrappedStore, acting

AUTHOR = Author("test", 1_000)
JOINED = TopicPartition(Topic("orders+payments"), Partition(0))
BEGUN = ChainOrigin(Position(0), 0, "new")
THIRTY = chain_of(0, 10, 20, 30)


def state(
    markers: Iterable[Marker | StagedMarker] = (),
    *,
    low: int = 0,
    high: int = 1_000,
    table: int | None = None,
    deferred_from: int | None = None,
    start: Start = StartAt.EARLIEST,
    chain_origin: ChainOrigin | None = None,
) -> PartitionState:
    staged = [
        marker if isinstance(marker, StagedMarker) else StagedMarker(marker.name.path, marker.name, marker)
        for marker in markers
    ]
    return PartitionState(
        partition=ORDERS,
        app_id="orders",
        start=start,
        ends=Ends(Position(low), Position(high)),
        table=None if table is None else Position(table),
        staged=tuple(sorted(staged, key=lambda marker: marker.name)),
        chain_origin=chain_origin,
        deferred_from=None if deferred_from is None else Position(deferred_from),
    )


def broken(start: int) -> StagedMarker:
    name = MarkerName(ORDERS, Position(start))
    return StagedMarker(name.path, name, None)


def planned(state: PartitionState, position: int | None, why: str = "nothing") -> PlannedPartition:
    return plan_partition(state, None if position is None else Position(position), why, AUTHOR)


# --from


@pytest.mark.parametrize(
    ("text", "meaning"),
    [
        ("earliest", StartAt.EARLIEST),
        ("latest", StartAt.LATEST),
        ("2026-03-01T00:00:00Z", FromTimestamp(1_772_323_200_000)),
        ("2026-03-01", FromTimestamp(1_772_323_200_000)),
        ("1710123112301", FromTimestamp(1_710_123_112_301)),  # not the year 1710
        ("group:my:group", FromGroup("my:group")),
        ("delta", FromDelta()),
        ("positions.yaml", FromFile("positions.yaml", last_offsets=False)),
        ("seek_offsets:seek.json", FromFile("seek.json", last_offsets=True)),
    ],
)
def test_source_is_a_word_a_timestamp_or_a_file(text: str, meaning: PositionSource) -> None:
    assert parse_source(text) == meaning


@pytest.mark.parametrize("text", ["group:", "seek_offsets:"])
def test_source_without_a_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        parse_source(text)
    assert "group:NAME" in caught.value.remedy


def positions(text: str, topics: tuple[str, ...] = ("orders",), *, last: bool = False) -> Mapping[str, int]:
    parsed = parse_positions(text, "file", [Topic(topic) for topic in topics], last_offsets=last)
    return {str(partition): position for partition, position in parsed.items()}


def test_file_has_positions_by_partition_or_by_topic() -> None:
    assert positions("{0: 120, 1: 340}") == {"orders/0": 120, "orders/1": 340}
    assert positions('{"0": 120}') == {"orders/0": 120}
    assert positions("orders: {0: 120}\ninvoices: {0: 7}", ("orders", "invoices")) == {"orders/0": 120, "invoices/0": 7}


def test_kafka_delta_ingest_s_seek_offsets_are_last_offsets() -> None:
    assert positions("[[0, 119], [1, 339]]") == {"orders/0": 120, "orders/1": 340}
    assert positions('{"0": 119}', last=True) == {"orders/0": 120}
    assert positions("[[0, -1]]") == {"orders/0": 0}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no positions"),
        ("hello", "holds no positions"),
        ("{", "neither YAML nor JSON"),
        ("{0: x}", "'x'"),
        ("{0: -1}", "-1"),
        ("{0: true}", "True"),
        ("{x: 1}", "'x'"),
        ("[[0]]", "[0]"),
        ("[0, 1]", "0"),
        ("[[0, 1], [0, 2]]", "twice"),
        ('{"0": 1, "0": 2}', "the key '0' is given twice at line 1, column 10"),
        ("{0: 0120}", "begins with 0"),
        ("{0: 2:00}", "'2:00'"),
        ("orders: {0: {1: 2}}", "{1: 2}"),
    ],
)
def test_invalid_positions_file_is_refused_with_an_example(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        positions(text)
    assert message in caught.value.problem
    assert caught.value.problem.startswith("file")
    assert caught.value.remedy


def test_positions_without_topics_need_a_stream_with_one() -> None:
    with pytest.raises(UsageError, match="orders, invoices"):
        positions("{0: 1}", ("orders", "invoices"))


# plan and write


def test_position_becomes_the_marker_before_it() -> None:
    outcome = planned(state(), 42).outcome
    assert isinstance(outcome, Make)
    assert outcome.marker.name.path == "done/orders/0/00000000000000000041.done"
    assert outcome.marker.span == Span(Position(41), Position(42))
    assert outcome.marker.previous is None
    assert required(outcome.marker.manifest).origin is Origin.BOOTSTRAP
    assert read_chain([outcome.marker]).end == 42


def test_position_zero_needs_no_marker_where_the_stream_starts_there() -> None:
    for start in (StartAt.EARLIEST, FromOffsets({(None, Partition(0)): Position(0)}), FromOffsets({})):
        assert isinstance(planned(state(start=start), 0).outcome, NotNeeded)
    begun = state(start=StartAt.LATEST, chain_origin=ChainOrigin(Position(0)))
    assert isinstance(planned(begun, 0).outcome, NotNeeded)


@pytest.mark.parametrize(
    "start", [StartAt.LATEST, FromTimestamp(1), FromOffsets({(Topic("orders"), Partition(0)): Position(5)})]
)
def test_position_zero_is_recorded_where_the_stream_starts_elsewhere(start: Start) -> None:
    outcome = planned(state(start=start), 0).outcome
    assert isinstance(outcome, BeginChain)
    assert outcome.path == "begin/orders/0/00000000000000000000.begin"
    assert outcome.chain_origin.position == 0


@pytest.mark.parametrize("markers", [[by_hand(3)], chain_of(0, 10), [broken(7)]])
def test_chain_is_never_overwritten(markers: list[Marker | StagedMarker]) -> None:
    outcome = planned(state(markers), 42).outcome
    assert isinstance(outcome, RefusedPartition)
    assert "done/orders/0/" in outcome.problem
    assert ("and is staged up to 10" in outcome.problem) == (markers == chain_of(0, 10))
    assert "rewind" in outcome.remedy
    assert "skip" in outcome.remedy


def test_chain_that_begins_there_is_left_as_it_is() -> None:
    """By a command that was cut off, and went on where writers did already."""
    made = planned(state(), 42).outcome
    assert isinstance(made, Make)
    for chain in ([made.marker], [made.marker, flush(42, 50)], [by_hand(41)]):
        assert isinstance(planned(state(chain), 42).outcome, NotNeeded)
        assert isinstance(planned(state(chain), 43).outcome, RefusedPartition)
        assert isinstance(planned(replace(state(chain), cut_off=True), 43).outcome, NotNeeded)
    assert isinstance(planned(state([flush(41, 42)]), 42).outcome, RefusedPartition)


def test_repair_that_was_cut_off_after_its_last_change_is_finished() -> None:
    """Its lock holds the partition until a command ends it, with nothing left to change."""
    done = replace(state(chain_of(0, 10, 20)), cut_off=True, repairs=3, topic_id="new", chain_origin=BEGUN)
    rewound = plan_rewind(done, Position(20), AUTHOR)
    assert (rewound.put_aside, rewound.marker, rewound.chain_origin) == ((), None, None)
    restarted = plan_restart(done, give_up=False)
    assert isinstance(restarted, Restart)
    assert (restarted.put_aside, restarted.chain_origin) == ((), None)
    with pytest.raises(UsageError, match=r"end that with `bootstrap rewind .* --to 20 --take-over 3 --yes`"):
        plan_skip(done, Position(20), AUTHOR)
    assert isinstance(plan_restart(replace(done, cut_off=False), give_up=False), UnchangedPartition)
    with pytest.raises(UsageError, match="there is nothing to rewind"):
        plan_rewind(replace(done, cut_off=False), Position(20), AUTHOR)


@pytest.mark.parametrize("markers", [(), chain_of(0, 10)])
def test_chain_of_other_records_gets_no_marker(markers: list[Marker]) -> None:
    outcome = planned(replace(state(markers), foreign="it is of another topic"), 5).outcome
    assert isinstance(outcome, RefusedPartition)
    assert "does not match the table's positions: it is of another topic" in outcome.problem
    assert "bootstrap restart" in outcome.remedy


def test_position_that_kafka_does_not_have_is_refused() -> None:
    beyond = planned(state(high=10), 11).outcome
    assert isinstance(beyond, RefusedPartition)
    assert "ends at 10" in beyond.problem
    gone = planned(state(low=50), 40).outcome
    assert isinstance(gone, RefusedPartition)
    assert "[40, 50)" in gone.problem
    assert "skip" in gone.remedy
    assert isinstance(planned(state(low=50, high=50), 50).outcome, Make)


def test_position_beyond_the_table_s_is_refused() -> None:
    outcome = planned(state(table=30), 42).outcome
    assert isinstance(outcome, RefusedPartition)
    assert "[30, 42)" in outcome.problem
    assert "--from delta" in outcome.remedy
    assert "bootstrap skip ⟨config⟩ --topic orders --partition 0 --to 42" in outcome.remedy
    assert isinstance(planned(state(table=41), 42).outcome, RefusedPartition)


@pytest.mark.parametrize(
    ("position", "note"), [(60, "leaves out [10, 60)"), (100, "leaves out all that Kafka has, [10, 100)"), (10, "")]
)
def test_records_left_out_before_the_position_are_noted(position: int, note: str) -> None:
    """A timestamp in the future, for example, is the end of each partition."""
    outcome = planned(state(low=10, high=100), position).outcome
    assert isinstance(outcome, Make)
    assert outcome.note == note


def test_records_that_the_table_already_has_are_noted() -> None:
    outcome = planned(state(table=60), 42).outcome
    assert isinstance(outcome, Make)
    assert "[42, 60)" in outcome.note
    same = planned(state(table=42), 42).outcome
    assert isinstance(same, Make)
    assert same.note == ""


def test_partition_without_a_position_is_left_out_with_the_reason() -> None:
    fresh = planned(state(), None, "the group 'g' has no commit").outcome
    assert fresh == NoPosition("the group 'g' has no commit; it begins at the stream's start, earliest")
    chained = planned(state(chain_of(0, 10)), None, "the file does not name it").outcome
    assert chained == NoPosition("the file does not name it; its chain stays as it is")
    for start, words in (
        (FromTimestamp(5), "the first record at or after 5 ms"),
        (FromOffsets({}), "its map of positions, else earliest"),
    ):
        assert planned(state(start=start), None).outcome == NoPosition(
            f"nothing; it begins at the stream's start, {words}"
        )


def test_rewind_to_before_a_chain_moves_its_origin_without_markers() -> None:
    """A loader sees such a rewind before its first load by the origin (common/stage/loading.py)."""
    plan = rewound(state(chain_origin=ChainOrigin(Position(70)), start=StartAt.LATEST), 42)
    assert (plan.position, plan.chain_start, aside(plan)) == (42, 70, [])
    assert plan.chain_origin == ChainOrigin(Position(42), number=1)


def test_rewind_above_an_origin_without_staged_records_returns_to_it() -> None:
    """The rewind to the origin came while a writer claimed from a former one; another origin would hide the gap."""
    chain = [flush(60, 90), flush(90, 100, 60)]
    gap = state(chain, chain_origin=ChainOrigin(Position(42), number=1))
    plan = rewound(gap, 90)
    assert (plan.position, aside(plan)) == (42, [90, 60])
    assert plan.chain_origin == ChainOrigin(Position(42), number=2)
    assert rewound(replace(gap, table=Position(60)), 90).position == 90
    assert rewound(state(chain, chain_origin=ChainOrigin(Position(60))), 90).position == 90


def test_marker_below_a_rewind_deleted_by_a_late_request_leaves_a_gap() -> None:
    """The request is of another rewind; the table has no position that would show the gap."""
    plan = rewound(state(chain_of(0, 16, 56, 62)), 16)
    origin = origin_from_bytes(origin_path(ORDERS, 1), origin_to_bytes(required(plan.chain_origin)))
    assert (origin.position, origin.first_position) == (16, 0)
    staged_again = flush(16, 60)
    assert next_run(None, [staged_again], origin.first_position) == Gap(Position(0), Position(16))
    assert isinstance(next_run(None, [flush(0, 16), flush(16, 60, 0)], origin.first_position), Run)
    late = state([staged_again], chain_origin=origin)
    assert rewound(late, 60).position == 0
    assert skipped(late, 16) == (Span(Position(0), Position(16)), None)
    assert rewound(state(chain_origin=origin), 0).position == 0
    assert required(rewound(state(chain_of(0, 16, 56), table=10), 16).chain_origin).staged_from is None


def test_position_0_moves_the_origin_of_a_chain_without_a_marker() -> None:
    """A marker does the same for any other position."""
    begun = state(chain_origin=ChainOrigin(Position(42), 1, "new", number=3, loaded_before=Position(7)))
    outcome = planned(replace(begun, repairs=7), 0).outcome
    assert outcome == BeginChain(ORDERS, ChainOrigin(Position(0), 0, "new", number=8, loaded_before=Position(7)))


def test_partition_left_out_under_latest_begins_at_the_current_end() -> None:
    outcome = planned(state(start=StartAt.LATEST, high=70), None, "the file does not name it").outcome
    assert outcome == BeginChain(ORDERS, ChainOrigin(Position(70)))
    later = replace(state(start=StartAt.LATEST, high=70), generation=2)
    assert planned(later, None).outcome == BeginChain(ORDERS, ChainOrigin(Position(70), 2))
    begun = state(start=StartAt.LATEST, high=70, chain_origin=ChainOrigin(Position(7)))
    assert isinstance(planned(begun, None).outcome, NoPosition)
    staged = planned(state(chain_of(0, 10), start=StartAt.LATEST, high=70), None, "the file does not name it")
    assert staged.outcome == NoPosition("the file does not name it; its chain stays as it is")
    assert StreamPlan("orders", (staged, planned(later, None))).beginnings == (planned(later, None).outcome,)


def test_positions_of_partitions_that_kafka_does_not_have_are_refused() -> None:
    check_known([ORDERS], [ORDERS], "FILE")
    with pytest.raises(UsageError, match=r"FILE names orders\+payments/0, which does not exist in Kafka") as caught:
        check_known([ORDERS, JOINED], [ORDERS], "FILE")
    assert caught.value.remedy == "name partitions of orders/0 … orders/0"
    with pytest.raises(UsageError, match="check the stream's topics"):
        check_known([ORDERS], [], "FILE")


def test_one_refused_partition_refuses_the_plan() -> None:
    good = planned(state(), 42)
    bad = planned(state(chain_of(0, 10)), 42)
    assert len(StreamPlan("orders", (good,)).markers) == 1
    with pytest.raises(UsageError, match="nothing was written") as caught:
        _ = StreamPlan("orders", (good, bad)).markers
    assert "done/orders/0/00000000000000000000.done" in caught.value.problem
    assert "refused as well" not in caught.value.problem
    assert caught.value.exit_code == 2
    with pytest.raises(UsageError, match=r"\(refused as well: orders\+payments/0\)"):
        _ = StreamPlan("orders", (bad, good, replace(bad, partition=JOINED))).markers


def test_plan_is_shown_as_text_and_as_json() -> None:
    plan = StreamPlan(
        "orders", (planned(state(), 42), planned(state(), 0), planned(state(), None), planned(state(chain_of(0, 9)), 5))
    )
    text = view.plans_as_text([plan])
    assert "done/orders/0/00000000000000000041.done" in text
    assert "position 0 needs no marker" in text
    assert "refused" in text
    content = json.loads(view.plans_as_json([plan], written=False))
    assert content["written"] is False
    (stream,) = content["streams"]
    assert [partition["outcome"] for partition in stream["partitions"]] == ["make", "not_needed", "left_out", "refused"]
    assert [partition["position"] for partition in stream["partitions"]] == [42, 0, None, 5]
    assert stream["partitions"][0]["marker"] == "done/orders/0/00000000000000000041.done"
    assert stream["partitions"][1]["marker"] is None


# skip


def skipped(state: PartitionState, to: int) -> tuple[Span, Position | None]:
    plan = plan_skip(state, Position(to), AUTHOR)
    assert required(plan.marker.manifest).origin is Origin.SKIP
    return plan.marker.span, plan.marker.previous


SKIPPED: dict[str, tuple[PartitionState, int, tuple[Span, int | None]]] = {
    "from the chain's end": (state(chain_of(0, 10, 20)), 25, (span(20, 25), 10)),
    "over the gap that holds the partition": (
        state([*chain_of(0, 10), flush(15, 20), flush(30, 40)]),
        15,
        (span(10, 15), 0),
    ),
    "between the table and the chain": (state(chain_of(50, 60), table=42), 50, (span(42, 50), None)),
    "not over a gap below the table's position": (
        state([*chain_of(0, 10), flush(15, 20)], table=18),
        22,
        (span(20, 22), 15),
    ),
    "over a gap that another table lacks": (
        state([*chain_of(0, 10), flush(15, 20)], table=18, deferred_from=10),
        15,
        (span(10, 15), 0),
    ),
    "from the table's position without a chain": (state(table=42, low=50), 50, (span(42, 50), None)),
    "from the origin of a chain without a marker": (
        state(low=50, chain_origin=ChainOrigin(Position(42))),
        50,
        (span(42, 50), None),
    ),
    "from the start of a chain's lost part": (state(THIRTY[1:]), 10, (span(0, 10), None)),
    "from there also where the origin is lower": (
        state([flush(30, 40, 20)], chain_origin=ChainOrigin(Position(0))),
        30,
        (span(20, 30), None),
    ),
    "from the chain's end, not its origin": (
        state(chain_of(10, 20), chain_origin=ChainOrigin(Position(10))),
        25,
        (span(20, 25), 10),
    ),
    "from the chain's end, with a start that was set above its origin": (
        state([by_hand(41), flush(42, 50, 41)], chain_origin=ChainOrigin(Position(10))),
        60,
        (span(50, 60), 42),
    ),
    "up to Kafka's end": (state(chain_of(0, 10), high=12), 12, (span(10, 12), 0)),
}


@pytest.mark.parametrize(("partition", "to", "gives_up"), SKIPPED.values(), ids=SKIPPED)
def test_skip_gives_up_only_missing_records(
    partition: PartitionState, to: int, gives_up: tuple[Span, int | None]
) -> None:
    assert skipped(partition, to) == gives_up


@pytest.mark.parametrize(
    ("begun", "topic_id", "number"), [(None, "new", 0), (ChainOrigin(Position(0), topic_id="old", number=3), "old", 3)]
)
def test_marker_names_the_topic_and_the_origin_of_its_chain(
    begun: ChainOrigin | None, topic_id: str, number: int
) -> None:
    known = replace(state(chain_of(0, 10), chain_origin=begun), topic_id="new")
    manifest = required(plan_skip(known, Position(25), AUTHOR).marker.manifest)
    assert (manifest.topic_id, manifest.chain_origin) == (topic_id, number)


def test_skip_of_a_part_of_a_gap_notes_the_rest() -> None:
    plan = plan_skip(state([*chain_of(0, 10), flush(15, 20)]), Position(12), AUTHOR)
    assert plan.marker.span == span(10, 12)
    assert "[12, 15)" in plan.notes[0]
    assert plan_skip(state([*chain_of(0, 10), flush(15, 20)]), Position(15), AUTHOR).notes == ()


@pytest.mark.parametrize(
    ("partition", "to", "message"),
    [
        (state(chain_of(0, 10, 20)), 15, "up to 20"),
        (state(chain_of(0, 10, 20)), 20, "up to 20"),
        (state([*chain_of(0, 10), flush(15, 20)]), 17, "done/orders/0/00000000000000000015.done"),
        (state(chain_of(0, 10), high=12), 13, "ends at 12"),
        (state(), 13, "no marker"),
        (state([*chain_of(0, 10), broken(10)]), 13, "cannot be read"),
        (replace(state(chain_of(0, 10)), partition=JOINED), 13, "a chain of several topics"),
    ],
)
def test_skip_that_would_hide_records_is_refused(partition: PartitionState, to: int, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        plan_skip(partition, Position(to), AUTHOR)
    assert message in caught.value.problem
    assert caught.value.remedy


def test_skip_names_the_offsets_that_will_never_be_loaded() -> None:
    plan = plan_skip(state(chain_of(0, 10)), Position(25), AUTHOR)
    assert "[10, 25), 15 positions, will never be loaded" in view.skip_as_text(plan, done=True)
    assert "add --yes" in view.skip_as_text(plan, done=False)


# rewind


def test_rewind_gives_up_records_lost_from_kafka_only_on_request() -> None:
    # The files of the first two markers are gone, and Kafka begins after them.
    partition_state = state(chain_of(0, 10, 20, 80), low=50)
    with pytest.raises(UsageError, match=r"no longer has \[10, 50\)") as refused:
        plan_rewind(partition_state, Position(10), AUTHOR)
    assert "--give-up" in refused.value.remedy
    plan = plan_rewind(partition_state, Position(10), AUTHOR, give_up=True)
    assert plan.marker is not None
    assert plan.marker.manifest is not None
    assert (plan.marker.span, plan.marker.manifest.origin) == (span(10, 50), Origin.SKIP)
    assert (plan.marker.manifest.previous, plan.position) == (0, 50)
    assert [marker.name.start for marker in plan.put_aside] == [20, 10]
    assert "will never be loaded" in view.rewind_as_text(plan, (), done=True)


def test_rewind_to_the_origin_can_give_up_records_lost_from_kafka() -> None:
    plan = plan_rewind(state(chain_of(0, 10), low=50), Position(0), AUTHOR, give_up=True)
    assert plan.marker is not None
    assert plan.chain_origin == ChainOrigin(Position(50), number=1)
    assert (plan.marker.span, plan.marker.previous) == (span(0, 50), None)


@pytest.mark.parametrize("give_up", [True, False])
def test_chain_of_several_topics_gives_up_no_lost_records(*, give_up: bool) -> None:
    partition_state = replace(state(THIRTY, low=15), partition=JOINED)
    with pytest.raises(UsageError, match=r"no longer has \[10, 15\)") as refused:
        plan_rewind(partition_state, Position(10), AUTHOR, give_up=give_up)
    assert "a later position where one of its markers ends" in refused.value.remedy
    assert plan_rewind(partition_state, Position(20), AUTHOR, give_up=give_up).position == 20


def test_loaded_part_of_a_chain_of_several_topics_is_not_staged_again() -> None:
    """Its records may come in another order the second time."""
    partition_state = replace(state(THIRTY, table=20), partition=JOINED)
    for to in (10, 0):
        with pytest.raises(UsageError, match="another order") as caught:
            plan_rewind(partition_state, Position(to), AUTHOR, below_table=True)
        assert "--to 20" in caught.value.remedy
    assert plan_rewind(partition_state, Position(20), AUTHOR).position == 20


def rewound(state: PartitionState, to: int, *, below_table: bool = False) -> RewindPlan:
    return plan_rewind(state, Position(to), AUTHOR, below_table=below_table)


def aside(plan: RewindPlan) -> list[int]:
    return [marker.name.start for marker in plan.put_aside]


REWOUND: dict[str, tuple[PartitionState, int, tuple[int, list[int], Span | None]]] = {
    "to where a marker ends": (state(THIRTY), 10, (10, [20, 10], None)),
    "into a marker, so to its start": (state(THIRTY), 17, (10, [20, 10], None)),
    "to the table's position within a marker": (state(THIRTY, table=17), 17, (17, [20, 10], span(16, 17))),
    "above the table, so to its position": (state(THIRTY, table=17), 19, (17, [20, 10], span(16, 17))),
    "to the end of a gap, so to its start": (state([*chain_of(0, 10), flush(15, 20)]), 15, (10, [15], None)),
    "to before the chain": (state([by_hand(41), flush(42, 50, 41)]), 20, (20, [42, 41], span(19, 20))),
    "to the place of a lost marker": (state(THIRTY[2:]), 15, (10, [20], span(9, 10))),
    "to an unreadable marker": (state([*chain_of(0, 10), broken(10), flush(20, 30, 10)]), 10, (10, [20, 10], None)),
    "to behind the last marker, an unreadable one": (state([*chain_of(0, 10), broken(10)]), 25, (10, [10], None)),
    "to the table's position behind an unreadable marker": (
        state([*chain_of(0, 10), broken(10), flush(20, 30, 10), flush(30, 40, 20)], table=20),
        20,
        (20, [30, 20], span(19, 20)),
    ),
    "to the only marker, an unreadable one": (state([broken(10)]), 10, (10, [10], span(9, 10))),
    "to the end of a marker above a gap that the table waits for": (
        state([flush(20, 30), flush(30, 40, 20)], table=10, chain_origin=ChainOrigin(Position(10))),
        30,
        (30, [30], None),
    ),
    "to a start that was set above the origin": (
        state([by_hand(41), flush(42, 50, 41)], chain_origin=ChainOrigin(Position(10))),
        45,
        (42, [42], None),
    ),
    "to where Kafka and the table end": (
        state(chain_of(0, 10), table=30, high=30, start=StartAt.LATEST),
        30,
        (30, [], span(29, 30)),
    ),
}


@pytest.mark.parametrize(("partition", "to", "becomes"), REWOUND.values(), ids=REWOUND)
def test_rewind_puts_later_markers_aside_and_leaves_no_gap(
    partition: PartitionState, to: int, becomes: tuple[int, list[int], Span | None]
) -> None:
    plan = rewound(partition, to)
    assert (plan.position, aside(plan), plan.marker and plan.marker.span) == becomes
    assert (plan.chain_origin is None) is (not plan.put_aside)
    if plan.marker is not None:
        begun = 0 if plan.chain_origin is None else plan.chain_origin.number
        assert required(plan.marker.manifest).chain_origin == begun


def test_rewind_into_a_marker_is_noted() -> None:
    assert "17 lies within a marker" in rewound(state(THIRTY), 17).notes[0]


def test_rewind_keeps_staged_records_that_another_table_lacks() -> None:
    # To 17, the main table's position, another table would never get [10, 17): so down to where a marker ends.
    plan = rewound(state(THIRTY, table=17, deferred_from=4), 17)
    assert (plan.position, aside(plan), plan.marker) == (10, [20, 10], None)
    # While the main table has no position, all is staged for it.
    assert rewound(state(THIRTY, deferred_from=4), 20).position == 20
    # Markers below are also put aside.
    plan = rewound(state(THIRTY, table=17, deferred_from=4), 3, below_table=True)
    assert (plan.position, aside(plan)) == (3, [20, 10, 0])


@pytest.mark.parametrize(("to", "to_replay"), [(3, (4, 17)), (10, (10, 17)), (20, None)])
def test_rewind_names_records_that_another_table_gets_by_a_later_config(
    to: int, to_replay: tuple[int, int] | None
) -> None:
    """The main table keeps its records: if routes were edited since, a record would be in both tables, or in none."""
    plan = rewound(state(THIRTY, table=17, deferred_from=4), to, below_table=True)
    assert plan.to_replay == (None if to_replay is None else span(*to_replay))
    command = f"stage-writer replay ⟨config⟩ --topic orders --partition 0 --from {max(to, 4)} --to 17 --yes"
    assert any(f"load them again after this: `{command}`" in note for note in plan.notes) is (to_replay is not None)
    alike = rewound(state(THIRTY, table=17), to, below_table=True)
    assert alike.to_replay is None
    ends_there = rewound(state(chain_of(0, 17, 30), table=17, deferred_from=4), 17)
    assert (ends_there.position, ends_there.to_replay) == (17, None)


@pytest.mark.parametrize(
    ("to", "table", "highest", "ahead"),
    [
        (10, None, 30, (10, 30)),
        (0, None, 30, (0, 30)),
        (10, 20, 30, (20, 30)),
        (10, None, None, None),
        (10, 20, 20, None),
        (10, 20, 15, None),
    ],
)
def test_rewind_names_records_that_only_another_table_has(
    to: int, table: int | None, highest: int | None, ahead: tuple[int, int] | None
) -> None:
    plan = rewound(state(THIRTY), to)
    main, other = (None if each is None else Position(each) for each in (table, highest))
    known = with_tables_ahead(plan, main, other)
    assert known.tables_ahead == (None if ahead is None else span(*ahead))
    assert len(known.notes) == len(plan.notes) + (ahead is not None)


def test_uneven_load_during_a_rewind_is_named() -> None:
    plan = rewound(state(THIRTY, table=5), 10)
    with pytest.raises(UsageError, match="a loader has loaded it up to 30, and not into every table") as error:
        require_loaded_alike(plan, lambda: span(5, 30), lambda: None)
    assert "--from 10 --to 30 --yes" in error.value.remedy
    with pytest.raises(UsageError, match="a loader has loaded it up to 30, and not into every table") as error:
        require_loaded_alike(plan, lambda: None, lambda: span(12, 30))
    assert "--from 12 --to 30 --yes" in error.value.remedy
    require_loaded_alike(plan, lambda: span(5, 10), lambda: None)  # loaded, but not staged again
    require_loaded_alike(plan, lambda: None, lambda: None)
    known = rewound(state(THIRTY, table=17, deferred_from=4), 10, below_table=True)
    require_loaded_alike(known, lambda: span(4, 17), lambda: None)  # already named in the plan's notes
    known = with_tables_ahead(plan, Position(5), Position(30))
    assert known.tables_ahead == span(10, 30)
    require_loaded_alike(known, lambda: None, lambda: span(10, 30))  # the same


def test_skip_does_not_leave_out_records_that_another_table_lacks() -> None:
    assert skipped(state(chain_of(0, 10, 20), table=40), 50)[0] == span(40, 50)
    assert skipped(state(chain_of(0, 10, 20), table=40, deferred_from=12), 50)[0] == span(20, 50)


def test_rewind_after_an_interrupted_one_to_zero_skips_nothing() -> None:
    """The first rewind's origin is written, and a late claim stands above it: nothing between them was ever staged."""
    late = state([flush(30, 40, 20)], chain_origin=ChainOrigin(Position(0)))
    assert rewound(late, 25).position == 0
    assert rewound(late, 40 - 1).position == 0
    gone = state([flush(30, 40, 20)], chain_origin=ChainOrigin(Position(0)), low=15)
    assert rewound(gone, 25).position == 20, "as far back as Kafka still has records"


def test_range_below_a_moved_origin_s_first_marker_is_rewound_or_skipped() -> None:
    """As the loader that holds the partition says: a writer claimed where the chain began before."""
    late = state([flush(30, 40, None)], chain_origin=ChainOrigin(Position(10)))
    assert rewound(late, 10).position == 10
    assert plan_skip(late, Position(30), AUTHOR).marker.span == Span(Position(10), Position(30))


@pytest.mark.parametrize(
    ("to", "table", "is_refused"), [(10, 40, True), (10, None, False), (10, 10, False), (30, 40, False)]
)
def test_rewind_to_before_the_chain_names_records_loaded_meanwhile(
    to: int, table: int | None, *, is_refused: bool
) -> None:
    """The loader ignores what the rewind stages from there; of a rewind within the chain the table has everything."""
    plan = rewound(state([flush(30, 40, None)], chain_origin=ChainOrigin(Position(30))), to)
    loaded_to = None if table is None else Position(table)
    if not is_refused:
        require_no_load_begun(plan, lambda: loaded_to)
        return require_not_loaded(plan, lambda: loaded_to)
    with pytest.raises(UsageError, match="already has orders/0 up to 40") as error:
        require_no_load_begun(plan, lambda: loaded_to)
    assert "bootstrap rewind ⟨config⟩ --topic orders --partition 0 --to 30" in error.value.remedy
    assert "stage-writer replay ⟨config⟩ --topic orders --partition 0 --from 10 --to 30 --yes" in error.value.remedy
    with pytest.raises(UsageError, match="has loaded orders/0 up to 40 since") as error:
        require_not_loaded(plan, lambda: loaded_to)
    assert "stage-writer replay ⟨config⟩ --topic orders --partition 0 --from 10 --to 40 --yes" in error.value.remedy
    return None


def test_rewind_of_joined_topics_sees_records_of_a_secondary_table() -> None:
    """A loader died between the commits to two tables, and an operator deleted its note."""
    plan = rewound(state(THIRTY, table=20), 20)
    joined = replace(plan, partition=TopicPartition(Topic("orders+payments"), Partition(0)))
    require_no_load_begun(plan, lambda: Position(30))
    require_no_load_begun(joined, lambda: Position(20))
    with pytest.raises(UsageError, match=r"a table of the stream already has orders\+payments/0 up to 30") as error:
        require_no_load_begun(joined, lambda: Position(30))
    assert "start the stream again under another app_id" in error.value.remedy


def test_rewind_to_zero_leaves_an_origin_and_no_marker() -> None:
    plan = rewound(state(chain_of(0, 10, 20)), 0)
    assert (plan.position, aside(plan), plan.marker) == (0, [10, 0], None)
    assert plan.chain_origin == ChainOrigin(Position(0), number=1), (
        "an origin is recorded for every start of the stream"
    )
    assert rewound(state(chain_of(0, 10, 20), start=StartAt.LATEST), 0).chain_origin == plan.chain_origin
    of_later_generation = replace(state(chain_of(0, 10)), generation=2)
    assert required(rewound(of_later_generation, 0).chain_origin).generation == 2
    lost = state(table=0, low=50, start=StartAt.LATEST)
    assert plan_rewind(lost, Position(0), AUTHOR, give_up=True).chain_origin is None, "it does not start there"


def test_rewind_below_the_table_needs_its_flag() -> None:
    partition_state = state(THIRTY, table=20)
    with pytest.raises(UsageError, match=r"\[10, 20\) are loaded") as caught:
        rewound(partition_state, 10)
    assert "--below-table" in caught.value.remedy
    plan = rewound(partition_state, 10, below_table=True)
    assert plan.position == 10
    assert "skips" in " ".join(plan.notes)


@pytest.mark.parametrize(
    ("partition", "to", "message"),
    [
        (state(chain_of(0, 10, 20)), 20, "already ends at 20"),
        (state(chain_of(0, 10, 20)), 25, "staged up to 20 only"),
        (state(chain_of(0, 10, 20), low=5), 3, "no longer has [0, 5)"),
        (state(chain_of(0, 10, 20), high=5), 10, "ends at 5"),
        (state(chain_of(0, 10), table=30, deferred_from=5), 30, "already ends at 10"),
        (state(table=0), 0, "already ends at 0"),
        (state(), 5, "no marker"),
    ],
)
def test_impossible_rewind_is_refused(partition: PartitionState, to: int, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        rewound(partition, to)
    assert message in caught.value.problem
    assert caught.value.remedy


# Effects on the stage.


@pytest.fixture
def store(tmp_path: Path) -> FsspecStore:
    return FsspecStore(tmp_path.as_uri())


def found_in(store: FsspecStore, **more: int) -> PartitionState:
    return state(stage.staged_markers(store, ORDERS), **more)  # type: ignore[arg-type]


def test_markers_are_read_by_position_in_any_spelling(store: FsspecStore) -> None:
    put(store, *chain_of(0, 10, 20))
    store.write("done/orders/0/9.done", b"")
    store.write("done/orders/0/00000000000000000020.done", b"{")
    store.write("done/orders/0/notes.txt", b"")
    store.write("done/orders/1/5.done", b"")
    staged = stage.staged_markers(store, ORDERS)
    assert [(marker.name.start, marker.marker is None) for marker in staged] == [
        (0, False),
        (9, False),
        (10, False),
        (20, True),
    ]
    assert staged[1].path == "done/orders/0/9.done"


def test_marker_that_is_settled_after_the_listing_is_not_there(tmp_path: Path) -> None:
    store = TrappedStore(tmp_path.as_uri())
    first, second = chain_of(0, 10, 20)
    put(store, first, second)
    store.before = acting("read", lambda: store.delete([first.name.path]), below=first.name.path)
    assert [marker.name for marker in stage.staged_markers(store, ORDERS)] == [second.name]


def test_marker_made_by_another_process_is_not_overwritten(store: FsspecStore) -> None:
    put(store, by_hand(41))
    with pytest.raises(UsageError, match="another process"):
        stage.make(store, AUTHOR.begin_at(state(), Position(42)))
    assert store.read("done/orders/0/00000000000000000041.done") == b""


def test_marker_of_a_rewind_made_by_another_process_is_not_overwritten(store: FsspecStore) -> None:
    put(store, by_hand(41))
    plan = plan_rewind(found_in(store), Position(20), AUTHOR)
    put(store, by_hand(19))
    with pytest.raises(UsageError, match="another process created the marker"):
        stage.rewind(store, plan)
    assert [marker.name.start for marker in found_in(store).staged] == [19, 41]


@pytest.mark.parametrize("number", [0, 1])
def test_origin_made_by_another_process_is_not_overwritten(store: FsspecStore, number: int) -> None:
    origin = ChainOrigin(Position(42), number=number)
    stage.begin(store, ORDERS, origin)
    with pytest.raises(UsageError, match="another process wrote"):
        stage.begin(store, ORDERS, replace(origin, position=Position(7)))
    assert newest_origin(store, ORDERS) == origin


def test_markers_are_put_aside_unchanged(store: FsspecStore) -> None:
    put(store, *chain_of(0, 10, 20, 30))
    before = {item.path: store.read(item.path) for item in store.list("done/")}
    stage.rewind(store, plan_rewind(found_in(store), Position(10), AUTHOR))
    assert [item.path for item in store.list("done/")] == ["done/orders/0/00000000000000000000.done"]
    copies = {item.path: store.read(item.path) for item in store.list("stray/")}
    paths = [f"done/orders/0/{start:020d}.done" for start in (10, 20)]
    assert copies == {f"stray/{path}": before[path] for path in paths}


def test_marker_that_is_gone_meanwhile_is_not_put_aside(store: FsspecStore) -> None:
    put(store, *chain_of(0, 10, 20, 30))
    plan = plan_rewind(found_in(store), Position(10), AUTHOR)
    store.delete([plan.put_aside[0].path])
    assert stage.rewind(store, plan) == ()
    assert [item.path for item in store.list("stray/")] == [f"stray/{plan.put_aside[1].path}"]


def test_earlier_copies_are_not_overwritten(store: FsspecStore) -> None:
    for end in (20, 21, 22):
        put(store, *chain_of(0, 10), flush(10, end, 0))
        stage.rewind(store, plan_rewind(found_in(store), Position(10), AUTHOR))
    copies = sorted(item.path for item in store.list("stray/"))
    name = "stray/done/orders/0/00000000000000000010.done"
    assert copies == [name, f"{name}.2", f"{name}.3"]
    assert len({store.read(path) for path in copies}) == 3


def test_marker_at_the_new_start_is_replaced(store: FsspecStore) -> None:
    # The chain's only marker begins at 16, and the table has reached 17.
    put(store, flush(16, 30))
    stage.rewind(store, plan_rewind(found_in(store, table=17), Position(17), AUTHOR))
    (only,) = stage.staged_markers(store, ORDERS)
    assert required(only.marker).span == span(16, 17)
    assert store.read("stray/done/orders/0/00000000000000000016.done") is not None


def test_rewind_that_puts_nothing_aside_moves_no_late_claim(store: FsspecStore) -> None:
    put(store, *chain_of(0, 10))
    plan = plan_rewind(found_in(store, table=30), Position(30), AUTHOR)
    put(store, flush(40, 50, 30))
    assert stage.rewind(store, plan) == ()
    assert [marker.name.start for marker in found_in(store).staged] == [0, 29, 40]


def test_claim_made_during_a_rewind_is_put_aside(store: FsspecStore) -> None:
    put(store, *chain_of(0, 10, 20, 30))
    plan = plan_rewind(found_in(store), Position(10), AUTHOR)
    put(store, flush(30, 40, 20), flush(40, 50, 30))  # a writer that continues at the old end
    put(store, by_hand(60))  # an operator continues elsewhere
    unreadable = flush(70, 80, 30).name
    store.write(unreadable.path, b"{")
    late = stage.rewind(store, plan)
    assert sorted(late) == [f"done/orders/0/{start:020d}.done" for start in (30, 40)]
    assert [marker.name.start for marker in found_in(store).staged] == [0, 60, 70]
    assert store.read("stray/done/orders/0/00000000000000000040.done") is not None


def test_marker_below_the_new_end_is_not_put_aside_as_a_late_claim(store: FsspecStore) -> None:
    """The marker before ``[10, 20)`` was settled, and a late claim of its position is among those put aside."""
    put(store, flush(0, 30), flush(10, 20, 0))
    assert stage.rewind(store, plan_rewind(found_in(store, table=10), Position(20), AUTHOR)) == ()
    assert [marker.name.start for marker in found_in(store).staged] == [10]


def test_claim_after_a_replaced_marker_is_put_aside(store: FsspecStore) -> None:
    put(store, flush(16, 30))
    plan = plan_rewind(found_in(store, table=17), Position(17), AUTHOR)
    put(store, flush(30, 40, 16))
    assert stage.rewind(store, plan) == ("done/orders/0/00000000000000000030.done",)
    assert found_in(store).chain.end == 17


def test_markers_that_writers_stage_again_meanwhile_stay(tmp_path: Path) -> None:
    store = TrappedStore(tmp_path.as_uri())
    put(store, *chain_of(0, 10, 20, 30))
    staged_again = (flush(10, 15, 0), flush(15, 20, 10))
    store.after = acting("delete", lambda: put(store, *staged_again), below=staged_again[0].name.path)
    assert stage.rewind(store, plan_rewind(found_in(store), Position(10), AUTHOR)) == ()
    assert [marker.name.start for marker in found_in(store).staged] == [0, 10, 15]


@pytest.mark.parametrize(
    ("partition", "to", "origin"),
    [
        (state(chain_of(0, 10, 20)), 10, ChainOrigin(Position(10), number=1, staged_from=Position(0))),
        (
            state(chain_of(0, 10, 20), chain_origin=ChainOrigin(Position(0), 2, "new", loaded_before=Position(7))),
            10,
            ChainOrigin(Position(10), 2, "new", number=1, staged_from=Position(0), loaded_before=Position(7)),
        ),
        (state(chain_of(0, 10, 20), table=12), 15, ChainOrigin(Position(12), number=1)),
    ],
)
def test_rewind_records_where_the_chain_continues(partition: PartitionState, to: int, origin: ChainOrigin) -> None:
    """The origin stays in the chain's own generation: settling may delete every marker that remains."""
    assert rewound(partition, to).chain_origin == origin


def test_rewind_leaves_other_partitions_unchanged(store: FsspecStore) -> None:
    other = TopicPartition(Topic("orders"), Partition(1))
    put(store, *chain_of(0, 10, 20), *chain_of(0, 10, 20, partition=other))
    stage.rewind(store, plan_rewind(found_in(store), Position(0), AUTHOR))
    assert found_in(store).staged == ()
    assert len(stage.staged_markers(store, other)) == 2
