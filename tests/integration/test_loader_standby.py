"""Two loaders as processes: one loads, the other stands by with its Spark session started."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from common.tables.delta_log import read_table_state
from devservices.processes import Child
from tests.fakes.staging import DECLARED, OneOfMany, Staging
from tests.integration.conftest import Programs

pytestmark = pytest.mark.spark
LEASE_S = 10
PATIENCE_S = 600


def config_with(
    streams: Sequence[Mapping[str, object]], stage_url: str, programs: Programs, name: str = "config.yaml"
) -> Path:
    return programs.config(
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "stage": {"url": stage_url},
            "loader": {
                "http": "127.0.0.1:0",
                "schedule": "500ms",
                "lease": f"{LEASE_S}s",
                "spark": {"spark.master": "local[1]"},
            },
            "logs": {"format": "json"},
            "streams": list(streams),
        },
        name,
    )


def loaded(staging: Staging, app_id: str = "orders") -> int | None:
    state = read_table_state(staging.store(staging.table))
    return None if state is None else state.transactions.get(f"{app_id}-0")


def events(child: Child, name: str) -> list[dict[str, object]]:
    lines = [line for line in child.log.read_text("utf-8").splitlines() if line.startswith("{")]
    return [event for event in map(json.loads, lines) if event["event"] == name]


def page(child: Child, path: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{events(child, 'serving')[0]['port']}{path}") as answer:
        return str(answer.read().decode())


def is_ready(child: Child) -> bool:
    try:
        return bool(events(child, "serving")) and page(child, "/ready") == "ok\n"
    except urllib.error.HTTPError:
        return False


def loads(child: Child, staging: Staging, offset: int, app_id: str = "orders") -> None:
    child.wait_until(lambda: loaded(staging, app_id) == offset, "the loader", PATIENCE_S)


def lease_of(programs: Programs, config: Path) -> dict[str, Any]:
    lease = json.loads(programs.succeed("delta-loader", "status", config, "--json"))["lease"]
    assert isinstance(lease, dict)
    return lease


def test_standby_loads_after_the_holder_s_death_and_after_its_end(tmp_path: Path, programs: Programs) -> None:
    orders, returns = (OneOfMany(f"{tmp_path}/{name}", topic=name) for name in ("orders", "returns"))
    streams = [
        {"app_id": staging.topic, "topics": [staging.topic], "table": staging.table, **DECLARED}
        for staging in (orders, returns)
    ]
    before = config_with(streams[:1], orders.stage_url, programs, "before.yaml")
    after = config_with(streams, orders.stage_url, programs, "after.yaml")
    for staging in (orders, returns):
        staging.flush(0, 0, 10)
    first = programs.start("delta-loader", "run", before)
    loads(first, orders, 9)

    # One with another stream as well stands by for the stream that the first one loads, and for it alone.
    second = programs.start("delta-loader", "run", after)
    loads(second, returns, 9, "returns")
    second.wait_until(lambda: is_ready(second), "the standby", PATIENCE_S)
    lease = lease_of(programs, after)
    assert sorted(entry["streams"] for entry in lease["holders"]) == [["orders"], ["returns"]]
    assert lease["unheld"] == []
    orders.flush(0, 10, 20)
    loads(first, orders, 19)
    lag = 'delta_loader_lag_positions{partition="0",topic="orders"} '
    second.wait_until(lambda: f"{lag}0.0" in page(second, "/metrics"), "the standby's look", PATIENCE_S)
    held = 'delta_loader_stream_lease_held{app_id="%s"} %.1f'
    assert {held % ("orders", 0), held % ("returns", 1)} <= set(page(second, "/metrics").splitlines())
    assert held % ("orders", 1) in page(first, "/metrics")
    assert {event["app_id"] for event in events(second, "committed")} == {"returns"}

    # A holder that is stopped in its tracks is replaced, and steps back when it goes on.
    (slept,) = (entry["holder"] for entry in lease["holders"] if entry["streams"] == ["orders"])
    first.pause()
    orders.flush(0, 20, 30)
    loads(second, orders, 29)
    [(holder, of)] = [(entry["holder"], entry["streams"]) for entry in lease_of(programs, after)["holders"]]
    assert of == ["orders", "returns"]
    assert holder not in {slept, None}
    first.resume()
    first.wait_until(lambda: bool(events(first, "lease lost")), "the loader that slept", PATIENCE_S)

    # A loader that gets SIGTERM releases its lease. (What starts from here on goes on with its Java.)
    assert second.stop(PATIENCE_S) == 0
    assert [event["streams"] for event in events(second, "lease taken")] == [["returns"], ["orders"]]
    orders.flush(0, 30, 40)
    loads(first, orders, 39)
    assert [event["streams"] for event in events(first, "lease taken")] == [["orders"], ["orders"]]
    assert len(events(first, "lease released")) == 1

    # A single pass next to it waits for the lease for a while, and then loads without it.
    done = programs.run("delta-loader", "run", before, "--once")
    assert done.returncode == 0, done.stderr
    assert "loading although another loader holds the lease" in done.stderr

    third = programs.start("delta-loader", "run", before)
    third.wait_until(lambda: is_ready(third), "the next standby", PATIENCE_S)
    assert "delta_loader_lease_held 1.0" in page(first, "/metrics")
    assert "delta_loader_lease_held 0.0" in page(third, "/metrics")
    assert (events(third, "committed"), events(third, "lease taken")) == ([], [])
    first.kill()
    orders.flush(0, 40, 50)
    loads(third, orders, 49)
    assert third.stop(PATIENCE_S) == 0
    assert lease_of(programs, before)["holder"] is None
    assert all("Traceback" not in child.log.read_text("utf-8") for child in programs.started)
