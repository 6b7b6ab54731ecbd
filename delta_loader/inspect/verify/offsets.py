"""Sets of offsets as bits: one per offset, in buckets, one Kafka partition at a time.

Rules:

1. A bucket is `BUCKET` offsets in one integer; bit k is the offset ``start + k``. Hundreds of millions of rows thus
   take tens of megabytes, each bucket is four kilobytes, and "each exactly once" is one comparison: rows against bits.
2. Buckets come in order and are seen once: nothing here holds more than a bucket of each stream.
3. Timestamps are bits too: the remainder of each after division by a prime, one bitmap for each binary digit. Several
   rows of one record then count once, and the offsets that both sides have are compared regardless of the other offsets
   on each side. Two different timestamps are mistaken for the same once in sixteen million times.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from common.spans import Position, Span

BUCKET = 32_768  # the capacity of one bitmap of Spark's bitmap functions
STAMP_DIGITS = 24
STAMP_PRIME = 16_777_213
"""The largest prime below ``2 ** STAMP_DIGITS``: no usual interval between records is a multiple of it."""


@dataclass(frozen=True, slots=True)
class Stamps:
    """The timestamps of a bucket's records, in milliseconds since 1970 modulo `STAMP_PRIME` (rule 3)."""

    known: int
    """The offsets that have a timestamp."""
    digits: tuple[int, ...]
    """For each binary digit, the lowest first, the offsets that have it set."""

    def joined(self, other: Stamps) -> Stamps:
        """The timestamps of two tables together."""
        digits = tuple(own | two for own, two in zip(self.digits, other.digits, strict=True))
        return Stamps(self.known | other.known, digits)

    def differing(self, other: Stamps) -> int:
        """The offsets that have a timestamp on both sides that differs."""
        differing = 0
        for first, two in zip(self.digits, other.digits, strict=True):
            differing |= first ^ two
        return differing & self.known & other.known


NO_STAMPS = Stamps(0, (0,) * STAMP_DIGITS)


@dataclass(frozen=True, slots=True)
class Bucket:
    """The offsets of one Kafka partition that a table (or Kafka) has in ``[start, start + BUCKET)``."""

    start: int
    rows: int
    """The number of rows, including duplicates."""
    bits: int
    stamps: Stamps = NO_STAMPS

    @property
    def distinct(self) -> int:
        return self.bits.bit_count()

    @property
    def span(self) -> Span:
        return Span(Position(self.start), Position(self.start + BUCKET))


def between(bits: int, bucket_start: int, start: int, end: int) -> int:
    """The bits of a bucket that are in ``[start, end)``, unshifted."""
    low, high = max(0, start - bucket_start), min(BUCKET, end - bucket_start)
    return bits & (((1 << (high - low)) - 1) << low) if high > low else 0


def ranges(bits: int, bucket_start: int) -> Iterator[tuple[int, int]]:
    """The runs of set bits as half-open ranges of offsets, in order."""
    offset = bucket_start
    while bits:
        skipped = (bits & -bits).bit_length() - 1
        bits >>= skipped
        length = (~bits & (bits + 1)).bit_length() - 1
        yield offset + skipped, offset + skipped + length
        bits >>= length
        offset += skipped + length


class Ranges:
    """Ranges of offsets that are collected in order; beyond ``most`` of them only counted."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.spans: list[Span] = []
        self.count = 0
        """Offsets in all ranges, including those that are not kept."""

    def add(self, start: int, end: int) -> None:
        """Add a range after the others."""
        self.count += end - start
        if self.spans and self.spans[-1].end == start:
            self.spans[-1] = Span(self.spans[-1].start, Position(end))
        elif len(self.spans) < self._most:
            self.spans.append(Span(Position(start), Position(end)))

    @property
    def is_whole(self) -> bool:
        """Whether each of its offsets is in ``spans``."""
        return sum(span.positions for span in self.spans) == self.count


class SpanTally:
    def __init__(self, spans: Iterable[Span]) -> None:
        edges = {0}
        for span in spans:
            edges |= {int(span.start), int(span.end)}
        self._edges = sorted(edges)
        self._counts = [0] * len(self._edges)

    def add(self, bucket: Bucket) -> None:
        first = max(0, bisect_right(self._edges, bucket.start) - 1)
        last = bisect_left(self._edges, bucket.start + BUCKET)
        cuts = [bucket.start, *self._edges[first + 1 : last], bucket.start + BUCKET]
        for index, (start, end) in enumerate(pairwise(cuts)):
            self._counts[first + index] += between(bucket.bits, bucket.start, start, end).bit_count()

    def within(self, span: Span) -> int:
        return sum(self._counts[bisect_left(self._edges, span.start) : bisect_left(self._edges, span.end)])

    def outside(self) -> list[tuple[int, int | None, int]]:
        """Every part between two edges with its count; the last one has no end."""
        ends: list[int | None] = [*self._edges[1:], None]
        return [(start, end, count) for start, end, count in zip(self._edges, ends, self._counts, strict=True) if count]


def in_step(*streams: Iterable[Bucket]) -> Iterator[tuple[int, list[Bucket | None]]]:
    """Iterate several streams of buckets in parallel: each start once, with each stream's bucket there."""
    iterators = [iter(stream) for stream in streams]
    heads = [next(iterator, None) for iterator in iterators]
    while waiting := [head.start for head in heads if head is not None]:
        start = min(waiting)
        buckets = [head if head is not None and head.start == start else None for head in heads]
        yield start, buckets
        heads = [
            next(iterator, None) if here is not None else head
            for iterator, head, here in zip(iterators, heads, buckets, strict=True)
        ]
