from random import Random

from hypothesis import given
from hypothesis import strategies as st

from common.stage.chain import read_chain
from common.stage.markers import Marker
from tests.fakes.markers import by_hand, chain_of, flush

edges = st.lists(st.integers(0, 60), min_size=2, max_size=8, unique=True).map(sorted)
hands = st.lists(st.integers(0, 70).map(by_hand), max_size=3, unique_by=lambda marker: marker.name)
late = st.lists(
    st.builds(lambda start, length: flush(start, start + length), st.integers(0, 40), st.integers(1, 30)),
    max_size=3,
    unique_by=lambda marker: marker.name,
)


@given(edges, late, hands, st.randoms(use_true_random=False))
def test_chain_does_not_depend_on_the_listing_order(
    positions: list[int], late_ones: list[Marker], by_people: list[Marker], random: Random
) -> None:
    markers = list({marker.name: marker for marker in [*chain_of(*positions), *late_ones, *by_people]}.values())
    expected = read_chain(markers)
    random.shuffle(markers)
    assert read_chain(markers) == expected


@given(edges, late, hands)
def test_every_marker_is_kept_and_chain_markers_do_not_overlap(
    positions: list[int], late_ones: list[Marker], by_people: list[Marker]
) -> None:
    markers = list({marker.name: marker for marker in [*chain_of(*positions), *late_ones, *by_people]}.values())
    chain = read_chain(markers)
    assert sorted(marker.name for marker in [*chain.markers, *chain.strays]) == sorted(m.name for m in markers)
    for before, after in zip(chain.markers, chain.markers[1:], strict=False):
        assert before.span.end <= after.span.start


@given(edges, st.integers(0, 7))
def test_settled_chain_ends_where_the_whole_chain_did(positions: list[int], settled: int) -> None:
    markers = chain_of(*positions)
    left = markers[min(settled, len(markers) - 1) :]
    chain = read_chain(left)
    assert chain.end == positions[-1]
    assert list(chain.markers) == left
    assert chain.strays == ()
