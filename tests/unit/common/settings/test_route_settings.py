"""`routes` and `tables` that have their own sections."""

import pytest

from common.errors import ConfigError
from common.settings.load import print_settings
from common.settings.values import LoadSetting
from tests.unit.common.settings.test_settings import parse, with_stream

CLICK = {"table": "/data/clicks", "columns": "day DATE, url STRING", "partition_by": ["day"], "load": "append"}

MERGE = {"load": "merge", "merge": {"keys": ["id"]}}
DAY = {"table": "/data/clicks", "columns": "day DATE, n INT"}


def merged_by(**keys: object) -> dict[str, object]:
    return {"load": "merge", "merge": {"keys": ["id"], **keys}}


def with_routes(**routes: object) -> str:
    return with_stream(
        route="city", routes=routes, partition_by=["city"], table_properties={"delta.appendOnly": "true"}
    )


def test_section_with_columns_describes_its_whole_table() -> None:
    (stream,) = parse(with_routes(click=CLICK, view="/data/views")).streams
    click, view = stream.at("/data/clicks"), stream.at("/data/views")
    assert (click.record.schema_of_columns.names, click.layout.partition_by) == (("day", "url"), ("day",))
    assert (click.layout.table_properties, click.shaping.derive, click.load) == ({}, {}, LoadSetting.APPEND)
    assert view == stream.model_copy(update={"table": "/data/views"})
    assert stream.row_tables == ("/data/orders", "/data/clicks", "/data/views")
    assert stream.key_of("/data/clicks", "columns") == "streams[].routes.click.columns"
    assert stream.key_of("/data/views", "columns") == "streams[].columns"
    assert stream.has_several_columns


def test_section_without_columns_changes_only_its_keys() -> None:
    (stream,) = parse(with_routes(click={"table": "/data/clicks", "load": "append", "z_order": ["id"]})).streams
    click = stream.at("/data/clicks/")
    assert (click.record.columns, click.layout.partition_by, click.layout.table_properties) == (
        stream.record.columns,
        stream.layout.partition_by,
        stream.layout.table_properties,
    )
    assert (click.load, click.table_services.z_order) == (LoadSetting.APPEND, ("id",))
    assert stream.at(stream.table).table_services.z_order == ()
    assert stream.key_of("/data/clicks", "columns") == "streams[].columns"
    assert stream.key_of("/data/clicks", "load") == "streams[].routes.click.load"
    assert not stream.has_several_columns


def test_section_with_only_a_url_equals_that_url() -> None:
    (stream,) = parse(with_routes(click={"table": "/data/clicks"})).streams
    assert stream == parse(with_routes(click="/data/clicks")).streams[0]


def test_first_of_several_tables_is_the_main_table() -> None:
    values = {"app_id": "orders", "topics": ["orders"], "columns": "id INT, city STRING"}
    (stream,) = parse(
        with_stream(table=None, tables=["/data/a", CLICK], **values).replace("  table: null\n", "")
    ).streams
    (other,) = parse(with_stream(table="/data/a", tables=[CLICK], **values)).streams
    assert stream == other
    assert stream.tables == ("/data/a", "/data/clicks", "/data/a_dead_letters")
    assert stream.at("/data/clicks").layout.partition_by == ("day",)
    assert [key for key, _ in stream.table_locations] == [
        "streams[].table",
        "streams[].dead_letters",
        "streams[].tables[0]",
    ]


def test_catalog_names_are_resolved_in_sections() -> None:
    names = {"shop.clicks": "/data/clicks", "shop.model": "/data/model"}
    section = {"table": "shop.clicks", "columns": "id INT", "template": "shop.model"}
    (stream,) = parse(with_stream(route="city", routes={"click": section}, catalog_tables=names)).streams
    assert (stream.routing.routes, stream.at("/data/clicks").layout.template) == (
        {"click": "/data/clicks"},
        "/data/model",
    )
    (stream,) = parse(with_stream(tables=["shop.clicks"], catalog_tables={"shop.clicks": "/data/clicks"})).streams
    assert stream.row_tables == ("/data/orders", "/data/clicks")


