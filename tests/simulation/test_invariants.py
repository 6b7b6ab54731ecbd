"""Invariants of the stage, by markers that no history has to make."""

import pytest

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Manifest, MarkerName, Origin, manifest_to_bytes
from tests.simulation.invariants import Objects, StageInvariants
from tests.simulation.kinds import STAGE, settings_of

ORDERS = TopicPartition(Topic("orders"), Partition(0))
STRAY_MS = 100


def path_of(start: int) -> str:
    return f"{STAGE}/{MarkerName(ORDERS, Position(start)).path}"


@pytest.mark.parametrize(("sent_ms", "continues"), [(STRAY_MS + 1, True), (STRAY_MS - 1, False)])
def test_marker_continues_a_stray_unless_it_was_sent_before(sent_ms: int, *, continues: bool) -> None:
    invariants = StageInvariants(STAGE, settings_of().streams[0], dict, sent_ms=lambda: sent_ms)
    objects: Objects = {}

    def claim(start: int, previous: int | None, now_ms: int, writer: str) -> None:
        before = None if previous is None else Position(previous)
        span = Span(Position(start), Position(start + 10))
        data = manifest_to_bytes(ORDERS, Manifest(span, before, "orders", Origin.FLUSH, writer, created_ms=0))
        invariants.put(objects, path_of(start), data)
        objects[path_of(start)] = data, now_ms

    for start, previous in ((0, None), (10, 0), (20, 10)):
        claim(start, previous, start, "first")
    for start in (0, 10):
        invariants.delete(objects, path_of(start), "loader", is_late=True)
        del objects[path_of(start)]
    claim(0, None, STRAY_MS, "second")
    claim(10, 0, STRAY_MS + 5, "second")
    assert [problem for problem in invariants.problems if "(rule 4)" in problem] == invariants.problems
    assert bool(invariants.problems) == continues
