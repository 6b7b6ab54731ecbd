from collections.abc import Sequence

from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain import by_partition, read_chain
from common.stage.markers import Marker, MarkerName
from tests.fakes.markers import ORDERS, by_hand, chain_of, flush


def starts(markers: Sequence[Marker]) -> list[int]:
    return [marker.span.start for marker in markers]


def test_without_markers_there_is_no_chain() -> None:
    chain = read_chain([])
    assert (chain.markers, chain.strays, chain.tail, chain.end) == ((), (), None, None)


def test_a_whole_chain_is_read_in_order() -> None:
    chain = read_chain(reversed(chain_of(0, 10, 25, 40)))
    assert starts(chain.markers) == [0, 10, 25]
    assert chain.tail == chain.markers[-1]
    assert chain.end == 40
    assert chain.strays == ()


def test_what_is_left_of_a_chain_after_settling_is_a_chain() -> None:
    chain = read_chain(chain_of(0, 10, 25, 40)[1:])
    assert starts(chain.markers) == [10, 25]
    assert chain.strays == ()


def test_a_marker_made_by_hand_begins_a_chain() -> None:
    chain = read_chain([by_hand(41)])
    assert chain.end == 42


def test_writers_go_on_behind_a_marker_made_by_hand() -> None:
    chain = read_chain([by_hand(41), flush(42, 50, 41)])
    assert starts(chain.markers) == [41, 42]
    assert chain.end == 50


def test_a_late_claim_of_a_freed_position_is_a_stray() -> None:
    # [0, 10) was settled; a writer that had paused since claims it again, with more.
    chain = read_chain([*chain_of(0, 10, 25, 40)[1:], flush(0, 30)])
    assert starts(chain.markers) == [10, 25]
    assert starts(chain.strays) == [0]
    assert chain.end == 40


def test_of_two_markers_that_end_together_the_next_one_follows_the_one_that_it_names() -> None:
    # A late claim of the freed position 0 ends where the living marker ends, too.
    chain = read_chain([flush(0, 10), flush(5, 10, 0), flush(10, 20, 5)])
    assert starts(chain.markers) == [5, 10]
    assert starts(chain.strays) == [0]


def test_a_segment_is_a_stray_as_a_whole() -> None:
    # The late claim of the freed position 0 was gone on from, and that marker overlaps with nothing.
    chain = read_chain([flush(0, 12), flush(12, 15, 0), flush(10, 11, 5), flush(11, 12, 10)])
    assert starts(chain.markers) == [10, 11]
    assert starts(chain.strays) == [0, 12]


def test_segments_that_touch_do_not_overlap() -> None:
    below = read_chain([flush(0, 9), by_hand(9), flush(10, 20, 9)])
    assert (starts(below.markers), starts(below.strays)) == ([0, 9, 10], [])
    above = read_chain([flush(0, 9), by_hand(9)])
    assert (starts(above.markers), starts(above.strays), above.end) == ([0, 9], [], 10)


def test_what_writers_went_on_from_counts_as_theirs_although_a_person_made_its_root() -> None:
    chain = read_chain([flush(40, 44), by_hand(41), flush(42, 50, 41)])
    assert starts(chain.markers) == [41, 42]
    assert starts(chain.strays) == [40]


def test_strays_are_in_order() -> None:
    chain = read_chain([flush(5, 30), flush(0, 30), *chain_of(0, 10, 25, 40)[1:]])
    assert starts(chain.strays) == [0, 5]


def test_a_marker_made_by_hand_inside_of_a_chain_is_a_stray() -> None:
    chain = read_chain([*chain_of(0, 10, 25), by_hand(12)])
    assert starts(chain.strays) == [12]
    assert chain.end == 25


def test_a_gap_leaves_both_parts_alive_and_the_end_at_the_upper_one() -> None:
    chain = read_chain([*chain_of(0, 10), by_hand(19), flush(20, 30, 19)])
    assert starts(chain.markers) == [0, 19, 20]
    assert chain.strays == ()
    assert chain.end == 30


def test_names_are_grouped_by_partition_and_sorted() -> None:
    other = TopicPartition(Topic("orders"), Partition(1))
    names = [MarkerName(ORDERS, Position(9)), MarkerName(other, Position(1)), MarkerName(ORDERS, Position(2))]
    assert {partition: [name.start for name in group] for partition, group in by_partition(names).items()} == {
        ORDERS: [2, 9],
        other: [1],
    }
