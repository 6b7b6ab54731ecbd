"""Types of fields are joined to one that has all values, and a table gains only fields that it lacks."""

import pytest

from common.schema import parse_ddl, to_ddl
from common.schema.evolution import NO_COLUMNS, additions, joined_columns, joined_within, within
from common.schema.naming import restricted


@pytest.mark.parametrize(
    ("first", "other", "both"),
    [
        ("v BIGINT", "v DOUBLE", "v DOUBLE"),
        ("v BIGINT", "v BOOLEAN", "v STRING"),
        ("v DOUBLE", "v STRING", "v STRING"),
        ("v ARRAY<BIGINT>", "v ARRAY<DOUBLE>", "v ARRAY<DOUBLE>"),
        ("v ARRAY<BIGINT>", "v BIGINT", "v STRING"),
        ("v MAP<STRING, BIGINT>", "v MAP<STRING, DOUBLE>", "v MAP<STRING, DOUBLE>"),
        ("v STRUCT<a: BIGINT>", "v STRUCT<b: BIGINT>", "v STRUCT<a: BIGINT, b: BIGINT>"),
        ("name BIGINT", "Name STRING, a BIGINT", "Name STRING, a BIGINT"),
    ],
)
def test_joined_type_has_all_values(first: str, other: str, both: str) -> None:
    left, right = parse_ddl(first), parse_ddl(other)
    assert joined_columns(left, right) == joined_columns(right, left) == parse_ddl(both)


@pytest.mark.parametrize(
    ("known", "wanted", "gained"),
    [
        ("a BIGINT", "A STRING, b STRING", ["b STRING"]),
        ("a STRUCT<x: BIGINT>", "a STRUCT<X: STRING, y: BIGINT NOT NULL>", ["a.y BIGINT"]),
        ("a ARRAY<STRUCT<x: BIGINT>>", "a ARRAY<STRUCT<y: BIGINT>>", ["a.element.y BIGINT"]),
        ("a MAP<STRING, STRUCT<x: BIGINT>>", "a MAP<STRING, STRUCT<y: BIGINT>>", ["a.value.y BIGINT"]),
        ("a BIGINT", "b STRUCT<x: BIGINT NOT NULL> NOT NULL", ["b STRUCT<x: BIGINT>"]),
        ("a BIGINT", "a STRUCT<x: BIGINT>", []),
    ],
)
def test_only_fields_that_are_lacking_are_gained(known: str, wanted: str, gained: list[str]) -> None:
    assert [str(each) for each in additions(parse_ddl(known), parse_ddl(wanted))] == gained


def test_fields_that_the_table_has_keep_its_types() -> None:
    table = parse_ddl("a BIGINT NOT NULL, b STRUCT<x: BIGINT NOT NULL>, c ARRAY<STRUCT<x: BIGINT>>, m MAP<STRING, INT>")
    wanted = parse_ddl(
        "a STRING, b STRUCT<x: STRING, y: STRING>, c ARRAY<STRUCT<y: BIGINT>>, m MAP<STRING, STRING>, z INT"
    )
    assert to_ddl(restricted(table, wanted)) == to_ddl(parse_ddl("a BIGINT, b STRUCT<x: BIGINT>, m MAP<STRING, INT>"))
    assert not restricted(table, parse_ddl("b STRUCT<y: BIGINT>")).fields


def test_fields_beyond_the_room_are_left_out_whole() -> None:
    """A struct counts itself and each of its fields."""
    added = additions(NO_COLUMNS, parse_ddl("a STRUCT<x: INT, y: INT>, b INT, c STRUCT<x: INT>, d INT"))
    names = {room: [addition.name.strip("`") for addition in within(added, room)] for room in range(8)}
    assert names[0] == []
    assert names[1] == names[2][:1] == ["b"]
    assert names[3] == ["a"]
    assert names[6] == ["a", "b", "c"]
    assert names[7] == ["a", "b", "c", "d"]
    three = parse_ddl("a INT, b INT, c INT")
    assert joined_within(three, NO_COLUMNS, 2) == parse_ddl("a INT, b INT")
