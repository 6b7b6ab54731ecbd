"""Which partition columns may go by a digest while Spark writes: none that Delta evaluates or writes down."""

from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import DataFrame

from common.schema import parse_ddl, schema_to_json
from common.schema.types import Field, Primitive, StructType
from common.tables.state import TableState
from delta_loader.spark.long_values import digestible

ROWS = cast("DataFrame", SimpleNamespace(dtypes=[("day", "string"), ("sku", "string"), ("year", "int")]))
PLAIN = schema_to_json(parse_ddl("day STRING, sku STRING, year INT"))
GENERATED = schema_to_json(
    StructType(
        (
            Field("day", Primitive.STRING, metadata_json='{"delta.generationExpression":"substr(at, 1, 10)"}'),
            Field("sku", Primitive.STRING),
        )
    )
)


@pytest.mark.parametrize(
    ("properties", "features", "schema", "columns"),
    [
        ({}, (), PLAIN, ["day", "sku"]),
        ({"delta.columnMapping.mode": "none", "delta.enableIcebergCompatV2": "false"}, (), PLAIN, ["day", "sku"]),
        ({"delta.columnMapping.mode": "name"}, (), PLAIN, []),
        ({"delta.enableIcebergCompatV2": "true"}, (), PLAIN, []),
        ({"delta.randomizeFilePrefixes": "true"}, (), PLAIN, []),
        ({}, ("materializePartitionColumns",), PLAIN, []),
        ({"delta.constraints.short": "length(sku) < 9"}, (), PLAIN, ["day"]),
        ({}, (), GENERATED, ["sku"]),
    ],
)
def test_columns_that_delta_evaluates_keep_their_values(
    properties: dict[str, str], features: tuple[str, ...], schema: str, columns: list[str]
) -> None:
    by = ("day", "sku", "year", "made")
    table = TableState(
        0, "id", schema, by, properties, reader_version=3, writer_version=7, features=frozenset(features)
    )
    assert digestible(ROWS, table) == columns
