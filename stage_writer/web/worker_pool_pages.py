"""The pages of several workers as those of one service: partitions are listed together, counts are summed.

Requests to workers ignore the environment's proxy settings: a proxy could not reach them, and would see the token.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlencode

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from pydantic import TypeAdapter

from common.http.pages import Health, release, service_pages
from common.http.server import Page, Routes, json_page, text_page
from common.pages.assets import status_pages
from common.pages.model import DeadLetters, Figure, FlowStep, Status, StreamFlow, Unit, Violations, added
from common.ports import Clock
from common.sizes import counted
from stage_writer.worker_pool import Worker, WorkerPool

_TIMEOUT_S = 5.0
_OK = 200
_UNKNOWN = 404
_AWAY = 503


def worker_pool_routes(pool: WorkerPool, token: str | None, clock: Clock, *, reads_state: bool = False) -> Routes:
    """The parent's routes; a call goes to every worker, and so does a lookup."""
    started_ms = clock.wall_ms()

    def status() -> Status:
        statuses = [status_from_json(text) for _, text in _texts(pool, "status.json")]
        return merged_status(statuses, len(pool.workers), clock.wall_ms(), started_ms)

    pages = service_pages(
        "stage-writer",
        lambda: _all(pool, "healthcheck"),
        lambda: _all(pool, "ready"),
        lambda: merged(_texts(pool, "metrics")),
    )
    pages |= status_pages(status)

    def call(name: str) -> Callable[[Mapping[str, str]], Page]:
        return lambda query: _call_all(pool, name, query, token or "")

    calls = {f"/{name}": call(name) for name in ("pause", "resume")}
    reads = {"/state": lambda rest, query: read_all(pool, f"state{rest}", query, token or "")} if reads_state else {}
    return Routes(pages, calls, token, reads)


def read_all(pool: WorkerPool, path: str, query: Mapping[str, str], token: str) -> Page:
    """The states of all workers: their lists, one after the other; or the error of one of them."""
    responses = [_read(worker, f"{path}?{urlencode(query)}" if query else path, token) for worker in pool.workers]
    refused = next((response for response in responses if response.status != _OK), None)
    return refused or json_page(_OK, merged_state([json.loads(response.body) for response in responses]))


