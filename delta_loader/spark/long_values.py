"""Partition values that are too long for a folder's name, in rows that Spark writes.

Delta's writer creates a folder for each partition value, and a file system allows 255 bytes in a name: one such value
would fail the whole job, each time. The rows are therefore written with a digest of the value, the one that writers put
into names (`common.stage.data_files.shortened`), and the file actions get the value back before they are committed: the
log defines a file's partition values, the folder's name has no meaning, and the file itself does not contain them.

Rules:

1. A column is left as it is where Delta evaluates it or writes it to the file (generated, constraints, materialized),
   and where folders have other names anyway (column mapping).
2. Where rows cannot have a digest (rule 1), or some are copied from the table (in a merge and a replacement), the whole
   transaction writes to folders with short random names (`LoadTransaction.java`, rule 4).
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import or_
from typing import cast

from pyspark.sql import Column, DataFrame, functions

from common.schema import backticks
from common.stage.data_files import DIGEST, ESCAPED, LONGEST_BYTES, shortened
from common.tables.state import TableState
from common.tables.table_features import fields_of
from delta_loader.spark.bridge import Line

_RANDOM_FOLDERS = "delta.randomizeFilePrefixes"
_OTHER_FOLDERS = ("delta.columnMapping.mode", "delta.enableIcebergCompat", _RANDOM_FOLDERS)


def digestible(rows: DataFrame, table: TableState) -> list[str]:
    """The partition columns whose long values may be replaced (rule 1)."""
    properties = table.properties
    if "materializePartitionColumns" in table.features or _has_other_folders(properties):
        return []
    constraints = " ".join(value for key, value in properties.items() if key.lower().startswith("delta.constraints."))
    evaluated = constraints + " ".join(_expressions(table.schema))
    return [name for name in _texts(rows, table.partition_by) if name not in evaluated]


def needs_other_folders(rows: DataFrame, partition_by: Sequence[str], properties: Mapping[str, str]) -> bool:
    """Whether some row has a value in one of these partition columns that cannot name a folder. Reads these columns."""
    columns = [] if _has_other_folders(properties) else _texts(rows, partition_by)
    if not columns:
        return False
    is_long = reduce(or_, (_is_long(functions.col(backticks(name))) for name in columns))
    return bool(rows.where(is_long).select(functions.lit(1)).take(1))


def _has_other_folders(properties: Mapping[str, str]) -> bool:
    names = {key for key, value in properties.items() if value.lower() not in {"false", "none"}}
    return any(key.startswith(_OTHER_FOLDERS) for key in names)


def _texts(rows: DataFrame, partition_by: Sequence[str]) -> list[str]:
    strings = {name for name, kind in rows.dtypes if kind == "string"}
    return [name for name in partition_by if name in strings]


def _expressions(schema: str) -> Iterator[str]:
    """The expressions that Delta evaluates on the columns, generated and invariants, and those columns' names."""
    for path, field in fields_of(schema):
        metadata = json.loads(field.metadata_json)
        for key in ("delta.generationExpression", "delta.invariants"):
            if key in metadata:
                yield f"{path} {metadata[key]}"


def with_digests(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    for name in columns:
        value = functions.col(backticks(name))
        digest = functions.concat(functions.lit(DIGEST), functions.substring(functions.sha2(value, 256), 1, 32))
        rows = rows.withColumn(name, functions.when(_is_long(value), digest).otherwise(value))
    return rows


def with_values(lines: Sequence[Line], rows: DataFrame, columns: Sequence[str]) -> list[Line]:
    """The file actions that have digests, with the values; ``rows`` are those before `with_digests`."""
    adds = [(line, cast("dict[str, str | None]", line["add"]["partitionValues"])) for line in lines if "add" in line]
    known = {
        name: _by_digest(rows, name)
        for name in columns
        if any((values.get(name) or "").startswith(DIGEST) for _, values in adds)
    }
    restored = []
    for line, values in adds:
        replaced = {name: of[value] for name, of in known.items() if (value := values.get(name) or "") in of}
        if replaced:
            values.update(replaced)
            restored.append(line)
    return restored


def _by_digest(rows: DataFrame, name: str) -> dict[str, str]:
    value = functions.col(backticks(name))
    rows_read = rows.select(value.alias("value")).where(_is_long(value)).distinct().collect()
    return {shortened(row["value"]): row["value"] for row in rows_read}


def _is_long(value: Column) -> Column:
    """Whether a value is too long, as `shortened` decides: by the bytes of the escaped text."""
    escaped = functions.length(value) - functions.length(functions.translate(value, ESCAPED, ""))
    return functions.octet_length(value) + 2 * escaped > LONGEST_BYTES
