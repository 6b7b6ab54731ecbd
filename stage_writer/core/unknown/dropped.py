"""Which fields of a stream's records no column takes, told from a sample of them.

Rules:

1. A record is looked at now and then: each of the first `FIRST`, and then one of `EVERY`, and the first one of each
   flush, so that each marker has a sample. To parse each a second time would cost more than the rest of its
   conversion; so what is counted is told as a sample.
2. Only where a record is the message, and its fields are dropped: a stream with a rescue column keeps them, and of
   envelopes, frames, JMESPath and topologies nobody here knows what they take.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.settings.stream import UnknownFields
from stage_writer.core.unknown.census import FieldCensus

if TYPE_CHECKING:
    import pyarrow as pa

    from common.settings import Stream

FIRST = 20
EVERY = 1_000
_LARGEST_BYTES = 64 * 2**10


class DroppedFields:
    """Of one stream."""

    def __init__(self, stream: Stream) -> None:
        is_plain = stream.framing == "none" and stream.envelope == "plain" and not stream.jmespath
        looks = is_plain and stream.topology is None and stream.unknown_fields is UnknownFields.IGNORE
        self.census = FieldCensus(stream.schema_of_columns) if looks else None
        """None where nothing is looked at (rule 2)."""
        self.is_meant = stream.drops_on_purpose
        """Whether the config itself says that they are to be left out: then they are counted, and nobody is told."""
        self._looked_at = 0
        self._skip = 0

    def look(self, values: pa.BinaryArray | pa.LargeBinaryArray, *, begins_flush: bool = False) -> FieldCensus | None:
        """Look at some of these messages; what these have. None where nothing was looked at."""
        census, count = self.census, len(values)
        if census is None or not count:
            return None
        found = FieldCensus(census.columns)
        if begins_flush and self._skip:
            _add_message(found, values, 0)
        while self._skip < count:
            _add_message(found, values, self._skip)
            self._looked_at += 1
            self._skip += 1 if self._looked_at < FIRST else EVERY
        self._skip -= count
        census.add_all(found)
        return found if found.records else None

    @property
    def sentence(self) -> str | None:
        """For people; None while nothing was seen to be dropped."""
        found = None if self.census is None else self.census.undeclared_fields()
        return None if found is None else found.sentence


def _add_message(census: FieldCensus, values: pa.BinaryArray | pa.LargeBinaryArray, index: int) -> None:
    message = values[index]
    if message.is_valid and message.as_buffer().size <= _LARGEST_BYTES:
        census.add_text(message.as_py())
