"""The passes of the loader that benchmarks measure."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks import loading
from benchmarks.staged import Backlog, write_config


@dataclass(frozen=True)
class AskingPorts:
    partitions: Callable[[object], object]


@pytest.mark.parametrize(("asked", "answer"), [({}, None), ({"asks_kafka": True}, "Kafka")])
def test_kafka_is_asked_only_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked: dict[str, bool], answer: object
) -> None:
    answers: list[object] = []

    def service(_streams: object, _settings: object, ports: AskingPorts) -> object:
        answers.append(ports.partitions("orders"))
        return SimpleNamespace(run_pass=list)

    monkeypatch.setattr(loading, "set_up_logs", lambda *_: None)
    monkeypatch.setattr(loading, "SparkDeltaTables", lambda *_: None)
    monkeypatch.setattr(loading, "spark_ports", lambda *_, **__: AskingPorts(lambda _: "Kafka"))
    monkeypatch.setattr(loading, "LoaderService", service)
    session: Any = None
    config = write_config(Backlog(str(tmp_path / "stage"), str(tmp_path / "table"), {}, 1, 1, 1), tmp_path, "1g")
    assert loading.load_once(session, config, **asked) == 0
    assert answers == [answer]
