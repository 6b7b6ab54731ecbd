"""`topology` in a config: its form, the keys that it excludes, and the error messages."""

import pytest

from common.errors import ConfigError, UsageError
from common.settings.load import parse_settings
from common.settings.values import LoadSetting
from stage_writer.replay.records import replayable
from tests.unit.common.settings.test_settings import parse, with_stream


def test_topology_names_a_function() -> None:
    stream = parse(with_stream(topology="shop.sessions:build", routes={"late": "/data/late"})).streams[0]
    assert stream.topology == "shop.sessions:build"
    assert stream.row_tables == ("/data/orders", "/data/late")


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        *(
            ({"topology": name}, "is not a function's name")
            for name in ("shop.sessions", "shop/sessions.py:build", "shop:build()", ":build", "")
        ),
        ({"route": "city", "routes": {"a": "/data/a"}}, r"name the route in add_sink\(table="),
        ({"topics": ["^orders"]}, "topology needs the names of its topics"),
    ],
    ids=str,
)
def test_topology_with_an_invalid_name_route_or_topic_is_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(with_stream(**{"topology": "shop:build", **settings}))


@pytest.mark.parametrize(
    ("key", "value", "instead"),
    [
        ("where", "id > 0", "Where"),
        ("expect", {"positive": "id > 0"}, "let a processor"),
        ("field_names", "snake_case", "Select"),
        ("framing", "confluent", "a stream of its own"),
        ("unrouted", "dead_letters", "name a route"),
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
def test_other_row_making_settings_are_refused_with_a_topology(key: str, value: object, instead: str) -> None:
    columns = "id ARRAY<INT>, city STRING" if key == "explode" else "id BIGINT, city STRING"
    with pytest.raises(ConfigError, match=rf"{key} cannot be set; remove {key}, and .*{instead}"):
        parse(with_stream(topology="shop:build", columns=columns, **{key: value}))


@pytest.mark.parametrize(
    ("key", "settings"),
    [
        ("format", {"format": "avro", "schema_file": "/orders.avsc"}),
        ("validate", {"validate": True, "schema_file": "/orders.json"}),
        (r"include: \[headers\]", {"include": ["headers"]}),
        ("merge", {"load": "merge", "merge": {"keys": ["id"]}}),
    ],
)
def test_settings_of_several_keys_are_refused_with_a_topology(key: str, settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=rf"topology makes the rows, so {key} cannot be set"):
        parse(with_stream(topology="shop:build", columns="id BIGINT, city STRING", **settings))


@pytest.mark.parametrize(
    ("key", "value"), [("max_task_idle", "5s"), ("state_changelog", "changes"), ("topology_packages", ["common"])]
)
def test_settings_of_topologies_need_one(key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{key} only applies to .*; remove it, or set topology"):
        parse(with_stream(**{key: value}))


def test_topology_streams_cannot_be_replayed() -> None:
    settings = parse_settings(with_stream(topology="shop:build"), {}, "config.yaml")
    with pytest.raises(UsageError, match="cannot be rebuilt alone") as refused:
        replayable(settings, "orders")
    assert "bootstrap rewind" in refused.value.remedy


ALERTS = {"columns": "day DATE, share DOUBLE", "partition_by": ["day"], "load": "append"}
"""A table with its own columns and layout."""


def with_tables(tables: object, **more: object) -> str:
    given: dict[str, object] = {"topology": "shop:build", "routes": {"late": "/data/late", "alerts": "/data/alerts"}}
    return with_stream(**{**given, "route_tables": tables, "partition_by": ["city"], **more})


def test_table_with_its_own_shape_inherits_nothing_from_the_stream() -> None:
    stream = parse(with_tables({"alerts": ALERTS}, table_properties={"delta.appendOnly": "true"})).streams[0]
    alerts, late = stream.at("/data/alerts/"), stream.at("/data/late")
    assert (alerts.record.schema_of_columns.names, alerts.layout.partition_by) == (("day", "share"), ("day",))
    assert (alerts.layout.table_properties, alerts.table, alerts.load) == ({}, "/data/alerts/", LoadSetting.APPEND)
    assert (late.record.schema_of_columns, late.layout.partition_by) == (stream.record.schema_of_columns, ("city",))
    assert (late.layout.table_properties, late.load) == ({"delta.appendOnly": "true"}, LoadSetting.AUTO)
    assert [url for url in stream.tables if stream.load_of(url) is LoadSetting.APPEND] == ["/data/alerts"]


@pytest.mark.parametrize(
    ("tables", "more", "problem"),
    [
        ({"alarms": ALERTS}, {}, r"route_tables names 'alarms', which is not in routes; did you mean 'alerts'\?"),
        ({"alerts": {"columns": "day DATUM"}}, {}, "route_tables.alerts.columns.* cannot be read"),
        ({"alerts": ALERTS | {"partition_by": ["days"]}}, {}, r"route_tables.alerts: partition_by names 'days'"),
        ({"alerts": ALERTS | {"z_order": ["day"]}}, {}, r"route_tables.alerts: table_services.z_order names 'day', by"),
        ({"alerts": ALERTS | {"cluster_by": ["share"]}}, {}, "route_tables.alerts: cluster_by and partition_by"),
        ({"alerts": {"columns": "_kafka_offset INT"}}, {}, "route_tables.alerts: kafka_columns makes the column"),
        ({"alerts": ALERTS | {"load": "merge"}}, {}, "only the stream's load can be merge"),
        ({"alerts": ALERTS | {"template": "/data/late"}}, {}, "alerts.template is one of the stream's own tables"),
        ({"alerts": ALERTS}, {"routes": {"alerts": "/data/orders"}}, "route_tables.alerts is the stream's own table"),
        ({"alerts": ALERTS}, {"routes": {"alerts": "/data/a", "more": "/data/a/"}}, "lead to one table"),
        ({"alerts": ALERTS | {"derive": {"a": "1"}}}, {}, "topology makes the rows, so route_tables.alerts.derive"),
        ({"alerts": ALERTS | {"template": "shop.model"}}, {}, "route_tables.alerts.template: 'shop.model' is a name"),
    ],
)
def test_invalid_tables_with_their_own_shape_are_refused(tables: object, more: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(with_tables(tables, **more))


def test_template_of_a_route_s_table_may_be_a_catalog_name() -> None:
    tables = {"alerts": ALERTS | {"template": "shop.model"}}
    (stream,) = parse(with_tables(tables, catalog_tables={"shop.model": "/data/model"})).streams
    assert stream.at("/data/alerts").layout.template == "/data/model"
