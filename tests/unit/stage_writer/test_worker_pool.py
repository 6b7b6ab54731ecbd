"""The settings of one worker, and the shared pages of all workers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog

from common import metrics as all_metrics
from common.errors import ConfigError, HeldError, KafkaDeltaExpressError
from common.http.pages import Health, Pausing, pausing_calls, service_pages
from common.http.server import HttpServer, Routes
from common.metrics import Metrics
from common.settings import Settings
from common.stage.paused import StreamPart
from stage_writer.web import worker_pool_pages
from stage_writer.web.worker_pool_pages import merged, worker_pool_routes
from stage_writer.worker_pool import Worker, WorkerPool, WorkerSlot, settings_of, workers_of
from tests.fakes.group import HandClock
from tests.fakes.pauses import paused_streams

TOKEN = "the-token-of-workers"


def settings(memory: str, **kafka: str) -> Settings:
    return Settings.model_validate(
        {
            "kafka": {"bootstrap.servers": "nowhere:1", **kafka},
            "stage": {"url": "/stage"},
            "writer": {"memory": memory, "workers": 4},
            "streams": [{"app_id": "a", "topics": ["a"], "table": "/table", "columns": "id INT"}],
        }
    )


def test_workers_divide_the_memory_and_have_separate_instance_ids() -> None:
    given = settings("1GiB", **{"group.instance.id": "writer-7"})
    workers = [settings_of(given, WorkerSlot(index, 4)) for index in range(4)]
    assert {worker.writer.memory_bytes for worker in workers} == {2**28}
    assert [worker.kafka["group.instance.id"] for worker in workers] == [f"writer-7-{index}" for index in range(4)]
    assert {(worker.writer.workers, worker.writer.http) for worker in workers} == {(1, "127.0.0.1:0")}


def test_too_little_memory_for_all_workers_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"4 writer\.workers"):
        settings_of(settings("2MiB"), WorkerSlot(0, 4))


def test_worker_stopped_during_its_start_did_not_fail() -> None:
    pool = WorkerPool([sys.executable, "-c", "input()"], 2, structlog.get_logger(), ends_by_itself=False)
    before = signal.getsignal(signal.SIGTERM)
    try:
        pool.start()
        signal.raise_signal(signal.SIGTERM)
        pool.run()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [worker.process.returncode for worker in pool.workers] == [-signal.SIGTERM] * 2


@pytest.mark.parametrize(("codes", "error"), [((0, 0), None), ((3, 0), HeldError), ((3, 1), KafkaDeltaExpressError)])
def test_exit_codes_of_all_workers_decide_the_pools_error(
    codes: tuple[int, int], error: type[KafkaDeltaExpressError] | None
) -> None:
    program = f"import sys; sys.exit({codes}[int(sys.argv[-1][0])])"
    pool = WorkerPool([sys.executable, "-c", program], 2, structlog.get_logger(), ends_by_itself=True)
    pool.start()
    if error is None:
        pool.run()
        return
    with pytest.raises(KafkaDeltaExpressError) as caught:
        pool.run()
    assert type(caught.value) is error


def test_auto_workers_is_one_per_available_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5, 6, 7, 9, 40}, raising=False)
    given = settings("1GiB").model_dump(by_alias=True)
    given["writer"] = {"workers": "auto"}
    assert workers_of(Settings.model_validate(given)) == 7
    assert workers_of(settings("1GiB")) == 4


def test_worker_slot_round_trips_through_text() -> None:
    assert WorkerSlot.parse(str(WorkerSlot(2, 7))) == WorkerSlot(2, 7)


def test_merged_metrics_are_labeled_by_worker() -> None:
    texts = []
    for worker in ("0", "1"):
        metrics = Metrics()
        metrics.set(all_metrics.WRITER_PARTITIONS, 3)
        metrics.add(all_metrics.WRITER_RECORDS, 5, topic="orders")
        metrics.observe(all_metrics.WRITER_FLUSH_SECONDS, 0.2)
        texts.append((worker, metrics.exposition().decode()))
    text = merged(texts).decode()
    for worker in ("0", "1"):
        assert f'{all_metrics.WRITER_PARTITIONS.name}{{worker="{worker}"}} 3.0' in text
        assert f'topic="orders",worker="{worker}"}} 5.0' in text
    assert text.count(f"# TYPE {all_metrics.WRITER_PARTITIONS.name} gauge") == 1
    assert text.count(f"# TYPE {all_metrics.WRITER_FLUSH_SECONDS.name} histogram") == 1


@pytest.fixture
def worker(monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setattr(worker_pool_pages, "_TIMEOUT_S", 120.0)  # longer than any response takes on a busy machine
    metrics, log = Metrics(), structlog.get_logger()
    pausing = Pausing(HandClock(), log, metrics, all_metrics.WRITER_PAUSED_BY_REQUEST)
    pages = service_pages("stage-writer", Health, lambda: Health(("not ready",)), metrics.exposition)
    server = HttpServer(
        "127.0.0.1:0", Routes(pages, pausing_calls(pausing, paused_streams(part=StreamPart.STAGING)), TOKEN)
    )
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        yield Worker(WorkerSlot(0, 1), process, server.port)
    server.close()


def test_workers_are_queried_without_the_environments_proxy(worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    pool = WorkerPool([], 1, structlog.get_logger(), ends_by_itself=False, workers=[worker])
    routes = worker_pool_routes(pool, TOKEN, HandClock())

    def fetched(path: str) -> tuple[int, str]:
        page = routes.pages[path]
        assert callable(page)
        answer = page()
        return answer.status, answer.body.decode()

    assert fetched("/healthcheck") == (200, "ok\n")
    assert fetched("/ready") == (503, f"worker {worker.slot}: not ready\n")
    paused = routes.calls["/pause"]({})
    assert (paused.status, json.loads(paused.body)) == (200, {"paused": True})
    assert 'stage_writer_paused_by_request{worker="0"} 1.0' in fetched("/metrics")[1]
    refused = worker_pool_routes(pool, "a-wrong-token", HandClock()).calls["/resume"]({})
    assert (refused.status, "bearer token" in refused.body.decode()) == (503, True)


def test_pool_is_not_ready_before_every_worker_has_started(worker: Worker) -> None:
    pool = WorkerPool([], 2, structlog.get_logger(), ends_by_itself=False, workers=[worker])
    page = worker_pool_routes(pool, TOKEN, HandClock()).pages["/healthcheck"]
    assert callable(page)
    answer = page()
    assert (answer.status, answer.body.decode()) == (503, "worker 1/2: not yet started\n")


def test_unresponsive_worker_is_a_problem_by_name(worker: Worker) -> None:
    pool = WorkerPool([], 1, structlog.get_logger(), ends_by_itself=False, workers=[worker])
    for port, problem in ((None, "not yet started"), (1, "does not respond")):
        worker.port = port
        page = worker_pool_routes(pool, TOKEN, HandClock()).pages["/healthcheck"]
        assert callable(page)
        answer = page()
        assert (answer.status, f"worker {worker.slot}: {problem}" in answer.body.decode()) == (503, True)
