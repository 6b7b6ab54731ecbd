"""The converters of a writer's streams, each made for the settings of its stream."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from common.errors import ConfigError
from common.metrics import Metrics
from common.protoc import compile_protobuf
from common.settings import Settings, Stream
from stage_writer.columns.following import PendingConverter
from stage_writer.columns.wiring import pending
from stage_writer.convert_by_table import RecordConverter, converter_of
from stage_writer.decode.binary.avro import MakeAvroPass, no_avro_pass
from stage_writer.decode.decode_options import MakeNativeDecoder, no_native_decoder
from stage_writer.decode.envelopes.framing import SchemaCoverage
from stage_writer.fetch.schema_file import read_schema_file, require_packages
from stage_writer.fetch.schema_registry import SchemaRegistry, schemas_of
from stage_writer.layers import RecordInputs
from stage_writer.memory_shares import MemoryShares
from stage_writer.shape.slicing import ExplodeLimits
from stage_writer.stage.route_registry import route_registry_of
from stage_writer.stopping import NEVER_STOPPING, Stopping

if TYPE_CHECKING:
    from stage_writer.tasks.look_ups import LookUps
    from stage_writer.tasks.wiring import AnyTopologyConverter

    AnyConverter = RecordConverter | PendingConverter | AnyTopologyConverter


def record_inputs(
    stream: Stream, passes: ConverterParts, schemas: SchemaRegistry | None = None, covers: SchemaCoverage | None = None
) -> RecordInputs:
    """Raises ConfigError for a file that cannot be read, and for a package that is not installed."""
    require_packages(stream)
    return RecordInputs(schemas, passes.json, passes.read_file(stream), passes.avro, compile_protobuf, covers)


@dataclass(frozen=True, slots=True)
class ConverterParts:
    """The common parts of all converters: the decoders of the native library, or those without one."""

    json: MakeNativeDecoder = no_native_decoder
    avro: MakeAvroPass = no_avro_pass
    read_file: Callable[[Stream], bytes | None] = read_schema_file
    """Reads a stream's `schema_file`."""


PYTHON_PASSES = ConverterParts()


def plain_converter(
    settings: Settings,
    passes: ConverterParts,
    stream: Stream,
    covers: SchemaCoverage | None = None,
    *,
    schemas: SchemaRegistry | None = None,
    preview: bool = False,
) -> RecordConverter:
    """The converter of a stream that has its columns, which ``covers`` are if a registry has them.

    In a ``preview`` the tables that appear by `route_table` appear for no other process. Raises ConfigError.
    """
    memory_bytes = settings.writer.memory_bytes
    limits = ExplodeLimits(MemoryShares.divided(memory_bytes).poll, 4 * memory_bytes)
    inputs = record_inputs(stream, passes, schemas or schemas_of(settings), covers)
    return converter_of(stream, inputs, limits, appearing=route_registry_of(settings, stream, preview=preview))


def converters_of(
    settings: Settings,
    passes: ConverterParts = PYTHON_PASSES,
    metrics: Metrics | None = None,
    look_ups: LookUps | None = None,
    unsuitable_topics: Collection[str] = frozenset(),
    *,
    stopping: Stopping = NEVER_STOPPING,
    preview: bool = False,
) -> list[AnyConverter]:
    """The streams' converters. Raises the ConfigError of the first stream that cannot work.

    ``metrics``, ``look_ups``, ``unsuitable_topics`` and ``stopping`` are passed to topologies, ``preview`` to the
    others.
    """
    schemas = schemas_of(settings)
    converters: list[AnyConverter] = []
    for index, stream in enumerate(settings.streams):
        try:
            if stream.record.columns_from is not None:
                converters.append(pending(stream))
            elif stream.topology is None:
                converters.append(plain_converter(settings, passes, stream, schemas=schemas, preview=preview))
            else:
                from stage_writer.tasks.wiring import topology_converter  # noqa: PLC0415 - see there

                converters.append(
                    topology_converter(
                        settings,
                        stream,
                        passes.json,
                        metrics=metrics,
                        look_ups=look_ups,
                        unsuitable_topics=unsuitable_topics,
                        stopping=stopping,
                    )
                )
        except ConfigError as error:
            raise type(error)(f"streams[{index}] ({stream.app_id}): {error.problem}", error.remedy) from error
    return converters


def with_topologies(converters: Iterable[AnyConverter]) -> list[AnyTopologyConverter]:
    return [
        cast("AnyTopologyConverter", converter) for converter in converters if converter.stream.topology is not None
    ]
