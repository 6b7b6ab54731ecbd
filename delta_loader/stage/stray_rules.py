"""Which markers are strays: late claims of positions that had been freed. Recognized by evidence that is certain.

A writer that was stopped for a day claims the position that it wanted then. The table has that position and its marker
was settled, so the name is free and the claim succeeds. The writer notices at once and stops there
(stage_writer/chains.py, rule 1); the marker that it left behind is a stray.

Rules:

1. Markers are settled from the low end only, and never the last. A freed position is therefore below the living chain,
   and a stray is at the low end of the listing. Only the low end is checked, and the lowest *branch* is taken or left
   as a whole. A branch is a marker and those that continue it, each naming the one before it.
2. Writers continue from the last marker of a Kafka partition. A branch that contains it is left.
3. A branch is moved only if nothing is lost by it. What the table does not cover of it has to be staged by the living
   chain, without a gap from the table's position on. A branch that reaches further stays until then. (If nothing else
   starts at the table's position, the planner may even load from it: Kafka's records are the same.)
4. The evidence is the lowest marker next to the branch. It continues from a marker other than those of the branch, and
   that marker is not at the branch's end: that would be a chain from which a marker was lost. A marker that continues
   from none (made by hand or by an operator) is not evidence.
5. The other evidence is time, by the store's own clock: the last marker of the branch was written long after a marker
   above it, which is impossible in a chain. This recognizes even a late claim that looks exactly like the marker that
   was settled.
6. A branch that ends in a marker that an operator made (to close a gap, say, long after the markers above it) is not a
   stray.
7. Anything uncertain is left: what the table covers is settled in time.
8. A late claim is younger than some marker above it. The marker whose settling freed its position was not the last, and
   nothing above the claim is settled before the claim itself. If the lowest marker is older than all others by the
   listing, nothing is read; times within one second may be in any order.
9. A branch that ends at the table's position is left while nothing is staged from there on and markers lie above it. It
   may be the chain, and those above it a late claim that a writer has continued. It alone records the topics' positions
   and a task's state there, which a rewind to the table's position needs.
"""

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from common.spans import Position
from common.stage.markers import Marker, MarkerName, Origin
from delta_loader.plan.plan import AnyMarker

SKEW_MS = 60_000
"""The possible error between the store's times of two markers."""
_SAME_MS = 1_000
"""The resolution of a store's times."""
_LONGEST_BRANCH = 16


@dataclass(frozen=True, slots=True)
class LowEnd:
    """The markers at the low end of one Kafka partition, as far as they are known."""

    names: Sequence[MarkerName]
    """All markers of the partition, by position; at least one."""
    modified_ms: Mapping[MarkerName, int]
    position: Position
    known: Mapping[MarkerName, AnyMarker]
    """The markers that have been read so far."""


@dataclass(frozen=True, slots=True)
class StrayBranch:
    """Strays, if the chain does without them: highest first, the order in which they may be moved."""

    markers: tuple[Marker, ...]

    @property
    def end(self) -> Position:
        """The position up to which another marker has to be loaded or staged (rule 3)."""
        return self.markers[0].span.end


@dataclass(frozen=True, slots=True)
class MarkersToRead:
    """These markers must be read before anything can be decided."""

    names: tuple[MarkerName, ...]


@dataclass(frozen=True, slots=True)
class NoStray:
    """No marker at the low end is certain to be a stray."""


def lowest_branch(low: LowEnd) -> StrayBranch | MarkersToRead | NoStray:
    """The branch at the low end, if it consists of strays."""
    if not may_be_late(low.names, low.modified_ms, low.position):
        return NoStray()
    branch = _branch(low)
    if not isinstance(branch, tuple):
        return branch
    if branch[-1].origin is not Origin.FLUSH or (branch[-1].span.end == low.position and _has_gap(low)):
        return NoStray()
    inside = {marker.name for marker in branch}
    witness_name = next(name for name in low.names if name not in inside)  # the last one is not inside
    witness = low.known.get(witness_name)
    if witness is None:
        return MarkersToRead((witness_name,))
    if _contradicts(witness, branch[-1]) or _is_late(low, branch[-1], low.modified_ms.keys() - inside):
        return StrayBranch(branch[::-1])
    return NoStray()


def may_be_late(names: Sequence[MarkerName], modified_ms: Mapping[MarkerName, int], position: Position) -> bool:
    """Whether the lowest of a Kafka partition's markers may be a stray, by the listing alone (rules 2, 3 and 8)."""
    lowest = names[0]
    if lowest.start >= position:
        return False
    until_ms = modified_ms[lowest] + _SAME_MS
    return sum(ms <= until_ms for ms in modified_ms.values()) > 1


def _has_gap(low: LowEnd) -> bool:
    """Whether markers lie above the table's position, and none starts at it (rule 9)."""
    return low.names[-1].start > low.position and all(name.start != low.position for name in low.names)


def _branch(low: LowEnd) -> tuple[Marker, ...] | MarkersToRead | NoStray:
    """The lowest marker and those that continue it, lowest first; NoStray when the last one is among them."""
    branch: list[Marker] = []
    name = low.names[0]
    while name in low.modified_ms and len(branch) < _LONGEST_BRANCH:
        marker = low.known.get(name)
        if marker is None:
            return MarkersToRead((name,))
        if not isinstance(marker, Marker):
            return NoStray()
        if branch and marker.previous != branch[-1].name.start:
            return tuple(branch)
        if branch and branch[-1].origin is Origin.FLUSH and _is_late(low, branch[-1], {name}):
            return tuple(branch)
        if name == low.names[-1]:
            return NoStray()
        branch.append(marker)
        name = MarkerName(name.topic_partition, marker.span.end)
    return tuple(branch) if len(branch) < _LONGEST_BRANCH else NoStray()


def _contradicts(witness: AnyMarker, tip: Marker) -> bool:
    """Whether the lowest marker next to a branch shows that the branch is not part of the chain (rule 4)."""
    if not isinstance(witness, Marker) or witness.origin in (None, Origin.BOOTSTRAP):
        return False
    return witness.previous is not None and witness.previous != tip.span.end


def _is_late(low: LowEnd, marker: Marker, above: AbstractSet[MarkerName]) -> bool:
    """Whether a marker was written long after one above it (rule 5)."""
    return low.modified_ms[marker.name] > min(low.modified_ms[name] for name in above) + SKEW_MS
