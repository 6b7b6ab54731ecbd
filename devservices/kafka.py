"""Apache Kafka in KRaft mode, from Maven Central's jars: ``with running_kafka() as kafka: kafka.bootstrap_servers``.

A cluster's brokers are controllers as well. They listen on free ports of the loopback interface, keep their data in a
temporary folder, and are ready when this returns: an admin client has seen every one of them.
"""

import base64
import hashlib
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from common.downloads import cache_folder, ensure_jars, read_lock
from devservices import processes
from devservices.java import java
from devservices.ports import HOST, free_ports, wait_until_closed

LOCK = Path(__file__).parent / "kafka.lock"

# A broker for tests is short-lived: the first compiler tier and one small heap start fastest.
_OPTIONS = (
    "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-Dorg.slf4j.simpleLogger.showDateTime=true",
)  # fmt: skip
_BOOTSTRAP = "bootstrap.checkpoint"
_READY_TIMEOUT_S = 300
_ANSWER_TIMEOUT_S = 20
_STOP_TIMEOUT_S = 30
_ADMIN_TIMEOUT_S = 120
_AGAIN_S = 0.05


@dataclass(slots=True)
class Broker:
    """One broker, which can be stopped, killed and started again at the same address with the same data."""

    number: int
    port: int
    folder: Path
    child: processes.Child | None = None
    control_port: int = 0
    """Of the quorum's own talk."""
    proxy_port: int | None = None
    """Where something stands before it (`KafkaOptions.proxy_before`)."""
    listener_ports: Mapping[str, int] = field(default_factory=dict)
    """Of `KafkaOptions.listeners`, by their names."""
    java: Sequence[str] = ()
    """More options of its Java."""

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.is_running

    def answers(self) -> bool:
        """Whether it serves requests, and the cluster has a leader for each partition of each topic."""
        # Asked with a client that knows no other broker: the others speak of a killed one for a while as if it lived.
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 200})
        try:
            found = admin.list_topics(timeout=_ANSWER_TIMEOUT_S)
        except KafkaException:
            return False
        led = all(part.leader >= 0 for topic in found.topics.values() for part in topic.partitions.values())
        return self.number in found.brokers and led

    def start(self) -> processes.Child:
        """Start it, without waiting for it."""
        wait_until_closed(self.port)
        options = (*_OPTIONS, *self.java)
        command = [java(), *options, "-cp", _class_path(), "kafka.Kafka", str(self.folder / "server.properties")]
        self.child = processes.start(command, self.folder / "broker.log", folder=self.folder)
        return self.child

    def stop(self) -> None:
        """Shut it down; one that waits for a controller that is gone already is killed, which costs it no record."""
        if self.child is not None:
            self.child.stop(_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """An end without a word, as of a machine that lost its power."""
        if self.child is not None:
            self.child.kill()


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    brokers: tuple[Broker, ...]

    @property
    def bootstrap_servers(self) -> str:
        """The value of the client property of that name."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def proxied_servers(self) -> str:
        """The same for clients that come through the proxies, which are told of no other way."""
        return ",".join(f"{HOST}:{broker.proxy_port}" for broker in self.brokers)

    def servers_at(self, listener: str) -> str:
        """The same at one of `KafkaOptions.listeners`."""
        return ",".join(f"{HOST}:{broker.listener_ports[listener]}" for broker in self.brokers)

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic, replicated to every broker up to three, wait for its leaders, and return its name."""
        replicas = min(3, len(self.brokers))
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
        admin = self.admin  # held, because the answer is lost when the client is collected
        within = {"operation_timeout": _ADMIN_TIMEOUT_S, "request_timeout": _ADMIN_TIMEOUT_S}
        admin.create_topics([topic], **within)[name].result(_ADMIN_TIMEOUT_S)
        # It is created before its leaders know of it; until then they answer that they are none.
        asked = {TopicPartition(name, number): OffsetSpec.earliest() for number in range(partitions)}
        until_s = time.monotonic() + _READY_TIMEOUT_S
        while asked:
            for partition, answer in admin.list_offsets(asked, request_timeout=_ADMIN_TIMEOUT_S).items():
                try:
                    answer.result(_ADMIN_TIMEOUT_S)
                    del asked[partition]
                except KafkaException:
                    if time.monotonic() > until_s:
                        raise
            if asked:
                time.sleep(_AGAIN_S)
        return name

    def delete_topic(self, name: str) -> None:
        admin = self.admin
        within = {"operation_timeout": _ADMIN_TIMEOUT_S, "request_timeout": _ADMIN_TIMEOUT_S}
        admin.delete_topics([name], **within)[name].result(_ADMIN_TIMEOUT_S)

    def wait_until_ready(self) -> None:
        """Wait until every broker that was started, and was not ended, serves requests."""
        for broker in self.brokers:
            if broker.child is not None and broker.is_running:
                broker.child.wait_until(broker.answers, f"the Kafka broker {broker.number}", _READY_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Listener:
    """One more way into a broker, on a port of its own."""

    name: str
    protocol: str
    """``SSL``, ``SASL_SSL``, ``SASL_PLAINTEXT`` or ``PLAINTEXT``."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """What ``server.properties`` says of this listener alone, without the prefix."""


PATIENT: Mapping[str, str] = MappingProxyType({"broker.session.timeout.ms": "300000"})
"""Properties of a cluster whose brokers are not killed: one that stood still for seconds keeps its partitions."""


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    brokers: int = 1
    partitions: int = 1
    """Of a topic that is created without a number."""
    port: int | None = None
    """Of the first broker; a free one when absent."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """More of ``server.properties``, or other values than those below."""
    proxy_before: Callable[[int], int] | None = None
    """Puts something before a broker's port, and says which port to go to instead (devservices/tcp_proxy.py)."""
    listeners: Sequence[Listener] = ()
    """More of them (devservices/secured_kafka.py)."""
    java: Sequence[str] = ()
    """More options of the broker's Java."""


@contextmanager
def running_kafka(options: KafkaOptions | None = None, folder: Path | None = None) -> Iterator[KafkaCluster]:
    """Start a cluster, wait until it is ready, and stop it in the end; without ``folder`` its data is then deleted."""
    with ExitStack() as started:
        root = folder or Path(started.enter_context(tempfile.TemporaryDirectory(prefix="kafka-")))
        cluster = KafkaCluster(tuple(_format(options or KafkaOptions(), root)))
        for broker in cluster.brokers:
            broker.start()
            # A temporary folder needs no tidy end, and a kill takes no time; data that stays is shut down with care.
            started.callback(broker.kill if folder is None else broker.stop)
        cluster.wait_until_ready()
        yield cluster


def _format(options: KafkaOptions, root: Path) -> Iterator[Broker]:
    """Write each broker's properties and format its storage, unless a run before this one did."""
    ports = free_ports(2 * options.brokers)
    if options.port is not None:
        processes.require_free(options.port)
        ports[0] = options.port
    listeners = list(zip(ports[: options.brokers], ports[options.brokers :], strict=True))
    cluster_id = _new_id()
    voters = ",".join(f"{number}@{HOST}:{control}" for number, (_, control) in enumerate(listeners, start=1))
    for number, (port, control) in enumerate(listeners, start=1):
        broker = Broker(number, port, root / f"broker-{number}", control_port=control)
        behind_port, *more_ports = free_ports(1 + len(options.listeners))
        if options.proxy_before is not None:
            broker.proxy_port = options.proxy_before(behind_port)
        names = [listener.name for listener in options.listeners]
        broker.listener_ports = dict(zip(names, more_ports, strict=True))
        broker.java = options.java
        broker.folder.mkdir(parents=True, exist_ok=True)
        listening = _listening(broker, behind_port, options.listeners)
        properties = {**_properties(broker, voters, options), **listening, **options.properties}
        file = broker.folder / "server.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), "utf-8")
        formatted = broker.folder / "data" / "meta.properties"
        if not formatted.exists():  # what Kafka's own tool writes
            formatted.parent.mkdir(exist_ok=True)
            ids = {"version": 1, "cluster.id": cluster_id, "node.id": number, "directory.id": _new_id()}
            shutil.copyfile(_bootstrap_records(), formatted.with_name(_BOOTSTRAP))
            formatted.write_text("".join(f"{key}={value}\n" for key, value in ids.items()), "utf-8")
        yield broker


def _bootstrap_records() -> Path:
    """The features of a new cluster, such as groups that the broker assigns, as Kafka's own tool writes them.

    The tool is a Java of its own, so it runs once for each lock of jars.
    """
    cached = cache_folder() / "built" / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16] / _BOOTSTRAP
    if not cached.exists():
        cached.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cached.parent) as folder:
            data, file = Path(folder) / "data", Path(folder) / "server.properties"
            properties = {
                "process.roles": "controller",
                "node.id": "1",
                "controller.quorum.voters": f"1@{HOST}:1",
                "controller.listener.names": "CONTROLLER",
                "listeners": f"CONTROLLER://{HOST}:1",
                "log.dirs": str(data),
            }
            file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()), "utf-8")
            tool = [java(), *_OPTIONS, "-cp", _class_path(), "kafka.tools.StorageTool", "format"]
            made = subprocess.run(
                [*tool, "--cluster-id", _new_id(), "--config", str(file)], capture_output=True, text=True, check=False
            )
            if made.returncode:
                msg = f"Kafka's tool did not format a folder: {made.stderr.strip() or made.stdout.strip()}"
                raise processes.ServiceError(msg)
            (data / _BOOTSTRAP).replace(cached)
    return cached


