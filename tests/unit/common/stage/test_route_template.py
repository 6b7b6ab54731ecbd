"""`route_table`: valid templates, and how writers agree in the stage on the routes that appear."""

import uuid

import pytest

from common.errors import ConfigError, MarkerError, NewerFormatError
from common.ports import Created
from common.settings.load import print_settings
from common.settings.route_tables import is_name
from common.settings.values import LoadSetting
from common.stage.appeared_routes import AppearedRoutes, agree_on, appeared, with_appeared, with_routes
from common.storage.store import FsspecStore
from tests.fakes.stores import TrappedStore, acting
from tests.unit.common.settings.test_settings import parse, with_stream


def templated(**settings: object) -> str:
    return with_stream(**{"route": "city", "route_table": "/data/by_city/{route}", **settings})


@pytest.fixture
def store() -> FsspecStore:
    return FsspecStore(f"memory://{uuid.uuid4().hex}", {})


def test_appeared_routes_are_like_those_of_the_config() -> None:
    (stream,) = parse(templated(routes={"rome": "/data/rome"}, partition_by=["city"])).streams
    routed = with_routes(stream, ["oslo", "rome", "bonn"])
    assert routed.routing.routes == {"rome": "/data/rome", "oslo": "/data/by_city/oslo", "bonn": "/data/by_city/bonn"}
    assert routed.row_tables == ("/data/orders", "/data/rome", "/data/by_city/oslo", "/data/by_city/bonn")
    assert routed.at("/data/by_city/oslo").layout.partition_by == ("city",)
    assert with_routes(routed, ["oslo", "rome", "bonn"]) == routed
    assert not routed.has_several_columns
    (plain,) = parse(with_stream()).streams
    assert with_routes(plain, ["oslo"]) is plain


def test_settings_include_appeared_routes_but_print_only_the_config(store: FsspecStore) -> None:
    settings = parse(templated())
    agree_on(store, "orders", ["oslo"], 10)
    assert with_appeared(settings, store).streams[0].routing.routes == {"oslo": "/data/by_city/oslo"}
    assert parse(print_settings(settings)) == settings
    plain = parse(with_stream())
    assert with_appeared(plain, store) is plain


@pytest.mark.parametrize(
    ("name", "good"),
    [
        ("orders", True),
        ("shop.Orders-2_x", True),
        ("", False),
        (".", False),
        ("..", False),
        ("a/b", False),
        ("_delta_log", False),
        ("a b", False),
        ("ä", False),
        ("x" * 101, False),
        ("a\n", False),
        ("{route}", False),
    ],
)
def test_route_value_must_be_a_folder_name(name: str, *, good: bool) -> None:
    assert is_name(name) is good


@pytest.mark.parametrize(
    ("stream", "problem"),
    [
        ({"route": None}, "route_table is set, but route is missing"),
        ({"route_table": "/data/all"}, r"route_table.* does not have \{route\} once"),
        ({"route_table": "/data/{route}/{route}"}, "once"),
        ({"route_table": "s3://{route}/data"}, "once"),
        ({"route_table": "lake.{route}"}, "once"),
        ({"route": None, "tables": ["/data/x"]}, "cannot be combined with tables"),
        ({"route_table": None, "routes": {"x": "/data/x"}, "route_limit": 5}, "route_limit is set without"),
        ({"dead_letters": "/data/by_city/dead/letters"}, "may make a table around dead_letters"),
        ({"route_table": "/data/orders/{route}"}, "lies below streams"),
    ],
)
def test_invalid_templates_are_refused(stream: dict[str, object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        parse(templated(**stream).replace("  route: null\n", "").replace("  route_table: null\n", ""))


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("/data/{route}", None),
        ("/stage/{route}", "a folder of stage.url"),
        ("/sta{route}", "may make stage.url, /stage"),
        ("/lake/{route}", r"may make streams\[\].table, /lake/others"),
        ("/lake/{route}s", r"may make streams\[\].table"),
        ("/{route}/others", r"may make streams\[\].table"),
        ("/lake/x-{route}", None),
    ],
)
def test_template_that_may_make_another_location_is_refused(template: str, problem: str | None) -> None:
    text = f"""
kafka: {{bootstrap.servers: "nowhere:1"}}
stage: {{url: /stage}}
streams:
  - {{app_id: a, topics: [a], table: /data/all, columns: k STRING, route: k, route_table: "{template}"}}
  - {{app_id: b, topics: [b], table: /lake/others, columns: k STRING}}
"""
    if problem is None:
        assert parse(text).streams[0].routing.route_table == template
        return
    with pytest.raises(ConfigError, match=problem):
        parse(text)


def test_templates_that_may_make_the_same_table_are_refused() -> None:
    text = """
kafka: {bootstrap.servers: "nowhere:1"}
stage: {url: /stage}
streams:
  - {app_id: a, topics: [a], table: /data/a, columns: k STRING, route: k, route_table: "/lake/{route}"}
  - {app_id: b, topics: [b], table: /data/b, columns: k STRING, route: k, route_table: "/lake/{route}_b"}
"""
    with pytest.raises(ConfigError, match=r"route_table of the stream 'a' may make streams\[\].route_table"):
        parse(text)


def test_writers_agree_on_routes_up_to_the_limit(store: FsspecStore) -> None:
    assert agree_on(store, "orders", ["b", "a"], 3).routes == ("b", "a")
    assert agree_on(store, "orders", ["b"], 3).version == 1
    assert agree_on(store, "orders", ["B", "c", "d"], 3).routes == ("b", "a", "c")
    assert agree_on(store, "orders", ["d"], 3).routes == ("b", "a", "c")
    assert agree_on(store, "orders", ["d"], 2).routes == ("b", "a", "c"), "no route is withdrawn"
    assert agree_on(store, "orders", ["d"], 4).routes == ("b", "a", "c", "d")
    assert appeared(store, "others").routes == ()
    assert agree_on(store, "others", ["A"], 3).routes == agree_on(store, "others", ["a"], 3).routes == ("A",)


def test_concurrent_writers_keep_each_other_s_routes(store: FsspecStore) -> None:
    raced = TrappedStore(store.url, before=acting("create", lambda: agree_on(store, "orders", ["mine", "Both"], 3)))
    assert agree_on(raced, "orders", ["yours", "both", "more"], 3).routes == ("mine", "Both", "yours")
    assert [stored.path.rpartition("/")[2] for stored in store.list("routes/")] == [f"{1:020d}.json", f"{2:020d}.json"]


def test_unreadable_or_newer_routes_are_not_overwritten(store: FsspecStore) -> None:
    first = agree_on(store, "or/ders", ["a"], 3)
    assert first.path == f"routes/or%2Fders/{1:020d}.json"
    assert AppearedRoutes.from_bytes(first.path, 1, first.to_bytes()) == first
    for content, error in ((b"{", MarkerError), (b'{"version": 2}', NewerFormatError)):
        assert isinstance(store.create(f"routes/or%2Fders/{2:020d}.json", content), Created)
        with pytest.raises(error):
            agree_on(store, "or/ders", ["b"], 3)
        store.delete([f"routes/or%2Fders/{2:020d}.json"])


def test_merging_stream_may_have_a_template() -> None:
    (stream,) = parse(templated(load="merge", merge={"keys": ["id"]})).streams
    assert with_routes(stream, ["a"]).load_of("/data/by_city/a") is LoadSetting.MERGE
