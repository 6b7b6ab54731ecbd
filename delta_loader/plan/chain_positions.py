"""Which chains have a position in the main table, and which are staged without one; which wait for a resolution.

`PartitionProgress` is how far a pass found a chain to be staged and loaded.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from common.spans import Position, TopicPartition
from common.stage.markers import Manifest, Marker
from common.stage.undeclared import UndeclaredFields, together
from common.tables.rollback import Rollback, RollbackKind
from delta_loader.plan.plan import AnyMarker, ForeignMarker, MissingOrigin, Overlap, Run, next_run


@dataclass(frozen=True, slots=True)
class UnplacedChains:
    partitions: list[TopicPartition]
    without_origin: list[TopicPartition]
    """The chains whose start is unknown too."""
    first_ms: dict[TopicPartition, int]
    """When the first marker of each was made, where that is known."""


def is_foreign(markers: Iterable[AnyMarker]) -> bool:
    """Whether a chain's markers belong to something other than the table's position."""
    return any(isinstance(marker, ForeignMarker) for marker in markers)


def unplaced_chains(
    markers_of: Mapping[TopicPartition, Sequence[AnyMarker]], position_of: Callable[[TopicPartition], Position | None]
) -> UnplacedChains:
    """``markers_of`` are the first markers of each chain, in order: those before a foreign one may be loaded."""
    unplaced = [
        partition
        for partition, markers in markers_of.items()
        if position_of(partition) is None and not is_foreign(markers[:1])
    ]
    without_origin = [
        partition for partition in unplaced if isinstance(next_run(None, markers_of[partition]), MissingOrigin)
    ]
    first_ms: dict[TopicPartition, int] = {}
    for partition in unplaced:
        first = next(iter(markers_of[partition]), None)
        if isinstance(first, Marker) and first.manifest is not None:
            first_ms[partition] = first.manifest.created_ms
    return UnplacedChains(unplaced, without_origin, first_ms)


def loadable_chains(
    markers_of: Mapping[TopicPartition, Sequence[AnyMarker]], position_of: Callable[[TopicPartition], Position | None]
) -> list[TopicPartition]:
    return [
        partition
        for partition, markers in markers_of.items()
        if isinstance(next_run(position_of(partition), markers), Run | Overlap)
    ]


def placed_chains(
    markers_of: Mapping[TopicPartition, Sequence[AnyMarker]], position_of: Callable[[TopicPartition], Position | None]
) -> dict[TopicPartition, tuple[Position, list[Marker]]]:
    """Chains with a position, and the markers near it."""
    placed: dict[TopicPartition, tuple[Position, list[Marker]]] = {}
    for partition, markers in markers_of.items():
        position = position_of(partition)
        if position is not None:
            placed[partition] = position, [marker for marker in markers if isinstance(marker, Marker)]
    return placed


def chains_that_wait(
    back: Rollback,
    markers_of: Mapping[TopicPartition, Sequence[AnyMarker]],
    position_of: Callable[[TopicPartition], Position | None],
) -> list[TopicPartition]:
    """The chains that a rollback of the table holds (common/tables/rollback.py, rule 6)."""
    if back.kind is not RollbackKind.UNKNOWN or back.is_unplaced:
        return list(back.positions)
    return list(dict.fromkeys([*back.positions, *loadable_chains(markers_of, position_of)]))


@dataclass(frozen=True, slots=True)
class PartitionProgress:
    begins: Position
    """The start of the lowest marker."""
    loaded: Position | None
    staged: Position
    waiting: int
    oldest_ms: int | None
    """When the first waiting marker was made; None when none waits or it has no time."""
    topic_id: str | None = None
    """The id of the topic that it was staged from; None where its markers do not have one."""
    ends: bool = True
    """Whether ``staged`` is the chain's end. False if it is somewhere before: not all of many waiting markers were
    read."""
    undeclared: UndeclaredFields | None = None
    """The fields of records that no column takes, from the markers near its position."""

    @property
    def lag(self) -> int:
        return max(0, self.staged - (self.begins if self.loaded is None else self.loaded))


def undeclared_of(markers: Iterable[AnyMarker]) -> UndeclaredFields | None:
    """The sum over these markers; None if none of them has such a field."""
    return together(manifest.undeclared for manifest in _manifests(markers) if manifest.undeclared is not None)


def violations_of(markers: Iterable[AnyMarker]) -> Counter[str]:
    """The sum over these markers, by rule."""
    violations: Counter[str] = Counter()
    for manifest in _manifests(markers):
        violations.update(manifest.violations)
    return violations


def _manifests(markers: Iterable[AnyMarker]) -> Iterator[Manifest]:
    return (marker.manifest for marker in markers if isinstance(marker, Marker) and marker.manifest is not None)
