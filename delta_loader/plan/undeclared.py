"""Which fields of records no column takes, by the markers that were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.stage.markers import Marker
from common.stage.undeclared import UndeclaredFields, together

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delta_loader.plan.plan import Found


def undeclared_of(found: Iterable[Found]) -> UndeclaredFields | None:
    """The sum over these markers; None if none of them has such a field."""
    manifests = (marker.manifest for marker in found if isinstance(marker, Marker) and marker.manifest is not None)
    return together(manifest.undeclared for manifest in manifests if manifest.undeclared is not None)
