"""Interactive lookups in tasks' stores, over HTTP."""

import json
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest
from pydantic import ValidationError

from common.http.server import HttpServer, Routes
from common.settings.model import WriterSettings
from common.spans import Partition, Topic, TopicPartition
from stage_writer.tasks.look_ups import LookUps, OpenTask
from stage_writer.topologies.stores import MemoryBackend, Stores, TaskStores, Windowed
from stage_writer.web.state_pages import state_reads
from stage_writer.web.worker_pool_pages import merged_state
from tests.fakes.locks import WatchedLock

TOKEN = "a token of some length"
BUILDERS = (
    Stores.key_value("counts"),
    Stores.window("hours", timedelta(hours=9), timedelta(seconds=10)),
    Stores.session("visits", timedelta(hours=9)),
)


class Asking:
    """A writer with two tasks, and a client of its state pages."""

    def __init__(self) -> None:
        self.look_ups = LookUps()
        self.look_ups.declare("orders", BUILDERS)
        self.tasks = [self.task(partition) for partition in (0, 1)]
        self.server = HttpServer("127.0.0.1:0", Routes({}, {}, TOKEN, state_reads(self.look_ups)))

    def task(self, partition: int) -> OpenTask:
        task = OpenTask(TopicPartition(Topic("clicks"), Partition(partition)), TaskStores(BUILDERS, MemoryBackend()))
        self.look_ups.add("orders", task)
        return task

    def get(self, path: str, token: str | None = TOKEN) -> tuple[int, Any]:
        headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.server.port}{path}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
                return answer.status, json.loads(answer.read())
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def entries(self, path: str, task: int = 0) -> list[dict[str, Any]]:
        status, answer = self.get(f"/state/orders/{path}")
        assert status == 200, answer
        assert [task_answer["partition"] for task_answer in answer["tasks"]] == [0, 1]
        entries: list[dict[str, Any]] = answer["tasks"][task]["entries"]
        return entries


@pytest.fixture
def asking() -> Iterator[Asking]:
    client = Asking()
    yield client
    client.server.close()


def test_key_is_found_in_its_task_and_absent_in_others(asking: Asking) -> None:
    asking.tasks[1].stores.store("counts").put("an/na é", {"seen": 3})
    assert asking.entries("counts/an%2Fna%20%C3%A9", 1) == [{"key": "an/na é", "value": {"seen": 3}}]
    assert asking.entries("counts/an%2Fna%20%C3%A9", 0) == []


def test_entries_are_sorted_by_key_within_bounds(asking: Asking) -> None:
    for key in ("b", "a", "ab", "c", 7, (1, "x")):
        asking.tasks[0].stores.store("counts").put(key, 1)
    assert [entry["key"] for entry in asking.entries("counts?low=a&high=b")] == ["a", "ab", "b"]
    assert [entry["key"] for entry in asking.entries("counts?prefix=a")] == ["a", "ab"]
    assert [entry["key"] for entry in asking.entries("counts?high=")] == [7], "no text is before the empty one"
    assert [entry["key"] for entry in asking.entries("counts?limit=2")] == [7, "a"]
    assert asking.entries("counts?limit=-1") == []
    assert asking.entries("counts/7?key_type=json") == [{"key": 7, "value": 1}]
    assert asking.entries("counts/%5B1,%22x%22%5D?key_type=json") == [{"key": [1, "x"], "value": 1}]
    assert [entry["key"] for entry in asking.entries("counts?prefix=%5B1%5D&key_type=json")] == [[1, "x"]]


def test_windows_and_sessions_are_found_by_time(asking: Asking) -> None:
    hours, visits = asking.tasks[0].stores.store("hours"), asking.tasks[0].stores.store("visits")
    for start_ms in (0, 10_000, 20_000):
        hours.put("a", start_ms, start_ms)
    visits.put(Windowed("a", 5, 70), 2)
    assert asking.entries("hours/a?from=10000&to=19999") == [
        {"key": "a", "start_ms": 10_000, "end_ms": 20_000, "value": 10_000}
    ]
    assert [entry["start_ms"] for entry in asking.entries("hours?to=10000")] == [0, 10_000]
    session = {"key": "a", "start_ms": 5, "end_ms": 70, "value": 2}
    assert asking.entries("visits/a?from=70") == asking.entries("visits") == [session]
    assert asking.entries("visits/a?from=71") == []


