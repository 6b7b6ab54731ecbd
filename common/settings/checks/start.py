"""Checks of a stream's `start`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.settings.values import FromOffsets

if TYPE_CHECKING:
    from common.settings.stream import Stream


def check_start(stream: Stream) -> None:
    """Raise ValueError for positions of a topic that the stream does not read: another topic was meant."""
    if not isinstance(stream.start, FromOffsets):
        return
    for topic, _ in stream.start.positions:
        if topic is not None and not stream.reads(topic):
            msg = f"start has positions of {topic!r}, which is none of topics; name a topic of the stream"
            raise ValueError(msg)
