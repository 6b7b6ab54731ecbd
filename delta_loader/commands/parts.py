"""Parts that the commands share: stores, and parallel requests to them."""

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from threading import Lock, local
from typing import TypeVar
from weakref import WeakSet

from common.clock import SystemClock
from common.errors import UsageError
from common.kafka.rights import Right, require_topic
from common.settings import Settings
from common.settings.stores import stage_store, table_stores
from common.stage.topic_owners import StageTopicOwners
from common.tables.urls import comparable
from delta_loader.checks.preflight import Preflight
from delta_loader.ports import ParallelMap
from delta_loader.stage.reading import Stage
from delta_loader.status.kafka import BrokerEnds

Item = TypeVar("Item")


Result = TypeVar("Result")


class OwnPools:
    """A `delta_loader.ports.ParallelMap` with a pool for each thread that calls it.

    A store that hangs thus blocks the threads of the stream that uses it, and of no other stream.
    """

    def __init__(self, threads: int) -> None:
        """At most ``threads`` requests at a time for one caller."""
        self._threads = threads
        self._local = local()
        self._lock = Lock()
        self._pools: WeakSet[ThreadPoolExecutor] = WeakSet()
        """A pool whose thread is gone shuts down by itself."""

    def __call__(self, function: Callable[[Item], Result], items: Iterable[Item], /) -> list[Result]:
        return list(self._pool().map(function, items))

    def close(self) -> None:
        """Shut all pools down without waiting for requests in progress."""
        with self._lock:
            for pool in list(self._pools):
                pool.shutdown(wait=False, cancel_futures=True)

    def _pool(self) -> ThreadPoolExecutor:
        pool: ThreadPoolExecutor | None = getattr(self._local, "pool", None)
        if pool is None:
            pool = self._local.pool = ThreadPoolExecutor(self._threads)
            with self._lock:
                self._pools.add(pool)
        return pool


THREADS = 32  # concurrent requests to object stores: they wait and do not compute


def parallel_requests() -> closing[OwnPools]:
    return closing(OwnPools(THREADS))


def stage_of(settings: Settings, parallel: ParallelMap) -> Stage:
    """The stage, for a command that only reads it: it makes no owner of a topic."""
    store = stage_store(settings)
    return Stage(store, parallel, StageTopicOwners(settings, store, make=False, parallel=parallel))


def preflight_of(settings: Settings, parallel: ParallelMap) -> Preflight:
    stage = stage_of(settings, parallel)
    ends, control = BrokerEnds(settings), _control_topic(settings)
    return Preflight(settings, stage.store, stage, table_stores(settings), ends, SystemClock(), control)


def _control_topic(settings: Settings) -> Callable[[], None] | None:
    topic = settings.loader.control_topic
    if topic is None:
        return None
    return lambda: require_topic(settings.kafka, "loader.control_topic", topic, Right.READ)


def tables_of(settings: Settings) -> list[str]:
    return [url for stream in settings.streams for url in stream.tables]


def table_named(settings: Settings, given: str, urls: Collection[str], reason: str = "") -> str:
    """Which of these tables is meant by a URL, or by a name from `catalog_tables`.

    Raises UsageError for any other; ``reason`` is what else may be why.
    """
    named = {name: url for stream in settings.streams for name, url in stream.catalog_tables.items()}
    wanted = comparable(named.get(given, given))
    table_url = next((url for url in urls if comparable(url) == wanted), None)
    if table_url is None:
        msg = f"--table {given} is not a table of this config{reason}"
        raise UsageError(msg, f"use one of {', '.join(dict.fromkeys(urls))}")
    return table_url
