"""Repairs from any state, killed at any moment, lose no record and can be run again."""

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from bootstrap.apply import stage
from bootstrap.plans.repair import RewindPlan, plan_rewind, plan_skip
from bootstrap.plans.state import Author, Ends, PartitionState, StagedMarker
from common.errors import StoreError, UsageError
from common.ports import CreateOutcome
from common.settings import StartAt
from common.spans import Position
from common.stage.chain_origins import newest_origin
from common.stage.markers import Origin
from common.storage.store import FsspecStore
from tests.fakes.markers import ORDERS, by_hand, chain_of, flush, put

AUTHOR = Author("test", 1_000)
IMMORTAL = 1_000_000
_numbers = itertools.count()


class CrashError(StoreError):
    """The tool was killed."""


class Mortal(FsspecStore):
    """A store whose client dies before its n-th change."""

    changes_left = IMMORTAL

    def _live(self) -> None:
        if self.changes_left == 0:
            raise CrashError("killed")
        self.changes_left -= 1

    def create(self, path: str, data: bytes) -> CreateOutcome:
        self._live()
        return super().create(path, data)

    def write(self, path: str, data: bytes) -> None:
        self._live()
        super().write(path, data)

    def delete(self, paths: object) -> None:
        for path in list(paths):  # type: ignore[call-overload]
            self._live()
            super().delete([path])


@st.composite
def states(draw: st.DrawFn) -> PartitionState:
    """A chain, perhaps settled below, with gaps, hand-made origins, unreadable markers; and a table."""
    edges = sorted(draw(st.sets(st.integers(0, 60), min_size=2, max_size=7)))
    markers = chain_of(*edges)
    if draw(st.booleans()) and edges[0] > 0:
        markers[0] = flush(edges[0], edges[1], edges[0] - 1)
        markers.insert(0, by_hand(edges[0] - 1))
    gone = draw(st.sets(st.integers(0, len(markers) - 1), max_size=len(markers) - 1))
    unreadable = draw(st.sets(st.integers(0, len(markers) - 1), max_size=1))
    staged = tuple(
        StagedMarker(marker.name.path, marker.name, None if index in unreadable else marker)
        for index, marker in enumerate(markers)
        if index not in gone
    )
    table = draw(st.none() | st.integers(1, 70).map(Position))
    start = draw(st.sampled_from(StartAt))
    return PartitionState(ORDERS, "orders", start, Ends(Position(draw(st.integers(0, 8))), Position(80)), table, staged)


def fill(state: PartitionState) -> Mortal:
    store = Mortal(f"memory://bootstrap-{next(_numbers)}")
    for item in state.staged:
        if item.marker is None:
            store.write(item.path, b"{")
        else:
            put(store, item.marker)
    return store


def inspected(store: FsspecStore, like: PartitionState) -> PartitionState:
    return replace(like, staged=stage.staged_markers(store, ORDERS), chain_origin=newest_origin(store, ORDERS))


def writer_begins_at(state: PartitionState) -> int:
    """Where a stage writer continues: after the marker with the highest start; without one, where the chain begins."""
    if not state.staged and state.chain_origin is not None:
        return state.chain_origin.position
    if not state.staged:
        return state.ends.low if state.start is StartAt.EARLIEST else state.ends.high
    return state.end_of(state.staged[-1])


def brings_rows(item: StagedMarker) -> bool:
    return item.marker is None or (item.marker.manifest is not None and item.marker.manifest.origin is Origin.FLUSH)


def never_staged(state: PartitionState) -> set[int]:
    """Positions that would never be loaded: neither in the table, nor staged, nor after a writer's start."""
    covered = {
        position
        for item in state.staged
        if brings_rows(item)
        for position in range(item.name.start, min(80, state.end_of(item)))
    }
    begin = begin_of(state) if state.table is None else state.table
    return set(range(begin, min(80, writer_begins_at(state)))) - covered


def begin_of(state: PartitionState) -> int:
    """The first position that the chain stages."""
    if not state.staged:
        return 0
    first = state.staged[0]
    return first.name.start if brings_rows(first) else state.end_of(first)


def contents(store: FsspecStore) -> set[bytes | None]:
    return {store.read(item.path) for item in store.list("")}


def cut_off(state: PartitionState, plan: RewindPlan, lives: int) -> tuple[Mortal, bool]:
    """The stage after a rewind that dies before its n-th change, and whether it died."""
    store = fill(state)
    store.changes_left = lives
    try:
        stage.rewind(store, plan)
    except CrashError:
        return store, True
    finally:
        store.changes_left = IMMORTAL
    return store, False


@given(states(), st.integers(0, 80).map(Position), st.booleans())
def test_rewind_killed_at_any_change_loses_nothing_and_can_be_repeated(
    partition: PartitionState,
    to: Position,
    below_table: bool,  # noqa: FBT001
) -> None:
    try:
        plan = plan_rewind(partition, to, AUTHOR, below_table=below_table)
    except UsageError:
        return
    assert partition.ends.low <= plan.position <= to
    missing = never_staged(partition)
    raw_records = contents(fill(partition))
    # To before the chain: the range between is a gap, or was given up by the hand-made marker that began the chain,
    # until the rewind is run again.
    between = set(range(plan.position, begin_of(partition)))
    for lives in itertools.count():
        store, died = cut_off(partition, plan, lives)
        if died:
            cut = inspected(store, partition)
            assert never_staged(cut) - between <= missing, f"cut off before change {lives}"
            run_again(store, cut, to, below_table=below_table)
        after = inspected(store, partition)
        assert never_staged(after) <= missing, f"run again after {lives} changes"
        assert writer_begins_at(after) <= to
        assert raw_records <= contents(store)
        if not died:
            return


def run_again(store: Mortal, cut: PartitionState, to: Position, *, below_table: bool) -> None:
    try:
        plan = plan_rewind(cut, to, AUTHOR, below_table=below_table)
    except UsageError as error:
        assert "already" in error.problem or "staged up to" in error.problem  # noqa: PT017
    else:
        stage.rewind(store, plan)


@given(states(), st.integers(0, 80).map(Position))
def test_skip_gives_up_only_its_span_and_changes_no_other_object(partition: PartitionState, to: Position) -> None:
    store = fill(partition)
    before = {item.path: store.read(item.path) for item in store.list("")}
    for target in range(81):
        try:
            plan = plan_skip(partition, Position(target), AUTHOR)
        except UsageError:
            continue
        given_up = plan.marker.span
        assert given_up.end == target
        for item in partition.staged:
            assert item.marker is not None
            assert item.marker.span.end <= given_up.start or item.marker.span.start >= given_up.end
        if partition.table is not None:
            assert given_up.start >= partition.table
        if target == to:
            stage.make(store, plan.marker)
            after = {item.path: store.read(item.path) for item in store.list("")}
            assert {**after, **before} == after
            assert len(after) == len(before) + 1
