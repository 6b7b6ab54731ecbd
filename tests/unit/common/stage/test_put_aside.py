"""Outboxes that only markers name which repairs have put aside: with records that a table has and the chain lacks."""

from dataclasses import replace
from pathlib import Path

import pytest

from bootstrap.apply.partition_state import partition_state
from bootstrap.plans.repair import plan_rewind, plan_skip
from bootstrap.plans.restart import Restart, plan_restart
from bootstrap.plans.state import Author, Ends, PartitionState, StagedMarker
from common.settings import StartAt
from common.spans import MAX_POSITION, Position
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import Manifest, Marker, MarkerName, late_path, marker_to_bytes, stray_path
from common.stage.task_files import OutboxName
from common.storage.store import FsspecStore
from common.tables.state import TableState
from delta_loader.maintenance.cleaning.clean import settled_outboxes
from delta_loader.ports import in_turn
from tests.builders import required
from tests.fakes.markers import ORDERS, chain_of, flush, put
from tests.fakes.streams import stream_of

AUTHOR = Author("test", 1_000)


def box(start: int, unique: str = "0b4a") -> str:
    return OutboxName(ORDERS, Position(start), 0, unique).path


def naming(start: int, end: int, *outboxes: str, generation: int = 0) -> Manifest:
    return replace(required(flush(start, end).manifest), outboxes=outboxes, generation=generation)


def partition(*put_aside: Manifest, table: int | None = 20, deferred_from: int | None = None) -> PartitionState:
    """A chain up to 9, of whose later records the table has some."""
    return PartitionState(
        ORDERS,
        "orders",
        StartAt.EARLIEST,
        Ends(Position(0), Position(100)),
        None if table is None else Position(table),
        tuple(StagedMarker(marker.name.path, marker.name, marker) for marker in chain_of(0, 9)),
        put_aside=put_aside,
        deferred_from=None if deferred_from is None else Position(deferred_from),
    )


def outboxes_of(marker: Marker | None) -> tuple[str, ...]:
    return required(required(marker).manifest).outboxes


@pytest.mark.parametrize(
    ("put_aside", "named"),
    [
        ([naming(9, 20, box(0), box(9))], [box(9)]),
        ([naming(15, 20, box(15)), naming(9, 15, box(9))], [box(9), box(15)]),
        ([naming(15, 20, box(9), box(15))], [box(9), box(15)]),  # the marker before it was settled, and has no copy
        ([naming(9, 12, box(9, "one")), naming(9, 20, box(9, "two"))], [box(9, "one"), box(9, "two")]),
        ([naming(5, 15, box(5))], [box(5)]),
        ([naming(15, 25, box(9), box(15))], [box(9)]),  # what the table lacks is staged again
        ([naming(9, 25, box(9))], []),
        ([naming(9, 20, box(9)), naming(25, 30, box(9), box(25))], [box(9)]),  # named by a later one, too
        ([naming(5, 9, box(5))], []),  # was staged again since
        ([naming(9, 20, box(9), generation=1)], []),
    ],
)
def test_repair_at_the_tables_position_names_outboxes_of_what_the_chain_lacks(
    put_aside: list[Manifest], named: list[str]
) -> None:
    state = partition(*put_aside)
    rewind = plan_rewind(state, Position(20), AUTHOR)
    assert outboxes_of(rewind.marker) == tuple(named)
    assert outboxes_of(plan_skip(state, Position(30), AUTHOR).marker) == tuple(named)
    restart = plan_restart(replace(state, topic_id="another"), give_up=False)
    assert isinstance(restart, Restart)
    assert required(restart.chain_origin).outboxes == tuple(named)


def test_origin_counts_as_the_end_of_a_chain_without_markers() -> None:
    begun = ChainOrigin(Position(9), outboxes=(box(0),), number=1)
    state = replace(partition(naming(5, 9, box(5)), naming(9, 20, box(9))), staged=(), chain_origin=begun)
    assert outboxes_of(plan_rewind(state, Position(20), AUTHOR).marker) == (box(0), box(9))
    assert outboxes_of(plan_rewind(replace(state, chain_origin=None), Position(20), AUTHOR).marker) == (box(5), box(9))


