"""The end of a chain of done markers, as the writer that continues it knows it."""

from __future__ import annotations

from dataclasses import dataclass, field

from common.spans import Position
from common.stage.chain_origins import ChainOrigin
from common.stage.markers import LastRecord, Marker
from common.stage.task_files import EMPTY_STATE, StateFiles


@dataclass(frozen=True, slots=True)
class Lineage:
    """The chain of its Kafka partition that a flush belongs to (common/stage/chain_origins.py, rule 2)."""

    generation: int = 0
    topic_id: str | None = None
    origin: int = 0
    """The number of the origin that counted when the chain was read (rule 7 there); 0 without an origin."""


@dataclass(frozen=True, slots=True)
class Tail:
    end: Position
    """Where the next span starts."""
    marker: Position
    """The start of the chain's last marker."""
    path: str
    """The name of that marker's object; a hand-typed name is not padded."""
    digest: str
    """A digest of that marker's bytes (`common.stage.markers.digest_of`): the name alone may be reused."""
    lineage: Lineage = field(default_factory=Lineage)
    """The generation of the chain, and the topic that the marker belongs to."""
    state: StateFiles = EMPTY_STATE
    """The task's state at this end; empty unless the marker itself has it."""
    outboxes: tuple[str, ...] = ()
    """The chain's outboxes not known to be delivered (common/stage/task_files.py), oldest first."""
    is_bare: bool = False
    """Whether the last marker is an empty one, which an operator made by hand."""
    last_record: LastRecord | None = None
    """The last offset that the last marker covers."""

    @classmethod
    def from_marker(cls, marker: Marker, path: str, digest: str, origin: ChainOrigin | None = None) -> Tail:
        """The end of a chain whose last marker this is; ``origin`` is the chain's recorded one."""
        end, start, manifest = marker.span.end, marker.name.start, marker.manifest
        generation, number = (0, 0) if origin is None else (origin.generation, origin.number)
        if manifest is None:
            return cls(end, start, path, digest, Lineage(generation, origin=number), is_bare=True)
        # What the manifest names is newer than the recorded origin if the origin was lost.
        lineage = Lineage(manifest.generation, manifest.topic_id, max(number, manifest.chain_origin or 0))
        state = EMPTY_STATE if manifest.state is None else manifest.state.files
        return cls(end, start, path, digest, lineage, state, manifest.outboxes, last_record=manifest.last_record)
