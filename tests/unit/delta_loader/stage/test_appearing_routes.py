"""A loader of a stream whose tables appear by `route_table`."""

import uuid

import pytest

from common.settings import Settings
from common.stage.appeared_routes import agree_on, with_appeared
from delta_loader.stage.listed import Listing
from delta_loader.stage.reading import Stage
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging


@pytest.fixture
def staging() -> Staging:
    return Staging(f"memory://{uuid.uuid4().hex}")


def settings_of(staging: Staging) -> Settings:
    return settings_for(staging, {"route": "name", "route_table": staging.route("{route}")})


def appear(staging: Staging, *routes: str) -> None:
    agree_on(staging.store(staging.stage_url), "orders", routes, 10)


def rows(staging: Staging, tables: MemoryDeltaTables) -> dict[str, int]:
    urls = {"own": staging.table, "a": staging.route("a"), "b": staging.route("b")}
    return {
        name: sum(file.rows for commit in tables.tables[url].commits for file in commit.files)
        for name, url in urls.items()
        if url in tables.tables
    }


def test_running_loader_loads_into_tables_that_appear(staging: Staging) -> None:
    tables = MemoryDeltaTables()
    loader = loader_for(staging, tables, settings_of(staging))
    staging.flush(0, 0, 10)
    assert loader.run_pass()[0].failure is None
    assert rows(staging, tables) == {"own": 10}
    appear(staging, "a")
    staging.flush(0, 10, 20, routed={"a": [11, 12]})
    (report,) = loader.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert rows(staging, tables) == {"own": 18, "a": 2}


def test_table_that_appears_just_before_the_listing_is_known(staging: Staging, monkeypatch: pytest.MonkeyPatch) -> None:
    tables = MemoryDeltaTables()
    loader = loader_for(staging, tables, settings_of(staging))
    listing = Stage.listing
    before: list[str] = ["b", "a"]

    def listed(stage: Stage, stream: object) -> Listing:
        if before:
            route = before.pop()
            appear(staging, route)
            first = 10 * (1 - len(before))
            staging.flush(0, first, first + 10, routed={route: [first + 1]})
        return listing(stage, stream)  # type: ignore[arg-type]

    monkeypatch.setattr(Stage, "listing", listed)
    (report,) = loader.run_pass()
    assert (report.failure, report.held) == (None, {})
    assert rows(staging, tables) == {"own": 18, "a": 1, "b": 1}


def test_marker_for_a_table_that_has_not_appeared_is_held(staging: Staging) -> None:
    tables = MemoryDeltaTables()
    staging.flush(0, 0, 10, routed={"a": [1]})
    (report,) = loader_for(staging, tables, settings_of(staging)).run_pass()
    (held,) = report.held.values()
    assert held.reason == "unreadable_marker"
    assert rows(staging, tables) == {}


def test_settings_with_appeared_tables_list_their_routes(staging: Staging) -> None:
    appear(staging, "a", "b")
    (stream,) = with_appeared(settings_of(staging), staging.store(staging.stage_url)).streams
    assert stream.secondary_tables == (staging.route("a"), staging.route("b"), staging.dead_letters)
