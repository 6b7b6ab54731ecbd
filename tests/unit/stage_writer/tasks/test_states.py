"""The known state of a task on its chain, for a writer that starts the partition and for an operator's repair."""

import itertools
from dataclasses import replace

import pytest

from bootstrap.plans.plan import Make, plan_partition
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.state import Author, Ends, PartitionState, StagedMarker
from bootstrap.plans.task_states import TaskStates
from common.errors import StateError, StoreError
from common.settings import StartAt
from common.spans import Position
from common.stage.chain_origins import ChainOrigin, origin_path
from common.stage.markers import Marker, Origin, marker_to_bytes
from common.stage.task_files import EMPTY_STATE, MarkedState, OutboxName, StateFileName, StateFiles, StateKind
from common.storage.store import FsspecStore
from stage_writer.stage.staging import ObjectStage
from tests.builders import required
from tests.fakes.clock import IdleClock
from tests.fakes.markers import ORDERS, by_hand, chain_of, flush

AUTHOR = Author("test", 1_000)
_numbers = itertools.count()


def file(start: int, generation: int = 0) -> str:
    return StateFileName(ORDERS, Position(start), generation, f"{start}-{generation}", StateKind.CHANGES).path


def files(*starts: int) -> StateFiles:
    return StateFiles(None, tuple(map(file, starts)))


def stateful(*edges: int) -> list[Marker]:
    """A chain in which every flush changed the state."""
    markers_with_state, before = [], EMPTY_STATE
    for marker in chain_of(*edges):
        assert marker.manifest is not None
        after = before.with_changes(file(marker.span.start))
        markers_with_state.append(replace(marker, manifest=replace(marker.manifest, state=MarkedState(after, before))))
        before = after
    return markers_with_state


def stage_of(markers: list[Marker], there: StateFiles) -> ObjectStage:
    store = FsspecStore(f"memory://states-{next(_numbers)}")
    for path in there.paths:
        store.write(path, b"state")
    for marker in markers:
        store.write(marker.name.path, marker_to_bytes(marker))
    return ObjectStage(store, lambda _: store, IdleClock(), lambda: "u", "w")


def state_of(markers: list[Marker], there: StateFiles, origin: ChainOrigin | None = None) -> StateFiles:
    stage = stage_of(markers, there)
    return stage.state_at(ORDERS, stage.chains.tail(ORDERS), origin)


def test_last_marker_names_the_state() -> None:
    assert state_of(stateful(0, 5, 9), files(0, 5)) == files(0, 5)
    assert state_of([], files(0)) == EMPTY_STATE


@pytest.mark.parametrize("gone", [slice(1), slice(1, 2), slice(2)])
def test_last_marker_that_vanishes_during_the_read_is_an_error(gone: slice) -> None:
    """After a rewind, settling may delete the chain's last marker; then the origin has the state."""
    chain = stateful(0, 5, 9)[1:] if gone == slice(1) else stateful(0, 5, 9)
    stage = stage_of(chain, files(0, 5))
    tail = required(stage.chains.tail(ORDERS))
    stage._store.delete([marker.name.path for marker in chain[gone]])
    with pytest.raises(StoreError, match="disappeared while the state"):
        stage.state_at(ORDERS, tail)


def test_origin_names_the_state_without_markers() -> None:
    assert state_of([], files(0, 5), ChainOrigin(Position(9), state=files(0, 5))) == files(0, 5)
    assert state_of(stateful(0, 5), files(0), ChainOrigin(Position(9), state=files(0, 5))) == files(0)
    with pytest.raises(StateError, match=f"state file {file(0)}, which {origin_path(ORDERS)} names, does not exist"):
        state_of([], files(5), ChainOrigin(Position(9), state=files(0, 5)))


def test_origin_without_a_state_holds_the_partition_if_there_was_one() -> None:
    with pytest.raises(StateError, match="the state of orders/0 at 9 is unknown"):
        state_of([], files(0, 5), ChainOrigin(Position(9)))
    assert state_of([], files(0, 5), ChainOrigin(Position(9), state=EMPTY_STATE)) == EMPTY_STATE
    assert state_of([], files(9), ChainOrigin(Position(9))) == EMPTY_STATE  # of a lost claim
    assert state_of([], files(0, 5), ChainOrigin(Position(9), generation=1)) == EMPTY_STATE
    assert state_of([], files(0, 5), ChainOrigin(Position(0))) == EMPTY_STATE


def test_hand_made_markers_above_the_last_flush_keep_the_state() -> None:
    skip = flush(9, 12, 5, origin=Origin.SKIP)
    assert state_of([*stateful(0, 5, 9), skip, by_hand(12)], files(0, 5)) == files(0, 5)


