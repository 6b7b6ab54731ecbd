"""Chains under attack by any number of late writers: which markers are recognized as strays, and which never are."""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from common.spans import Position
from common.stage.markers import Marker, MarkerName, Origin
from delta_loader.load.settle import settle_candidates, settled
from delta_loader.plan.plan import Run, next_run
from delta_loader.stage.stray_rules import SKEW_MS, LowEnd, StrayBranch, lowest_branch
from tests.conftest import examples
from tests.fakes.markers import ORDERS, flush

LENGTHS = st.integers(1, 9)


@dataclass
class World:
    now_ms: int = 0
    table: int = 0
    living: list[Marker] = field(default_factory=list)
    strays: dict[MarkerName, Marker] = field(default_factory=dict)
    written_ms: dict[MarkerName, int] = field(default_factory=dict)
    freed: dict[int, Marker] = field(default_factory=dict)
    """Settled markers by their positions."""

    @property
    def markers(self) -> list[Marker]:
        return [*self.living, *self.strays.values()]

    def write(self, marker: Marker) -> None:
        self.now_ms += SKEW_MS + 1
        self.written_ms[marker.name] = self.now_ms

    def append(self, length: int) -> None:
        start = self.living[-1].span.end if self.living else 0
        marker = flush(start, start + length, self.living[-1].span.start if self.living else None)
        self.living.append(marker)
        self.write(marker)

    def load(self, count: int) -> None:
        ends = [marker.span.end for marker in self.living if marker.span.end > self.table]
        self.table = ends[min(count, len(ends)) - 1] if ends else self.table

    def settle(self) -> None:
        names = settle_candidates(sorted(self.written_ms), self.written_ms, Position(self.table), self.now_ms - SKEW_MS)
        by_name = {marker.name: marker for marker in self.markers}
        for name in settled([by_name[name] for name in names], Position(self.table)):
            del self.written_ms[name]
            if self.strays.pop(name, None) is None:
                gone = self.living.pop(0)
                assert gone.name == name
                self.freed[gone.span.start] = gone

    def claim_late(self, which: int, length: int) -> None:
        """A writer that does not know of the settling; it goes no further, because it finds out.

        A length of 0 is that of the settled marker: only their age distinguishes the two.
        """
        free = [start for start in sorted(self.freed) if MarkerName(ORDERS, Position(start)) not in self.strays]
        if free:
            start = free[which % len(free)]
            settled_one = self.freed[start]
            end = start + length if length else settled_one.span.end
            marker = flush(start, end, settled_one.previous)
            self.strays[marker.name] = marker
            self.write(marker)

    def look(self) -> bool:
        """One pass of the recognition; returns whether it put a marker aside."""
        known = {marker.name: marker for marker in self.markers}
        names = sorted(known)
        if not names:
            return False
        outcome = lowest_branch(LowEnd(names, self.written_ms, Position(self.table), known))
        if not isinstance(outcome, StrayBranch):
            return False
        rest = [marker for marker in self.markers if marker not in outcome.markers]
        run = next_run(Position(self.table), rest)
        if outcome.end > (run.end if isinstance(run, Run) else self.table):
            return False
        for marker in outcome.markers:
            assert marker.name in self.strays, f"{marker} lives"
            del self.strays[marker.name], self.written_ms[marker.name]
        return True


events = st.lists(
    st.one_of(
        st.tuples(st.just("append"), LENGTHS, LENGTHS),
        st.tuples(st.just("load"), LENGTHS, LENGTHS),
        st.tuples(st.just("settle"), LENGTHS, LENGTHS),
        st.tuples(st.just("late"), st.integers(0, 20), st.integers(0, 40)),
        st.tuples(st.just("look"), LENGTHS, LENGTHS),
    ),
    max_size=60,
)


@settings(max_examples=examples(4))
@given(events)
def test_no_living_marker_is_put_aside_and_every_stray_finally_is(steps: list[tuple[str, int, int]]) -> None:
    world = World()
    for step, writer, two in [("append", 3, 0), ("append", 3, 0), ("load", 2, 0), *steps]:
        match step:
            case "append":
                world.append(writer)
            case "load":
                world.load(writer)
            case "settle":
                world.settle()
            case "late":
                world.claim_late(writer, two)
            case _:
                world.look()
    world.append(60)  # the living chain continues and is loaded
    world.load(100)
    while world.look():
        pass
    assert not world.strays


@settings(max_examples=examples(2))
@given(st.lists(LENGTHS, min_size=1, max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_chain_alone_has_no_strays(lengths: list[int], gone: int, loaded: int) -> None:
    world = World()
    for length in lengths:
        world.append(length)
    world.load(loaded)
    kept = world.living[min(gone, len(lengths) - 1) :]
    names = [marker.name for marker in kept]
    known = {marker.name: marker for marker in kept}
    low = LowEnd(names, {name: world.written_ms[name] for name in names}, Position(max(world.table, 1)), known)
    assert not isinstance(lowest_branch(low), StrayBranch)


def test_late_claim_equal_to_the_settled_marker_is_recognized_by_its_age() -> None:
    world = World()
    for length in (10, 10, 10):
        world.append(length)
    world.load(3)
    world.now_ms += SKEW_MS * 5
    world.settle()
    assert sorted(world.freed) == [0, 10]
    world.claim_late(1, 0)
    assert [marker.span for marker in world.strays.values()] == [world.freed[10].span]
    assert world.look()
    assert not world.strays


def test_gap_that_an_operator_closed_is_part_of_the_chain() -> None:
    """[10, 15) and [15, 20) were lost; the operator gave them up with one marker, long after the markers above."""
    markers = [flush(0, 10), flush(10, 20, 0, origin=Origin.SKIP), flush(20, 30, 15), flush(30, 40, 20)]
    names = [marker.name for marker in markers]
    times = dict(zip(names, (1, SKEW_MS * 9, 3, 4), strict=True))
    low = LowEnd(names, times, Position(40), {marker.name: marker for marker in markers})
    assert not isinstance(lowest_branch(low), StrayBranch)
