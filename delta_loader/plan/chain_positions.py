"""Which chains have a position in the main table, and which are staged without one; which wait for a resolution."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.spans import Position, TopicPartition
from common.stage.markers import Marker
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
