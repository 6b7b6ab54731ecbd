"""From the types that `pyarrow.json` reads without loss to the columns' types, whole arrays at a time.

Rules:

1. `reading_type` is the Arrow type under which no value of a Delta type can be changed silently: integers as 64 bits,
   FLOAT as a double, DECIMAL in 256 bits (Arrow scales one of 128 bits without an overflow check), dates, times and
   binary as their text, times that are epochs as decimals, MAP as the list of its entries.
2. `convert` never raises for a value. It returns the column in its type, and which entries are *suspect*: those are
   read again by the strict decoder, so a false suspicion only costs time, and a missed one would be a bug.
3. A suspect entry's value is unspecified; the caller drops it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, assert_never

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import (
    INTEGER_BITS,
    ArrayType,
    DataType,
    DecimalType,
    MapType,
    Primitive,
    StructType,
    to_arrow_field,
    to_arrow_type,
)
from common.settings.formats import ValueFormat
from stage_writer.decode.reading import STRICT, Reading
from stage_writer.decode.text_binary import from_base64, from_hex
from stage_writer.decode.text_times import END_US, FIRST_US, dates, timestamps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Mask = NDArray[np.bool_]

_TEXTS = (Primitive.BINARY, Primitive.DATE, Primitive.TIMESTAMP, Primitive.TIMESTAMP_NTZ)
_DECIMAL_DIGITS = 38
KEY, VALUE = "key", "value"
"""The names of an entry's parts where maps are read as lists of entries."""


@dataclass(frozen=True, slots=True)
class Converted:
    """A column in its type, and the mask of its suspect entries; None when there are none."""

    array: pa.Array
    suspects: Mask | None


def holds_map(data_type: DataType) -> bool:
    """Whether the type contains a map, at any depth."""
    match data_type:
        case MapType():
            return True
        case ArrayType(element):
            return holds_map(element)
        case StructType(fields):
            return any(holds_map(field.type) for field in fields)
        case _:
            return False


def holds_decimal(data_type: DataType, reading: Reading = STRICT) -> bool:
    """Whether anything in the type is read as a decimal, at any depth."""
    match data_type:
        case DecimalType():
            return True
        case ArrayType(element):
            return holds_decimal(element, reading.at("element"))
        case MapType(_, value):
            return holds_decimal(value, reading.at("value"))
        case StructType(fields):
            return any(holds_decimal(field.type, reading.at(field.name)) for field in fields)
        case _:
            return reading.epoch_decimals is not None


def reading_type(data_type: DataType, reading: Reading = STRICT) -> pa.DataType:  # noqa: PLR0911 - one for each kind
    """The Arrow type to read a Delta type's JSON as, after `rewriting` has rewritten maps."""
    match data_type:
        case Primitive.BYTE | Primitive.SHORT | Primitive.INTEGER:
            return pa.int64()
        case Primitive.FLOAT:
            return pa.float64()
        case Primitive() if reading.epoch_decimals is not None:
            return pa.decimal256(_DECIMAL_DIGITS, reading.epoch_decimals)
        case Primitive() if data_type in _TEXTS:
            return pa.string()
        case Primitive():
            return to_arrow_type(data_type)
        case DecimalType(_, scale):
            return pa.decimal256(_DECIMAL_DIGITS, scale)
        case ArrayType(element):
            return pa.list_(reading_type(element, reading.at("element")))
        case StructType(fields):
            return pa.struct([(field.name, reading_type(field.type, reading.at(field.name))) for field in fields])
        case MapType(_, value):
            entry = pa.struct([(KEY, pa.string()), (VALUE, reading_type(value, reading.at("value")))])
            return pa.list_(entry)
        case _:
            assert_never(data_type)


def convert(array: pa.Array, data_type: DataType, reading: Reading = STRICT) -> Converted:
    """The array as a column of ``data_type``."""
    match data_type:
        case Primitive():
            return _convert_primitive(array, data_type, reading)
        case DecimalType():
            return _convert_decimal(array, data_type)
        case ArrayType():
            return _convert_list(array, data_type, reading.at("element"))
        case StructType():
            return convert_struct(array, data_type, reading)
        case MapType():
            return _convert_map(array, data_type, reading.at("value"))
        case _:
            assert_never(data_type)


def _convert_primitive(array: pa.Array, data_type: Primitive, reading: Reading) -> Converted:  # noqa: PLR0911
    if reading.epoch_decimals is not None:
        return _convert_epoch(array, data_type)
    match data_type:
        case Primitive.BYTE | Primitive.SHORT | Primitive.INTEGER:
            return _narrow(array, data_type)
        case Primitive.FLOAT | Primitive.DOUBLE:
            values = pc.cast(array, to_arrow_type(data_type), safe=False)
            return Converted(values, _mask(pc.invert(pc.is_finite(values))))
        case Primitive.BINARY:
            values, suspects = (from_hex if reading.format is ValueFormat.HEX else from_base64)(array)
            return Converted(values, _some(suspects))
        case Primitive.DATE:
            values, suspects = dates(array)
            return Converted(values, _some(suspects))
        case Primitive.TIMESTAMP | Primitive.TIMESTAMP_NTZ:
            values, suspects = timestamps(array, with_zone=data_type is Primitive.TIMESTAMP)
            return Converted(values, _some(suspects))
        case _:
            return Converted(array, None)


