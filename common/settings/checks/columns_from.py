"""Checks of a stream whose columns are not declared, or whose table gains columns (`unknown_fields: evolve`).

Rule: settings that give columns other names than their fields have cannot be reversed, so they are refused where
columns are read from the table. Where they are added, the records' names are known (common/settings/columns.py).
"""

from common.settings.columns_from import FROM_SCHEMAS, ColumnsFrom, default_source
from common.settings.section import refuse
from common.settings.stream import Stream


def check_evolving(stream: Stream) -> None:
    if not stream.record.evolves:
        return
    if stream.record.has_own_columns and stream.merge is not None:
        for key in (key for key in renaming_keys(stream) if key != "drop"):
            refuse(
                f"{key} gives columns other names or places than message keys have, and route_columns is own; remove "
                f"{key}, or write route_columns: shared"
            )
    for path in (path for path in stream.shaping.drop if "." in path or path == stream.record.rescue_column):
        refuse(f"drop names {path!r}, which unknown_fields: evolve needs; drop whole fields, or write rescue")


def check_columns_from(stream: Stream) -> None:
    source = stream.record.columns_from
    if source is None:
        return
    default = default_source(dict(stream.record))
    given = f"columns is {source.value}{' (the default)' if source is default else ''}"
    if stream.topology is not None:
        refuse(
            f"{given}, but a topology makes the rows; write the table's columns, as in CREATE TABLE: "
            "columns: id BIGINT, name STRING"
        )
    if source is ColumnsFrom.RECORDS:
        _check_inferred(stream, default)
        return
    if source in FROM_SCHEMAS:
        _check_of_schemas(stream, source, given)
        return
    if stream.record.evolves:
        refuse(
            "columns is from_table, so the table's columns are the stream's, and unknown_fields: evolve adds columns "
            "to the table; write columns: from_records, which begins with the table's columns, or unknown_fields: "
            "rescue"
        )
    for key in renaming_keys(stream):
        refuse(
            f"{key} renames or moves fields, so columns cannot be from_table; remove {key}, or write the record's "
            "columns"
        )


def _check_inferred(stream: Stream, default: ColumnsFrom) -> None:
    if stream.record.format != "json":
        refuse(
            f"columns is from_records, which reads JSON only, but format is {stream.record.format}; write columns: "
            f"{default.value}, or the columns as in CREATE TABLE"
        )


def _check_of_schemas(stream: Stream, source: ColumnsFrom, given: str) -> None:
    file, from_file = stream.record.schema_file, source is ColumnsFrom.SCHEMA_FILE
    problems = {
        "with route_columns: own tables have their records' fields; remove columns": stream.record.has_own_columns,
        "format is json, whose schema_file only validates; write columns: from_records, or the columns as in CREATE "
        "TABLE": from_file and stream.record.format == "json",
        "there is no schema_file; set it, or write columns: from_registry": from_file and file is None,
        "the messages do not name a schema in a registry; write framing: confluent": not from_file
        and stream.record.framing == "none",
        "schema_file has another schema; write columns: from_schema_file, or remove schema_file": not from_file
        and file is not None,
        f"envelope is {stream.record.envelope}; write the columns of its rows": stream.record.envelope
        not in {"plain", "debezium"},
    }
    for problem in (problem for problem, is_so in problems.items() if is_so):
        refuse(f"{given}, but {problem}")


def renaming_keys(stream: Stream) -> tuple[str, ...]:
    """The settings of a stream by which a record's fields differ from the table's columns."""
    given = {
        "explode": stream.shaping.explode is not None,
        "drop": bool(stream.shaping.drop),
        "rename": bool(stream.shaping.rename),
        "field_names": stream.shaping.field_names != "as_is",
    }
    return tuple(key for key, is_given in given.items() if is_given)
