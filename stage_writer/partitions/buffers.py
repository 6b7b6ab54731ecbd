"""New buffers: the columns that they get or lack, and the size that their rows are expected to have as Parquet."""

from dataclasses import replace

from common.schema import StructType
from common.spans import Position
from common.stage.markers import MarkerName
from stage_writer.decode.dependency import Dependency
from stage_writer.parquet.buffer import INITIAL_RATIO, Buffer, FilePolicy
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import Converter
from stage_writer.schemas import Schemas


class Buffers:
    def __init__(self, file_policy: FilePolicy, schemas: Schemas) -> None:
        self._file_policy = file_policy
        self._schemas = schemas
        self._compression: dict[str, float] = {}
        """By stream, Parquet bytes per byte in Arrow, as of its last flush."""

    def new(self, start: Position, converter: Converter) -> Buffer:
        stream = converter.stream
        ratio = self._compression.get(stream.app_id, INITIAL_RATIO)
        file_policy = (
            self._file_policy
            if stream.pace.compression is None
            else replace(self._file_policy, codec=stream.pace.compression)
        )
        return Buffer.begin(start, converter.formats, file_policy, ratio)

    def begin_next(self, assigned: AssignedPartition) -> None:
        """Give a partition whose buffer is being flushed the next one, with the newest columns if possible."""
        if (
            assigned.taken <= assigned.buffer.end
        ):  # otherwise rows with the old columns are on their way into the next buffer
            assigned.converter = self._schemas.newest(assigned.converter)
        assigned.buffer = self.new(assigned.buffer.end, assigned.converter)

    def refresh(self, assigned: AssignedPartition) -> None:
        """Give a partition that holds no rows yet the newest columns for those to come."""
        is_idle = assigned.buffer.is_empty and assigned.taken <= assigned.buffer.end
        if is_idle and self._schemas.newest(assigned.converter) is not assigned.converter:
            self.begin_next(assigned)

    def dependency_of(self, assigned: AssignedPartition, offered: StructType) -> Dependency | None:
        """What rows of a partition with these further fields wait for before they are buffered, if anything."""
        marker = MarkerName(assigned.partition, assigned.buffer.end).path  # their buffer is the next one
        return self._schemas.waits(assigned.converter, offered, marker)

    def flushed(self, app_id: str, arrow_bytes: int, parquet_bytes: int) -> None:
        """A flush of the stream had these sizes."""
        if arrow_bytes:
            self._compression[app_id] = parquet_bytes / arrow_bytes