def _some(mask: Mask) -> Mask | None:
    return mask if mask.any() else None


def _mask(condition: pa.BooleanArray) -> Mask | None:
    """A condition as a mask: null means no."""
    if not pc.any(condition).as_py():
        return None
    mask: Mask = pc.fill_null(condition, fill_value=False).to_numpy(zero_copy_only=False)
    return mask


def _or(left: Mask | None, right: Mask | None) -> Mask | None:
    if left is None or right is None:
        return right if left is None else left
    return left | right


def _narrow(array: pa.Int64Array, data_type: Primitive) -> Converted:
    bounds = pc.min_max(array).as_py()
    limit = 1 << (INTEGER_BITS[data_type] - 1)
    narrow = pc.cast(array, to_arrow_type(data_type), safe=False)
    if bounds["min"] is None or (bounds["min"] >= -limit and bounds["max"] < limit):
        return Converted(narrow, None)
    return Converted(narrow, _mask(pc.or_(pc.less(array, -limit), pc.greater_equal(array, limit))))


def _convert_decimal(array: pa.Decimal256Array, data_type: DecimalType) -> Converted:
    # Arrow reads up to 38 digits, at any scale, without checking the type's precision.
    nines = "9" * data_type.precision
    split = data_type.precision - data_type.scale
    limit = pa.scalar(f"{nines[:split]}.{nines[split:]}").cast(array.type)
    least = pa.scalar(f"-{nines[:split]}.{nines[split:]}").cast(array.type)
    suspects = _mask(pc.or_(pc.less(array, least), pc.greater(array, limit)))
    if suspects is not None:
        array = pc.if_else(pa.array(~suspects), array, pa.scalar(None, array.type))
    return Converted(pc.cast(array, to_arrow_type(data_type)), suspects)


def _convert_epoch(array: pa.Decimal256Array, data_type: Primitive) -> Converted:
    """The scale is such that the digits without their point are microseconds."""
    words = np.frombuffer(array.buffers()[1], np.int64).reshape(-1, 4)[array.offset : array.offset + len(array)]
    microseconds = words[:, 0]
    outside = (
        (microseconds < FIRST_US) | (microseconds >= END_US) | (words[:, 1:] != (microseconds >> 63)[:, None]).any(1)
    )
    nulls = array.is_null().to_numpy(zero_copy_only=False)
    values = pa.array(np.where(nulls, 0, microseconds), pa.int64(), mask=nulls)
    return Converted(values.view(to_arrow_type(data_type)), _some(outside & ~nulls))


def _offsets(lengths: NDArray[np.integer]) -> NDArray[np.int32]:
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets.astype(np.int32)


def _convert_list(array: pa.ListArray, data_type: ArrayType, reading: Reading) -> Converted:
    values = array.flatten()
    element = convert(values, data_type.element, reading)
    inner = element.suspects
    if not data_type.contains_null and values.null_count:
        inner = _or(inner, _mask(values.is_null()))
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    suspects = None
    if inner is not None:
        parents = pc.list_parent_indices(array).to_numpy()
        suspects = np.zeros(len(array), np.bool_)
        suspects[parents[inner]] = True
    rebuilt = pa.ListArray.from_arrays(
        pa.array(_offsets(lengths)), element.array, type=to_arrow_type(data_type), mask=array.is_null()
    )
    return Converted(rebuilt, suspects)


def _convert_map(array: pa.ListArray, data_type: MapType, reading: Reading) -> Converted:
    entries = array.flatten()
    keys, values = entries.field(KEY), entries.field(VALUE)
    items = convert(values, data_type.value, reading)
    parents = pc.list_parent_indices(array).to_numpy()
    inner = _or(items.suspects, _repeated(parents, keys))
    if not data_type.value_contains_null and values.null_count:
        inner = _or(inner, _mask(values.is_null()))
    suspects = None
    if inner is not None:
        suspects = np.zeros(len(array), np.bool_)
        suspects[parents[inner]] = True
    lengths = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
    starts = pa.array(_offsets(lengths))
    maps = pa.MapArray.from_arrays(
        starts, keys, items.array, type=to_arrow_type(data_type), mask=array.is_null() if array.null_count else None
    )
    return Converted(maps, suspects)


def _repeated(parents: NDArray[np.int64], keys: pa.StringArray) -> Mask | None:
    """Which entries have a duplicate key in their map."""
    encoded = keys.dictionary_encode()
    codes = encoded.indices.to_numpy().astype(np.int64)
    pairs = parents * len(encoded.dictionary) + codes
    ordered = np.sort(pairs)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    return np.isin(pairs, twice) if len(twice) else None


def convert_struct(array: pa.StructArray, data_type: StructType, reading: Reading = STRICT) -> Converted:
    """The same for structs; where the parent is null, so are its parts, and none counts as missing."""
    parts: list[pa.Array] = []
    suspects: Mask | None = None
    for field, part in zip(data_type, array.flatten(), strict=True):
        converted = convert(part, field.type, reading.at(field.name))
        suspects = _or(suspects, converted.suspects)
        if not field.nullable and part.null_count:
            suspects = _or(suspects, _mask(pc.and_(part.is_null(), array.is_valid())))
        parts.append(converted.array)
    fields = [to_arrow_field(field) for field in data_type]
    return Converted(pa.StructArray.from_arrays(parts, fields=fields, mask=array.is_null()), suspects)
