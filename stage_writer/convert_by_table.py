"""The conversion of a stream whose tables have different columns.

    fields that expressions name ─► where ─► route ─► expect ─► for each table: its messages, as a stream of its own
         └─ rejects                  └──────────┴─────────┴──────────────────────┴─► the dead-letter table's rows

Rules:

1. The stream's `columns` say what `where`, `route` and `expect` see, and only the fields that these name are decoded
   for them: the rest of a record has to match the columns of its own tables, and of no other one.
2. The messages of a table are then decoded by its own columns, and go through its own settings. Tables with the same
   columns and settings are converted together.
3. A message that any of its tables refuses is refused as a whole, and further rows, over all tables, are counted.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from stage_writer.choice import RecordChoice
from stage_writer.convert import (
    RecordPipeline,
    dead_letters_format,
    require_can_partition,
    rows_format,
)
from stage_writer.layers import NO_INPUTS, RecordInputs
from stage_writer.shape.outcome import Part, staged_of, together
from stage_writer.shape.route import parted
from stage_writer.shape.slicing import WithoutTasks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from common.schema import StructType
    from common.settings import Stream
    from stage_writer.decode.batch import MessageBatch, Messages
    from stage_writer.decode.dependency import Dependency
    from stage_writer.decode.rejects import Reject
    from stage_writer.parquet.buffer import StagedRows, TableFormat
    from stage_writer.shape.rows import Rows
    from stage_writer.shape.slicing import Staged

    Index = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Group:
    """Tables with the same columns, made by the same settings."""

    name: str
    """The key of the settings of its first table; empty for the stream's own."""
    pipeline: RecordPipeline
    wanted: NDArray[np.bool_]
    """Which tables, by their numbers, are in it."""


class TablesConverter(WithoutTasks):
    """A `stage_writer.ports.Converter`. Raises SchemaError and ExpressionError for an invalid stream."""

    def __init__(self, stream: Stream, inputs: RecordInputs = NO_INPUTS) -> None:
        self.stream = stream
        self._choice = RecordChoice(stream, inputs)
        self._groups: list[_Group] = []
        urls = stream.row_tables
        formats: list[TableFormat] = []
        by_settings: dict[str, _Group] = {}
        for number, url in enumerate(urls):
            own = alone(stream.at(url))
            group = by_settings.get(_settings_of(own))
            if group is None:
                key = stream.key_of(url, "columns").removeprefix("streams[].").removesuffix("columns").rstrip(".")
                pipeline = RecordPipeline(own, inputs)
                group = _Group(key, pipeline, np.zeros(len(urls), np.bool_))
                by_settings[_settings_of(own)] = group
            group.wanted[number] = True
            formats.append(rows_format(own, group.pipeline.columns))
            require_can_partition(formats[-1])
        self._groups = list(by_settings.values())
        self._row_formats = tuple(formats)
        self.formats = (self._row_formats[0], dead_letters_format(stream))
        """The stream's main table, and the one for dead letters. The others appear with their rows."""

    @property
    def all_formats(self) -> tuple[TableFormat, ...]:
        return (*self._row_formats, self.formats[1])

    @property
    def needs_headers(self) -> bool:
        return self._choice.needs_headers or any(group.pipeline.needs_headers for group in self._groups)

    def waits(self, batch: MessageBatch) -> Dependency | None:
        """What must be available before this batch can be converted: the types of its messages' schemas."""
        return self._groups[0].pipeline.waits(batch)

    def at(self, gained: StructType) -> TablesConverter:  # noqa: ARG002 - the port's
        """Tables with columns of their own gain none."""
        return self

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[Staged]:
        """The batches with their rows, in one slice."""
        return self._choice.slices(batches, self._staged)

    def _staged(self, messages: Messages, chosen: Rows, tombstones: Index) -> list[StagedRows]:
        arrived: list[tuple[int, Part]] = []
        rejects, without_rows, filtered = list(chosen.rejects), [tombstones], [chosen.filtered]
        for group in self._groups:
            if chosen.tables is None:
                continue
            picked, tables = chosen.tables.among(group.wanted, chosen.index)
            if len(picked) == 0:
                continue
            begun = group.pipeline.begin(messages.taken(picked))
            rows = replace(group.pipeline.finish(begun), tables=tables)
            arrived += [(number, Part(picked[index], part)) for number, part, index in parted(rows)]
            rejects += [_placed(reject, picked, group.name) for reject in rows.rejects]
            without_rows.append(picked[begun.tombstones])
            filtered.append(picked[rows.filtered])
        gone = np.unique(np.concatenate(without_rows))
        outcome = together(arrived, rejects, gone, len(messages), np.unique(np.concatenate(filtered)))
        outcome = replace(outcome, violations=chosen.violations)
        return staged_of(messages, outcome, self._row_formats, self.formats[1])


def _placed(reject: Reject, picked: Index, group: str) -> Reject:
    error = f"{reject.error} (in {group})" if group else reject.error
    return replace(reject, index=int(picked[reject.index]), error=error)


def alone(stream: Stream) -> Stream:
    """The stream without what `RecordChoice` has done, and with its main table only."""
    done: dict[str, object] = {
        "where": None,
        "route": None,
        "expect": {},
        "route_settings": {},
        "route_tables": {},
        "other_tables": (),
    }
    return stream.model_copy(update=done)


def _settings_of(stream: Stream) -> str:
    """The settings that make a table's columns of a message: streams that differ in none of them convert alike."""
    making = (
        stream.record.columns,
        stream.shaping.derive,
        stream.shaping.drop,
        stream.shaping.rename,
        stream.shaping.field_names,
        stream.record.formats,
        stream.record.jmespath,
        stream.staged_identity,
    )
    return repr(making)
