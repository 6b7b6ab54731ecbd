"""Adds each row's position in Kafka, for a stream whose table does not have it: see `common.stage.row_places`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.stage.row_places import place_fields
from stage_writer.shape.outcome import kafka_columns_of

if TYPE_CHECKING:
    from common.schema import StructType
    from common.stage.row_places import Place
    from stage_writer.decode.batch import Messages
    from stage_writer.shape.rows import Rows


class Places:
    """Adds the columns: the last `Step` of such a stream."""

    needs_headers = False

    def __init__(self, columns: StructType, place: Place) -> None:
        self._place = place
        self.columns = columns.with_fields(place_fields(place))

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        table = rows.table
        for name, column in zip(self._place, kafka_columns_of(messages, rows.index)[:3], strict=True):
            table = table.append_column(name, column)
        return rows.with_table(table)
