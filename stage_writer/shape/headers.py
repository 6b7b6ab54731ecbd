"""Messages' headers as a column of the table, and as the map that expressions see.

Rules:

1. Whole columns at a time: a key is checked to be UTF-8 by one cast of all of them. Only when that fails, messages are
   checked one by one.
2. A message with a header whose key is not UTF-8 is refused where its headers are used: a STRING cannot hold it.
3. A message without headers has null, as with Spark's Kafka source.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from stage_writer.decode.batch import HEADERS, Index, Messages
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.shape.rows import Rows

_NOT_UTF8 = "the key of a header is not UTF-8"
HEADER_MAP = pa.map_(pa.string(), pa.binary())


def with_readable_headers(rows: Rows, messages: Messages) -> Rows:
    """The rows of messages whose headers' keys are UTF-8 (rule 2)."""
    headers = _headers(messages, rows.index)
    if _is_text(headers):
        return rows
    failing = np.zeros(len(rows), np.bool_)
    for row, header_map in enumerate(headers):
        failing[row] = not _is_text(pa.array([header_map.as_py()], HEADERS))
    failed = np.unique(rows.index[failing]).tolist()
    return rows.without(failing, (Reject(index, ErrorClass.INVALID_UTF8, _NOT_UTF8) for index in failed))


def headers_as(arrow_type: pa.ListType, messages: Messages, index: Index) -> pa.ListArray:
    """The headers of some messages, whose keys are UTF-8; ``arrow_type`` is a list of pairs of text and bytes."""
    headers = _headers(messages, index)
    keys, values = _keys(headers).cast(pa.string()), headers.values.field(1)
    pairs = pa.StructArray.from_arrays([keys, values], fields=list(arrow_type.value_type))
    return _with_pairs(arrow_type, headers, pairs)


def header_maps(messages: Messages, index: Index) -> pa.MapArray:
    """The headers of some messages by key, the last one of those with the same key; the keys are UTF-8."""
    headers = _headers(messages, index)
    keys, pairs = _keys(headers), headers.flatten()
    of_message = pc.list_parent_indices(headers).to_numpy()
    codes = pairs.field(0).dictionary_encode()
    distinct = np.unique(of_message * max(1, len(codes.dictionary)) + codes.indices.to_numpy())
    if len(distinct) == len(pairs):
        entries = pa.StructArray.from_arrays(
            [keys.cast(pa.string()), headers.values.field(1)],
            fields=[pa.field("key", pa.string(), nullable=False), pa.field("value", pa.binary())],
        )
        return _with_pairs(HEADER_MAP, headers, entries)
    maps = [
        None
        if row_headers is None
        else list({header["key"].decode(): header["value"] for header in row_headers}.items())
        for row_headers in headers.to_pylist()
    ]
    return pa.array(maps, HEADER_MAP)


def _with_pairs(arrow_type: pa.DataType, headers: pa.ListArray, pairs: pa.StructArray) -> pa.Array:
    buffers = headers.buffers()[:2]
    return pa.Array.from_buffers(arrow_type, len(headers), buffers, offset=headers.offset, children=[pairs])


def _headers(messages: Messages, index: Index) -> pa.ListArray:
    if messages.headers is None:
        return pa.nulls(len(index), HEADERS)
    return messages.headers.take(pa.array(index))


def _keys(headers: pa.ListArray) -> pa.BinaryArray:
    return headers.values.field(0)


def _is_text(headers: pa.ListArray) -> bool:
    try:
        _keys(headers).cast(pa.string())
    except pa.ArrowInvalid:
        return False
    return True
