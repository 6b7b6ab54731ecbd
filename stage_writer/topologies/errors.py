"""What ends a topology's work."""

from __future__ import annotations

from common.errors import KafkaDeltaExpressError

_SAID_CHARACTERS = 4_000
"""Of an error's text: it may quote all of a record."""


class TopologyError(KafkaDeltaExpressError):
    """The user's code failed where no record can be put aside for it, or where the topology says that it may not."""


def said(error: Exception) -> str:
    """What an error of the user's code says, as text that can be kept."""
    try:
        text = str(error)
    except Exception as another:  # noqa: BLE001 - the user's code may raise anything
        text = f"its text raises {type(another).__name__}"
    return text[:_SAID_CHARACTERS].encode("utf-8", "backslashreplace").decode()
