"""`unknown_fields: evolve`, and the settings that it cannot work with."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.settings.stream import Stream


def check_evolving(stream: Stream) -> None:
    if not stream.record.evolves:
        return
    renames = {
        "jmespath": stream.record.jmespath,
        "explode": stream.shaping.explode,
        "rename": stream.shaping.rename,
        "field_names": stream.shaping.field_names != "as_is",
    }
    for key in (key for key, value in renames.items() if value):
        msg = (
            f"{key} gives columns other names or places than their fields have, so that unknown_fields cannot "
            f"be evolve; leave {key} out, or write unknown_fields: rescue"
        )
        raise ValueError(msg)
    for path in (path for path in stream.shaping.drop if "." in path or path == stream.record.rescue_column):
        msg = f"drop names {path!r}, which unknown_fields: evolve needs; drop whole fields, or write rescue"
        raise ValueError(msg)
