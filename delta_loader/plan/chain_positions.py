"""Which chains can be loaded, which have no position in the main table, and which wait for a resolution.

`PartitionProgress` is how far a pass found a chain to be staged and loaded.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.markers import Marker
from common.stage.undeclared import UndeclaredFields, together
from common.tables.rollback import Rollback, RollbackKind
from delta_loader.plan.held import Held, MainTable, held
from delta_loader.plan.plan import (
    AnyMarker,
    ForeignMarker,
    MissingOrigin,
    NextRun,
    Overlap,
    Run,
    manifests_of,
    next_run,
    require_splittable,
)


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


@dataclass(frozen=True, slots=True)
class ChainPositions:
    """A stream's staged chains and its tables' positions, as they were read together: what can be loaded, and why not.

    A pass of the loader and ``delta-loader status`` both decide by it, so they agree.
    """

    stream: Stream
    markers: Mapping[TopicPartition, Sequence[AnyMarker]]
    """The first markers of each chain that are not loaded, and the one before them, in order."""
    origins: Mapping[TopicPartition, ChainOrigin]
    """The newest origin of each chain that has one."""
    tables: Collection[str]
    """The URLs of the stream's tables that exist."""
    position_in: Callable[[str, TopicPartition], Position | None]
    """A table's position; None where it has none, or does not exist."""

    def position(self, partition: TopicPartition) -> Position | None:
        """The main table's position."""
        return self.position_in(self.stream.table, partition)

    def outcome(self, partition: TopicPartition) -> NextRun:
        """What follows in a chain."""
        origin = self.origins.get(partition)
        start = None if origin is None else origin.first_position
        outcome = next_run(self.position(partition), self.markers.get(partition, ()), start)
        return require_splittable(outcome, self.stream.row_tables, kafka_columns=self.stream.kafka_columns)

    def held(self, partition: TopicPartition, outcome: NextRun) -> Held | None:
        """Why nothing of a chain can be loaded; ``outcome`` is what follows in it."""
        main = self._main_table(partition) if isinstance(outcome, MissingOrigin) else None
        return held(partition, outcome, main)

    def _main_table(self, partition: TopicPartition) -> MainTable:
        positions = {url: self.position_in(url, partition) for url in self.stream.secondary_tables}
        others = {url: position for url, position in positions.items() if position is not None}
        return MainTable(self.stream.table, self.stream.table in self.tables, others, self.stream.row_tables)

    def unplaced(self) -> UnplacedChains:
        """The chains without a position; their markers before a foreign one may be loaded."""
        unplaced = [
            partition
            for partition, markers in self.markers.items()
            if self.position(partition) is None and not is_foreign(markers[:1])
        ]
        without_origin = [
            partition for partition in unplaced if isinstance(next_run(None, self.markers[partition]), MissingOrigin)
        ]
        first_ms: dict[TopicPartition, int] = {}
        for partition in unplaced:
            first = next(iter(self.markers[partition]), None)
            if isinstance(first, Marker) and first.manifest is not None:
                first_ms[partition] = first.manifest.created_ms
        return UnplacedChains(unplaced, without_origin, first_ms)

    def loadable(self) -> list[TopicPartition]:
        return [
            partition
            for partition, markers in self.markers.items()
            if isinstance(next_run(self.position(partition), markers), Run | Overlap)
        ]

    def placed(self) -> dict[TopicPartition, tuple[Position, list[Marker]]]:
        """The chains with a position, and the markers near it."""
        placed: dict[TopicPartition, tuple[Position, list[Marker]]] = {}
        for partition, markers in self.markers.items():
            position = self.position(partition)
            if position is not None:
                placed[partition] = position, [marker for marker in markers if isinstance(marker, Marker)]
        return placed

    def waiting_for(self, back: Rollback) -> list[TopicPartition]:
        """The chains that a rollback of the main table holds (common/tables/rollback.py, rule 6)."""
        if back.kind is not RollbackKind.UNKNOWN or back.is_unplaced:
            return list(back.positions)
        return list(dict.fromkeys([*back.positions, *self.loadable()]))


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
    return together(manifest.undeclared for manifest in manifests_of(markers) if manifest.undeclared is not None)


def violations_of(markers: Iterable[AnyMarker]) -> Counter[str]:
    """The sum over these markers, by rule."""
    violations: Counter[str] = Counter()
    for manifest in manifests_of(markers):
        violations.update(manifest.violations)
    return violations
