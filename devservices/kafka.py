"""Apache Kafka in KRaft mode, from Maven Central's jars: ``with running_kafka() as kafka: kafka.bootstrap_servers``.

The brokers are also the controllers. They listen on free loopback ports, keep their data in a temporary folder, and are
ready when the context is entered: an admin client has reached each of them.
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

from confluent_kafka import KafkaException, Producer, TopicPartition
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
_CLASSES = "classes.jsa"
_READY_TIMEOUT_S = 300
_ANSWER_TIMEOUT_S = 20
_STOP_TIMEOUT_S = 30
_ADMIN_TIMEOUT_S = 120
_POLL_INTERVAL_S = 0.05


@dataclass(slots=True)
class Broker:
    """One broker. It can be stopped or killed, and started again at the same address with the same data."""

    number: int
    port: int
    folder: Path
    child: processes.Child | None = None
    control_port: int = 0
    """Port of the KRaft controller."""
    proxy_port: int | None = None
    """Port of the proxy in front of the broker (`KafkaOptions.proxy_before`), or None."""
    listener_ports: Mapping[str, int] = field(default_factory=dict)
    """Ports of `KafkaOptions.listeners`, by listener name."""
    java: Sequence[str] = ()
    """Extra JVM options."""

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.is_running

    def answers(self) -> bool:
        """Whether the broker serves requests and every partition of every topic has a leader."""
        # The client knows only this broker: for a while, the others list a killed broker as alive.
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0, "reconnect.backoff.max.ms": 200})
        try:
            metadata = admin.list_topics(timeout=_ANSWER_TIMEOUT_S)
        except KafkaException:
            return False
        has_leaders = all(part.leader >= 0 for topic in metadata.topics.values() for part in topic.partitions.values())
        return self.number in metadata.brokers and has_leaders

    def start(self) -> processes.Child:
        """Start the broker without waiting until it is ready."""
        wait_until_closed(self.port)
        options = (*_OPTIONS, *_parsed_classes(), *self.java)
        command = [java(), *options, "-cp", _class_path(), "kafka.Kafka", str(self.folder / "server.properties")]
        self.child = processes.start(command, self.folder / "broker.log", folder=self.folder)
        return self.child

    def stop(self) -> None:
        """Shut the broker down; if it waits for a controller that is gone, kill it, which loses no record."""
        if self.child is not None:
            self.child.stop(_STOP_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the broker, as a power failure would."""
        if self.child is not None:
            self.child.kill()


@dataclass(frozen=True, slots=True)
class KafkaCluster:
    brokers: tuple[Broker, ...]

    @property
    def bootstrap_servers(self) -> str:
        """Addresses for the client property ``bootstrap.servers``."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def proxied_servers(self) -> str:
        """Addresses of the proxies; the brokers advertise only the proxies to clients that use them."""
        return ",".join(f"{HOST}:{broker.proxy_port}" for broker in self.brokers)

    def servers_at(self, listener: str) -> str:
        """Addresses of one of `KafkaOptions.listeners`."""
        return ",".join(f"{HOST}:{broker.listener_ports[listener]}" for broker in self.brokers)

    @property
    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})

    def create_topic(self, name: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        """Create a topic, replicated to at most three brokers, wait for its leaders, and return its name."""
        replicas = min(3, len(self.brokers))
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(config or {}))
        admin = self.admin  # a collected client would lose the response
        within = {"operation_timeout": _ADMIN_TIMEOUT_S, "request_timeout": _ADMIN_TIMEOUT_S}
        admin.create_topics([topic], **within)[name].result(_ADMIN_TIMEOUT_S)
        # A new topic exists before its leaders know of it; until then they answer that they are not its leaders.
        waiting = {TopicPartition(name, number): OffsetSpec.earliest() for number in range(partitions)}
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        while waiting:
            for partition, answer in admin.list_offsets(waiting, request_timeout=_ADMIN_TIMEOUT_S).items():
                try:
                    answer.result(_ADMIN_TIMEOUT_S)
                    del waiting[partition]
                except KafkaException:
                    if time.monotonic() > deadline_s:
                        raise
            if waiting:
                time.sleep(_POLL_INTERVAL_S)
        return name

    def delete_topic(self, name: str) -> None:
        admin = self.admin
        within = {"operation_timeout": _ADMIN_TIMEOUT_S, "request_timeout": _ADMIN_TIMEOUT_S}
        admin.delete_topics([name], **within)[name].result(_ADMIN_TIMEOUT_S)

    def wait_until_ready(self) -> None:
        """Wait until every broker that was started and not ended serves requests."""
        for broker in self.brokers:
            if broker.child is not None and broker.is_running:
                broker.child.wait_until(broker.answers, f"the Kafka broker {broker.number}", _READY_TIMEOUT_S)


@dataclass(frozen=True, slots=True)
class Listener:
    """An additional listener of the brokers, on its own port."""

    name: str
    protocol: str
    """``SSL``, ``SASL_SSL``, ``SASL_PLAINTEXT`` or ``PLAINTEXT``."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Entries of ``server.properties`` for this listener, without its prefix."""


