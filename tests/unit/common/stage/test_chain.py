"""Which markers form a chain, which are strays, and where writers continue."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain import by_partition, emptied, read_chain
from common.stage.markers import Marker, MarkerName, Origin, digest_of
from tests.builders import required
from tests.fakes.markers import ORDERS, by_hand, chain_of, flush

SETTLED = chain_of(0, 10, 25, 40)[1:]
CHAINS: dict[str, tuple[Sequence[Marker], list[int], list[int], int | None]] = {
    "nothing": ([], [], [], None),
    "a whole chain in any order": (chain_of(0, 10, 25, 40)[::-1], [0, 10, 25], [], 40),
    "the rest of a settled chain": (SETTLED, [10, 25], [], 40),
    "a marker made by hand": ([by_hand(41)], [41], [], 42),
    "a flush after a marker made by hand": ([by_hand(41), flush(42, 50, 41)], [41, 42], [], 50),
    "a late and longer claim of a settled position": ([*SETTLED, flush(0, 30)], [10, 25], [0], 40),
    "a late claim that ends where a living marker does": (
        [flush(0, 10), flush(5, 10, 0), flush(10, 20, 5)],
        [5, 10],
        [0],
        20,
    ),
    "a late claim that was continued without an overlap": (
        [flush(0, 12), flush(12, 15, 0), flush(10, 11, 5), flush(11, 12, 10)],
        [10, 11],
        [0, 12],
        12,
    ),
    "segments that touch, below": ([flush(0, 9), by_hand(9), flush(10, 20, 9)], [0, 9, 10], [], 20),
    "segments that touch, above": ([flush(0, 9), by_hand(9)], [0, 9], [], 10),
    "the markers that writers continued from, with a root made by hand": (
        [flush(40, 44), by_hand(41), flush(42, 50, 41)],
        [41, 42],
        [40],
        50,
    ),
    "several strays in their order": ([flush(5, 30), flush(0, 30), *SETTLED], [10, 25], [0, 5], 40),
    "a marker made by hand inside of a chain": ([*chain_of(0, 10, 25), by_hand(12)], [0, 10], [12], 25),
    "two parts with a gap between them": ([*chain_of(0, 10), by_hand(19), flush(20, 30, 19)], [0, 19, 20], [], 30),
}


@pytest.mark.parametrize(("markers", "living", "strays", "end"), CHAINS.values(), ids=CHAINS)
def test_chain_is_the_markers_that_writers_continue_from(
    markers: Sequence[Marker], living: list[int], strays: list[int], end: int | None
) -> None:
    chain = read_chain(markers)
    assert [marker.span.start for marker in chain.markers] == living
    assert [marker.span.start for marker in chain.strays] == strays
    assert chain.end == end


def test_names_are_grouped_by_partition_and_sorted() -> None:
    other = TopicPartition(Topic("orders"), Partition(1))
    names = [MarkerName(ORDERS, Position(9)), MarkerName(other, Position(1)), MarkerName(ORDERS, Position(2))]
    assert {partition: [name.start for name in group] for partition, group in by_partition(names).items()} == {
        ORDERS: [2, 9],
        other: [1],
    }


def after(marker: Marker, content: bytes) -> Marker:
    """A flush that continues from a marker with this content."""
    return replace(marker, manifest=replace(required(marker.manifest), previous_digest=digest_of(content)))


def padded(start: int) -> Marker:
    """An empty marker with a name as programs give it."""
    return replace(by_hand(start), is_as_named_by_programs=True)


EMPTIED: dict[str, tuple[Sequence[Marker], list[int]]] = {
    "nothing follows": ([flush(0, 10), by_hand(10)], []),
    "a flush at the next position, of a release without digests": ([by_hand(41), flush(42, 50, 41)], []),
    "a flush that found it empty": ([by_hand(41), after(flush(42, 50, 41), b"")], []),
    "a flush that found a manifest": ([by_hand(41), after(flush(42, 50, 41), b"{}")], [41]),
    "a flush that continues from another position": ([flush(0, 10), by_hand(10), flush(20, 30, 10)], [10]),
    "a flush that continues from another marker": ([by_hand(12), *chain_of(0, 10, 25)], []),
    "an operator's marker": ([by_hand(10), flush(20, 30, 10, origin=Origin.SKIP)], []),
    "a padded one after a flush": ([flush(0, 10), padded(10)], [10]),
    "a padded one after a flush, and another one": ([flush(0, 10), padded(10), padded(20)], [10]),
    "a padded one alone": ([padded(10)], []),
    "a padded one within a flush, and one after a gap": ([flush(0, 10), padded(9), padded(11)], []),
    "a padded one after an operator's marker": ([flush(0, 10, origin=Origin.SKIP), padded(10)], []),
    "a padded one that a flush found empty": ([flush(0, 10), padded(10), after(flush(11, 20, 10), b"")], []),
    "a padded one, and one with content of its name": ([*chain_of(0, 10, 20), padded(10)], []),
    "one with content has the same name": ([by_hand(10), *chain_of(0, 10, 20, 30)], []),
}


@pytest.mark.parametrize(("markers", "starts"), EMPTIED.values(), ids=EMPTIED)
def test_empty_marker_was_emptied_if_the_next_flush_has_another_digest(
    markers: Sequence[Marker], starts: list[int]
) -> None:
    for ordered in (markers, markers[::-1]):
        assert sorted(name.start for name in emptied(ordered, None)) == starts


def test_padded_empty_marker_at_the_chain_s_origin_was_emptied() -> None:
    assert [name.start for name in emptied([padded(10)], Position(10))] == [10]
    assert "is where the chain starts" in next(iter(emptied([padded(10)], Position(10)).values()))
    assert emptied([by_hand(10)], Position(10)) == {}
    assert emptied([padded(10)], Position(9)) == {}
    assert emptied([padded(10), after(flush(11, 20, 10), b"")], Position(10)) == {}