def test_values_are_returned_as_json(asking: Asking) -> None:
    time = datetime(2026, 1, 2, tzinfo=UTC)
    value = {"price": Decimal("1.10"), "at": time, "raw": b"\xff", 3: float("nan"), "t": (1, [None])}
    asking.tasks[0].stores.store("counts").put("a", value)
    assert asking.entries("counts/a")[0]["value"] == {
        "price": "1.10",
        "at": "2026-01-02T00:00:00+00:00",
        "raw": "/w==",
        "3": "nan",
        "t": [1, [None]],
    }


def test_requests_without_the_token_are_refused(asking: Asking) -> None:
    assert asking.get("/state", None)[0] == 401
    assert asking.get("/state/orders/counts/a", "another token of that length")[0] == 401
    off = HttpServer("127.0.0.1:0", Routes({}, {}, None, state_reads(asking.look_ups)))
    asking.server.close()
    asking.server = off
    status, why = asking.get("/state")
    assert (status, "the settings have no http_token" in why) == (403, True)


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("/state/orders", 404, "use /state"),
        ("/state/orders/other/a", 404, "no such stream or store"),
        ("/state/other/counts", 404, "no such stream or store"),
        ("/state/orders/counts/a?limit=x", 400, "limit must be a whole number"),
        ("/state/orders/hours/a?from=9223372036854775808", 400, "from must be a whole number"),
        ("/state/orders/counts/a?lim=1", 400, "lim is unknown"),
        ("/state/orders/counts/a?key_type=xml", 400, "key_type must be text or json"),
        ("/state/orders/counts/{?key_type=json", 400, "Expecting"),
        ("/state/orders/counts/%7B%7D?key_type=json", 400, "a JSON key must be"),
        ("/state/orders/counts?prefix=1&key_type=json", 400, "a prefix must be text or an array"),
        ("/stateless", 404, "no such page"),
    ],
)
def test_invalid_request_is_refused_with_a_reason(asking: Asking, path: str, status: int, why: str) -> None:
    actual, answer = asking.get(path)
    assert (actual, why in answer) == (status, True), answer


def test_overview_lists_stores_and_open_tasks(asking: Asking) -> None:
    asking.tasks[0].stores.store("counts").put("a", 1)
    asking.tasks[1].close()
    (stream,) = asking.get("/state")[1]["streams"]
    assert stream["tasks"] == [{"topic": "clicks", "partition": 0, "entries": 1}]
    assert {"store": "hours", "kind": "window"} in stream["stores"]
    assert [task["partition"] for task in asking.get("/state/orders/counts")[1]["tasks"]] == [0]
    another = asking.task(1)
    asking.look_ups.remove("orders", asking.tasks[1])
    assert asking.look_ups.tasks("orders") == [asking.tasks[0], another]


def test_lookup_waits_for_the_gate(asking: Asking) -> None:
    counts, gate = asking.tasks[0].stores.store("counts"), WatchedLock()
    asking.tasks[0].gate = gate  # type: ignore[assignment]
    answers: list[Any] = []

    def look_up() -> None:
        try:
            answers.append(asking.entries("counts/a"))
        finally:
            gate.waited_for.set()

    thread = threading.Thread(target=look_up)
    with gate:
        counts.put("a", "half done")
        thread.start()
        gate.waited_for.wait()
        assert not answers
        counts.put("a", "done")
    thread.join()
    assert answers == [[{"key": "a", "value": "done"}]]


def test_responses_of_workers_are_merged() -> None:
    answers = [{"app_id": "a", "store": "s", "tasks": [number]} for number in (1, 2, 3)]
    assert merged_state(answers) == {"app_id": "a", "store": "s", "tasks": [1, 2, 3]}
    overviews = [{"streams": [{"app_id": "a", "stores": [], "tasks": [number]}]} for number in (1, 2)]
    assert merged_state(overviews) == {"streams": [{"app_id": "a", "stores": [], "tasks": [1, 2]}]}


def test_state_queries_without_a_token_are_refused_at_startup() -> None:
    assert WriterSettings.model_validate({"state_queries": True, "http_token": TOKEN}).state_queries
    with pytest.raises(ValidationError, match="there is no http_token; give http_token"):
        WriterSettings.model_validate({"state_queries": True})
    with pytest.raises(ValidationError, match="there is no http; give http"):
        WriterSettings.model_validate({"state_queries": True, "http_token": TOKEN, "http": None})
