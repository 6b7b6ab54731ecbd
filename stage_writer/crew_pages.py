"""The pages of several workers as those of one service."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import TYPE_CHECKING

from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from common.http_server import Health, service_pages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from common.http_server import Page
    from stage_writer.crew import Crew, Worker

_TIMEOUT_S = 5.0


def crew_pages(crew: Crew) -> dict[str, Callable[[], Page]]:
    """What the parent serves."""
    return service_pages(
        "stage-writer", lambda: _all(crew, "healthcheck"), lambda: _all(crew, "ready"), lambda: merged(_texts(crew))
    )


def _all(crew: Crew, page: str) -> Health:
    """What is wrong with any of them."""
    problems = [
        f"worker {worker.seat}: {line}"
        for worker in crew.workers
        for ok, text in [_get(worker, page)]
        if not ok
        for line in text.splitlines()
    ]
    return Health(tuple(problems))


def _texts(crew: Crew) -> Iterator[tuple[str, str]]:
    for worker in crew.workers:
        ok, text = _get(worker, "metrics")
        if ok:
            yield str(worker.seat.index), text


def _get(worker: Worker, page: str) -> tuple[bool, str]:
    if worker.port is None:
        return False, "not yet started"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{worker.port}/{page}", timeout=_TIMEOUT_S) as answer:
            return True, answer.read().decode()
    except urllib.error.HTTPError as error:
        return False, error.read().decode()
    except OSError as error:
        return False, f"does not answer: {error}"


def merged(texts: Iterable[tuple[str, str]]) -> bytes:
    """The expositions of several workers as one, each sample with the worker that it is of."""
    return generate_latest(_Merged({family.name: family for family in _families(texts)}))


def _families(texts: Iterable[tuple[str, str]]) -> Iterable[Metric]:
    found: dict[str, Metric] = {}
    for worker, text in texts:
        for family in text_string_to_metric_families(text):
            made = found.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                made.add_sample(sample.name, {**sample.labels, "worker": worker}, sample.value)
    return found.values()


class _Merged:
    """What `generate_latest` asks of a registry."""

    def __init__(self, families: Mapping[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families.values()