TOLERATES_PAUSES: Mapping[str, str] = MappingProxyType({"broker.session.timeout.ms": "300000"})
"""Properties of a cluster whose brokers are never killed: a broker that pauses for seconds keeps its partitions."""


@dataclass(frozen=True, slots=True)
class KafkaOptions:
    brokers: int = 1
    partitions: int = 1
    """Default number of partitions of a new topic."""
    port: int | None = None
    """Port of the first broker; a free one when None."""
    properties: Mapping[str, str] = field(default_factory=dict)
    """Entries of ``server.properties`` that are added to the defaults below, or override them."""
    proxy_before: Callable[[int], int] | None = None
    """Puts a proxy in front of a broker's port and returns the proxy's port (devservices/tcp_proxy.py)."""
    listeners: Sequence[Listener] = ()
    """Additional listeners (devservices/secured_kafka.py)."""
    java: Sequence[str] = ()
    """Extra JVM options of the brokers."""


@contextmanager
def running_kafka(options: KafkaOptions | None = None, folder: Path | None = None) -> Iterator[KafkaCluster]:
    """Start a cluster, wait until it is ready, and stop it on exit; without ``folder`` its data is deleted."""
    with ExitStack() as started:
        root = folder or Path(started.enter_context(tempfile.TemporaryDirectory(prefix="kafka-")))
        cluster = KafkaCluster(tuple(_format(options or KafkaOptions(), root)))
        for broker in cluster.brokers:
            broker.start()
            # Data in a temporary folder may be lost, and a kill is immediate; kept data needs a clean shutdown.
            started.callback(broker.kill if folder is None else broker.stop)
        cluster.wait_until_ready()
        yield cluster


def _format(options: KafkaOptions, root: Path) -> Iterator[Broker]:
    """Write each broker's properties, and format its storage unless an earlier run did."""
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
        if not formatted.exists():  # as Kafka's storage tool writes it
            formatted.parent.mkdir(exist_ok=True)
            ids = {"version": 1, "cluster.id": cluster_id, "node.id": number, "directory.id": _new_id()}
            shutil.copyfile(_bootstrap_records(), formatted.with_name(_BOOTSTRAP))
            formatted.write_text("".join(f"{key}={value}\n" for key, value in ids.items()), "utf-8")
        yield broker


def _bootstrap_records() -> Path:
    """A new cluster's features, such as broker-assigned consumer groups, as Kafka's storage tool writes them.

    The tool needs a JVM of its own, so it runs once for each version of the jar lock.
    """
    cached = _built() / _BOOTSTRAP
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
            formatting = subprocess.run(
                [*tool, "--cluster-id", _new_id(), "--config", str(file)], capture_output=True, text=True, check=False
            )
            if formatting.returncode:
                output = formatting.stderr.strip() or formatting.stdout.strip()
                msg = f"Kafka's storage tool failed to format a folder: {output}"
                raise processes.ServiceError(msg)
            (data / _BOOTSTRAP).replace(cached)
    return cached


