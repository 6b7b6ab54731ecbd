"""A writer's converter of a stream whose tables have their own columns, with what writers agree on in the stage."""

import json
from collections.abc import Sequence
from dataclasses import replace

from common.clock import SystemClock
from common.protoc import compile_protobuf
from common.schema import StructType
from common.schema.evolution import NO_COLUMNS
from common.settings import Stream
from common.stage.appeared_routes import with_appeared_of
from common.stage.versions import latest
from common.storage.store import FsspecStore
from stage_writer.convert_by_table import TablesConverter, converter_of
from stage_writer.decode.batch import Headers, MessageBatch, headers_column
from stage_writer.decode.envelopes.framing import SchemaTypes
from stage_writer.layers import RecordInputs
from stage_writer.parquet.buffer import StagedRows
from stage_writer.stage.gaining import gain_columns
from tests.fakes.answering import route_registry
from tests.fakes.native import native_decoders
from tests.fakes.streams import batch_of


class ConvertingWriter:
    def __init__(
        self, store: FsspecStore, stream: Stream, schemas: SchemaTypes | None = None, *, file: bytes | None = None
    ) -> None:
        """Starts with the columns and keys that are published."""
        self.store = store
        self.stream = with_appeared_of(stream, store)  # as its command reads the settings
        routes = None if stream.routing.route_table is None else route_registry(self.stream, lambda: store)
        inputs = RecordInputs(
            schemas, native_decoder=native_decoders()[-1], schema_file=file, compile_protobuf=compile_protobuf
        )
        converter = converter_of(self.stream, inputs, appearing=routes)
        assert isinstance(converter, TablesConverter)
        published = latest(store, stream.app_id, by_route=stream.gains_by_table)
        self.gained: StructType = NO_COLUMNS if published is None else published.columns
        self.converter = converter.at(self.gained)
        self.rounds = 0

    def once(self, batch: MessageBatch) -> StagedRows:
        assert self.converter.waits(batch) is None
        ((_, staged),) = (each for part in self.converter.slices([batch]) for each in part)
        self.rounds += 1
        return staged

    def agree(self, offered: StructType) -> bool:
        """Publish columns for what is offered; whether there are new ones."""
        before, offers = self.gained, {"done/orders/3/1.done": offered}
        stream = self.converter.stream
        self.gained = gain_columns(self.store, lambda _: self.store, SystemClock(), stream, offers).columns
        self.converter = self.converter.at(self.gained)
        return self.gained != before

    def convert(
        self,
        values: Sequence[object],
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[Headers | None] | None = None,
    ) -> StagedRows:
        """As the loop does: a batch that offers fields is converted again once they are published."""
        sent = [value if value is None or isinstance(value, bytes) else json.dumps(value).encode() for value in values]
        batch = batch_of(sent, keys=keys)
        if headers is not None:
            assert self.converter.needs_headers
            batch = replace(batch, headers=headers_column(headers))
        staged = self.once(batch)
        while staged.offered.fields and self.agree(staged.offered):
            staged = self.once(batch)
        return staged
