"""Tables that are given by their name in a catalog."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
import yaml

from common.errors import ConfigError, TableError, UsageError
from common.settings import Settings, Stream
from common.settings.load import parse_settings, print_settings
from delta_loader.catalog.registering import Entry, Registering, UnknownCatalogError
from delta_loader.check_result import exit_code, fatal
from delta_loader.commands.parts import table_named, tables_of
from tests.builders import content_of
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging

NAME = "lake.shop.orders"
LETTERS = "lake.shop.orders_dead_letters"


def settings(**options: object) -> Settings:
    stream = {"table": NAME, "columns": "id BIGINT, kind STRING", **options}
    return parse_settings(yaml.safe_dump(content_of(stream)), {}, "config.yaml")


def test_catalog_name_resolves_to_its_location_in_every_setting() -> None:
    places = {NAME: "s3://lake/orders", "shop.clicks": "s3://lake/clicks", "lake.my-shop.dead": "s3://lake/dead"}
    options = {"dead_letters": "lake.my-shop.dead", "route": "kind", "routes": {"click": "shop.clicks"}}
    known = settings(catalog_tables={**places, "shop.model": "s3://lake/model"}, template="shop.model", **options)
    stream = known.streams[0]
    assert stream.tables == ("s3://lake/orders", "s3://lake/clicks", "s3://lake/dead")
    assert stream.layout.template == "s3://lake/model"
    assert parse_settings(print_settings(known), {}, "printed").streams == known.streams
    assert table_named(known, "shop.clicks", tables_of(known)) == "s3://lake/clicks"
    assert table_named(known, "s3a://lake/clicks/", tables_of(known)) == "s3://lake/clicks"
    with pytest.raises(UsageError, match=r"--table shop\.others is not a table of this config"):
        table_named(known, "shop.others", tables_of(known))


def test_default_dead_letter_table_is_next_to_the_location() -> None:
    assert settings(catalog_tables={NAME: "/lake/orders"}).streams[0].dead_letters == "/lake/orders_dead_letters"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "catalog_tables: {lake.shop.orders: URL}"),
        ({"catalog_tables": {NAME: "/a"}, "template": "shop.model"}, "template: 'shop.model' is a name in a"),
        ({"table": "/a", "route": "kind", "routes": {"x": "shop.x"}}, "routes.x: 'shop.x' is a name in a"),
        ({"catalog_tables": {NAME: "/a", "shop.others": "/b"}}, "which is not a table of the stream"),
        ({"catalog_tables": {NAME: "/a", "shop.same": "file:///a/"}}, "has the same location as lake.shop.orders"),
        ({"table": "/a", "catalog_tables": {"s3://x": "/a"}}, "write schema.table or catalog.schema.table"),
        ({"table": "orders", "catalog_tables": {"orders": "/a"}}, "write schema.table or catalog.schema.table"),
        ({"table": "/a", "catalog_tables": {NAME: "other.name"}}, "which is a name in a catalog"),
        ({"table": "/a", "catalog_tables": {NAME: "s3:/a"}}, "did you mean s3://a?"),
        ({"template": "s3:/a", "catalog_tables": {NAME: "/a"}}, "template: 's3:/a' is not a URL"),
    ],
)
def test_unknown_or_invalid_catalog_names_are_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        settings(**options)
    assert message in raised.value.problem


@dataclass
class Known:
    entries: dict[str, Entry] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    fails: Exception | None = None

    def entry(self, name: str) -> Entry | None:
        self.asked.append(name)
        if self.fails is not None:
            raise self.fails
        return self.entries.get(name)

    def register(self, name: str, url: str) -> None:
        self.entries.setdefault(name, Entry("EXTERNAL", "delta", url))


def named(staging: Staging) -> Settings:
    return settings_for(staging, {"catalog_tables": {NAME: staging.table, LETTERS: staging.dead_letters}})


def test_tables_are_registered_once_after_creation(tmp_path: Path) -> None:
    staging, tables, catalog = Staging.below(tmp_path), MemoryDeltaTables(), Known()
    loader = loader_for(staging, tables, named(staging), registering=Registering(catalog))
    loader.run_pass()
    assert catalog.entries == {}, "there is no table yet"
    staging.flush(0, 0, 10)
    (report,) = loader.run_pass()
    assert report.failure is None
    assert catalog.entries == {NAME: Entry("EXTERNAL", "delta", staging.table)}
    staging.flush(0, 10, 20, dead=[11])
    loader.run_pass()
    assert catalog.entries[LETTERS].location == staging.dead_letters
    catalog.asked.clear()
    staging.flush(0, 20, 30, dead=[21])
    (report,) = loader.run_pass()
    assert (report.rows, catalog.asked) == (10, [])


@pytest.mark.parametrize(
    ("entry", "message", "remedy"),
    [
        (Entry("VIEW", "", ""), "is a view", "choose another name"),
        (Entry("MATERIALIZED_VIEW", "delta", ""), "is a view", "choose another name"),
        (Entry("MANAGED", "parquet", "/lake/orders"), "of the format parquet", "CONVERT TO DELTA"),
        (Entry("MANAGED", "delta", "/lake/elsewhere"), "is located at /lake/elsewhere", "use its own location"),
    ],
)
def test_name_of_another_object_stops_only_its_stream(tmp_path: Path, entry: Entry, message: str, remedy: str) -> None:
    staging, tables, catalog = Staging.below(tmp_path), MemoryDeltaTables(), Known({NAME: entry})
    staging.flush(0, 0, 10)
    (report,) = loader_for(staging, tables, named(staging), registering=Registering(catalog)).run_pass()
    assert report.failure is not None
    assert message in report.failure.problem
    assert remedy in report.failure.remedy
    assert tables.tables == {}, "nothing was made at the location either"
    checks = list(Registering(catalog).checks(named(staging).streams[0]))
    assert (exit_code(checks), fatal(checks)) == (2, ()), "other streams are loaded"


def test_unreachable_catalog_differs_from_an_unknown_one() -> None:
    stream: Stream = settings(catalog_tables={NAME: "/lake/orders"}).streams[0]
    away = list(Registering(Known(fails=TableError("gone", "wait"))).checks(stream))
    assert (exit_code(away), fatal(away)) == (1, ())
    unknown = list(Registering(Known(fails=UnknownCatalogError("lake is none", "say"))).checks(stream))
    assert (exit_code(unknown), len(fatal(unknown))) == (2, 1)
