"""What the tool knows before it decides: one Kafka partition in Kafka, in the stage, and in the table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from common.chain import Chain, read_chain
from common.markers import Manifest, Marker, MarkerName, Origin
from common.settings import FromOffsets, Start, StartAt
from common.spans import MAX_POSITION, Position, Span, TopicPartition

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True, slots=True)
class Ends:
    """What Kafka holds of a partition: the positions ``[low, high]`` are those that a reader can begin at."""

    low: Position
    high: Position


@dataclass(frozen=True, slots=True)
class StagedMarker:
    """A marker as it lies in the stage, also one that cannot be read."""

    path: str
    """The object's own path; a name that a person typed is not padded."""
    name: MarkerName
    marker: Marker | None
    """None when its content cannot be read."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One Kafka partition, as found."""

    source: TopicPartition
    app_id: str
    start: Start
    """What the stream says about a partition without markers."""
    ends: Ends
    table: Position | None
    """The next position that the table wants; None when it has none for this partition."""
    staged: Sequence[StagedMarker] = field(default=())
    """All markers in the stage, in the order of their positions."""

    @property
    def chain(self) -> Chain:
        """The markers that can be read, as a chain."""
        return read_chain(found.marker for found in self.staged if found.marker is not None)

    def end_of(self, found: StagedMarker) -> Position:
        """Where a marker's span ends; one that cannot be read is taken to reach up to the next marker."""
        if found.marker is not None:
            return found.marker.span.end
        later = [other.name.start for other in self.staged if other.name.start > found.name.start]
        return min(later, default=Position(MAX_POSITION))

    def begins_at_zero(self) -> bool:
        """Whether the stream's start is position 0 as long as there is no marker."""
        if isinstance(self.start, FromOffsets):
            given = self.start.position(self.source.topic, self.source.partition)
            return given == 0 or (given is None and self.ends.low == 0)
        return self.start is StartAt.EARLIEST


@dataclass(frozen=True, slots=True)
class Author:
    """Who makes markers, and when: what a manifest says for people."""

    name: str
    now_ms: int

    def marker(self, state: PartitionState, origin: Origin, span: Span, previous: Position | None) -> Marker:
        """A marker that covers a span and brings no rows."""
        manifest = Manifest(
            span=span,
            previous=previous,
            app_id=state.app_id,
            origin=origin,
            writer=self.name,
            created_ms=self.now_ms,
        )
        return Marker(MarkerName(state.source, span.start), manifest)

    def begin_at(self, state: PartitionState, position: Position) -> Marker:
        """The marker that says: all before ``position`` is done, begin there. Position 0 has none."""
        return self.marker(state, Origin.BOOTSTRAP, Span(Position(position - 1), position), None)
