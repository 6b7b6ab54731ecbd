"""Secrets stay where they were given: not on a page, in a log, on a command line, in help, in JSON, or in the stage.

Both services run with a password for Kafka, keys for S3 and tokens for their pages, each of which can be recognized.
"""

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from common.storage.store import FsspecStore
from devservices.kafka import KafkaCluster
from devservices.processes import Child
from devservices.s3 import S3Server
from tests.integration.conftest import Programs
from tests.integration.test_s3_credentials import command_lines
from tests.producing import produce

pytestmark = [pytest.mark.broker, pytest.mark.s3, pytest.mark.spark]

MARK = "Zx9qSecret"
PASSWORD, KEY, WRITER_TOKEN, LOADER_TOKEN, JAVA = (
    f"{MARK}-{what}" for what in ("kafka", "s3", "of-the-writer", "of-the-loader", "java")
)
PAGES = ("/", "/status.json", "/metrics", "/ready", "/healthcheck", "/version", "/nothing-here", "/state")
PATIENCE_S = 600


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER", "local[2]")
    monkeypatch.setenv("NAMED_LIKE_NOTHING", f"{MARK}-from-the-environment")


@pytest.fixture
def config(
    kafka: KafkaCluster, moto: S3Server, new_topic: Callable[..., str], programs: Programs, tmp_path: Path
) -> Path:
    topic = new_topic(1)
    produce(kafka.bootstrap_servers, topic, '{"id": 1}', '{"id": "a dead letter"}')
    (tmp_path / "password").write_text(PASSWORD, "utf-8")
    options = {**moto.storage_options, "key": "an-access-key", "secret": KEY}
    settings = {
        "kafka": {
            "bootstrap.servers": kafka.bootstrap_servers,
            "sasl.username": "ada",  # this listener needs neither; the program has them anyway
            "sasl.password": f"${{file:{tmp_path / 'password'}}}",
        },
        "stage": {"url": f"s3://moto/{topic}/stage", "storage_options": options},
        "writer": {"group_id": topic, "http": "127.0.0.1:0", "http_token": WRITER_TOKEN, "flush_after": "1s"},
        "loader": {
            "http": "127.0.0.1:0",
            "http_token": LOADER_TOKEN,
            "schedule": "2s",
            "spark": {
                "spark.master": "${MASTER}",
                "spark.hadoop.fs.other.password": JAVA,
                "spark.hadoop.fs.other.name": "${NAMED_LIKE_NOTHING}",
                "spark.driver.extraJavaOptions": f"-Dsome.password={JAVA} '-Dsome.name=${{NAMED_LIKE_NOTHING}} x'",
            },
        },
        "logs": {"format": "json", "level": "debug"},
        "streams": [
            {"app_id": "orders", "topics": [topic], "table": f"s3://moto/{topic}/table", "columns": "id BIGINT"}
        ],
    }
    return programs.config(settings)


def test_secrets_appear_in_no_output_or_object(config: Path, moto: S3Server, programs: Programs) -> None:
    texts = dict(commands(programs, config))
    services = {name: programs.start(name, "run", config) for name in ("stage-writer", "delta-loader")}
    logged(services["stage-writer"], "sealed")
    logged(services["delta-loader"], "committed", times=2)  # the rows and the dead letter
    for name, child in services.items():
        texts |= {f"{name} {path}": text for path, text in pages(child)}
        texts[f"{name}'s command lines"] = "".join(command_lines(child.process.pid))
    texts["status"] = programs.succeed("delta-loader", "status", config, "--json")
    texts["markers"] = programs.succeed("bootstrap", "markers", "ls", config, "--json")
    for name, child in services.items():
        child.stop()
        texts[f"{name}'s log"] = child.log.read_text("utf-8", "replace")
    stores = [FsspecStore(f"s3://moto/{config_topic(config)}", moto.storage_options)]
    objects = {item.path: store.read(item.path) or b"" for store in stores for item in store.list("")}
    assert {path.split("/")[0] for path in objects} == {"stage", "table", "table_dead_letters"}
    texts |= {path: data.decode("latin-1") for path, data in objects.items()}
    assert {what: text for what, text in texts.items() if MARK in text} == {}
    assert all(texts.values())


def commands(programs: Programs, config: Path) -> Iterator[tuple[str, str]]:
    """What is printed by what needs no table, and by what goes wrong."""
    for program in ("stage-writer", "delta-loader", "bootstrap"):
        yield f"{program} --help", programs.succeed(program, "--help")
    yield "check", programs.succeed("stage-writer", "check", config, "--json")
    shown = programs.succeed("bootstrap", "config", "show", config)
    assert shown.count("********") >= 5
    yield "config show", shown
    for number, (old, new) in enumerate(
        (
            ("url: s3://moto/", "url: s3://a-bucket-that-is-not-there/"),
            ("http_token: ", "http_tokn: "),
            ("sasl.password: ", "sasl.mechanism: SCRAM-SHA-512\n  sasl.password: "),
            ("level: debug", "level: [debug"),
        )
    ):
        wrong = config.with_name(f"wrong-{number}.yaml")
        wrong.write_text(config.read_text("utf-8").replace(old, new), "utf-8")
        done = programs.run("stage-writer", "check", wrong)
        yield f"check of {new}", done.stdout + done.stderr


def pages(child: Child) -> Iterator[tuple[str, str]]:
    """All pages of a service, and what it says to who has no token."""
    port = next(json.loads(line)["port"] for line in lines(child) if '"serving"' in line)
    for path, method in (*((path, "GET") for path in PAGES), ("/pause", "POST"), ("/load", "POST")):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}{path}", method=method, headers={"Authorization": "Bearer wrong"}
        )
        try:
            with urllib.request.urlopen(request, timeout=300) as answer:  # noqa: S310
                yield path, f"{answer.headers}{answer.read().decode()}"
        except urllib.error.HTTPError as error:
            yield path, f"{error.headers}{error.read().decode()}"


def logged(child: Child, event: str, times: int = 1) -> None:
    child.wait_until(lambda: sum(f'"event": "{event}"' in line for line in lines(child)) >= times, event, PATIENCE_S)


def lines(child: Child) -> list[str]:
    return child.log.read_text("utf-8", "replace").splitlines()


def config_topic(config: Path) -> str:
    return config.read_text("utf-8").split("s3://moto/")[1].split("/")[0]
