"""Which fields of records no column takes, by the markers that were read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.stage.markers import Marker
from common.stage.undeclared import UndeclaredFields, together

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delta_loader.core.plan import Found


def undeclared_of(found: Iterable[Found]) -> UndeclaredFields | None:
    """The sum of what these markers tell; None where none of them tells of any field."""
    manifests = (marker.manifest for marker in found if isinstance(marker, Marker) and marker.manifest is not None)
    return together(manifest.undeclared for manifest in manifests if manifest.undeclared is not None)
