"""Which chains have a position in the main table and something to load, and which are staged without a position."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.stage.markers import Marker
from delta_loader.plan.plan import ForeignMarker, MissingOrigin, Overlap, Run, next_run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from common.spans import Position, TopicPartition
    from delta_loader.plan.plan import AnyMarker


@dataclass(frozen=True, slots=True)
class UnplacedChains:
    """Chains without a txn action in the main table."""

    partitions: list[TopicPartition]
    without_origin: list[TopicPartition]
    """Those whose start is not known either."""
    first_ms: dict[TopicPartition, int]
    """When the first marker of each was made, where that is known."""


def is_foreign(markers: Iterable[AnyMarker]) -> bool:
    """Whether a chain's markers belong to something other than the table's position."""
    return any(isinstance(marker, ForeignMarker) for marker in markers)


def unplaced_chains(
    markers_of: Mapping[TopicPartition, Sequence[AnyMarker]],
    position_of: Callable[[TopicPartition], Position | None],
) -> UnplacedChains:
    """``markers_of`` are the first markers of each chain, in order."""
    unplaced = [
        partition
        for partition, markers in markers_of.items()
        if position_of(partition) is None and not is_foreign(markers)
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


def placed_chains(
    markers_of: Mapping[TopicPartition, Sequence[AnyMarker]],
    position_of: Callable[[TopicPartition], Position | None],
) -> dict[TopicPartition, tuple[Position, list[Marker]]]:
    """Chains that have something to load: their positions, and the markers near them."""
    placed: dict[TopicPartition, tuple[Position, list[Marker]]] = {}
    for partition, markers in markers_of.items():
        position = position_of(partition)
        if position is not None and isinstance(next_run(position, markers), Run | Overlap):
            placed[partition] = position, [marker for marker in markers if isinstance(marker, Marker)]
    return placed
