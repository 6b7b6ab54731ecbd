"""A pass's observations of one Kafka partition."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from common.spans import Position
from common.stage.markers import Manifest, Marker
from common.stage.undeclared import UndeclaredFields, together
from delta_loader.plan.plan import AnyMarker


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
