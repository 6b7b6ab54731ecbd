"""`config init` for a new user: a real topic, and a config by which the writer stages every record."""

import contextlib
import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from bootstrap.__main__ import app
from common.cli import run
from devservices.kafka import KafkaCluster
from tests.producing import produce

pytestmark = pytest.mark.broker

ROOT = Path(__file__).parents[2]


def record(index: int) -> dict[str, object]:
    return {
        "id": index,
        "placed": f"2026-03-{index % 28 + 1:02d}T03:17:37.260514+00:00",
        "day": f"2026-03-{index % 28 + 1:02d}",
        "meta": {"producer": {"sent": 1_774_927_057_260 + index, "host": None}, "tags": ["a"] * (index % 3)},
        "price": 1.5 if index % 2 else 2,
        "anything": [1, "x", {"a": None}, None][index % 4],
        "by_shop": {str(index): index},
        **({"note": "rare"} if index == 7 else {}),
    }


def test_drafted_config_passes_the_check_and_stages_each_record(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic(partitions=3, prefix="shop.orders")
    for partition in range(3):
        values = (json.dumps(record(index)) for index in range(partition, 100, 3))
        produce(kafka.bootstrap_servers, topic, *values, partition=partition)
    config = tmp_path / "pipeline.yaml"
    given = [
        "--bootstrap-servers",
        kafka.bootstrap_servers,
        "--kafka",
        "client.id=me",
        "--stage-url",
        f"{tmp_path}/stage",
    ]
    arguments = ["config", "init", str(config), *given, "--tables-url", f"{tmp_path}/tables"]
    assert run(app, arguments) == 2
    assert topic in capfd.readouterr().err
    assert run(app, [*arguments, "--topic", topic]) == 0, capfd.readouterr().err
    text = config.read_text("utf-8").replace("writer:\n", "writer:\n  http: null\n")
    config.write_text(text, "utf-8")
    assert 'CAST("placed" AS DATE)' in text or "partition_by: [day]" in text
    for command in (["check", str(config)], ["run", str(config), "--until-caught-up"]):
        done = subprocess.run(
            [sys.executable, "-m", "stage_writer", *command], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
    capfd.readouterr()
    assert run(app, ["markers", "ls", str(config), "--json"]) == 0
    chains = json.loads(capfd.readouterr().out)["chains"]
    assert sum(chain["rows"] for chain in chains) == 100
    assert sum(chain["dead_letters"] for chain in chains) == 0
    assert run(app, ["markers", "verify", str(config)]) == 0


def test_empty_topic_is_reported(
    kafka: KafkaCluster, new_topic: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    topic = new_topic()
    given = ["--bootstrap-servers", kafka.bootstrap_servers, "--stage-url", "/stage", "--tables-url", "/tables"]
    assert run(app, ["config", "init", "-", *given, "--topic", topic]) == 2
    assert "has no messages" in capfd.readouterr().err
    assert run(app, ["config", "init", "-", *given, "--topic", "no-such-topic"]) == 2
    assert "Kafka has no topic" in capfd.readouterr().err


def test_missing_options_are_asked_for_on_a_terminal(
    kafka: KafkaCluster, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic()
    produce(kafka.bootstrap_servers, topic, b'{"id": 1}')
    person, terminal = pty.openpty()
    command = [sys.executable, "-m", "bootstrap.tools", "config", "init", str(tmp_path / "mine.yaml")]
    child = subprocess.Popen(command, cwd=ROOT, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = ""
    answers = (
        ("Kafka at", kafka.bootstrap_servers),
        ("Topics, by number or name", f"{topic}-misspelled"),
        ("Kafka has no topic", ""),
        ("Topics, by number or name", topic),
        ("URL of the stage", "lake/stage"),
        ("is a relative path", ""),
        ("URL of the stage", f"{tmp_path}/stage"),
        ("URL of the folder for tables", f"{tmp_path}/tables"),
    )
    for question, answer in answers:
        while question not in seen:
            seen += os.read(person, 4096).decode()
        seen = seen.partition(question)[2]
        if answer:
            os.write(person, f"{answer}\n".encode())
    with contextlib.suppress(OSError):  # the terminal is closed when the program has ended
        while text := os.read(person, 4096):
            seen += text.decode()
    os.close(person)
    assert child.wait(600) == 0, seen
    assert "next: stage-writer check" in seen.replace("\r\n", " ")
    assert f"topics: [{topic}]" in (tmp_path / "mine.yaml").read_text("utf-8")
