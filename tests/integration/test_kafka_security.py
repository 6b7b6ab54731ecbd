"""A real broker that asks who comes, by each way that users come in, and that lets a writer do the least it needs.

What is refused is told in one error: the servers, topic or group, what to look at, and never the secret.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path

import pytest
import structlog
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import AclOperation, ResourceType

from bootstrap.__main__ import app as bootstrap
from bootstrap.config.kafka_topics import sample_of
from bootstrap.tools import app as tools
from common.cli import run
from common.clock import SystemClock
from common.errors import BrokerError, ConfigError
from common.kafka.rights import Right, require_topic
from common.metrics import Metrics
from common.settings import load_settings
from common.spans import Offset, Partition, Position, Topic, TopicPartition
from common.stage.task_files import StateFileName, StateKind
from common.storage.chunks import ByteChunks
from delta_loader.dead_letters.kafka import RawRecordFetcher
from delta_loader.inspect.verify.kafka_offsets import KafkaOffsets
from delta_loader.scheduling.listening import Listener
from devservices import processes
from devservices.processes import Child
from devservices.secured_kafka import AuthMethod, SecuredKafka, running_secured_kafka
from stage_writer.__main__ import app as writer
from stage_writer.changelog.changelog import TopicChangelog
from stage_writer.changelog.kafka import KafkaChangelogs
from stage_writer.notifications.topic import KafkaControlTopic
from tests.integration.conftest import Programs

pytestmark = pytest.mark.broker

WAYS: tuple[AuthMethod, ...] = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER", "mutual TLS")
SECRET, WRONG = "Xq7-right,Secret", "Xq7-wrong,Secret"
SECRET_PROPERTIES = ("sasl.password", "sasl.oauthbearer.client.secret", "ssl.key.password")
RECORDS = 20
Config = dict[str, object]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredKafka]:
    """The broker: ``writer`` may do the least, ``reader`` read its topic, ``blind`` only see it, ``denied`` nothing."""
    users = {"writer": SECRET, "reader": SECRET, "blind": SECRET, "denied": SECRET}
    with running_secured_kafka(tmp_path_factory.mktemp("secured"), users) as kafka:
        kafka.cluster.create_topic("orders", 2)
        producer = Producer({"bootstrap.servers": kafka.cluster.bootstrap_servers})
        for index in range(RECORDS):
            producer.produce("orders", json.dumps({"id": index}).encode(), partition=index % 2)
        assert producer.flush(180) == 0
        kafka.allow("writer", ResourceType.TOPIC, "orders", AclOperation.READ)
        kafka.allow("writer", ResourceType.GROUP, "ingest", AclOperation.READ)
        kafka.allow("reader", ResourceType.TOPIC, "orders", AclOperation.READ)
        kafka.allow("blind", ResourceType.TOPIC, "orders", AclOperation.DESCRIBE)
        kafka.allow("blind", ResourceType.GROUP, "ingest", AclOperation.READ)
        yield kafka


@pytest.fixture(scope="module")
def refused(secured: SecuredKafka, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Child]:
    """A writer with a wrong secret, which takes its time: the first tests have it started, and a last one looks."""
    folder = tmp_path_factory.mktemp("refused")
    config = write_config(folder, secured.properties("SCRAM-SHA-512", "writer") | {"sasl.password": WRONG})
    child = processes.start([sys.executable, "-m", "stage_writer", "run", str(config)], folder / "log")
    yield child
    child.kill()


def write_config(folder: Path, kafka: Mapping[str, str]) -> Path:
    stream = {"app_id": "orders", "topics": ["orders"], "columns": "id BIGINT", "table": (folder / "table").as_uri()}
    settings = {
        "kafka": dict(kafka),
        "stage": {"url": (folder / "stage").as_uri()},
        "writer": {"group_id": "ingest", "http": "127.0.0.1:0", "workers": 1, "report_positions": True},
        "streams": [stream],
    }
    path = folder / "pipeline.yaml"
    path.write_text(yaml.safe_dump(settings, sort_keys=False), "utf-8")
    return path


@pytest.fixture
def config_of(secured: SecuredKafka, tmp_path: Path) -> Callable[..., Path]:
    """Write the config of a user who comes in some way; a keyword is a property of Kafka, with `_` for its dots."""

    def config_of(way: AuthMethod, user: str = "writer", **properties: str | None) -> Path:
        kafka = secured.properties(way, user) | {key.replace("_", "."): value for key, value in properties.items()}
        return write_config(tmp_path, {key: value for key, value in kafka.items() if value is not None})

    return config_of


def with_wrong_secret(secured: SecuredKafka, way: AuthMethod) -> dict[str, str]:
    key = next(key for key in SECRET_PROPERTIES if key in secured.properties(way, "writer"))
    return {key.replace(".", "_"): WRONG}


@pytest.mark.usefixtures("refused")
@pytest.mark.parametrize("way", WAYS)
def test_writer_and_commands_need_only_read_rights(
    way: AuthMethod,
    config_of: Callable[..., Path],
    programs: Programs,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    config = config_of(way)
    assert run(writer, ["check", str(config)]) == 0, capfd.readouterr().err
    child = programs.start("stage-writer", "run", config, "--until-caught-up")
    assert child.process.wait(600) == 0, child.log_tail()
    assert run(tools, ["markers", "ls", str(config), "--json"]) == 0
    chains = json.loads(capfd.readouterr().out.partition("all well\n")[2])["chains"]
    assert sum(chain["rows"] for chain in chains) == RECORDS
    assert run(bootstrap, ["plan", str(config), "--from", "group:ingest"]) == 3, capfd.readouterr().err
    assert run(writer, ["replay", str(config), "--topic", "orders", "--from", "0", "--to", "4"]) == 0
    assert run(writer, ["run", str(config), "--print-config"]) == 0
    printed = capfd.readouterr()
    everything = child.log.read_text("utf-8") + printed.out + printed.err + staged(tmp_path)
    assert SECRET not in everything
    assert "orders" in everything


def test_reader_without_a_group_needs_no_right_to_one(
    config_of: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    config = config_of("SCRAM-SHA-512", "reader")
    settings = load_settings(config, {})
    partition = TopicPartition(Topic("orders"), Partition(0))
    with closing(KafkaOffsets(settings)) as offsets:
        assert [live.distinct for live, _ in offsets.buckets(partition, Position(0), Position(10))] == [10]
    assert sorted(RawRecordFetcher(settings)(partition, [Offset(0), Offset(9)], None)) == [0, 9]
    assert sample_of({**settings.kafka}, "orders", 6, lambda _: None).messages == 6
    assert run(bootstrap, ["plan", str(config), "--from", "earliest"]) == 0, capfd.readouterr().err
    assert run(writer, ["replay", str(config), "--topic", "orders", "--from", "0", "--to", "4"]) == 0
    assert capfd.readouterr().out.count("4 records: 4 rows") == 2


def staged(folder: Path) -> str:
    return "".join(path.read_bytes().decode("latin-1") for path in (folder / "stage").rglob("*") if path.is_file())


@pytest.mark.parametrize("way", WAYS[:3])
def test_wrong_secret_is_reported_and_not_shown(
    way: AuthMethod, secured: SecuredKafka, config_of: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    config = config_of(way, **with_wrong_secret(secured, way))
    commands = [(writer, ["check", str(config)], 2), (bootstrap, ["plan", str(config), "--from", "group:ingest"], 2)]
    for app, arguments, code in commands[: 2 if way == "PLAIN" else 1]:
        assert run(app, arguments) == code
        error = capfd.readouterr().err
        assert error.startswith("error: cannot list topics at Kafka 127.0.0.1:")
        assert "kafka.sasl." in error
        assert "uthentication" in error or "invalid_client" in error
        assert len(error.splitlines()) == 2
        assert WRONG not in error


def test_unreadable_key_is_a_config_error(
    secured: SecuredKafka, config_of: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(writer, ["check", str(config_of("mutual TLS", **with_wrong_secret(secured, "mutual TLS")))]) == 2
    error = capfd.readouterr().err
    assert "librdkafka refuses a property" in error
    assert "check that the file of kafka.ssl.key.location" in error
    assert "kafka.ssl.key.password opens it" in error
    assert WRONG not in error


@pytest.mark.parametrize(
    ("way", "properties", "remedy"),
    [
        pytest.param("PLAIN", {"ssl_ca_location": None}, "kafka.ssl.ca.location", id="unknown authority"),
        pytest.param(
            "mutual TLS",
            {"ssl_certificate_location": None, "ssl_key_location": None, "ssl_key_password": None},
            "kafka.ssl.certificate.location",
            id="no certificate",
        ),
        pytest.param(
            "OAUTHBEARER", {"https_ca_location": None}, "kafka.https.ca.location", id="no authority for tokens"
        ),
    ],
)
def test_failed_handshake_is_reported(
    way: AuthMethod,
    properties: dict[str, str | None],
    remedy: str,
    config_of: Callable[..., Path],
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert run(writer, ["check", str(config_of(way, **properties))]) == 2
    error = capfd.readouterr().err
    assert "Kafka 127.0.0.1:" in error
    assert remedy in error
    assert len(error.splitlines()) == 2
    assert SECRET not in error


@pytest.mark.parametrize(
    ("user", "group", "named"),
    [
        ("denied", "ingest", "READ the topic orders"),
        ("blind", "ingest", "READ the topic orders"),
        ("writer", "other", "READ the consumer group other"),
    ],
)
def test_missing_right_is_named(
    user: str, group: str, named: str, config_of: Callable[..., Path], capfd: pytest.CaptureFixture[str]
) -> None:
    config = config_of("SCRAM-SHA-512", user)
    config.write_text(config.read_text("utf-8").replace("group_id: ingest", f"group_id: {group}"), "utf-8")
    for arguments in (["check", str(config)], ["run", str(config), "--until-caught-up"]):
        code, captured = run(writer, arguments), capfd.readouterr()
        while code == 3 or (code == 1 and "Timed out" in captured.err):  # the broker is slow
            code, captured = run(writer, arguments), capfd.readouterr()
        assert (code, named in captured.err) == (2, True), captured.err
        assert SECRET not in captured.out + captured.err


@pytest.mark.parametrize("right", [None, AclOperation.DESCRIBE], ids=["hidden", "visible"])
def test_stream_without_its_right_waits_for_it_and_the_others_continue(
    right: AclOperation | None,
    secured: SecuredKafka,
    config_of: Callable[..., Path],
    programs: Programs,
    tmp_path: Path,
) -> None:
    topic = "payments" if right is None else "refunds"
    secured.cluster.create_topic(topic)
    producer = Producer({"bootstrap.servers": secured.cluster.bootstrap_servers})
    producer.produce(topic, b'{"id": 1}')
    assert producer.flush(180) == 0
    if right is not None:
        secured.allow("writer", ResourceType.TOPIC, topic, right)
    config = config_of("SCRAM-SHA-512")
    settings = yaml.safe_load(config.read_text("utf-8"))
    settings["writer"]["flush_after"] = "1s"
    settings["streams"].append(
        {**settings["streams"][0], "app_id": topic, "topics": [topic], "table": (tmp_path / topic).as_uri()}
    )
    config.write_text(yaml.safe_dump(settings), "utf-8")
    ended = programs.start("stage-writer", "run", config, "--until-caught-up")
    assert ended.process.wait(600) == 3, ended.log_tail()
    assert f"allow this user to READ the topic {topic}" in ended.log.read_text("utf-8")
    assert list((tmp_path / "stage" / "done").iterdir()) == [tmp_path / "stage" / "done" / "orders"]
    shutil.rmtree(tmp_path / "stage")
    child = programs.start("stage-writer", "run", config)

    def wait_for(is_there: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + 600
        while not is_there():
            assert child.process.poll() is None, child.log_tail()
            assert time.monotonic() < deadline_s, child.log_tail()
            time.sleep(0.1)

    def has_marker_of(topic: str) -> bool:
        return any((tmp_path / "stage" / "done" / topic).rglob("*.done"))

    wait_for(lambda: f"allow this user to READ the topic {topic}" in child.log.read_text("utf-8"))
    wait_for(lambda: has_marker_of("orders"))
    assert not has_marker_of(topic)
    secured.allow("writer", ResourceType.TOPIC, topic, AclOperation.READ)
    wait_for(lambda: has_marker_of(topic))
    assert child.stop() == 0, child.log_tail()


def allow_when_refused(secured: SecuredKafka, user: str, right: Right) -> dict[str, str | int | float | bool | None]:
    """See that this user lacks a right on the control topic, and give it; the user's properties."""
    properties: dict[str, str | int | float | bool | None] = {**secured.properties("SCRAM-SHA-512", user)}

    def require() -> None:
        require_topic(properties, "loader.control_topic", "control", right)

    deadline_s, remedy = time.monotonic() + 600, "create the topic"
    while remedy.startswith("create the topic") and time.monotonic() < deadline_s:  # brokers hear of it by and by
        with pytest.raises(ConfigError) as refused:
            require()
        remedy = refused.value.remedy
    assert remedy == f"allow this user to {right.name} the topic control"
    secured.allow(user, ResourceType.TOPIC, "control", right.value)
    deadline_s = time.monotonic() + 600
    while time.monotonic() < deadline_s:  # a broker hears of its rules by and by
        with suppress(ConfigError):
            require()
            break
    return properties