def merged_state(responses: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The tasks of several workers as if one worker had them."""
    first, *others = responses
    if "streams" in first:
        streams = zip(*(response["streams"] for response in responses), strict=True)  # all have the same config
        return {"streams": [merged_state(of_one) for of_one in streams]}
    return {**first, "tasks": [*first["tasks"], *(task for other in others for task in other["tasks"])]}


def _read(worker: Worker, path: str, token: str) -> Page:
    status, text = _ask(worker, "GET", path, token)
    if status != _OK:
        return text_page(status, f"worker {worker.slot}: {text.strip()}\n")
    return Page(status, "application/json", text.encode())


def _call_all(pool: WorkerPool, name: str, query: Mapping[str, str], token: str) -> Page:
    path = f"{name}?{urlencode(query)}" if query else name
    responses = [(worker.slot, *_ask(worker, "POST", path, token)) for worker in pool.workers]
    problems = [(status, f"worker {slot}: {text.strip()}\n") for slot, status, text in responses if status != _OK]
    if not responses:
        return text_page(_AWAY, "not yet started\n")
    if problems:
        refused = {status for status, _ in problems}
        return text_page(_UNKNOWN if refused == {_UNKNOWN} else _AWAY, "".join(text for _, text in problems))
    return Page(_OK, "application/json", responses[0][2].encode())


def _all(pool: WorkerPool, page: str) -> Health:
    problems = [
        f"worker {worker.slot}: {line}"
        for worker in pool.workers
        for ok, text in [_get(worker, page)]
        if not ok
        for line in text.splitlines()
    ]
    missing = [f"worker {index}/{pool.count}: not yet started" for index in range(len(pool.workers), pool.count)]
    return Health((*problems, *missing))


def _texts(pool: WorkerPool, page: str) -> Iterator[tuple[str, str]]:
    for worker in pool.workers:
        ok, text = _get(worker, page)
        if ok:
            yield str(worker.slot.index), text


def _get(worker: Worker, page: str) -> tuple[bool, str]:
    status, text = _ask(worker, "GET", page, None)
    return status == _OK, text


def _ask(worker: Worker, method: str, path: str, token: str | None) -> tuple[int, str]:
    """The status and the text of a worker's response; 503 without one."""
    if worker.port is None:
        return _AWAY, "not yet started"
    connection = HTTPConnection("127.0.0.1", worker.port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, f"/{path}", headers={} if token is None else {"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read().decode()
    except (OSError, HTTPException) as error:
        return _AWAY, f"does not respond: {error}"
    finally:
        connection.close()


def merged(texts: Iterable[tuple[str, str]]) -> bytes:
    """The metrics of several workers as one exposition, with a worker label on each sample."""
    return generate_latest(_Merged({family.name: family for family in _families(texts)}))


def _families(texts: Iterable[tuple[str, str]]) -> Iterable[Metric]:
    families: dict[str, Metric] = {}
    for worker, text in texts:
        for family in text_string_to_metric_families(text):
            made = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                made.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
    return families.values()


class _Merged:
    """The part of a registry that `generate_latest` uses."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families.values()


_EVENTS = 50
_STATUS = TypeAdapter(Status)


def status_from_json(text: str) -> Status:
    """A worker's status. Raises ValueError."""
    return _STATUS.validate_json(text)


def merged_status(statuses: Sequence[Status], workers: int, now_ms: int, started_ms: int) -> Status:
    """``statuses`` are the statuses of the workers that answered."""
    flows: dict[str, list[StreamFlow]] = {}
    for flow in (flow for status in statuses for flow in status.streams):
        flows.setdefault(flow.app_id, []).append(flow)
    partitions = sorted(
        (row for status in statuses for row in status.partitions),
        key=lambda row: (row.stream, row.topic, row.partition),
    )
    states = {status.state for status in statuses}
    return Status(
        service="stage-writer",
        version=release(),
        now_ms=now_ms,
        started_ms=started_ms,
        state=states.pop() if len(states) == 1 else ", ".join(sorted(states)) or "starting",
        verdict=(
            f"{len(statuses)} of {workers} workers respond; they stage {counted(len(partitions), 'Kafka partition')}."
        ),
        figures=_figures(statuses),
        problems=tuple(dict.fromkeys(problem for status in statuses for problem in status.problems)),
        streams=tuple(_flow(same) for _, same in sorted(flows.items())),
        stops=statuses[0].stops if statuses else (),
        partitions=tuple(partitions),
        events_title="Recent flushes",
        events=tuple(
            sorted((event for status in statuses for event in status.events), key=lambda event: -event.time_ms)[
                :_EVENTS
            ]
        ),
        dead_letters=_dead_letters(statuses),
        violations=_violations(statuses),
        is_known=len(statuses) == workers and all(status.is_known for status in statuses),
    )


def _figures(statuses: Sequence[Status]) -> tuple[Figure, ...]:
    by_label: dict[str, list[Figure]] = {}
    for figure in (figure for status in statuses for figure in status.figures):
        by_label.setdefault(figure.label, []).append(figure)
    return tuple(_figure(same) for same in by_label.values())


def _figure(same: Sequence[Figure]) -> Figure:
    numbers = [figure.value for figure in same if isinstance(figure.value, int | float)]
    if not numbers or same[0].unit is Unit.TEXT:
        return same[0]
    bounds = [figure.of for figure in same if figure.of is not None]
    added = same[0].unit in {Unit.COUNT, Unit.BYTES}
    return replace(same[0], value=sum(numbers) if added else max(numbers), of=sum(bounds) if bounds else None)


def _flow(same: Sequence[StreamFlow]) -> StreamFlow:
    first = same[0]
    partitions = sum(flow.partitions for flow in same)
    stops = [_stop([flow.stops[index] for flow in same]) for index in range(len(first.stops))]
    levels = [flow.level for flow in same if flow.level is not None]
    return replace(
        first,
        way=f"{counted(partitions, 'partition')} here",
        stops=tuple(stops),
        partitions=partitions,
        held=sum(flow.held for flow in same),
        level=levels[0] if levels else None,
    )


def _stop(same: Sequence[FlowStep]) -> FlowStep:
    lags = [step.lag for step in same if step.lag is not None]
    return replace(same[0], lag=added(lags) if lags else None)


def _dead_letters(statuses: Sequence[Status]) -> tuple[DeadLetters, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    samples: dict[tuple[str, str], DeadLetters] = {}
    for group in (entry for status in statuses for entry in status.dead_letters):
        counts[group.stream, group.error_class] += group.count
        if group.samples:
            samples[group.stream, group.error_class] = group
    return tuple(
        DeadLetters(*key, count, samples[key].samples if key in samples else ()) for key, count in counts.most_common()
    )


def _violations(statuses: Sequence[Status]) -> tuple[Violations, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for each in (each for status in statuses for each in status.violations):
        counts[each.stream, each.rule] += each.count
    return tuple(Violations(*key, count) for key, count in counts.most_common())
