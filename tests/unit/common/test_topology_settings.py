"""`topology` in a config: what it is, what cannot be beside it, and what a user is told."""

from __future__ import annotations

import pytest

from common.errors import ConfigError, UsageError
from common.settings.load import parse_settings
from stage_writer.replay.records import replayable
from tests.unit.common.test_settings import parse, with_stream


def test_a_topology_names_a_function() -> None:
    stream = parse(with_stream(topology="shop.sessions:build", routes={"late": "/data/late"})).streams[0]
    assert stream.topology == "shop.sessions:build"
    assert stream.row_tables == ("/data/orders", "/data/late")


@pytest.mark.parametrize("name", ["shop.sessions", "shop/sessions.py:build", "shop:build()", ":build", ""])
def test_what_is_no_function_s_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="names no function"):
        parse(with_stream(topology=name))


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("where", "id > 0", "Where"),
        ("derive", {"day": "city"}, "Derive"),
        ("explode", "id", "flat_map"),
        ("drop", ["id"], "Select"),
        ("rename", {"id": "number"}, "Select"),
        ("jmespath", {"city": "a.b"}, "let a processor"),
        ("unknown_fields", "rescue", "whole JSON"),
        ("envelope", "debezium", "let a processor"),
        ("formats", {"city": "json"}, "source"),
    ],
)
def test_what_makes_rows_of_a_record_is_refused_beside_it(key: str, value: object, instead: str) -> None:
    columns = "id ARRAY<INT>, city STRING" if key == "explode" else "id BIGINT, city STRING"
    with pytest.raises(ConfigError, match=rf"{key} cannot be beside it; leave {key} out, and .*{instead}"):
        parse(with_stream(topology="shop:build", columns=columns, **{key: value}))


def test_a_route_is_named_by_its_sink() -> None:
    with pytest.raises(ConfigError, match=r"name the route in add_sink\(table="):
        parse(with_stream(topology="shop:build", route="city", routes={"a": "/data/a"}))


def test_topics_are_named() -> None:
    with pytest.raises(ConfigError, match="reads topics by their names"):
        parse(with_stream(topology="shop:build", topics=["^orders"]))


def test_rows_that_depend_on_all_before_them_are_not_replayed() -> None:
    settings = parse_settings(with_stream(topology="shop:build"), {}, "config.yaml")
    with pytest.raises(UsageError, match="cannot be made anew by themselves") as refused:
        replayable(settings, "orders")
    assert "bootstrap rewind" in refused.value.remedy