def test_state_above_a_gap_is_unknown() -> None:
    skip = flush(11, 12, origin=Origin.SKIP)
    with pytest.raises(StateError, match="the state of orders/0 at 11 is unknown") as refused:
        state_of([*stateful(0, 5, 9), skip], files(0, 5))
    assert "--to 0 --below-table" in refused.value.remedy
    assert "delete state/orders/0/ in the stage" in refused.value.remedy


def test_state_above_settled_markers_with_a_hand_made_one_is_unknown() -> None:
    with pytest.raises(StateError, match="at 9 is unknown"):
        state_of([by_hand(9)], files(0, 5))


def test_chain_that_never_had_a_state_starts_empty() -> None:
    assert state_of(chain_of(0, 5, 9), StateFiles()) == EMPTY_STATE
    # Files left by a first flush that lost its claim, and by a late one.
    assert state_of(chain_of(0, 5, 9), files(5, 9)) == EMPTY_STATE
    assert state_of([by_hand(4)], files(4, 5)) == EMPTY_STATE


def test_records_staged_without_the_topology_are_an_error() -> None:
    with pytest.raises(StateError, match="from 5 on were staged without its topology"):
        state_of([stateful(0, 5)[0], flush(5, 9, 0)], files(0))


def test_missing_state_file_is_named() -> None:
    with pytest.raises(StateError, match=f"state file {file(0)}, which the chain's last marker names, does not exist"):
        state_of(stateful(0, 5, 9), files(5))


def test_recreated_topic_does_not_inherit_the_state() -> None:
    first = flush(0, 3)
    old = [replace(first, manifest=replace(required(first.manifest), generation=1))]
    assert state_of(old, files(0)) == EMPTY_STATE


def box(start: int) -> str:
    return OutboxName(ORDERS, Position(start), 0, "0b4a").path


def with_outboxes(marker: Marker, *starts: int) -> Marker:
    return replace(marker, manifest=replace(required(marker.manifest), outboxes=tuple(map(box, starts))))


def partition(
    markers: list[Marker], table: int | None = None, chain_origin: ChainOrigin | None = None
) -> PartitionState:
    staged = tuple(StagedMarker(marker.name.path, marker.name, marker) for marker in markers)
    end = None if table is None else Position(table)
    ends = Ends(Position(0), Position(100))
    return PartitionState(ORDERS, "orders", StartAt.EARLIEST, ends, end, staged, chain_origin=chain_origin)


def outboxes_of(marker: Marker | None) -> tuple[str, ...]:
    return required(required(marker).manifest).outboxes


def test_rewind_moves_to_a_position_with_a_known_state_and_keeps_it() -> None:
    markers = stateful(0, 5, 9, 20)
    plan = plan_rewind(partition(markers[2:], table=12), Position(12), AUTHOR)
    assert plan.position == 9
    assert any("the chain is rewound to 9" in note for note in plan.notes)
    assert plan.marker is not None
    assert required(plan.marker.manifest).state == MarkedState(files(0, 5), files(0, 5))


def test_rewind_to_an_unknown_state_notes_how_to_rebuild_it() -> None:
    plan = plan_rewind(partition(stateful(0, 5, 9, 20)[2:], table=20), Position(7), AUTHOR, below_table=True)
    assert plan.position == 7
    assert any("--to 0 --below-table rebuilds it" in note for note in plan.notes)
    assert plan.marker is not None
    assert required(plan.marker.manifest).state is None


@pytest.mark.parametrize(("position", "known"), [(5, files(0)), (9, files(0)), (11, None), (12, None)])
def test_state_is_known_where_markers_name_it_and_after_those_of_an_operator(
    position: int, known: StateFiles | None
) -> None:
    """The first marker has no content, and a flush that an older release made has no state."""
    named = replace(
        flush(1, 5), manifest=replace(required(flush(1, 5).manifest), state=MarkedState(files(0), files(0)))
    )
    markers = [by_hand(0), named, flush(5, 9, origin=Origin.SKIP), flush(9, 11), flush(11, 12, origin=Origin.SKIP)]
    states = TaskStates.from_chain(partition(markers))
    assert states.at(Position(position)) == known


def test_state_below_the_start_of_a_task_is_empty() -> None:
    begun = TaskStates.from_chain(partition(stateful(5, 9, 20)))
    assert [begun.at(Position(position)) for position in (3, 5, 7)] == [EMPTY_STATE, EMPTY_STATE, None]
    later = TaskStates.from_chain(partition(stateful(0, 5, 9)[1:]))
    assert later.at(Position(3)) is None
    assert TaskStates.from_chain(partition(chain_of(5, 9))).at(Position(3)) is None


def test_rewind_moves_to_the_highest_sound_position_with_a_known_state() -> None:
    states = TaskStates.from_chain(partition(stateful(0, 5, 9, 20)))
    assert states.highest_sound(Position(12), lambda _position: True) == 9
    assert states.highest_sound(Position(12), lambda position: position != 9) == 5
    assert states.highest_sound(Position(12), lambda _position: False) == 12


