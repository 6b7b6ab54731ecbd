"""Decoders of a topology's sources: each topic with its own columns, as strictly as any stream's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stage_writer.decode.decode import Decoder
from stage_writer.decode.reading import Reading

if TYPE_CHECKING:
    from common.settings import Stream
    from stage_writer.decode.first_pass import MakeFirstPass
    from stage_writer.topologies.built import BuiltTopology


def decoders_of(stream: Stream, topology: BuiltTopology, first_pass: MakeFirstPass) -> dict[str, Decoder]:
    """By topic; none for a source without columns, which accepts any JSON value. Raises SchemaError."""
    reading = Reading(lenient=stream.coerce == "lenient")
    return {
        topic: Decoder(source.columns, reading, first_pass=first_pass)
        for topic, source in topology.sources.items()
        if source.columns is not None
    }
