"""Which fields of records no column takes, and which rules of `expect` they break, by the markers that were read."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from common.stage.markers import Marker
from common.stage.undeclared import UndeclaredFields, together

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from common.stage.markers import Manifest
    from delta_loader.plan.plan import Found


def undeclared_of(found: Iterable[Found]) -> UndeclaredFields | None:
    """The sum over these markers; None if none of them has such a field."""
    return together(manifest.undeclared for manifest in _manifests(found) if manifest.undeclared is not None)


def violations_of(found: Iterable[Found]) -> Counter[str]:
    """The sum over these markers, by rule."""
    violations: Counter[str] = Counter()
    for manifest in _manifests(found):
        violations.update(manifest.violations)
    return violations


def _manifests(found: Iterable[Found]) -> Iterator[Manifest]:
    return (marker.manifest for marker in found if isinstance(marker, Marker) and marker.manifest is not None)