@pytest.mark.parametrize(("generation", "named"), [(0, (box(0),)), (1, ())])
def test_origin_of_an_earlier_chain_does_not_count(generation: int, named: tuple[str, ...]) -> None:
    marker = flush(9, 20)
    marker = replace(marker, manifest=replace(required(marker.manifest), generation=generation))
    begun = ChainOrigin(Position(0), outboxes=(box(0),), number=1)
    state = replace(
        partition(table=12), staged=[StagedMarker(marker.name.path, marker.name, marker)], chain_origin=begun
    )
    assert outboxes_of(plan_rewind(state, Position(12), AUTHOR).marker) == named


def test_outbox_is_not_named_where_the_chain_continues_at_its_start_or_below() -> None:
    staged = tuple(StagedMarker(marker.name.path, marker.name, marker) for marker in chain_of(0, 9, 10))
    state = replace(partition(naming(9, 20, box(9))), staged=staged)
    assert outboxes_of(plan_rewind(state, Position(12), AUTHOR, below_table=True).marker) == (box(9),)
    for to in (9, 0):
        assert required(plan_rewind(state, Position(to), AUTHOR, below_table=True).chain_origin).outboxes == ()


def test_chain_without_a_marker_or_origin_ends_at_zero() -> None:
    state = replace(partition(naming(0, 1, box(0))), staged=())
    assert outboxes_of(plan_rewind(state, Position(20), AUTHOR).marker) == (box(0),)


@pytest.mark.parametrize(("table", "deferred_from"), [(None, None), (20, 9), (15, None)])
def test_outbox_with_records_that_a_table_lacks_is_not_named(table: int | None, deferred_from: int | None) -> None:
    state = partition(naming(9, 20, box(9)), table=table, deferred_from=deferred_from)
    assert outboxes_of(plan_skip(state, Position(30), AUTHOR).marker) == ()
    restart = plan_restart(replace(state, topic_id="another"), give_up=True)
    assert isinstance(restart, Restart)
    assert required(restart.chain_origin).outboxes == ()


def test_copies_that_repairs_made_are_part_of_a_partitions_state(tmp_path: Path) -> None:
    store = FsspecStore(tmp_path.as_uri())
    first, second, late = flush(0, 9), flush(0, 20), flush(0, 30)
    path = first.name.path
    store.write(stray_path(path), marker_to_bytes(first))
    store.write(stray_path(path, 2), marker_to_bytes(second))
    store.write(stray_path(path, 3), b"{")
    store.write(late_path(path, b"late"), marker_to_bytes(late))
    store.write("stray/done/orders/0/notes.txt", b"")
    ends = Ends(Position(0), Position(100))
    table = TableState(0, "id", "{}", (), {}, 1, 2, frozenset(), {"orders-0": 19})
    state = partition_state(store, stream_of(), ORDERS, ends=ends, table=table, topic_id=None)
    assert sorted(manifest.span.end for manifest in state.put_aside) == [9, 20]
    put(store, flush(0, 20))
    state = partition_state(store, stream_of(), ORDERS, ends=ends, table=table, topic_id=None)
    assert state.put_aside == (), "the chain has all that the table has"


@pytest.mark.parametrize(
    ("begun", "generation", "kept"),
    [(9, 0, True), (20, 0, False), (9, 1, False)],
)
def test_clean_up_keeps_outboxes_that_only_markers_beyond_the_chain_name(
    tmp_path: Path, begun: int, generation: int, *, kept: bool
) -> None:
    store = FsspecStore(tmp_path.as_uri())
    aside = Marker(MarkerName(ORDERS, Position(9)), naming(9, 20, box(9)))
    store.write(stray_path(aside.name.path), marker_to_bytes(aside))
    store.write(box(9), b"records")
    origin = ChainOrigin(Position(begun), generation)
    store.write(origin_path(ORDERS), origin_to_bytes(origin))

    def removed() -> list[str]:
        return [item.path for item in settled_outboxes(store, in_turn, MAX_POSITION)]

    assert removed() == ([] if kept else [box(9)])
    store.delete([origin_path(ORDERS)])
    chain = Marker(MarkerName(ORDERS, Position(0)), naming(0, begun, generation=generation))
    store.write(chain.name.path, marker_to_bytes(chain))
    assert removed() == ([] if kept else [box(9)])
