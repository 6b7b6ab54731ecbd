"""What ``stage-writer check`` ends with."""

import json
import socket
from pathlib import Path

import pytest

from common import cli
from stage_writer.__main__ import app
from tests.builders import config_file


@pytest.mark.parametrize("as_json", [False, True])
def test_a_kafka_that_is_away_is_a_failure_and_no_wrong_config(
    as_json: bool,  # noqa: FBT001 - a parameter of pytest
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("stage_writer.fetch.kafka.TIMEOUT_S", 0.1)
    with socket.socket() as closed:  # bound and not listening: every connection is refused
        closed.bind(("127.0.0.1", 0))
        config = config_file(tmp_path, kafka={"bootstrap.servers": f"127.0.0.1:{closed.getsockname()[1]}"})
        code = cli.run(app, ["check", str(config), *(["--json"] if as_json else [])])
    shown = capsys.readouterr()
    assert code == 1
    assert "error: cannot " in shown.err
    if as_json:
        told = json.loads(shown.out)
        assert (told["fit"], "at Kafka 127.0.0.1:" in told["failure"]["problem"]) == (False, True)
    else:
        assert "all well" not in shown.out