@pytest.mark.parametrize(("to", "is_noted"), [(0, False), (1, True), (5, False), (7, True)])
def test_unknown_state_is_noted(to: int, *, is_noted: bool) -> None:
    states = TaskStates.from_chain(partition(stateful(0, 5, 9, 20)[1:]))
    assert bool(states.note(Position(to))) is is_noted


def test_rewind_without_a_topology_keeps_its_position() -> None:
    plan = plan_rewind(partition(chain_of(5, 9, 20), table=12), Position(12), AUTHOR)
    assert (plan.position, len(plan.notes)) == (12, 0)


def test_skip_keeps_the_state_at_the_chains_end() -> None:
    manifest = required(plan_skip(partition(stateful(0, 5, 9)), Position(30), AUTHOR).marker.manifest)
    assert manifest.state == MarkedState(files(0, 5), files(0, 5))
    # If the table is ahead of the chain, the state at the table's position is unknown.
    manifest = required(plan_skip(partition(stateful(0, 5, 9), table=12), Position(30), AUTHOR).marker.manifest)
    assert manifest.state is None


BEGUN = ChainOrigin(Position(9), outboxes=(box(0), box(5)), state=files(0, 5), number=1)
"""The origin after a rewind to 9, with every marker below it settled."""


def test_rewind_origin_has_the_state_and_outboxes_at_its_position() -> None:
    first, second, third = stateful(0, 5, 9, 20)
    chain = [with_outboxes(first, 0), with_outboxes(second, 0, 5), with_outboxes(third, 5, 9)]
    for staged in (chain, chain[1:]):
        chain_origin = plan_rewind(partition(staged), Position(9), AUTHOR).chain_origin
        assert chain_origin == replace(BEGUN, outboxes=(box(0), box(5)), staged_from=Position(0))
    assert required(plan_rewind(partition(chain), Position(0), AUTHOR).chain_origin).outboxes == ()
    # If the marker that ended there is settled, the next one lists the outboxes not delivered before it.
    plan = plan_rewind(partition(chain[2:], table=9), Position(9), AUTHOR)
    assert plan.chain_origin == replace(BEGUN, outboxes=(box(5),))
    assert outboxes_of(plan.marker) == (box(5),)


def test_outboxes_that_the_last_marker_below_no_longer_names_are_delivered() -> None:
    first, second, third = chain_of(0, 5, 9, 20)
    chain = [with_outboxes(first, 0), with_outboxes(second, 5), with_outboxes(third, 5, 9)]
    assert required(plan_rewind(partition(chain), Position(9), AUTHOR).chain_origin).outboxes == (box(5),)
    set_by_hand = [by_hand(4), with_outboxes(flush(5, 9, 4), 5), with_outboxes(flush(9, 20, 5), 5, 9)]
    assert required(plan_rewind(partition(set_by_hand), Position(9), AUTHOR).chain_origin).outboxes == (box(5),)


def test_rewind_into_a_flush_keeps_its_outbox() -> None:
    first, second = chain_of(0, 10, 20)
    chain = [with_outboxes(first, 0), with_outboxes(second, 10)]
    plan = plan_rewind(partition(chain, table=20), Position(15), AUTHOR, below_table=True)
    assert outboxes_of(plan.marker) == required(plan.chain_origin).outboxes == (box(0), box(10))


def test_repairs_of_a_chain_with_only_an_origin_keep_its_state_and_outboxes() -> None:
    begun = partition([], table=9, chain_origin=BEGUN)
    skip = required(plan_skip(begun, Position(12), AUTHOR).marker.manifest)
    assert (skip.state, skip.outboxes) == (MarkedState(files(0, 5), files(0, 5)), BEGUN.outboxes)
    written = plan_partition(begun, Position(9), "", AUTHOR).outcome
    assert isinstance(written, Make)
    assert required(written.marker.manifest).state == skip.state
    assert outboxes_of(written.marker) == BEGUN.outboxes
    late = partition([flush(30, 40)], table=9, chain_origin=BEGUN)  # a late claim that is not loaded
    assert plan_rewind(late, Position(9), AUTHOR).chain_origin == replace(BEGUN, number=2)


def test_skip_in_a_gap_keeps_the_outboxes_below_it() -> None:
    below, above = with_outboxes(flush(0, 5), 0), with_outboxes(flush(9, 20, 5), 9)
    skip = plan_skip(partition([below, above]), Position(9), AUTHOR).marker
    assert outboxes_of(skip) == (box(0),)
    first, _, third = stateful(0, 5, 9, 20)
    assert required(plan_skip(partition([first, third]), Position(9), AUTHOR).marker.manifest).state is None
