"""What a stream's `envelope` says about its records: which operations delete, and how values are written."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from common.settings.stream import Stream

DELETES = {"debezium": ("d",), "maxwell": ("delete",), "canal": ("DELETE",), "dms": ("delete",)}
"""The values of `_cdc.op` that delete, by envelope."""
UPDATE = {"maxwell": "update", "canal": "UPDATE", "dms": "update"}
"""The value of `_cdc.op` of updates, by envelope, where one event may change a row's key."""

TRUNCATES = ("debezium", "canal", "dms")
"""The envelopes with events that say that the source table was truncated."""


def is_lenient(stream: Stream) -> bool:
    """Whether values may be written as texts: with `coerce: lenient`, and of canal, which sends all values as texts."""
    return stream.coerce == "lenient" or stream.envelope == "canal"


def gives_several_rows(stream: Stream) -> bool:
    """Whether one message may have several rows before any `explode`: canal's arrays, and updates that change a key."""
    return stream.envelope == "canal" or (stream.merge is not None and stream.envelope in UPDATE)
