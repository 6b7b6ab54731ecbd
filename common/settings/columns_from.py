"""`columns` that are not declared: where they come from instead.

Rules:

1. Such a stream has no columns in its settings. They are found at run time, and `common.settings.with_columns` makes
   the stream that has them, with every check that a declared stream passes when the file is read.
2. Columns from records are a sample's, so nothing else may be dropped unasked: `unknown_fields` is then `evolve` unless
   it is given, or `rescue` where tables have columns of their own, whose owner has declared them.
3. Columns from schemas grow with them, so the table does too: `evolution` is then `add` unless it is given. A JSON
   Schema does not name all fields that its records may have: `unknown_fields` is then `rescue`. Avro and Protobuf do,
   so there it is the default.
4. Without `columns`, Avro and Protobuf take them from the schema that all records are read by: that of `schema_file`,
   else those that records name. Other records, and tables with columns of their own records, are inferred.
"""

import re
from collections.abc import Mapping
from enum import StrEnum


class ColumnsFrom(StrEnum):
    """Where the columns of a stream come from, if it does not declare them."""

    TABLE = "from_table"
    RECORDS = "from_records"
    REGISTRY = "from_registry"
    SCHEMA_FILE = "from_schema_file"


FROM_SCHEMAS = frozenset({ColumnsFrom.REGISTRY, ColumnsFrom.SCHEMA_FILE})

_LIKE_ONE = re.compile(r"(?i)from[_-][\w-]*")


def names_source(columns: str) -> bool:
    """Whether it looks like the name of a source, misspelled ones included, and not like a list of columns."""
    return _LIKE_ONE.fullmatch(columns.strip()) is not None


def columns_from(columns: str) -> ColumnsFrom | None:
    """The meaning of a value of `columns`; None for a list of columns. Raises ValueError for a misspelled one."""
    text = columns.strip()
    if not names_source(text):
        return None
    known = [source.value for source in ColumnsFrom]
    if text not in known:
        msg = f"is not a source of columns; write {', '.join(known)}, or the columns as in "
        msg += "CREATE TABLE: columns: id BIGINT, name STRING"
        raise ValueError(msg)
    return ColumnsFrom(text)


def with_implied(values: object) -> object:
    """A stream's values with those that its `columns` imply, which may be implied too (rules 2 to 4)."""
    if not isinstance(values, dict):
        return values
    default = default_source(values)
    if "columns" not in values and default is not ColumnsFrom.RECORDS:
        values = {"columns": default.value, **values}
    match str(values.get("columns", default)).strip():
        case ColumnsFrom.RECORDS:
            own = {"unrouted": "dead_letters"} if values.get("route_columns") == "own" else {}
            can_evolve = bool(own) or not _tables_with_columns(values)
            return {"unknown_fields": "evolve" if can_evolve else "rescue", **own, **values}
        case ColumnsFrom.REGISTRY | ColumnsFrom.SCHEMA_FILE:
            rescue = {"unknown_fields": "rescue"} if values.get("format", "json") == "json" else {}
            return {"evolution": "add", **rescue, **values}
        case _:
            return values


def default_source(values: Mapping[str, object]) -> ColumnsFrom:
    """Where the columns of a stream with these values come from, if it does not say (rule 4)."""
    if str(values.get("format", "json")) not in {"avro", "protobuf"} or values.get("route_columns") == "own":
        return ColumnsFrom.RECORDS
    if values.get("schema_file"):
        return ColumnsFrom.SCHEMA_FILE
    return ColumnsFrom.RECORDS if values.get("framing", "none") == "none" else ColumnsFrom.REGISTRY


def _tables_with_columns(values: Mapping[str, object]) -> bool:
    """Whether some tables of routes have columns of their own."""
    routes, own, tables = (values.get(key) for key in ("routes", "route_tables", "tables"))
    sections = [*(tables if isinstance(tables, list | tuple) else ())]
    sections += [table for each in (routes, own) if isinstance(each, dict) for table in each.values()]
    return any(isinstance(section, dict) and "columns" in section for section in sections)
