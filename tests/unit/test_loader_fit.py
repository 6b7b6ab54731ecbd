"""Which tables files may be added to."""

from __future__ import annotations

import pytest

from common.delta_log import TableState
from common.errors import TableError
from common.schema import nullable_columns, parse_ddl, schema_from_json, schema_to_json
from delta_loader.core.fit import Add, Refused, differences, require_add, require_fit, way_of_loading
from delta_loader.core.plan import TableShape


def shape(ddl: str, *partition_by: str) -> TableShape:
    return TableShape(schema_to_json(parse_ddl(ddl)), partition_by)


def state(
    ddl: str = "a INT", *, properties: dict[str, str] | None = None, features: tuple[str, ...] = (), writer: int = 2
) -> TableState:
    return TableState(0, "id", schema_to_json(parse_ddl(ddl)), (), properties or {}, 1, writer, frozenset(features))


@pytest.mark.parametrize(
    ("table", "staged"),
    [
        ("a INT, b STRING", "a INT"),
        ("b STRING, a INT", "a INT, b STRING"),
        ("s STRUCT<x: INT, y: INT>", "s STRUCT<x: INT>"),
        ("l ARRAY<STRUCT<x: INT, y: INT>>, m MAP<STRING, BIGINT>", "l ARRAY<STRUCT<x: INT>>, m MAP<STRING, BIGINT>"),
    ],
)
def test_a_table_may_have_more_columns(table: str, staged: str) -> None:
    assert differences(shape(table), shape(staged)) == ()


@pytest.mark.parametrize(
    ("table", "staged", "says"),
    [
        ("a INT", "a INT, b STRING", "the column b is not in it"),
        ("A INT", "a INT", "the column a is not in it (it has A)"),
        ("a INT", "a BIGINT", "the column a is INT, staged as BIGINT"),
        ("s STRUCT<x: INT>", "s STRUCT<x: INT, y: INT>", "the column s.y is not in it"),
        ("l ARRAY<INT>", "l ARRAY<STRING>", "the column l.element is INT, staged as STRING"),
        ("m MAP<STRING, INT>", "m MAP<STRING, DATE>", "the column m.value is INT, staged as DATE"),
    ],
)
def test_a_difference_is_named(table: str, staged: str, says: str) -> None:
    assert differences(shape(table), shape(staged)) == (says,)
    with pytest.raises(TableError, match="/t: the column"):
        require_fit(shape(table), shape(staged), "/t")


def test_another_partitioning_is_named() -> None:
    assert differences(shape("a INT", "a"), shape("a INT")) == ("it is partitioned by a, staged by nothing",)


@pytest.mark.parametrize(
    "table",
    [
        state(),
        state(writer=7, features=("appendOnly", "invariants", "deletionVectors", "columnMapping", "timestampNtz")),
        state(properties={"delta.columnMapping.mode": "none", "delta.appendOnly": "true"}),
    ],
)
def test_plain_tables_are_added_to(table: TableState) -> None:
    assert isinstance(way_of_loading(table), Add)
    require_add(table, "/t")


@pytest.mark.parametrize(
    ("table", "says"),
    [
        (state(writer=7, features=("appendOnly", "rainbow")), "rainbow"),
        (state(writer=7, features=("rowTracking",)), "rowTracking"),
        (state(writer=8), "protocol 8"),
        (state(properties={"delta.columnMapping.mode": "name"}), "column mapping"),
        (state(properties={"delta.constraints.positive": "a > 0"}), "positive"),
        (state("a INT NOT NULL"), "a is NOT NULL"),
        (state("s STRUCT<x: INT NOT NULL>"), "s.x is NOT NULL"),
    ],
)
def test_other_tables_are_refused_by_name(table: TableState, says: str) -> None:
    way = way_of_loading(table)
    assert isinstance(way, Refused)
    assert says in way.reason
    with pytest.raises(TableError, match="cannot be added"):
        require_add(table, "/t")


@pytest.mark.parametrize(
    "key", ["delta.generationExpression", "delta.invariants", "delta.identity.start", "CURRENT_DEFAULT"]
)
def test_demanding_columns_are_refused(key: str) -> None:
    json = f'{{"type":"struct","fields":[{{"name":"a","type":"integer","nullable":true,"metadata":{{"{key}":1}}}}]}}'
    way = way_of_loading(TableState(0, "id", json, (), {}, 1, 2, frozenset()))
    assert isinstance(way, Refused)
    assert "column a " in way.reason


def test_an_unknown_type_is_refused() -> None:
    json = '{"type":"struct","fields":[{"name":"a","type":"hologram","nullable":true,"metadata":{}}]}'
    way = way_of_loading(TableState(0, "id", json, (), {}, 1, 2, frozenset()))
    assert isinstance(way, Refused)
    assert "hologram" in way.reason


def test_new_tables_have_nullable_columns_at_every_depth() -> None:
    given = parse_ddl("a INT NOT NULL, s STRUCT<x: INT NOT NULL>, l ARRAY<STRUCT<y: INT NOT NULL>>")
    relaxed = schema_to_json(nullable_columns(given))
    assert '"nullable":false' not in relaxed
    assert isinstance(way_of_loading(TableState(0, "id", relaxed, (), {}, 1, 2, frozenset())), Add)
    assert schema_from_json(relaxed).names == ("a", "s", "l")
