"""Converts columns to Python values, column by column: the input of record-wise processors.

Rules:

1. A value has the Python type for its column: int, float, bool, str, bytes, Decimal, date, datetime (a TIMESTAMP in
   UTC, a TIMESTAMP_NTZ without a zone), list, and dict for STRUCT and MAP. A source of plain JSON gives what `json`
   gives.
2. Conversions run per column rather than per value where possible: one time through Arrow costs two microseconds.
"""

from collections.abc import Iterator, Sequence
from datetime import UTC
from itertools import repeat
from typing import Any

import numpy as np
import pyarrow as pa

from stage_writer.decode.batch import NO_TIMESTAMP, Index
from stage_writer.decode.batch import Headers as KafkaHeaders
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.topologies.keys import any_json, key_decoder
from stage_writer.topologies.nodes import KeyType, SourceNode
from stage_writer.topologies.records import Headers, Key, Value
from stage_writer.topologies.task.inputs import Input


def values_of(column: pa.ChunkedArray) -> list[Any]:
    if not pa.types.is_timestamp(column.type):
        plain: list[Any] = column.to_pylist(maps_as_pydicts="strict")
        return plain
    naive: list[Any] = column.cast(pa.timestamp("us")).to_numpy().astype(object).tolist()
    if column.type.tz is None:
        return naive
    return [None if time is None else time.replace(tzinfo=UTC) for time in naive]


def dicts_of(table: pa.Table) -> Iterator[dict[str, Any]]:
    """The rows of a table, each made on demand: they need not all be in memory."""
    if not table.column_names:
        return iter([{} for _ in range(len(table))])
    columns = [values_of(column) for column in table.columns]
    return map(dict, map(zip, repeat(tuple(table.column_names)), zip(*columns)))  # noqa: B905 - of one table


class InputReader:
    """One input's keys, times and headers as Python values, and the messages with invalid ones."""

    def __init__(self, given: Input, source: SourceNode) -> None:
        self._input = given
        self.rejects: list[Reject] = []
        self.keys = self._read_keys(source.key)
        self.times_ms = self._read_times(source.timestamp)
        self._headers = None if given.headers is None else [_headers(header) for header in given.headers]
        self._documents = self._read_documents() if source.columns is None else None

    def values(self, rows: pa.Table, indexes: Index) -> Iterator[Value]:
        """The values of some messages, given by their indices here, whose columns are ``rows``."""
        if self._documents is not None:
            documents = self._documents
            return (documents[index] for index in indexes.tolist())
        values = dicts_of(rows)
        gone = self._input.is_null[indexes]
        if not gone.any():
            return values
        return (None if is_null else value for is_null, value in zip(gone.tolist(), values, strict=True))

    def headers(self, indexes: Sequence[int]) -> Iterator[Headers]:
        if self._headers is None:
            return repeat(())
        headers = self._headers
        return (headers[index] for index in indexes)

    def _refuse(self, index: int, error_class: ErrorClass, error: str) -> None:
        self.rejects.append(Reject(int(self._input.index[index]), error_class, error))

    def _read_keys(self, key: KeyType) -> list[Key]:
        keys = self._input.keys
        if key is KeyType.BINARY or keys.null_count == len(keys):
            return keys.to_pylist()  # type: ignore[no-any-return] # of a library without types
        if key is KeyType.STRING:
            try:
                return keys.cast(pa.string() if pa.types.is_binary(keys.type) else pa.large_string()).to_pylist()  # type: ignore[no-any-return] # the same
            except pa.ArrowInvalid:
                pass  # one of them is not UTF-8: found below
        decode = key_decoder(key)
        read_keys: list[Key] = []
        for index, data in enumerate(keys.to_pylist()):
            try:
                read_keys.append(None if data is None else decode(data))
            except ValueError as error:
                self._refuse(index, ErrorClass.UNREADABLE_KEY, f"the key is not a valid {key}: {error}")
                read_keys.append(None)
        return read_keys

    def _read_times(self, timestamp: str | None) -> list[int]:
        """The records' times; records without one are refused, because it is unknown which window they belong to."""
        given = self._input
        times = given.timestamps_ms
        known = times != NO_TIMESTAMP
        if timestamp is not None:
            column = given.rows[timestamp].combine_chunks()
            of_kafka = pa.types.is_timestamp(column.type)
            whole = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64()) if of_kafka else column
            known = column.is_valid().to_numpy(zero_copy_only=False)
            times_read = whole.fill_null(0).to_numpy()
            times = times_read // 1000 if of_kafka else times_read
            # A tombstone has no columns: its time is Kafka's.
            times = np.where(given.is_null, given.timestamps_ms, times)
            known = np.where(given.is_null, given.timestamps_ms != NO_TIMESTAMP, known)
        bad = ~known | (times < 0)
        what = (
            "its Kafka timestamp is missing, or outside the years 1970 to 9999"
            if timestamp is None
            else f"its time, `{timestamp}`, is null or before 1970"
        )
        for index in np.flatnonzero(bad).tolist():
            self._refuse(index, ErrorClass.TOPOLOGY, what)
        listed: list[int] = times.tolist()
        return listed

    def _read_documents(self) -> list[Value]:
        documents: list[Value] = []
        for index, data in enumerate(self._input.rows.column(0).to_pylist()):
            try:
                documents.append(None if data is None else any_json(_text(data)))
            except ValueError as error:
                self._refuse(index, ErrorClass.INVALID_JSON, f"the value is not a JSON document: {error}")
                documents.append(None)
        return documents


def _text(data: bytes | str) -> str:
    return data if isinstance(data, str) else data.decode("utf-8")


def _headers(headers: KafkaHeaders | None) -> Headers:
    return tuple(headers or ())
