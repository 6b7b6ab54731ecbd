"""Which values a table's columns can never take."""

import pytest

from common.schema import StructType, parse_ddl
from common.tables.schema_compatibility import partitioning_problem, type_problems


def problems(table: str, staged: str) -> list[tuple[str, str]]:
    return list(type_problems(StructType(tuple(parse_ddl(table))), StructType(tuple(parse_ddl(staged)))))


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
    assert all(problem.startswith("the column c") for problem, _ in differences)


def test_keys_of_a_map_are_compared() -> None:
    assert problems("m MAP<STRING, INT>", "m MAP<INT, INT>") == [
        ("the column m.key is STRING, staged as INT", "m MAP<STRING, INT>")
    ]


def test_partitioning_is_the_same_in_the_same_order() -> None:
    assert partitioning_problem(["a", "b"], ("a", "b")) is None
    assert partitioning_problem(["a", "b"], ["b", "a"]) == "it is partitioned by a, b, staged by b, a"
    assert partitioning_problem([], ["a"]) == "it is partitioned by nothing, staged by a"
