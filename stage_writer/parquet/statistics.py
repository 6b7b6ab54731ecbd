"""Delta's per-file statistics, from a Parquet footer.

Rules:

1. A bound is never tighter than the data: strings are cut to 32 characters with a tie-breaker above, timestamps are cut
   to milliseconds downward and upward (the last of the year 9999 keeps its microseconds). A value without an exact
   bound has none.
2. Parquet ignores NaN, Spark treats it as the greatest value: a floating-point column that holds one has no bounds.
3. As in Delta: the first 32 leaf columns, none below an array or a map, no bounds for boolean and binary. The offset
   column is always among them, because `delta-loader verify` reads it.
"""

import json
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

INDEXED_COLUMNS = 32
STRING_PREFIX = 32
ALWAYS_INDEXED = ("_kafka_offset",)
_HIGHEST_CHARACTER = "\U0010ffff"
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

Path = tuple[str, ...]
_Tree = dict[str, "object"]


@dataclass(frozen=True, slots=True)
class _Leaf:
    path: Path
    arrow_type: pa.DataType
    column: int
    """A leaf column's index among Parquet's leaf columns."""


def delta_statistics(footer: pq.FileMetaData, schema: pa.Schema, with_nan: Collection[Path]) -> str:
    """The ``stats`` of an AddFile action as JSON text. ``with_nan``: the leaf columns that hold a NaN."""
    lowest: _Tree = {}
    highest: _Tree = {}
    nulls: _Tree = {}
    for leaf in _indexed(schema):
        columns = [footer.row_group(group).column(leaf.column) for group in range(footer.num_row_groups)]
        chunks = [column.statistics if column.is_stats_set else None for column in columns]
        counts = [chunk.null_count for chunk in chunks if chunk is not None and chunk.has_null_count]
        if len(counts) == len(chunks):
            _put(nulls, leaf.path, sum(counts))
        if leaf.path in with_nan:
            continue
        low, high = _bounds(chunks, leaf.arrow_type)
        if low is not None and high is not None:
            _put(lowest, leaf.path, low)
            _put(highest, leaf.path, high)
    statistics: _Tree = {"numRecords": footer.num_rows, "minValues": lowest, "maxValues": highest, "nullCount": nulls}
    return _to_json(statistics)


def floating_point_paths(schema: pa.Schema) -> tuple[Path, ...]:
    """The leaf columns that could hold a NaN and would have bounds."""
    return tuple(leaf.path for leaf in _indexed(schema) if pa.types.is_floating(leaf.arrow_type))


def _indexed(schema: pa.Schema) -> Iterator[_Leaf]:
    leaves = list(_leaves(list(schema), (), 0))
    for index, leaf in enumerate(leaves):
        if index < INDEXED_COLUMNS or leaf.path[-1] in ALWAYS_INDEXED:
            yield leaf


def _leaves(fields: list[pa.Field], prefix: Path, column: int) -> Iterator[_Leaf]:
    for field in fields:
        path = (*prefix, field.name)
        if pa.types.is_struct(field.type):
            yield from _leaves([field.type.field(i) for i in range(field.type.num_fields)], path, column)
        elif not pa.types.is_nested(field.type):
            yield _Leaf(path, field.type, column)
        column += _leaf_count(field.type)


def _leaf_count(arrow_type: pa.DataType) -> int:
    if not pa.types.is_nested(arrow_type):
        return 1
    return sum(_leaf_count(arrow_type.field(i).type) for i in range(arrow_type.num_fields))


def _bounds(chunks: list[pq.Statistics | None], arrow_type: pa.DataType) -> tuple[object, object]:
    low: object = None
    high: object = None
    for chunk in chunks:
        if chunk is None or not chunk.has_min_max:
            if chunk is not None and chunk.has_null_count and chunk.num_values == 0:
                continue  # all null: no bounds
            return None, None
        try:
            lowest, highest = chunk.min, chunk.max
        except (OverflowError, ValueError):  # a time or date outside the years 1 to 9999, which Python does not support
            return None, None
        low = lowest if low is None else min(low, lowest)
        high = highest if high is None else max(high, highest)
    if low is None or high is None:
        return None, None
    return _low(low, arrow_type), _high(high, arrow_type)


def _low(value: object, arrow_type: pa.DataType) -> object:
    if isinstance(value, str):
        return value[:STRING_PREFIX]
    if isinstance(value, datetime):
        return _millis_text(value.replace(microsecond=value.microsecond // 1000 * 1000))
    return _plain(value, arrow_type)


def _high(value: object, arrow_type: pa.DataType) -> object:
    if isinstance(value, str):
        cut_off = value[STRING_PREFIX : STRING_PREFIX + 1]
        return value if cut_off in ("", _HIGHEST_CHARACTER) else value[:STRING_PREFIX] + _HIGHEST_CHARACTER
    if isinstance(value, datetime):
        below = value.replace(microsecond=value.microsecond // 1000 * 1000)
        try:
            return _millis_text(value if below == value else below + timedelta(milliseconds=1))
        except OverflowError:  # within the last millisecond of the year 9999, after which there is none
            return _text(value, "microseconds")
    return _plain(value, arrow_type)


def _plain(value: object, arrow_type: pa.DataType) -> object:
    """Numbers and dates unchanged; None for a type without bounds in Delta."""
    if pa.types.is_boolean(arrow_type) or isinstance(value, bytes):
        return None
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, float):
        return value if value - value == 0 else None  # infinity has no JSON form
    return value


def _millis_text(moment: datetime) -> str:
    return _text(moment, "milliseconds")


def _text(moment: datetime, precision: str) -> str:
    zone = "" if moment.tzinfo is None else "Z"
    utc = moment if moment.tzinfo is None else moment.astimezone(UTC)
    return utc.replace(tzinfo=None).isoformat(timespec=precision) + zone


def _put(tree: _Tree, path: Path, value: object) -> None:
    for name in path[:-1]:
        inner = tree.setdefault(name, {})
        assert isinstance(inner, dict)  # noqa: S101 - a leaf is no struct
        tree = inner
    tree[path[-1]] = value


def _to_json(statistics: _Tree) -> str:
    try:
        return _COMPACT.encode(statistics)
    except TypeError:  # json cannot write a Decimal as an exact number
        return _exact_json(statistics)


def _exact_json(value: object) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ",".join(f"{json.dumps(str(key), ensure_ascii=False)}:{_exact_json(item)}" for key, item in value.items())
            + "}"
        )
    if isinstance(value, Decimal):
        return format(value, "f")
    return json.dumps(value, ensure_ascii=False)
