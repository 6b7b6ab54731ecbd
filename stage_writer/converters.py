"""The converters of a writer's streams, each made for the settings of its stream."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from common.errors import ConfigError
from stage_writer.columns.wiring import pending
from stage_writer.convert_by_table import RecordConverter, converter_of
from stage_writer.decode.binary.avro import no_avro_pass
from stage_writer.decode.first_pass import no_first_pass
from stage_writer.fetch.record_inputs import record_inputs
from stage_writer.fetch.schema_registry import schemas_of
from stage_writer.memory_shares import MemoryShares
from stage_writer.shape.slicing import ExplodeLimits
from stage_writer.stage.route_book import book_of
from stage_writer.stopping import NEVER_STOPPING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from common.metrics import Metrics
    from common.settings import Settings, Stream
    from stage_writer.columns.following import PendingConverter
    from stage_writer.decode.binary.avro import MakeAvroPass
    from stage_writer.decode.envelopes.framing import Covers
    from stage_writer.decode.first_pass import MakeFirstPass
    from stage_writer.fetch.schema_registry import SchemaRegistry
    from stage_writer.stopping import Stopping
    from stage_writer.tasks.look_ups import LookUps
    from stage_writer.tasks.wiring import ConvertsTopology

    # What a writer converts with, by the settings of each stream.
    AnyConverter = RecordConverter | PendingConverter | ConvertsTopology


@dataclass(frozen=True, slots=True)
class Passes:
    """The first passes over records that the native library has, or those without one."""

    json: MakeFirstPass = no_first_pass
    avro: MakeAvroPass = no_avro_pass


PYTHON_PASSES = Passes()


def plain_converter(
    settings: Settings,
    passes: Passes,
    stream: Stream,
    covers: Covers | None = None,
    *,
    schemas: SchemaRegistry | None = None,
    preview: bool = False,
) -> RecordConverter:
    """The converter of a stream that has its columns, which ``covers`` are if a registry has them.

    In a ``preview`` the tables that appear by `route_table` appear for no other process. Raises ConfigError.
    """
    memory_bytes = settings.writer.memory_bytes
    limits = ExplodeLimits(MemoryShares.of(memory_bytes).poll, 4 * memory_bytes)
    inputs, schemas = record_inputs(stream, passes.avro), schemas or schemas_of(settings)
    inputs = replace(inputs, covers=covers)
    book = book_of(settings, stream, preview=preview)
    return converter_of(stream, schemas, passes.json, inputs, limits, appearing=book)


def converters_of(
    settings: Settings,
    passes: Passes = PYTHON_PASSES,
    metrics: Metrics | None = None,
    look_ups: LookUps | None = None,
    unfit_topics: Collection[str] = frozenset(),
    *,
    stopping: Stopping = NEVER_STOPPING,
    preview: bool = False,
) -> list[AnyConverter]:
    """The streams' converters. Raises the ConfigError of the first stream that cannot work.

    ``metrics``, ``look_ups``, ``unfit_topics`` and ``stopping`` are passed to topologies, ``preview`` to the others.
    """
    schemas = schemas_of(settings)
    converters: list[AnyConverter] = []
    for index, stream in enumerate(settings.streams):
        try:
            if stream.columns_from is not None:
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
                        unfit_topics=unfit_topics,
                        stopping=stopping,
                    )
                )
        except ConfigError as error:
            msg = f"streams[{index}] ({stream.app_id}): {error.problem}"
            raise type(error)(msg, error.remedy) from error
    return converters


def with_topologies(converters: Iterable[AnyConverter]) -> list[ConvertsTopology]:
    return [cast("ConvertsTopology", converter) for converter in converters if converter.stream.topology is not None]
