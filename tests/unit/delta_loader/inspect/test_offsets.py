"""Bit sets of offsets agree with plain Python sets."""

from hypothesis import given
from hypothesis import strategies as st

from common.spans import Position, Span
from delta_loader.inspect.verify.offsets import BUCKET, Bucket, Ranges, SpanTally, between, in_step, ranges

OFFSETS = st.sets(st.integers(0, 3 * BUCKET), max_size=60)
SPANS = st.lists(
    st.tuples(st.integers(0, 3 * BUCKET), st.integers(1, BUCKET)).map(
        lambda pair: Span(Position(pair[0]), Position(pair[0] + pair[1]))
    ),
    max_size=8,
)


def buckets(offsets: set[int]) -> list[Bucket]:
    bits: dict[int, int] = {}
    for offset in offsets:
        start = offset // BUCKET * BUCKET
        bits[start] = bits.get(start, 0) | 1 << (offset - start)
    return [Bucket(start, bitmap.bit_count(), bitmap) for start, bitmap in sorted(bits.items())]


@given(OFFSETS, SPANS)
def test_tally_counts_the_offsets_in_each_span(offsets: set[int], spans: list[Span]) -> None:
    tally = SpanTally(spans)
    for bucket in buckets(offsets):
        tally.add(bucket)
    assert [tally.within(span) for span in spans] == [
        sum(span.covers(Position(offset)) for offset in offsets) for span in spans
    ]
    assert sum(count for _, _, count in tally.outside()) == len(offsets)


@given(OFFSETS)
def test_ranges_cover_exactly_the_offsets(offsets: set[int]) -> None:
    collected = Ranges(1000)
    for bucket in buckets(offsets):
        for start, end in ranges(bucket.bits, bucket.start):
            collected.add(start, end)
    assert {offset for span in collected.spans for offset in range(span.start, span.end)} == offsets
    assert (collected.count, collected.is_whole) == (len(offsets), True)


@given(OFFSETS, OFFSETS, st.integers(0, 3 * BUCKET), st.integers(0, 3 * BUCKET))
def test_buckets_of_two_streams_are_walked_in_step(left: set[int], right: set[int], low: int, high: int) -> None:
    both = sum(
        between(first.bits & second.bits, start, low, high).bit_count()
        for start, (first, second) in in_step(buckets(left), buckets(right))
        if first is not None and second is not None
    )
    assert both == len({offset for offset in left & right if low <= offset < high})
