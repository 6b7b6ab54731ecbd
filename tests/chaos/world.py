"""The world of a run: brokers, an S3 server, what stands between, and how each fault is done to them.

writers, loaders ─► TCP proxies (cut, stall) ─► brokers
writers, loaders ─► TCP proxy (cut, stall) ─► HTTP proxy (answers lost, creates late) ─► S3 server
producer, operator, verifier ─► brokers, S3 server
"""

from __future__ import annotations

import heapq
import itertools
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import typer
import yaml

from common.storage.store import FsspecStore
from devservices import processes
from devservices.kafka import Broker, KafkaCluster, KafkaOptions, running_kafka
from devservices.ports import HOST
from devservices.proxy import running_proxy
from devservices.s3 import S3Kind, S3Server, running_s3
from devservices.tcp_proxy import TcpProxies, TcpProxy, running_tcp_proxies
from tests.chaos import events
from tests.chaos.plan import LEASE_S, SESSION_S, Fault, Kind
from tests.chaos.records import COLUMNS, PARTITION_BY, PARTITIONS
from tests.chaos.request_faults import RequestFaults
from tests.chaos.services import Service, Services
from tests.chaos.stateful import SEEN, TOPIC, State

CHANGES = "orders-changes"
APP_ID = "orders"
BUCKET = "chaos"
WRITERS = 3
LOADERS = 2
_MOST_WRITERS = 5
_FEWEST_WRITERS = 2
_TICK_S = 0.1
_WARM_WITHIN_S = 600
_BROKER_PROPERTIES = {
    "group.consumer.min.session.timeout.ms": "1000",
    "group.consumer.session.timeout.ms": str(int(SESSION_S * 1000)),
    "group.consumer.min.heartbeat.interval.ms": "500",
    "group.consumer.heartbeat.interval.ms": "1000",
}