@pytest.mark.parametrize("more", [{"route": "city", "routes": {"click": CLICK, "a": "/a"}}, {"tables": ["/a", CLICK]}])
def test_printed_settings_parse_to_the_same_tables(more: dict[str, object]) -> None:
    settings = parse(with_stream(partition_by=["city"], **more))
    again = parse(print_settings(settings))
    assert again == settings
    for url in settings.streams[0].tables:
        assert again.streams[0].at(url) == settings.streams[0].at(url)
    section = {"table": "/data/clicks", "load": "append"}
    settings = parse(with_stream(partition_by=["city"], route="city", routes={"click": section}))
    assert parse(print_settings(settings)).streams[0].at("/data/clicks").layout.partition_by == ("city",)


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        (
            {"routes": {"click": {"tabel": "/data/clicks"}}},
            r"routes.click.tabel \(orders\) is not a setting; did you mean table\?",
        ),
        ({"routes": {"click": {"columns": "id INT"}}}, r"routes.click.table \(orders\) is missing"),
        ({"routes": {"click": CLICK | {"columns": "day DATUM"}}}, "routes.click.columns.* cannot be read"),
        (
            {"routes": {"click": CLICK | {"columns": "from_registri"}}},
            "routes.click.columns.* is from_registri, which only a stream's columns can be; write .* CREATE TABLE",
        ),
        ({"routes": {"click": CLICK | {"partition_by": ["city"]}}}, "routes.click: partition_by names 'city'"),
        (
            {"routes": {"click": CLICK | {"load": "merge"}}},
            "routes.click.load is set, but only the stream's load can be merge",
        ),
        ({"routes": {"click": CLICK | {"table": "/data/orders/"}}}, "routes.click is the stream's own table"),
        (
            {"routes": {"click": CLICK | {"table": "/data/orders_dead_letters"}}},
            "routes.click is the stream's dead_letters",
        ),
        ({"routes": {"click": CLICK, "tap": "/data/clicks/"}}, "routes.click and routes.tap lead to one table"),
        ({"routes": {"click": CLICK | {"formats": {"day": "epoch_ms"}}}}, "routes.click.formats: "),
        (
            {"routes": {"click": {"table": "/data/clicks", "drop": ["id"]}}},
            "routes.click.drop is set without columns",
        ),
        (
            {"routes": {"click": CLICK}, "route_tables": {"click": {"columns": "id INT"}}},
            "write everything in routes.click",
        ),
        (
            {"routes": {"click": CLICK | {"rename": {"x": "Day"}}}, "unknown_fields": "evolve"},
            "routes.click: rename makes the column 'Day', which columns has too",
        ),
        (
            {"routes": {"click": CLICK, "Click": CLICK | {"table": "/data/other"}}, "unknown_fields": "evolve"},
            "'Click' and 'click' differ only in case, so their tables cannot gain columns",
        ),
        ({"routes": {"click": CLICK | {"explode": "n"}}}, "routes.click: explode names 'n', which is neither a field"),
        ({"routes": {"click": {"table": "/data/c", "explode": "n"}}}, "routes.click.explode is set without columns"),
        (
            {"routes": {"click": {"table": "/data/c", "columns": "n INT"}}, **MERGE},
            "routes.click: merge.keys names 'id', which is not a column of the table",
        ),
        (
            {"routes": {"click": {"table": "/data/c", "columns": "id DOUBLE"}}, **MERGE},
            "routes.click: merge.keys names 'id', whose type DOUBLE cannot tell rows apart",
        ),
        (
            {"routes": {"click": DAY}, **merged_by(route_keys={"click": ["day"], "clik": ["day"]})},
            r"merge.route_keys names 'clik', which is not in routes; did you mean 'click'",
        ),
        (
            {"routes": {"click": DAY, "tap": DAY}, **merged_by(route_keys={"click": ["day"], "tap": ["n"]})},
            "merge.route_keys.tap: another route leads to this table, with other keys",
        ),
        (
            {"routes": {"click": {"table": "/data/clicks", "load": "auto"}}, **MERGE},
            "routes.click.load is set, but only the stream's load can be merge",
        ),
        (
            {"routes": {"aB": "/data/a", "Ab": "/data/b"}, "unknown_fields": "evolve", "route_columns": "own"},
            "'Ab' and 'aB' differ only in case",
        ),
        ({"tables": ["/data/a"], "routes": {"a": "/data/b"}}, "tables are given, .* and so is route; write the tables"),
        ({"tables": ["/data/a", "/data/orders"], "route": None}, "tables names /data/orders twice"),
        ({"tables": [{"tabel": "/data/a"}], "route": None}, r"tables\[0\].tabel \(orders\) is not a setting"),
        ({"tables": ["/data/orders_dead_letters"], "route": None}, r"tables\[0\] is the stream's dead_letters"),
        ({"tables": ["/data/a"], "route": None, "topology": "shop:build"}, "and so is topology; write routes"),
    ],
)
def test_contradictory_sections_are_refused(stream: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(with_stream(**{"route": "city", **stream}))


def test_first_table_has_no_section() -> None:
    with pytest.raises(ConfigError, match=r"tables\[0\] is the main table.*write only its URL, and columns"):
        parse(with_stream(table=None, tables=[CLICK]).replace("  table: null\n", ""))


@pytest.mark.parametrize("below", ["", "/dead"])
def test_table_that_a_value_makes_may_not_have_another_below_it(below: str) -> None:
    made = with_stream(route="city", route_table="/data/by/{route}", dead_letters=f"/data/by/a{below}")
    if not below:
        assert parse(made).streams
        return
    with pytest.raises(ConfigError, match="route_table may make a table around dead_letters"):
        parse(made)
