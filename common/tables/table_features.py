"""A table's requirements on rows and writers, from its protocol, properties and columns.

For each feature that Delta 4.4 knows, its requirements are listed here. A table with any other feature is refused.

* No requirement: files of new rows are the same without it, or Delta's transaction itself handles it. (Row tracking
  numbers the rows of each added file by its ``numRecords``; clustering arranges files later, by OPTIMIZE; change data
  of added files is read from these; in-commit timestamps are the commit's.)
* By use: requires something of rows only where the schema or a property uses it.
* Requires Delta's writer: it lays files out in another way.
"""

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from itertools import chain

from common.errors import SchemaError
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
from common.tables.state import TableState

_SCHEMAS = 256
"""Of which it is remembered what they ask for: those of many tables, which rarely change."""
_ASK_NOTHING = frozenset(
    {
        "appendOnly",
        "changeDataFeed",
        "checkpointProtection",
        "clustering",
        "deletionVectors",
        "domainMetadata",
        "inCommitTimestamp",
        "rowTracking",
        "timestampNtz",
        "typeWidening",
        "typeWidening-preview",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantShredding",
        "variantShredding-preview",
    }
)
_BY_USE = frozenset(
    {
        "allowColumnDefaults",
        "checkConstraints",
        "columnMapping",
        "generatedColumns",
        "icebergCompatV1",
        "icebergCompatV2",
        "identityColumns",
        "invariants",
        "variantType",
        "variantType-preview",
    }
)
_ASK_FOR_DELTAS_WRITER = {"materializePartitionColumns": "its files hold the partition columns too"}
# Requirements of a column's metadata on each row.
GENERATED = "delta.generationExpression"
IDENTITY = "delta.identity.start"
IDENTITY_TAKES_VALUES = "delta.identity.allowExplicitInsert"
DEFAULT = "CURRENT_DEFAULT"
_DEMANDING = {
    "delta.invariants": "has an invariant, which has to be checked on each row",
    GENERATED: "is generated, which has to be computed for each row",
    IDENTITY: "is an identity column",
    DEFAULT: "has a default value",
    CHAR_VARCHAR_KEY: "is a CHAR or VARCHAR, whose length has to be checked on each row",
}
_CHECKED = frozenset({"delta.invariants", GENERATED, CHAR_VARCHAR_KEY})
COMMITS_OF_A_CATALOG = (
    "its catalog makes its commits (a managed table), but this program commits to the table's log itself",
    "load into an external table of the catalog",
)
"""Why a table with catalog-managed commits is refused, and the remedy."""
_REFUSED = {"catalogManaged": COMMITS_OF_A_CATALOG, "catalogOwned-preview": COMMITS_OF_A_CATALOG}
_OF_REFUSALS = frozenset({"checkConstraints", "typeWidening", "typeWidening-preview"})
_CHAR = re.compile(r"\bchar\(", re.IGNORECASE)
_CONSTRAINTS = "delta.constraints."
_CONSTRAINT_WRITER_VERSION = 3
_LEGACY_WRITER_VERSIONS = 6
_FEATURE_WRITER_VERSION = 7
_UNIFORM = "delta.universalFormat.enabledFormats"


def is_append_only(state: TableState) -> bool:
    """Whether rows may be added to a table, but not changed or deleted."""
    return state.properties.get("delta.appendOnly", "").lower() == "true"


def refused_for(state: TableState) -> tuple[str, str] | None:
    """Why no row may be loaded into a table, and the remedy; None when rows may be."""
    without = "load into a table without it"
    if state.writer_version > _FEATURE_WRITER_VERSION:
        return f"its writer protocol {state.writer_version} is newer than this program", without
    if state.writer_version > _LEGACY_WRITER_VERSIONS:
        known = _ASK_NOTHING | _BY_USE | _ASK_FOR_DELTAS_WRITER.keys()
        for name in sorted(state.features - known):
            return _REFUSED.get(name, (f"its feature {name} is not one that this program knows", without))
    formats = state.properties.get(_UNIFORM)
    if formats:
        problem = f"it is also written as {formats}, for which this program has no jars (delta-iceberg)"
        return problem, f"unset the property {_UNIFORM}, or load into a table without it"
    try:
        schema_from_json(state.schema)
    except SchemaError as error:
        return error.problem, "load into a table without such a column"
    return None


