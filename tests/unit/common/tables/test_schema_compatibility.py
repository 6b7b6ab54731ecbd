"""Which values a table's columns can never take."""

import pytest

from common.schema import parse_ddl
from common.tables.schema_compatibility import (
    TypeProblem,
    columns_setting,
    partitioning_problem,
    partitioning_setting,
    type_problems,
)


def problems(table: str, staged: str) -> list[TypeProblem]:
    return list(type_problems(parse_ddl(table), parse_ddl(staged)))


@pytest.mark.parametrize(
    ("table", "staged", "fits"),
    [
        ("BIGINT", "INT", True),
        ("INT", "BIGINT", True),
        ("DECIMAL(10, 2)", "DOUBLE", True),
        ("TIMESTAMP_NTZ", "DATE", True),
        ("DATE", "TIMESTAMP_NTZ", True),
        ("TIMESTAMP", "DATE", False),
        ("DATE", "TIMESTAMP", False),
        ("STRING", "INT", False),
        ("BOOLEAN", "INT", False),
        ("BINARY", "STRING", False),
        ("VARIANT", "STRING", True),
        ("VARIANT", "BIGINT", False),
        ("STRING", "VARIANT", False),
        ("ARRAY<STRING>", "STRING", False),
    ],
)
@pytest.mark.parametrize("within", ["{}", "ARRAY<{}>", "STRUCT<x: {}>", "MAP<STRING, {}>"])
def test_only_related_types_are_read_as_each_other(table: str, staged: str, within: str, *, fits: bool) -> None:
    differences = problems(f"c {within.format(table)}", f"c {within.format(staged)}, new {staged}")
    assert bool(differences) is not fits
    assert all(problem.message.startswith("the column c") for problem in differences)


def test_keys_of_a_map_are_compared() -> None:
    (problem,) = problems("m MAP<STRING, INT>", "m MAP<INT, INT>")
    assert problem.message == "the column m.key is STRING, staged as INT"
    assert columns_setting([problem], {}).startswith("m MAP<STRING, INT> in columns ")


def test_partitioning_is_the_same_in_the_same_order() -> None:
    assert partitioning_problem(["a", "b"], ("a", "b")) is None
    assert partitioning_problem(["a", "b"], ["b", "a"]) == "it is partitioned by a, b, staged by b, a"
    assert partitioning_problem([], ["a"]) == "it is partitioned by nothing, staged by a"


@pytest.mark.parametrize(
    ("table", "staged", "exploded", "setting"),
    [
        ("ARRAY<STRUCT<n: INT>>", "STRUCT<n: INT>", "items", "explode: null"),
        ("STRUCT<n: INT>", "ARRAY<STRUCT<n: INT>>", "", "explode: items"),
        ("ARRAY<STRING>", "INT", "items", "items ARRAY<ARRAY<STRING>> in columns"),
        ("STRING", "INT", "items", "items ARRAY<STRING> in columns"),
        ("STRING", "ARRAY<INT>", "", "items STRING in columns"),
        ("INT", "ARRAY<INT>", "others", "items INT in columns"),
    ],
)
def test_remedy_of_a_difference_that_explode_makes_changes_explode(
    table: str, staged: str, exploded: str, setting: str
) -> None:
    """With `explode` a column has the type of the elements, and `columns` that of the array."""
    differences = problems(f"items {table}", f"items {staged}")
    assert columns_setting(differences, {exploded: "explode"} if exploded else {}).startswith(setting)


def test_partition_column_that_the_stream_lacks_is_named() -> None:
    assert partitioning_setting(["a", "b"], parse_ddl("b INT, a INT")) == "partition_by: [a, b]"
    renamed = partitioning_setting(["a", "b"], parse_ddl("b INT, c INT"))
    assert renamed == "partition_by: [a, b] with a among the stream's columns"
