"""The result of ``stage-writer check``."""

import json
import socket
from pathlib import Path

import pytest

from common import cli
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import MarkerName
from stage_writer.__main__ import app
from stage_writer.checked_topics import starts_exist, topics_continue
from tests.builders import config_file, settings_of
from tests.fakes.staging import Staging

ORDERS = Topic("orders")


def test_recreated_topic_is_reported(tmp_path: Path) -> None:
    staging = Staging.below(tmp_path)
    partitions = [TopicPartition(ORDERS, Partition(number)) for number in range(3)]
    staging.flush(1, 0, 10)
    (path,) = (tmp_path / "stage").glob("done/orders/1/*.done")
    marker = json.loads(path.read_text())
    path.write_text(json.dumps({**marker, "topic_id": "first"}))
    settings = settings_of({"table": f"{tmp_path}/t", "columns": "id INT"}, stage={"url": staging.stage_url})
    lines: list[str] = []

    def check(topic_id: str | None) -> bool:
        lines.clear()
        return topics_continue(settings, partitions, {ORDERS: topic_id}, lambda *line: lines.append(" ".join(line)))

    assert (check("first"), check(None), lines) == (True, True, [])
    assert not check("second")
    assert lines[0].startswith("chain the topic orders was deleted and created again")
    assert "bootstrap restart" in lines[0]
    path.write_text("{")
    assert not check("second"), "an unreadable marker holds the partition too"


def test_start_beyond_the_end_is_reported_until_the_chain_has_begun(tmp_path: Path) -> None:
    staging, partitions = Staging.below(tmp_path), [TopicPartition(ORDERS, Partition(number)) for number in range(4)]
    stream = {"table": f"{tmp_path}/t", "columns": "id INT", "start": {0: 7, 1: 8, 2: 8, 3: 8}}
    settings = settings_of(stream, stage={"url": staging.stage_url})
    staging.flush(2, 0, 3)
    origin = ChainOrigin(Position(8), 0)
    staging.store(staging.stage_url).create(origin_path(partitions[3]), origin_to_bytes(origin))
    lines: list[tuple[str, str]] = []
    assert not starts_exist(settings, dict.fromkeys(partitions, Position(7)), lambda *line: lines.append(line))
    ((what, text),) = lines
    assert (what, text.partition(":")[0]) == ("start", "orders/1 of orders starts at 8, and Kafka ends at 7")
    assert starts_exist(settings, dict.fromkeys(partitions, Position(8)), lambda *line: lines.append(line))
    staging.store(staging.stage_url).write(MarkerName(partitions[1], Position(0)).path, b"{")
    assert starts_exist(settings, dict.fromkeys(partitions, Position(7)), lambda *line: lines.append(line))
    assert len(lines) == 1


@pytest.mark.parametrize("as_json", [False, True])
def test_unreachable_kafka_is_a_failure_and_not_an_invalid_config(
    as_json: bool,  # noqa: FBT001 - a parameter of pytest
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stage_writer.fetch.metadata.TIMEOUT_S", 0.1)
    with socket.socket() as closed:  # bound but not listening: every connection is refused
        closed.bind(("127.0.0.1", 0))
        config = config_file(tmp_path, kafka={"bootstrap.servers": f"127.0.0.1:{closed.getsockname()[1]}"})
        code = cli.run(app, ["check", str(config), *(["--json"] if as_json else [])])
    shown = capsys.readouterr()
    assert code == 1
    assert "error: cannot " in shown.err
    if as_json:
        report = json.loads(shown.out)
        assert (report["fit"], "at Kafka 127.0.0.1:" in report["failure"]["problem"]) == (False, True)
    else:
        assert "all well" not in shown.out