def _new_id() -> str:
    """A new id as Kafka writes them: 16 bytes in URL-safe base64, 22 characters, where the first may be a `-`."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def _properties(broker: Broker, voters: str, options: KafkaOptions) -> dict[str, str]:
    replicas = str(min(3, options.brokers))
    in_sync = str(max(1, int(replicas) - 1))  # so that one broker may go
    return {
        "process.roles": "broker,controller",
        "node.id": str(broker.number),
        "controller.quorum.voters": voters,
        "controller.listener.names": "CONTROLLER",
        "log.dirs": str(broker.folder / "data"),
        "num.partitions": str(options.partitions),
        "auto.create.topics.enable": "false",
        "offsets.topic.num.partitions": "4",
        "offsets.topic.replication.factor": replicas,
        "transaction.state.log.num.partitions": "4",
        "transaction.state.log.replication.factor": replicas,
        "transaction.state.log.min.isr": in_sync,
        "min.insync.replicas": in_sync,
        # By the records' own timestamps: old ones would be gone with the first look, five minutes after the start.
        "log.retention.ms": "-1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "log.cleaner.backoff.ms": "500",  # until compaction looks again
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",  # how long the address of a killed broker is kept for it
    }


def _listening(broker: Broker, behind_port: int, more: Sequence[Listener]) -> dict[str, str]:
    """Where it listens, where its clients are told to come, and in which way each listener is secured."""
    own = f"PLAINTEXT://{broker.address}"
    listeners, told = [own], [own]
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    properties: dict[str, str] = {}
    if broker.proxy_port is not None:  # clients are told to come to the proxy's port
        protocols["PROXIED"] = "PLAINTEXT"
        listeners.append(f"PROXIED://{HOST}:{behind_port}")
        told.append(f"PROXIED://{HOST}:{broker.proxy_port}")
    for listener in more:
        protocols[listener.name] = listener.protocol
        listeners.append(f"{listener.name}://{HOST}:{broker.listener_ports[listener.name]}")
        told.append(listeners[-1])
        prefix = f"listener.name.{listener.name.lower()}."
        properties |= {f"{prefix}{key}": value for key, value in listener.properties.items()}
    listeners.append(f"CONTROLLER://{HOST}:{broker.control_port}")
    return {
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(told),
        "inter.broker.listener.name": "PLAINTEXT",
        **properties,
    }


def _class_path() -> str:
    return ":".join(str(jar) for jar in ensure_jars(read_lock(LOCK)["kafka"]))


if __name__ == "__main__":  # python -m devservices.kafka: fill the cache, as `make setup` does
    ensure_jars(read_lock(LOCK)["kafka"])
