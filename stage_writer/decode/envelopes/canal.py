"""Canal's flat messages: each object of `data` is a row of an INSERT, an UPDATE or a DELETE, in their order.

Rules:

1. Schema changes (`isDdl`, or a type of its own), statements without rows (QUERY) and markers of transactions and
   progress are passed over. A TRUNCATE is refused, also where it is the statement of a QUERY.
2. Canal sends every value as text, so values are read as with `coerce: lenient`.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import parse_ddl
from stage_writer.decode.batch import Index
from stage_writer.decode.decode import Decoded
from stage_writer.decode.envelopes.row_changes import (
    Images,
    Opened,
    about_of,
    column_of,
    is_object,
    is_one_of,
    mask_of,
    not_a_row_change,
    opened,
)
from stage_writer.decode.json_document import Object
from stage_writer.decode.rejects import ErrorClass, Refusal, truncated

_ROWS = ("INSERT", "UPDATE", "DELETE")
_TRUNCATE = "TRUNCATE"
_TRUNCATES = r"(?i)^\s*truncate\b"
_PASSED_OVER = (
    "ALTER",
    "CINDEX",
    "CREATE",
    "DINDEX",
    "ERASE",
    "GTID",
    "MHEARTBEAT",
    "QUERY",
    "RENAME",
    "TIDB_WATERMARK",
    "XACOMMIT",
    "XAROLLBACK",
)


class Canal:
    """An `Envelope`."""

    fields = parse_ddl(
        "type STRING, isDdl BOOLEAN, sql STRING, `database` STRING, `table` STRING, es TIMESTAMP, ts TIMESTAMP, "
        "data ARRAY<STRING>, `old` ARRAY<STRING>"
    )
    forms = {"es": "epoch_ms", "ts": "epoch_ms", "data.element": "json", "old.element": "json"}  # noqa: RUF012 - read only

    def opened(self, parts: Decoded) -> Opened:
        kind, rows, old = column_of(parts, "type"), column_of(parts, "data"), column_of(parts, "old")
        is_ddl = mask_of(column_of(parts, "isDdl"))
        truncates = is_one_of(kind, (_TRUNCATE,)) | mask_of(
            pc.match_substring_regex(column_of(parts, "sql"), _TRUNCATES)
        )
        truncates &= is_ddl | ~is_one_of(kind, _ROWS)
        passed_over = (is_ddl | is_one_of(kind, _PASSED_OVER)) & ~truncates
        texts, owners, within = _elements(rows)
        changes = is_one_of(kind, _ROWS) & ~is_ddl
        changes[owners[~is_object(texts)]] = False
        kept = changes[owners]
        owners, within = owners[kept], within[kept]

        def why(index: int) -> Refusal:
            return _why(kind[index].as_py(), rows[index].as_py(), truncates=bool(truncates[index]))

        source = pc.binary_join_element_wise(column_of(parts, "database"), column_of(parts, "table"), ".")
        return opened(
            parts,
            Images(texts.filter(pa.array(kept)), owners, kind.take(pa.array(owners)), _at(old, owners, within)),
            about_of(column_of(parts, "ts"), source, column_of(parts, "es")),
            passed_over,
            why,
        )

    def image_of(self, message: Object) -> object:
        rows = dict(message).get("data")
        return rows[0] if isinstance(rows, list) and rows else None


def _elements(lists: pa.ListArray) -> tuple[pa.StringArray, Index, Index]:
    """The elements of all lists, with the index of each one's list, and its index there."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    firsts = np.repeat(np.cumsum(lengths) - lengths, lengths)
    return lists.flatten(), np.repeat(np.arange(len(lists)), lengths), np.arange(len(firsts)) - firsts


def _at(lists: pa.ListArray, owners: Index, within: Index) -> pa.StringArray:
    """The elements with these indices in these lists; null where a list is shorter."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    firsts = np.cumsum(lengths) - lengths
    return lists.flatten().take(pa.array(firsts[owners] + within, mask=within >= lengths[owners]))


def _why(kind: str | None, rows: list[str | None] | None, *, truncates: bool) -> Refusal:
    if truncates:
        return truncated()
    if kind not in _ROWS:
        return not_a_row_change("type", kind, _ROWS)
    if not rows:
        return Refusal(ErrorClass.NOT_AN_EVENT, f"the event of type {kind} has no rows in `data`")
    index = next(number for number, row in enumerate(rows) if row is None or not row.startswith("{"))
    return Refusal(
        ErrorClass.NOT_AN_EVENT, f"row {index + 1} of {len(rows)} in the `data` of type {kind} is not an object"
    )
