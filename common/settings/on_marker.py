"""A default of the loader that depends on another setting."""

from __future__ import annotations

from common.settings.values import ON_MARKER

RETENTION_ON_MARKER = "10m"


def fill_loading(value: object) -> object:
    """The loader's section with the default that depends on its schedule."""
    if not isinstance(value, dict) or value.get("schedule") != ON_MARKER:
        return value
    if value.keys() & {"marker_retention", "marker_retention_s"}:
        return value
    return {**value, "marker_retention": RETENTION_ON_MARKER}
