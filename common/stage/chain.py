"""The chain of completed markers of one Kafka partition, as a pure reading of a listing.

Rules:

1. A marker starts where the marker before it ends, and names it (``previous``). Markers that follow one another in this
   way are a *segment*. Its first one is the *root*: it was made by hand, or its predecessor is gone (settled).
2. Settling removes from the low end only, and never the last marker. A late writer that claims a freed position thus
   makes a segment whose root is below the living one's and whose span overlaps it: a *stray*. Segments that do not
   overlap are a chain with a gap, which an operator made and an operator closes.
3. A marker made by hand inside the positions that writers staged has no effect, and is a stray too.
4. A writer continues from the end of the trunk: the segment with the highest root.
5. An empty marker was either made by hand, or *emptied*: a writer made it, and its content is gone. The records of an
   emptied marker are not covered, and it counts as unreadable. It counts as made by hand, except in two cases:
   - The flush that continues from it shows that a writer had made it: this flush starts at another position than the
     next one, or records a digest of its content.
   - Nothing continues from it yet, it follows a flush or is at the chain's recorded origin
     (common/stage/chain_origins.py), and its name is padded. A writer has most likely made it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from common.spans import Position, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin, digest_of

_EMPTY = digest_of(b"")


@dataclass(frozen=True, slots=True)
class Chain:
    """The markers of one Kafka partition: the living ones in order, and the strays."""

    markers: tuple[Marker, ...]
    strays: tuple[Marker, ...]

    @property
    def end(self) -> Position | None:
        """The start of the next span, or None while there is no chain."""
        return self.markers[-1].span.end if self.markers else None


def read_chain(markers: Iterable[Marker]) -> Chain:
    """Sort the markers of one Kafka partition into the living chain and the strays."""
    segments: list[list[Marker]] = []
    ends: dict[tuple[Position, Position], list[Marker]] = {}
    for marker in sorted(markers, key=lambda marker: marker.span.start):
        segment = None
        if marker.previous is not None:
            segment = ends.pop((marker.previous, marker.span.start), None)
        if segment is None:
            segment = []
            segments.append(segment)
        segment.append(marker)
        ends[marker.span.start, marker.span.end] = segment
    # From the highest root down (rule 2); segments made only by hand come after what writers staged (rule 3).
    segments.sort(key=lambda segment: (_by_hand(segment), -segment[0].span.start))
    living: list[list[Marker]] = []
    strays: list[Marker] = []
    for segment in segments:
        if any(_overlap(segment, other) for other in living):
            strays += segment
        else:
            living.append(segment)
    markers = [marker for segment in sorted(living, key=lambda segment: segment[0].span.start) for marker in segment]
    return Chain(tuple(markers), tuple(sorted(strays, key=lambda marker: marker.span.start)))


def emptied(markers: Iterable[Marker], origin: Position | None) -> Mapping[MarkerName, str]:
    """A Kafka partition's markers that were emptied, and why each cannot be one made by hand (rule 5).

    ``origin`` is where the chain starts, if that is recorded.
    """
    empty: dict[Position, Marker] = {}
    whole: dict[Position, Manifest] = {}
    for marker in markers:
        if marker.manifest is None:
            empty[marker.name.start] = marker
        else:
            whole[marker.name.start] = marker.manifest
    problems: dict[MarkerName, str] = {}
    if not empty:
        return problems
    for start, manifest in whole.items():
        before = None if manifest.previous is None else empty.get(manifest.previous)
        if before is None or before.name.start in whole or manifest.origin is not Origin.FLUSH:
            continue
        if start != before.span.end or manifest.previous_digest not in (None, _EMPTY):
            problems[before.name] = f"it is empty, but the marker at {start} continues what a writer had put into it"
    continued = {manifest.previous for manifest in whole.values()}
    flushed = {manifest.span.end for manifest in whole.values() if manifest.origin is Origin.FLUSH}
    for start in flushed.union(() if origin is None else [origin]) & empty.keys() - whole.keys() - continued:
        if empty[start].is_as_named_by_programs:
            place = "follows a flush" if start in flushed else "is where the chain starts"
            problems[empty[start].name] = (
                f"it is empty, {place}, and has a writer's padded name: its content is probably lost (one made "
                f"by hand there is named {start}.done)"
            )
    return problems


def _by_hand(segment: list[Marker]) -> bool:
    return all(marker.manifest is None for marker in segment)


def _overlap(first: list[Marker], other: list[Marker]) -> bool:
    return first[0].span.start < other[-1].span.end and other[0].span.start < first[-1].span.end


def by_partition(names: Iterable[MarkerName]) -> dict[TopicPartition, list[MarkerName]]:
    """The names of a listing, grouped by Kafka partition and sorted by position."""
    groups: dict[TopicPartition, list[MarkerName]] = {}
    for name in sorted(names):
        groups.setdefault(name.topic_partition, []).append(name)
    return groups
