"""A column of maps out of JSON objects, many messages at once: what `pyarrow.json` cannot read.

DuckDB takes the object apart, into its keys and the texts of its values, and the values are read as documents of their
own. Rules:

1. Only for maps at the top whose values hold no FLOAT, DOUBLE, DECIMAL, epoch or further map: DuckDB writes a number
   anew when it gives its text (``1.10`` as ``1.1``, ``-0`` as ``0``), which changes no integer, but the others.
2. The messages are each known to be one object; a key or the column given twice makes a message suspect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import ArrayType, DataType, DecimalType, Field, MapType, Primitive, StructType, to_arrow_type
from common.settings.formats import Forms
from stage_writer.core.conversions import Converted
from stage_writer.core.documents import DocumentReader, Unreadable, json_pointer, sql_text
from stage_writer.core.reading import Reading

if TYPE_CHECKING:
    import duckdb

_VALUE = "v"


def reads_map(data_type: DataType, reading: Reading) -> TypeGuard[MapType]:
    """Whether `MapReader` can read a column of this type."""
    return isinstance(data_type, MapType) and _keeps_its_text(data_type.value, reading.at("value"))


def _keeps_its_text(data_type: DataType, reading: Reading) -> bool:
    match data_type:
        case Primitive.FLOAT | Primitive.DOUBLE | DecimalType() | MapType():
            return False
        case ArrayType(element):
            return _keeps_its_text(element, reading.at("element"))
        case StructType(fields):
            return all(_keeps_its_text(field.type, reading.at(field.name)) for field in fields)
        case _:
            return reading.epoch_decimals is None


class MapReader:
    """Reads one column of maps. The column's type is one that `reads_map` takes."""

    def __init__(self, name: str, data_type: MapType, connection: duckdb.DuckDBPyConnection, reading: Reading) -> None:
        self._type = to_arrow_type(data_type)
        self._connection = connection
        value = StructType((Field(_VALUE, data_type.value, data_type.value_contains_null),))
        values = Reading(Forms(inner={_VALUE: reading.at("value").forms}), reading.lenient)
        self._values = DocumentReader(value, connection, values)
        found = f"json_extract(message, {sql_text(json_pointer(name))})"
        self._parts = (
            f"json_type({found}) AS kind, json_keys({found}) AS keys, json_extract({found}, '$.*') AS texts, "
            f"len(json_keys({found})) <> len(list_distinct(json_keys({found}))) AS repeated, "
            f"len(list_filter(json_keys(message), lambda name: name = {sql_text(name)})) > 1 AS twice"
        )

    def read(self, texts: pa.StringArray) -> Converted | Unreadable:
        """The column of messages of which each is one object."""
        relation = self._connection.from_arrow(pa.table({"message": texts})).project(self._parts)
        parts = relation.to_arrow_table().combine_chunks()
        kinds = pc.fill_null(parts["kind"].combine_chunks(), "NULL")
        null = pc.equal(kinds, "NULL").to_numpy(zero_copy_only=False)
        maps = pc.equal(kinds, "OBJECT").to_numpy(zero_copy_only=False)
        twice = pc.or_(pc.fill_null(parts["repeated"], fill_value=False), parts["twice"])
        suspects = ~(null | maps) | twice.to_numpy()
        keys = pc.if_else(pa.array(maps), parts["keys"].combine_chunks(), None)
        values = pc.if_else(pa.array(maps), parts["texts"].combine_chunks(), None)
        lengths = pc.fill_null(pc.list_value_length(keys), 0).to_numpy(zero_copy_only=False)
        if not np.array_equal(lengths, pc.fill_null(pc.list_value_length(values), 0).to_numpy(zero_copy_only=False)):
            return Unreadable(None)
        offsets = np.concatenate((np.zeros(1, np.int64), np.cumsum(lengths)))
        items = self._values.read(pc.binary_join_element_wise(f'{{"{_VALUE}":', values.flatten(), "}", ""))
        if isinstance(items, Unreadable):
            row = None if items.row is None else int(np.searchsorted(offsets, items.row, side="right")) - 1
            return Unreadable(row)
        if items.suspects is not None:
            suspects[np.repeat(np.arange(len(texts)), lengths)[items.suspects]] = True
        starts = pa.array(offsets.astype(np.int32))
        column = pa.MapArray.from_arrays(
            starts, keys.flatten(), items.array.field(_VALUE), type=self._type, mask=pa.array(~maps)
        )
        return Converted(column, suspects if suspects.any() else None)
