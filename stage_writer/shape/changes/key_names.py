"""The columns that message keys, or fields of events, name: a table's keys, where settings leave them to its events.

Rules:

1. A message key names columns if it is a JSON object, also inside Connect's ``{"schema": …, "payload": …}``: the names
   of its fields, in their order.
2. Each event of a table has the same names in its key, none of them null. Otherwise the source's key has changed, and
   to merge the event by the table's keys could overwrite another row.
3. The events of some envelopes (`KEY_NAMES`) have the names in a field of their own, an array; message keys then do not
   matter. A message that changes no row has no names to compare.
"""

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from common.schema import ArrayType, Field, Primitive, StructType
from common.settings.formats import Forms, ValueFormat
from common.tables.changes import RESERVED
from stage_writer.decode.batch import Mask
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import DecodeOptions, MakeNativeDecoder, no_native_decoder
from stage_writer.decode.json_document import Object, json_text, parse_document

_SCHEMA, _PAYLOAD = "schema", "payload"
_REST = f"{RESERVED}rest"
_SEPARATOR = "\0"


def key_object(key: bytes | None) -> Object | None:
    """The object with the key's fields (rule 1), or None."""
    try:
        document = parse_document((key or b"").decode(), sourced=True)
    except ValueError:
        return None
    if not isinstance(document, Object):
        return None
    members = dict(document)
    if members.keys() == {_SCHEMA, _PAYLOAD}:
        inner = members[_PAYLOAD]
        return inner if isinstance(inner, Object) else None
    return document


def names_in(key: bytes | None) -> tuple[str, ...]:
    """The columns that a message key names; none where it names none."""
    fields = key_object(key)
    return () if fields is None else tuple(dict.fromkeys(name for name, _ in fields))


def text_of(key: bytes | None) -> str | None:
    """The JSON of the object with the key's fields."""
    fields = key_object(key)
    return None if fields is None else json_text(fields)


class EventKeyNames:
    """The names in a field of each event (rule 3). Not thread-safe."""

    def __init__(self, field: str, native_decoder: MakeNativeDecoder = no_native_decoder) -> None:
        self.field = field
        columns = StructType((Field(field, ArrayType(Primitive.STRING)),))
        self._decoder = Decoder(columns, native_decoder=native_decoder)

    def first(self, events: pa.BinaryArray) -> tuple[str, ...]:
        """The names in the first of these that has any."""
        _, names = self._decoded(events)
        return next((tuple(filter(None, each)) for each in names.to_pylist() if each), ())

    def differ(self, events: pa.BinaryArray, wanted: Sequence[str]) -> Mask:
        """Which of these events name other columns, or none."""
        differing = np.ones(len(events), np.bool_)
        index, names = self._decoded(events)
        texts = pc.binary_join(pc.fill_null(names, []), _SEPARATOR)
        same = [text for text in pc.unique(texts).to_pylist() if text and set(text.split(_SEPARATOR)) == set(wanted)]
        is_same = pc.is_in(texts, value_set=pa.array(same, pa.string()))
        differing[index[is_same.to_numpy(zero_copy_only=False)]] = False
        return differing

    def _decoded(self, events: pa.BinaryArray) -> tuple[NDArray[np.int64], pa.ListArray]:
        decoded = self._decoder.decode(events)
        return decoded.row_index, decoded.rows[self.field].combine_chunks()


class KeyNames:
    """Finds message keys with other names than a table's keys (rule 2). Not thread-safe."""

    def __init__(self, names: Sequence[str]) -> None:
        columns = StructType(tuple(Field(name, Primitive.STRING) for name in names))
        forms = Forms(None, {name: Forms(ValueFormat.JSON) for name in names})
        self._plain = Decoder(columns, DecodeOptions(forms), rescue_column=_REST)
        of_wrapper = StructType((Field(_SCHEMA, Primitive.STRING), Field(_PAYLOAD, Primitive.STRING)))
        as_text = Forms(None, {_SCHEMA: Forms(ValueFormat.JSON), _PAYLOAD: Forms(ValueFormat.JSON)})
        self._others = Decoder(of_wrapper, DecodeOptions(as_text), rescue_column=_REST)
        wrapped = DecodeOptions(Forms(None, {_PAYLOAD: forms}))
        self._wrapped = Decoder(StructType((Field(_PAYLOAD, columns),)), wrapped, rescue_column=_REST)

    def differ(self, keys: pa.BinaryArray) -> Mask:
        """Which of these keys have other names, or a null."""
        differing = np.ones(len(keys), np.bool_)
        if not len(keys):
            return differing
        sent = pc.fill_null(keys.cast(pa.large_binary()), b"")
        decoded = self._plain.decode(sent)
        rows = decoded.rows
        same = _all_given(pa.Table.from_arrays(rows.columns[:-1], rows.column_names[:-1]), len(rows))
        same &= rows[_REST].is_null().to_numpy(zero_copy_only=False) if len(rows) else same
        differing[decoded.row_index[same]] = False
        left = np.flatnonzero(differing)
        if len(left):
            differing[left] = self._differ_wrapped(sent.take(pa.array(left)))
        return differing

    def _differ_wrapped(self, sent: pa.LargeBinaryArray) -> Mask:
        differing = np.ones(len(sent), np.bool_)
        decoded = self._wrapped.decode(sent)
        if not len(decoded.rows):
            return differing
        payload = decoded.rows[_PAYLOAD].combine_chunks()
        fields = [pc.struct_field(payload, place) for place in range(payload.type.num_fields)]
        same = _all_given(pa.Table.from_arrays(fields, [str(place) for place in range(len(fields))]), len(payload))
        rest = decoded.rows[_REST]  # the schema, and what else is in the payload or next to it
        others = self._others.decode(pc.fill_null(rest, "{}").cast(pa.large_binary())).rows
        is_plain = pc.and_(rest.is_valid(), pc.and_(others[_PAYLOAD].is_null(), others[_REST].is_null()))
        same &= is_plain.to_numpy(zero_copy_only=False)
        differing[decoded.row_index[same]] = False
        return differing


def _all_given(table: pa.Table, count: int) -> Mask:
    given = np.ones(count, np.bool_)
    for column in table.columns:
        is_null = pc.or_kleene(column.is_null(), pc.equal(column, "null"))
        given &= ~is_null.to_numpy(zero_copy_only=False)
    return given
