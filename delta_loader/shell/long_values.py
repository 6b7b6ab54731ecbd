"""Partition values that are too long for a folder's name, in rows that Spark writes.

Delta's writer makes a folder of each partition value, and a file system takes 255 bytes of a name: one such value would
fail the whole job, each time. So the rows are written by a digest of the value, the one that writers put into names
(`common.stage.data_files.shortened`), and the file actions get the value back before they are committed: the log says
what a file's partition values are, the folder's name means nothing, and the file itself does not hold them.

Rule: a column is left as it is where Delta evaluates it or writes it down (generated, constraints, materialized), and
where folders have other names anyway (column mapping).
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from pyspark.sql import functions

from common.schema import backticks
from common.stage.data_files import DIGEST, ESCAPED, LONGEST_BYTES, shortened
from common.tables.table_features import fields_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from pyspark.sql import Column, DataFrame

    from delta_loader.shell.gateway import Gateway, Java

_OTHER_FOLDERS = ("delta.columnMapping.mode", "delta.enableIcebergCompat", "delta.randomizeFilePrefixes")


def digestible(
    rows: DataFrame,
    partition_by: Sequence[str],
    properties: Mapping[str, str],
    features: Collection[str],
    schema: str,
) -> list[str]:
    """The partition columns whose long values may be replaced (the rule above)."""
    names = {key for key, value in properties.items() if value.lower() not in {"false", "none"}}
    if "materializePartitionColumns" in features or any(key.startswith(_OTHER_FOLDERS) for key in names):
        return []
    strings = {name for name, kind in rows.dtypes if kind == "string"}
    constraints = " ".join(value for key, value in properties.items() if key.lower().startswith("delta.constraints."))
    evaluated = constraints + " ".join(_expressions(schema))
    return [name for name in partition_by if name in strings and name not in evaluated]


def _expressions(schema: str) -> Iterator[str]:
    """What Delta evaluates of the columns: generation expressions and invariants, and the names of those columns."""
    for path, field in fields_of(schema):
        metadata = json.loads(field.metadata_json)
        for key in ("delta.generationExpression", "delta.invariants"):
            if key in metadata:
                yield f"{path} {metadata[key]}"


def with_digests(rows: DataFrame, columns: Sequence[str]) -> DataFrame:
    """The rows, with a digest in the place of each long value."""
    for name in columns:
        value = functions.col(backticks(name))
        digest = functions.concat(functions.lit(DIGEST), functions.substring(functions.sha2(value, 256), 1, 32))
        rows = rows.withColumn(name, functions.when(_is_long(value), digest).otherwise(value))
    return rows


def with_values(gateway: Gateway, adds: Java, rows: DataFrame, columns: Sequence[str]) -> Java:
    """A Java list of the file actions, with the values again; ``rows`` are those before `with_digests`."""
    texts = [str(add.json()) for add in adds]
    if not any(f'"{name}":"{DIGEST}' in text for name in columns for text in texts):
        return adds
    known = {name: _by_digest(rows, name) for name in columns}
    restored = gateway.jvm.java.util.ArrayList()
    for add, text in zip(adds, texts, strict=True):
        restored.add(_restored(gateway, add, json.loads(text), known))
    return restored


def _restored(gateway: Gateway, add: Java, action: dict[str, object], known: Mapping[str, Mapping[str, str]]) -> Java:
    content = cast("dict[str, dict[str, str | None]]", action.get("add") or {})
    values = content.get("partitionValues", {})
    found = {name: of[value] for name, of in known.items() if (value := values.get(name)) is not None and value in of}
    if not found:
        return add
    values.update(found)
    return gateway.delta.actions.Action.fromJson(json.dumps(action))


def _by_digest(rows: DataFrame, name: str) -> dict[str, str]:
    value = functions.col(backticks(name))
    found = rows.select(value.alias("value")).where(_is_long(value)).distinct().collect()
    return {shortened(row["value"]): row["value"] for row in found}


def _is_long(value: Column) -> Column:
    """As `shortened` judges: by the bytes of the escaped text."""
    escaped = functions.length(value) - functions.length(functions.translate(value, ESCAPED, ""))
    return functions.octet_length(value) + 2 * escaped > LONGEST_BYTES
