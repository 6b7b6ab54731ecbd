"""The conversion of a stream without a topology: by one of two converters."""

from common.settings import Stream
from stage_writer.convert import StreamConverter
from stage_writer.convert_by_table import TablesConverter
from stage_writer.layers import NO_INPUTS, RecordInputs
from stage_writer.shape.route import AppearingRoutes
from stage_writer.shape.slicing import ExplodeLimits

RecordConverter = StreamConverter | TablesConverter


def converter_of(
    stream: Stream,
    inputs: RecordInputs = NO_INPUTS,
    limits: ExplodeLimits = ExplodeLimits(),  # noqa: B008 - frozen
    *,
    appearing: AppearingRoutes | None = None,
) -> RecordConverter:
    """The conversion of a stream; ``appearing`` are the routes of one with a `route_table`.

    Raises SchemaError and ExpressionError for an invalid stream.
    """
    if stream.has_several_columns or stream.record.has_own_columns:
        return TablesConverter(stream, inputs, limits=limits, appearing=appearing)
    return StreamConverter(stream, inputs, limits=limits, appearing=appearing)
