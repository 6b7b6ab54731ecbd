"""Which fields of a stream's records no column holds, estimated from a sample.

Rules:

1. Records are sampled: each of the first `FIRST`, then one in `EVERY`, and the first one of each flush, so that each
   marker has a sample. Parsing every record a second time would cost more than the rest of its conversion; so counts
   are reported as a sample's.
2. Only where fields are dropped: a stream with a rescue column keeps them, and which fields a topology uses only its
   code knows.
"""

import pyarrow as pa

from common.settings import Stream
from common.settings.parts import UnknownFields
from stage_writer.decode.unknown.census import FieldCensus
from stage_writer.shape.opening import OpenMessage, census_of, opener_of

FIRST = 20
EVERY = 1_000
_LARGEST_BYTES = 64 * 2**10


class DroppedFields:
    def __init__(self, stream: Stream, json_of: OpenMessage | None = None) -> None:
        """``json_of`` is the one of `stage_writer.shape.opening.opener_of`."""
        self.census = census_of(stream) if stream.record.unknown_fields is UnknownFields.IGNORE else None
        """None where nothing is sampled (rule 2)."""
        self.is_meant = stream.record.drops_on_purpose
        """Whether the config itself leaves them out on purpose: then they are counted, but not reported."""
        self._columns = stream.record.columns
        self._open = opener_of(stream, json_of)
        self._looked_at = 0
        self._skip = 0

    def is_of(self, stream: Stream) -> bool:
        """Whether the stream has still the columns that are known here."""
        return stream.record.columns == self._columns

    def sample(self, values: pa.BinaryArray | pa.LargeBinaryArray, *, begins_flush: bool = False) -> FieldCensus | None:
        """Sample some of these messages. Returns their fields; None where nothing was sampled."""
        census, count = self.census, len(values)
        if census is None or not count:
            return None
        sampled = FieldCensus(census.columns, census.taken)
        if begins_flush and self._skip:
            self._add_message(sampled, values, 0)
        while self._skip < count:
            self._add_message(sampled, values, self._skip)
            self._looked_at += 1
            self._skip += 1 if self._looked_at < FIRST else EVERY
        self._skip -= count
        census.add_all(sampled)
        return sampled if sampled.records else None

    @property
    def sentence(self) -> str | None:
        """Text for operators; None while no dropped field was seen."""
        fields = None if self.census is None else self.census.undeclared_fields()
        return None if fields is None else fields.sentence

    def _add_message(self, census: FieldCensus, values: pa.BinaryArray | pa.LargeBinaryArray, index: int) -> None:
        message = values[index]
        if message.is_valid and message.as_buffer().size <= _LARGEST_BYTES:
            record = self._open(message.as_py())
            if record is not None:
                census.add_text(record)
