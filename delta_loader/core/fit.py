"""Whether staged files may be added to a table as they are, judged from the table's own protocol and schema.

Rules:

1. Zero-copy add is right only where Delta asks nothing of a row but to be in a file with its statistics. A feature
   that is not known to be harmless is refused by its name: a new one may ask for anything.
2. A table's columns that a file lacks are null in its rows; that is Delta's own rule. A column that the table lacks,
   or another type, or another partitioning, is never added: rows would be lost or unreadable.
3. Names are compared as Parquet readers do it, by case: Spark would forgive a difference, delta-rs would read nulls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from common.errors import SchemaError, TableError
from common.schema.ddl import type_to_ddl
from common.schema.spark_json import schema_from_json
from common.schema.types import (
    CHAR_VARCHAR_KEY,
    ArrayType,
    DataType,
    DecimalType,
    Field,
    MapType,
    Primitive,
    StructType,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from common.delta_log import TableState
    from delta_loader.core.plan import TableShape

# Features that change nothing for a file of new rows, or that Delta's transaction itself takes care of.
_HARMLESS = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "checkpointProtection",
        "variantType",
        "variantType-preview",
    }
)
# Features that ask something of rows only where the schema or a property uses them, which is looked at below.
_BY_USE = frozenset(
    {"invariants", "checkConstraints", "generatedColumns", "columnMapping", "identityColumns", "allowColumnDefaults"}
)
# What a column's metadata may ask of each row.
_DEMANDING = {
    "delta.invariants": "has an invariant, which has to be checked on each row",
    "delta.generationExpression": "is generated, which has to be computed for each row",
    "delta.identity.start": "is an identity column",
    "CURRENT_DEFAULT": "has a default value",
    CHAR_VARCHAR_KEY: "is a CHAR or VARCHAR, whose length has to be checked on each row",
}
_LEGACY_WRITER_VERSIONS = 6
_FEATURE_WRITER_VERSION = 7


@dataclass(frozen=True, slots=True)
class Add:
    """Staged files become part of the table as they are."""

    reason: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Staged files may not be added."""

    reason: str


Way = Add | Refused


def way_of_loading(state: TableState) -> Way:
    """How rows may reach a table, and why."""
    obstacles = [*_feature_obstacles(state), *_property_obstacles(state.properties), *_schema_obstacles(state.schema)]
    if obstacles:
        return Refused(obstacles[0])
    return Add("the table's protocol, properties and columns ask nothing of a row but to be in a file")


def require_add(state: TableState, url: str) -> None:
    """Raises TableError when files may not be added to the table."""
    way = way_of_loading(state)
    if isinstance(way, Refused):
        msg = f"files cannot be added to the Delta table {url}: {way.reason}"
        raise TableError(msg, "load into a table without it; this release loads by zero-copy add only")


def require_fit(table: TableShape, staged: TableShape, url: str) -> None:
    """Raises TableError, which says what differs, when staged files do not fit the table."""
    found = differences(table, staged)
    if found:
        msg = f"what is staged does not fit the Delta table {url}: {'; '.join(found)}"
        raise TableError(
            msg, "change the table (ALTER TABLE), or the stream's columns and stage anew with `bootstrap rewind`"
        )


def differences(table: TableShape, staged: TableShape) -> tuple[str, ...]:
    """What keeps files of one shape out of a table of another; empty when they fit."""
    try:
        columns, staged_columns = schema_from_json(table.schema), schema_from_json(staged.schema)
    except SchemaError as error:
        return (error.problem,)
    found = list(_struct_differences("", columns, staged_columns))
    if table.partition_by != staged.partition_by:
        found.append(f"it is partitioned by {_columns(table.partition_by)}, staged by {_columns(staged.partition_by)}")
    return tuple(found)


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


def _struct_differences(place: str, table: StructType, staged: StructType) -> Iterator[str]:
    for field in staged:
        name, known = f"{place}{field.name}", table.field(field.name)
        if known is None:
            alike = [other for other in table.names if other.casefold() == field.name.casefold()]
            yield f"the column {name} is not in it" + (f" (it has {alike[0]})" if alike else "")
        else:
            yield from _type_differences(name, known.type, field.type)


def _type_differences(name: str, table: DataType, staged: DataType) -> Iterator[str]:
    if isinstance(table, StructType) and isinstance(staged, StructType):
        yield from _struct_differences(f"{name}.", table, staged)
    elif isinstance(table, ArrayType) and isinstance(staged, ArrayType):
        yield from _type_differences(f"{name}.element", table.element, staged.element)
    elif isinstance(table, MapType) and isinstance(staged, MapType):
        yield from _type_differences(f"{name}.key", table.key, staged.key)
        yield from _type_differences(f"{name}.value", table.value, staged.value)
    elif table != staged:
        yield f"the column {name} is {type_to_ddl(table)}, staged as {type_to_ddl(staged)}"


def _feature_obstacles(state: TableState) -> Iterator[str]:
    if state.writer_version > _FEATURE_WRITER_VERSION:
        yield f"its writer protocol {state.writer_version} is newer than this program"
    elif state.writer_version > _LEGACY_WRITER_VERSIONS:
        yield from (f"its feature {name} is not one that is known to allow it" for name in _unknown(state.features))


def _unknown(features: frozenset[str]) -> list[str]:
    return sorted(features - _HARMLESS - _BY_USE)


def _property_obstacles(properties: Mapping[str, str]) -> Iterator[str]:
    mapping = properties.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        yield f"its column mapping mode is {mapping}, so that files need other column names"
    for key in sorted(properties):
        if key.startswith("delta.constraints."):
            yield f"the check constraint {key.removeprefix('delta.constraints.')} has to be evaluated on each row"
        elif key.startswith("delta.universalFormat.enabledFormats") and properties[key]:
            yield f"it is also written as {properties[key]}, which asks for more than a Parquet file"


def _schema_obstacles(schema: str) -> Iterator[str]:
    try:
        columns = schema_from_json(schema)
    except SchemaError as error:
        yield error.problem
        return
    for name, field in _all_fields("", columns):
        if not field.nullable:
            yield f"its column {name} is NOT NULL, which has to be checked on each row"
        for key in sorted(json.loads(field.metadata_json)):
            if key in _DEMANDING:
                yield f"its column {name} {_DEMANDING[key]}"


def _all_fields(place: str, data_type: DataType) -> Iterator[tuple[str, Field]]:
    match data_type:
        case StructType(fields):
            for field in fields:
                name = f"{place}.{field.name}" if place else field.name
                yield name, field
                yield from _all_fields(name, field.type)
        case ArrayType(element):
            yield from _all_fields(place, element)
        case MapType(key, value):
            yield from _all_fields(place, key)
            yield from _all_fields(place, value)
        case Primitive() | DecimalType():
            return