def appended_for(state: TableState) -> str | None:
    """Why a table's rows have to be written by Delta's own writer; None when files may be added as they are."""
    by_feature = (text for name, text in _ASK_FOR_DELTAS_WRITER.items() if name in state.features)
    return next(chain(by_feature, _by_property(state.properties), _by_column(state.schema)), None)


def may_refuse_rows(state: TableState) -> bool:
    """Whether the table checks its rows: constraints, NOT NULL, lengths, and staged values of generated columns."""
    if any(key.lower().startswith(_CONSTRAINTS) for key in state.properties):
        return True
    return _checks_columns(state.schema)


@lru_cache(_SCHEMAS)
def _checks_columns(schema: str) -> bool:
    fields = fields_of(schema)
    return any(not field.nullable or json.loads(field.metadata_json).keys() & _CHECKED for _, field in fields)


def may_have_refused_rows(state: TableState) -> bool:
    """Whether the table checks its rows, or may have refused some before: the protocol keeps what that needed.

    A constraint may have been dropped since, and a column widened that a value could not be cast to.
    """
    had_constraint = _CONSTRAINT_WRITER_VERSION <= state.writer_version <= _LEGACY_WRITER_VERSIONS
    return had_constraint or not state.features.isdisjoint(_OF_REFUSALS) or may_refuse_rows(state)


def checks_of(state: TableState) -> str | None:
    """What the table checks its rows for, as a digest; None for one that never refused rows, and does not now."""
    if not may_have_refused_rows(state):
        return None
    constraints = {key: value for key, value in state.properties.items() if key.lower().startswith(_CONSTRAINTS)}
    return sha256(json.dumps([state.schema, sorted(constraints.items())]).encode()).hexdigest()


def padded_column(state: TableState) -> tuple[str, str] | None:
    """The name of a top-level column that is a CHAR, or has one within, and its type in Spark; None where none is."""
    for field in schema_from_json(state.schema):
        kind: str = json.loads(field.metadata_json).get(CHAR_VARCHAR_KEY, "")
        if _CHAR.search(kind):
            return field.name, kind
    return None


def _by_property(properties: Mapping[str, str]) -> Iterator[str]:
    mapping = properties.get("delta.columnMapping.mode", "none")
    if mapping != "none":
        yield f"its column mapping mode is {mapping}, so that files need other column names"
    for key in sorted(properties):
        if key.lower().startswith(_CONSTRAINTS):
            yield f"the check constraint {key[len(_CONSTRAINTS) :]} has to be evaluated on each row"
        elif key.startswith("delta.enableIcebergCompat") and properties[key] == "true":
            yield "it is laid out for Iceberg, which requires more than a Parquet file"


@lru_cache(_SCHEMAS)
def _by_column(schema: str) -> tuple[str, ...]:
    demands = []
    for name, field in fields_of(schema):
        if not field.nullable:
            demands.append(f"its column {name} is NOT NULL, which has to be checked on each row")
        if field.type is Primitive.VARIANT:
            demands.append(f"its column {name} is a VARIANT, which Spark makes of JSON text")
        keys = sorted(json.loads(field.metadata_json))
        demands += [f"its column {name} {_DEMANDING[key]}" for key in keys if key in _DEMANDING]
    return tuple(demands)


def fields_of(schema: str) -> Iterator[tuple[str, Field]]:
    """Each field of a table at any depth, with its path."""
    return _fields_of("", schema_from_json(schema))


def _fields_of(path: str, data_type: DataType) -> Iterator[tuple[str, Field]]:
    match data_type:
        case StructType(fields):
            for field in fields:
                name = f"{path}.{field.name}" if path else field.name
                yield name, field
                yield from _fields_of(name, field.type)
        case ArrayType(element):
            yield from _fields_of(path, element)
        case MapType(key, value):
            yield from _fields_of(path, key)
            yield from _fields_of(path, value)
        case Primitive() | DecimalType():
            return