def _built() -> Path:
    """What is made once for each version of the jar lock."""
    return cache_folder() / "built" / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]


def _parsed_classes() -> Sequence[str]:
    """Java's option for a broker's classes as they were parsed once: half of what a start costs.

    Java looks whether they fit, and does without them where they do not.
    """
    archive = _built() / _CLASSES
    return [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []


def keep_parsed_classes() -> None:
    """Have later brokers start with the classes that a broker parses here, unless one did; other Javas do without."""
    archive = _built() / _CLASSES
    if archive.exists():
        return
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as folder:
        made = Path(folder) / _CLASSES
        options = KafkaOptions(java=[f"-XX:ArchiveClassesAtExit={made}"])
        with running_kafka(options, Path(folder) / "kafka") as cluster:
            topic = cluster.create_topic("any")
            client = {"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0}
            producer = Producer({**client, "transactional.id": "any"})
            producer.init_transactions(_ADMIN_TIMEOUT_S)
            producer.begin_transaction()
            producer.produce(topic, b"any")
            producer.commit_transaction(_ADMIN_TIMEOUT_S)
            for broker in cluster.brokers:
                if broker.child is not None:
                    broker.child.stop()  # and not as `Broker.stop`, which kills a broker that is slow to end
        made.replace(archive)


def _new_id() -> str:
    """A new id in Kafka's format: 16 bytes as URL-safe base64, 22 characters; the first may be a `-`."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def _properties(broker: Broker, voters: str, options: KafkaOptions) -> dict[str, str]:
    replicas = str(min(3, options.brokers))
    in_sync = str(max(1, int(replicas) - 1))  # one broker may be down
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
        # Retention uses the records' own timestamps: old records would be deleted five minutes after the start.
        "log.retention.ms": "-1",
        "group.initial.rebalance.delay.ms": "0",
        "group.min.session.timeout.ms": "1000",
        "log.cleaner.backoff.ms": "500",  # interval between two checks for segments to compact
        "broker.heartbeat.interval.ms": "500",
        "broker.session.timeout.ms": "3000",  # time for which a killed broker keeps its registration
    }


def _listening(broker: Broker, behind_port: int, more: Sequence[Listener]) -> dict[str, str]:
    """The properties of all listeners: bind addresses, advertised addresses and security."""
    own = f"PLAINTEXT://{broker.address}"
    listeners, advertised = [own], [own]
    protocols = {"PLAINTEXT": "PLAINTEXT", "CONTROLLER": "PLAINTEXT"}
    properties: dict[str, str] = {}
    if broker.proxy_port is not None:  # clients are sent to the proxy's port
        protocols["PROXIED"] = "PLAINTEXT"
        listeners.append(f"PROXIED://{HOST}:{behind_port}")
        advertised.append(f"PROXIED://{HOST}:{broker.proxy_port}")
    for listener in more:
        protocols[listener.name] = listener.protocol
        listeners.append(f"{listener.name}://{HOST}:{broker.listener_ports[listener.name]}")
        advertised.append(listeners[-1])
        prefix = f"listener.name.{listener.name.lower()}."
        properties |= {f"{prefix}{key}": value for key, value in listener.properties.items()}
    listeners.append(f"CONTROLLER://{HOST}:{broker.control_port}")
    return {
        "listener.security.protocol.map": ",".join(f"{name}:{protocol}" for name, protocol in protocols.items()),
        "listeners": ",".join(listeners),
        "advertised.listeners": ",".join(advertised),
        "inter.broker.listener.name": "PLAINTEXT",
        **properties,
    }


def _class_path() -> str:
    return ":".join(str(jar) for jar in ensure_jars(read_lock(LOCK)["kafka"]))


if __name__ == "__main__":  # python -m devservices.kafka: download the jars, as `make setup` does
    ensure_jars(read_lock(LOCK)["kafka"])