@dataclass(slots=True)
class World:
    folder: Path
    kafka: KafkaCluster
    s3: S3Server
    services: Services
    kafka_proxies: list[TcpProxy]
    s3_proxy: TcpProxy
    request_faults: RequestFaults
    group_protocol: str
    state: State
    began_s: float = field(default_factory=time.monotonic)
    done: Counter[Kind] = field(default_factory=Counter)
    skipped: Counter[Kind] = field(default_factory=Counter)
    _later: list[tuple[float, int, str, Callable[[], object]]] = field(default_factory=list)
    _numbers: Iterator[int] = field(default_factory=itertools.count)
    _down: list[Broker] = field(default_factory=list)

    @property
    def table(self) -> str:
        return f"s3://{BUCKET}/tables/orders"

    @property
    def tables(self) -> list[str]:
        rows = events.tables(self.table) if self.state is State.EVENTS else [self.table]
        return [*rows, f"{self.table}_dead_letters"]

    @property
    def stage(self) -> str:
        return f"s3://{BUCKET}/stage"

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.txt"

    # Time.

    def log(self, text: str) -> None:
        line = f"{time.monotonic() - self.began_s:7.1f} s  {text}"
        typer.echo(line)
        with (self.folder / "timeline.txt").open("a", encoding="utf-8") as lines:
            lines.write(line + "\n")

    def run_until(self, at_s: float) -> None:
        """Let time pass: due faults are applied, and ended services restarted."""
        while True:
            now_s = time.monotonic() - self.began_s
            while self._later and self._later[0][0] <= now_s:
                _, _, text, act = heapq.heappop(self._later)
                self.log(text)
                act()
            self.services.supervise()
            if now_s >= at_s:
                return
            time.sleep(_TICK_S)

    def wait_until(self, is_so: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until a condition holds; returns whether it did."""
        deadline_s = time.monotonic() + seconds
        while not is_so():
            if time.monotonic() > deadline_s:
                return False
            self.run_until(time.monotonic() - self.began_s + 1)
        return True

    def warm_up(self) -> None:
        """Wait until all services work: faults on processes that are starting show little."""
        tables = FsspecStore(f"{self.table}/_delta_log", self.s3.storage_options)

        def is_warm() -> bool:
            members = [*self.services.named("writer"), *self.services.named("loader")]
            return all(map(_is_up, members)) and tables.stat(f"{1:020}.json") is not None

        if not self.wait_until(is_warm, _WARM_WITHIN_S):
            msg = f"after {_WARM_WITHIN_S} s without a fault nothing is loaded"
            raise processes.ServiceError(msg)
        self.began_s = time.monotonic()
        self.log("all services work")

    def end_faults(self) -> None:
        """Undo all remaining faults."""
        while self._later:
            _, _, text, act = heapq.heappop(self._later)
            self.log(text)
            act()
        for service in self.services.all:
            service.resume()
        self.kafka.wait_until_ready()
        self.log("all faults have ended")

    # Faults.

    def inflict(self, fault: Fault) -> None:
        """Apply a fault of the plan, if there is a process for it."""
        outcome = self._inflict(fault)
        if outcome is None:
            self.skipped[fault.kind] += 1
            self.log(f"({fault.kind}: no such process)")
            return
        self.done[fault.kind] += 1
        lasting = f", for {fault.lasts_s:.1f} s" if fault.lasts_s else ""
        self.log(f"{fault.kind}: {outcome}{lasting}")

    def _inflict(self, fault: Fault) -> str | None:
        match fault.kind:
            case Kind.WRITER_ADDED:
                return self._add_writer()
            case Kind.WRITER_KILLED | Kind.WRITER_PAUSED | Kind.WRITER_RESTARTED | Kind.WRITER_REMOVED:
                return self._to_service(fault, "writer")
            case Kind.LOADER_KILLED | Kind.LOADER_BEHEADED | Kind.LOADER_PAUSED | Kind.LOADER_RESTARTED:
                return self._to_service(fault, "loader")
            case Kind.S3_KILLED | Kind.S3_CUT | Kind.S3_STALLED | Kind.S3_ANSWERS_LOST | Kind.S3_SLOW:
                return self._to_s3(fault)
            case Kind.BROKER_KILLED | Kind.KAFKA_CUT | Kind.KAFKA_STALLED:
                return self._to_kafka(fault)
            case Kind.OPTIMIZE:
                return self._optimize()
            case _:
                assert_never(fault.kind)

    def _to_service(self, fault: Fault, name: str) -> str | None:
        free = [service for service in self.services.named(name) if service.is_free and _is_up(service)]
        if not free or (fault.kind is Kind.WRITER_REMOVED and len(free) <= _FEWEST_WRITERS):
            return None
        victim = free[fault.which % len(free)]
        if fault.kind in (Kind.WRITER_KILLED, Kind.LOADER_KILLED):
            victim.kill()
        elif fault.kind is Kind.LOADER_BEHEADED:
            victim.kill(whole_group=False)
        elif fault.kind in (Kind.WRITER_PAUSED, Kind.LOADER_PAUSED):
            victim.pause()
            self._after(fault, f"{victim.name} goes on", victim.resume)
        else:
            victim.wanted = fault.kind is not Kind.WRITER_REMOVED
            victim.terminate()
        return victim.name

    def _add_writer(self) -> str | None:
        resting = [service for service in self.services.named("writer") if not service.wanted]
        if resting:
            resting[0].wanted = True
            return resting[0].name
        if len(self.services.named("writer")) >= _MOST_WRITERS:
            return None
        return self.start_writer().name

    def _to_s3(self, fault: Fault) -> str | None:
        now_s = time.monotonic()
        match fault.kind:
            case Kind.S3_KILLED:
                if self.s3.child is None or not self.s3.child.is_running:
                    return None
                self.s3.kill()
                self._after(fault, "the S3 server comes back", self.s3.start)
            case Kind.S3_CUT:
                self.s3_proxy.cut()
            case Kind.S3_STALLED:
                self.s3_proxy.stall()
                self._after(fault, "S3 answers again", self.s3_proxy.resume)
            case Kind.S3_ANSWERS_LOST:
                self.request_faults.losing_until_s = now_s + fault.lasts_s
            case _:
                self.request_faults.slow_until_s = now_s + fault.lasts_s
        return self.s3.kind

    def _to_kafka(self, fault: Fault) -> str | None:
        number = fault.which % len(self.kafka.brokers)
        broker, everyone = self.kafka.brokers[number], fault.which % 2 == 0
        proxies = self.kafka_proxies if everyone else [self.kafka_proxies[number]]
        name = "all brokers" if everyone else f"broker {broker.number}"
        if fault.kind is Kind.KAFKA_CUT:
            for proxy in proxies:
                proxy.cut()
            return name
        if fault.kind is Kind.KAFKA_STALLED:
            for proxy in proxies:
                proxy.stall()
                self._after(fault, f"{name} answer again", proxy.resume)
            return name
        self._down = [down for down in self._down if not (down.is_running and down.answers())]
        if self._down:
            return None  # two of three may not be away at once
        broker.kill()
        self._down.append(broker)
        self._after(fault, f"broker {broker.number} comes back", broker.start)
        return f"broker {broker.number}"

    def _optimize(self) -> str:
        number = len(self.services.named("optimize")) + 1
        service = self.services.add(f"optimize-{number}", "tests.chaos.optimize", self.table)
        service.wanted = False
        return self.table

    def _after(self, fault: Fault, text: str, act: Callable[[], object]) -> None:
        at_s = time.monotonic() - self.began_s + fault.lasts_s
        heapq.heappush(self._later, (at_s, next(self._numbers), text, act))

    # Which services there are.

    def start_writer(self) -> Service:
        number = len(self.services.named("writer")) + 1
        return self.services.add(f"writer-{number}", "stage_writer", "run", self.folder / "config.yaml")

    def start_all(self, seed: int, rate: float) -> None:
        (self.folder / "config.yaml").write_text(yaml.safe_dump(self.settings(), sort_keys=False), "utf-8")
        self.kafka.create_topic(TOPIC, PARTITIONS)
        if self.state is State.TOPIC:
            self.kafka.create_topic(CHANGES, PARTITIONS // 2, {"retention.ms": "3600000", "min.insync.replicas": "2"})
        producer = self.services.add(
            "producer",
            "tests.chaos.producer",
            *(self.kafka.bootstrap_servers, TOPIC, str(seed), str(rate), self.ledger, self.state),
        )
        producer.wanted = False  # it must not begin again
        for number in range(1, LOADERS + 1):
            self.services.add(f"loader-{number}", "delta_loader", "run", self.folder / "config.yaml")
        for _ in range(WRITERS):
            self.start_writer()

    def settings(self) -> dict[str, object]:
        session = {"group.protocol": "consumer"}
        if self.group_protocol == "classic":
            session = {"session.timeout.ms": str(int(SESSION_S * 1000)), "heartbeat.interval.ms": "1000"}
        endpoint = {"endpoint_url": f"http://{HOST}:{self.s3_proxy.port}"}
        return {
            "kafka": {
                "bootstrap.servers": self.kafka.proxied_servers,
                "reconnect.backoff.max.ms": 1000,
                **session,
            },
            "stage": {"url": self.stage, "storage_options": {**self.s3.storage_options, **endpoint}},
            # States are kept in a topic for at most twice this time: less than the duration of a run.
            "writer": {
                "group_id": TOPIC,
                "flush_after": "2s",
                "revoke_timeout": "5s",
                "state_keep": "60s",
                "http": None,
            },
            "loader": {
                "schedule": "5s",
                "marker_retention": "0s",  # a position is free as soon as possible: the worst case for late claims
                "lease": f"{LEASE_S:g}s",
                "http": None,
                "spark": {"spark.master": "local[1]", "spark.driver.memory": "700m"},
            },
            "logs": {"format": "json"},
            "streams": [
                {
                    "app_id": APP_ID,
                    "topics": [TOPIC],
                    "table": self.table,
                    **self._made_by(),
                }
            ],
        }

    def _made_by(self) -> dict[str, object]:
        if self.state is State.EVENTS:
            return events.settings(self.table)
        if self.state is State.NONE:
            return {"columns": COLUMNS, "partition_by": PARTITION_BY}
        changelog = {"state_changelog": CHANGES} if self.state is State.TOPIC else {}
        topology = {"topology": "tests.chaos.stateful:build", **changelog}
        return {"columns": f"{COLUMNS}, {SEEN}", "partition_by": PARTITION_BY, **topology}


@contextmanager
def running_world(folder: Path, store: S3Kind, seed: int, protocol: str, state: State) -> Iterator[World]:
    """Start the servers, and stop all of them at the end in any case."""
    with ExitStack() as started:
        proxies = started.enter_context(running_tcp_proxies())
        s3 = started.enter_context(running_s3(store, _folder(folder, store)))
        s3.create_bucket(BUCKET)
        request_faults = RequestFaults(random.Random(seed))  # noqa: S311 - the same faults for the same seed
        http = started.enter_context(running_proxy(s3.endpoint_url, request_faults, records_exchanges=False))
        made: list[TcpProxy] = []
        options = KafkaOptions(3, proxy_before=_keeping(proxies, made), properties=_BROKER_PROPERTIES)
        kafka = started.enter_context(running_kafka(options, _folder(folder, "kafka")))
        for broker in kafka.brokers:
            started.callback(broker.kill)  # called first; its data is no longer needed
        services = Services(_folder(folder, "logs"))
        started.callback(_end, services)
        os.environ |= s3.environ  # for the operator
        http_port = int(http.endpoint_url.rpartition(":")[2])
        yield World(folder, kafka, s3, services, made, proxies.before(http_port), request_faults, protocol, state)


def _keeping(proxies: TcpProxies, made: list[TcpProxy]) -> Callable[[int], int]:
    def before(port: int) -> int:
        made.append(proxies.before(port))
        return made[-1].port

    return before


def _is_up(service: Service) -> bool:
    """Whether it has started completely."""
    text = service.logs[-1].read_text("utf-8", "replace")
    return any(f'"event": "{event}"' in text for event in ("partitions assigned", "lease taken", "standing by"))


def _folder(folder: Path, name: str) -> Path:
    made = folder / name
    made.mkdir(parents=True, exist_ok=True)
    return made


def _end(services: Services) -> None:
    left = services.end()
    if left:
        msg = f"process groups {left} do not end"
        raise RuntimeError(msg)
