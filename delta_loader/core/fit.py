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
from typing import TYPE_CHECKING, cast

from common.errors import TableError

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
    found = list(_struct_differences("", parse_schema(table.schema), parse_schema(staged.schema)))
    if table.partition_by != staged.partition_by:
        found.append(f"it is partitioned by {_columns(table.partition_by)}, staged by {_columns(staged.partition_by)}")
    return tuple(found)


def _columns(names: tuple[str, ...]) -> str:
    return ", ".join(names) or "nothing"


@dataclass(frozen=True, slots=True)
class Column:
    """A field of a schema."""

    name: str
    kind: Kind
    nullable: bool
    metadata: frozenset[str]
    """The keys of its metadata."""


@dataclass(frozen=True, slots=True)
class Struct:
    """Named fields."""

    columns: tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class Array:
    """A list."""

    element: Kind


@dataclass(frozen=True, slots=True)
class Map:
    """Keys and values."""

    key: Kind
    value: Kind


Kind = str | Struct | Array | Map


def parse_schema(text: str) -> Struct:
    """Spark's JSON for a schema. Raises TableError."""
    try:
        kind = _parse_kind(json.loads(text))
    except (ValueError, KeyError, TypeError) as error:
        msg = f"a table's schema cannot be read: {error}"
        raise TableError(msg, "check metaData.schemaString in the table's log, or the marker's manifest") from error
    if not isinstance(kind, Struct):
        msg = "a table's schema is not a struct"
        raise TableError(msg, "check metaData.schemaString in the table's log, or the marker's manifest")
    return kind


def _parse_kind(value: object) -> Kind:
    if isinstance(value, str):
        return value
    node = cast("Mapping[str, object]", value)
    if node["type"] == "struct":
        return Struct(tuple(_parse_column(field) for field in cast("list[Mapping[str, object]]", node["fields"])))
    if node["type"] == "array":
        return Array(_parse_kind(node["elementType"]))
    if node["type"] == "map":
        return Map(_parse_kind(node["keyType"]), _parse_kind(node["valueType"]))
    msg = f"type {node['type']!r} is not known"
    raise ValueError(msg)


def _parse_column(field: Mapping[str, object]) -> Column:
    metadata = cast("Mapping[str, object]", field.get("metadata") or {})
    return Column(
        str(field["name"]), _parse_kind(field["type"]), bool(field.get("nullable", True)), frozenset(metadata)
    )


def _struct_differences(place: str, table: Struct, staged: Struct) -> Iterator[str]:
    known = {column.name: column.kind for column in table.columns}
    for column in staged.columns:
        name = f"{place}{column.name}"
        if column.name not in known:
            alike = [other for other in known if other.lower() == column.name.lower()]
            yield f"the column {name} is not in it" + (f" (it has {alike[0]})" if alike else "")
        else:
            yield from _kind_differences(name, known[column.name], column.kind)


def _kind_differences(name: str, table: Kind, staged: Kind) -> Iterator[str]:
    if isinstance(table, Struct) and isinstance(staged, Struct):
        yield from _struct_differences(f"{name}.", table, staged)
    elif isinstance(table, Array) and isinstance(staged, Array):
        yield from _kind_differences(f"{name}.element", table.element, staged.element)
    elif isinstance(table, Map) and isinstance(staged, Map):
        yield from _kind_differences(f"{name}.key", table.key, staged.key)
        yield from _kind_differences(f"{name}.value", table.value, staged.value)
    elif table != staged:
        yield f"the column {name} is {_kind_name(table)}, staged as {_kind_name(staged)}"


def _kind_name(kind: Kind) -> str:
    return kind if isinstance(kind, str) else type(kind).__name__.lower()


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
    for name, column in _all_columns("", parse_schema(schema)):
        if not column.nullable:
            yield f"its column {name} is NOT NULL, which has to be checked on each row"
        if "delta.invariants" in column.metadata:
            yield f"its column {name} has an invariant, which has to be checked on each row"
        if "delta.generationExpression" in column.metadata:
            yield f"its column {name} is generated, which has to be computed for each row"
        if "delta.identity.start" in column.metadata:
            yield f"its column {name} is an identity column"
        if "CURRENT_DEFAULT" in column.metadata:
            yield f"its column {name} has a default value"


def _all_columns(place: str, kind: Kind) -> Iterator[tuple[str, Column]]:
    match kind:
        case Struct(columns):
            for column in columns:
                name = f"{place}.{column.name}" if place else column.name
                yield name, column
                yield from _all_columns(name, column.kind)
        case Array(element):
            yield from _all_columns(place, element)
        case Map(key, value):
            yield from _all_columns(place, key)
            yield from _all_columns(place, value)
        case _:
            return