def test_control_topic_needs_write_rights_of_writers_and_read_rights_of_loaders(
    secured: SecuredKafka,
    config_of: Callable[..., Path],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("delta_loader.scheduling.listening._TIMEOUT_S", 300.0)  # a slow broker disconnects no listener
    secured.cluster.create_topic("control")
    of_writer = allow_when_refused(secured, "writer", Right.WRITE)
    of_loader = allow_when_refused(secured, "blind", Right.READ)
    config = config_of("SCRAM-SHA-512")
    settings = config.read_text("utf-8") + "loader: {schedule: on-marker, control_topic: control}\n"
    config.write_text(settings, "utf-8")
    assert run(writer, ["check", str(config)]) == 0, capfd.readouterr().err
    assert "control  ok: control exists and can be written to" in capfd.readouterr().out
    config.write_text(settings.replace("topic: control}", "topic: another}"), "utf-8")
    assert run(writer, ["check", str(config)]) == 2
    assert "allow this user to WRITE the topic another" in capfd.readouterr().err

    log, metrics = structlog.get_logger(), Metrics()
    control_topic = KafkaControlTopic(of_writer, "control", log, metrics, give_up_after_s=180)
    hears = Listener(of_loader, "control", ["orders", "other"], log=log, metrics=metrics)
    assert next_notified(hears) == {"orders", "other"}
    assert control_topic.send("orders")
    assert control_topic.end(180) == frozenset()
    assert next_notified(hears) == {"orders"}
    assert (hears.problem, control_topic.problem) == (None, None)
    hears.close()


def test_changelog_topic_needs_read_write_and_describe_rights(secured: SecuredKafka) -> None:
    secured.cluster.create_topic("changes")
    topics = KafkaChangelogs({**secured.properties("SCRAM-SHA-512", "writer")}, "ingest", 86_400.0)
    changelog = TopicChangelog(topics, SystemClock(), Metrics())
    task = TopicPartition(Topic("orders"), Partition(0))
    name = StateFileName(task, Position(0), 0, "0", StateKind.CHANGES)
    for operations, wanted in (
        ((AclOperation.READ,), "allow this user to WRITE the topic changes"),
        ((AclOperation.WRITE,), "allow this user to DESCRIBE_CONFIGS the topic changes"),
        ((AclOperation.DESCRIBE_CONFIGS,), ""),
    ):
        secured.allow("writer", ResourceType.TOPIC, "changes", *operations)
        deadline_s, remedy = time.monotonic() + 600, "not tried"
        while remedy != wanted:  # a broker hears of its rules by and by
            assert time.monotonic() < deadline_s, remedy
            try:
                topics.require_suitable(Topic("changes"), (Right.WRITE, Right.READ))
                written, remedy = changelog.write(Topic("changes"), "orders", name, ByteChunks([b"changes"])), ""
            except (ConfigError, BrokerError) as error:
                remedy = error.remedy
    with changelog.reading() as reading:
        assert reading.read(written) == b"changes"


def next_notified(hears: Listener) -> frozenset[str]:
    deadline_s = time.monotonic() + 600
    while not (notified := hears.take()) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return notified


def test_service_ends_when_kafka_refuses_it(refused: Child) -> None:
    assert refused.process.wait(600) == 1
    output = refused.log.read_text("utf-8")
    assert "refuses this client" in output
    assert "kafka.sasl.mechanism" in output
    assert output.count("invalid credentials") <= 3  # and not at each of the attempts
    assert "Traceback" not in output
    assert WRONG not in output


def test_writer_cannot_do_what_it_has_no_right_to(secured: SecuredKafka) -> None:
    failed: list[str] = []
    producer = Producer({**secured.properties("PLAIN", "writer"), "log_level": 0})
    producer.produce("orders", b"{}", on_delivery=lambda error, _: failed.append("" if error is None else error.name()))
    producer.flush(180)
    assert failed == ["TOPIC_AUTHORIZATION_FAILED"]
