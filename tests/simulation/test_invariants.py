"""Invariants of the stage, by markers that no history has to make."""

from dataclasses import dataclass, field

import pytest

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import Manifest, MarkerName, Origin, manifest_to_bytes
from tests.simulation.invariants import Objects, StageInvariants
from tests.simulation.kinds import STAGE, settings_of

ORDERS = TopicPartition(Topic("orders"), Partition(0))
STRAY_MS = 100


def path_of(start: int) -> str:
    return f"{STAGE}/{MarkerName(ORDERS, Position(start)).path}"


@dataclass
class _Watched:
    """A stage with the markers at 0, 10 and 20, of which the last is left, and a claim at 0 that arrives late."""

    last_named: int | None = None
    """The origin that the marker at 20 names."""
    sent_ms: int = STRAY_MS + 1
    objects: Objects = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.invariants = StageInvariants(STAGE, settings_of().streams[0], dict, sent_ms=lambda: self.sent_ms)
        self._claim(0, None, "first", 0)
        self._claim(10, 0, "first", 10)
        self._claim(20, 10, "first", 20, self.last_named)
        for start in (0, 10):
            self.invariants.delete(self.objects, path_of(start), "loader", is_late=True)
            del self.objects[path_of(start)]
        self._claim(0, None, "second", STRAY_MS)

    def _claim(self, start: int, previous: int | None, writer: str, now_ms: int, named: int | None = None) -> None:
        before = None if previous is None else Position(previous)
        span = Span(Position(start), Position(start + 10))
        manifest = Manifest(span, before, "orders", Origin.FLUSH, writer, created_ms=0, chain_origin=named)
        data = manifest_to_bytes(ORDERS, manifest)
        self.invariants.put(self.objects, path_of(start), data)
        self.objects[path_of(start)] = data, now_ms

    def problems_of_continuing(self) -> list[str]:
        self._claim(10, 0, "second", STRAY_MS + 5)
        return self.invariants.problems


@pytest.mark.parametrize(("sent_ms", "continues"), [(STRAY_MS + 1, True), (STRAY_MS - 1, False)])
def test_marker_continues_a_stray_unless_it_was_sent_before(sent_ms: int, *, continues: bool) -> None:
    problems = _Watched(sent_ms=sent_ms).problems_of_continuing()
    assert [problem for problem in problems if "(rule 4)" in problem] == problems
    assert bool(problems) == continues


@pytest.mark.parametrize(("named", "continues"), [(2, True), (1, False)])
def test_markers_that_a_later_rewind_leaves_out_make_no_stray(named: int, *, continues: bool) -> None:
    watched = _Watched(last_named=named)
    origin = ChainOrigin(Position(0), number=2)
    watched.objects[f"{STAGE}/{origin_path(ORDERS, origin.number)}"] = origin_to_bytes(origin), STRAY_MS
    assert bool(watched.problems_of_continuing()) == continues
