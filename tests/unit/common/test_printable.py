"""Text from others, before it reaches a terminal."""

import json
import uuid
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from bootstrap.__main__ import app as bootstrap
from common.cli import echo, run
from common.logs import set_up_logs
from common.printable import one_line, printable
from common.settings import LogSettings
from common.stage.markers import manifest_to_bytes
from common.terminal import aligned
from delta_loader.__main__ import app as loader
from delta_loader.status.kafka import BrokerEnds
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging

EVIL = "writer\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202e\nfake line\x7f"


def is_harmless(text: str) -> bool:
    return not any(char in text for char in "\x1b\x07\r\x9b\u202e\x7f\x08")


def test_terminal_control_characters_are_escaped_and_colors_kept() -> None:
    assert printable(EVIL) == "writer\\x1b]0;owned\\x07\\x1b[2J\\r\\x9b31m\\u202e\nfake line\\x7f"
    assert one_line(EVIL) == "writer\\x1b]0;owned\\x07\\x1b[2J\\r\\x9b31m\\u202e\\nfake line\\x7f"
    assert printable("héllo → \x1b[32mgood\x1b[0m\ta\nb 名前") == "héllo → \x1b[32mgood\x1b[0m\ta\nb 名前"
    assert printable("\ud800") == "\\ud800"
    assert aligned(["a"], [["x\ny"]]) == "a\nx\\ny"


def test_command_output_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    echo(EVIL)
    echo(EVIL, err=True)
    out, err = capsys.readouterr()
    assert out == err == f"{printable(EVIL)}\n"


def test_text_logs_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(LogSettings(format="text"), "tests")
    try:
        structlog.get_logger().warning("held", problem=EVIL, files=3)
    finally:
        structlog.reset_defaults()
    (line,) = capsys.readouterr().err.splitlines()
    assert is_harmless(line)
    assert "fake line" in line


@pytest.mark.parametrize("as_json", [False, True])
def test_forged_marker_cannot_control_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, as_json: bool
) -> None:
    monkeypatch.setattr(BrokerEnds.__init__, "__defaults__", (0.01,))  # there is no Kafka; do not wait for one
    staging = Staging(str(tmp_path), "orders")
    marker = staging.flush(0, 0, 10)
    assert marker.manifest is not None
    (table,) = marker.manifest.tables
    manifest = replace(
        marker.manifest,
        app_id=f"orders{EVIL}",
        writer=EVIL,
        dead_letters={EVIL: 1},
        tables=(replace(table, url=f"{table.url}{EVIL}"),),
    )
    staging.store(staging.stage_url).write(marker.name.path, manifest_to_bytes(staging.source(0), manifest))
    config = tmp_path / f"{uuid.uuid4().hex}.yaml"
    config.write_text(json.dumps(settings_for(staging).model_dump(mode="json", exclude_unset=True)))
    chain = ["--topic", "orders", "--partition", "0"]
    commands = [
        (bootstrap, ["markers", "ls", str(config), *chain]),
        (bootstrap, ["markers", "show", str(config), *chain, "--at", "3"]),
        (bootstrap, ["markers", "verify", str(config)]),
        (loader, ["status", str(config)]),
        (loader, ["explain", str(config), *chain, "--offset", "3"]),
    ]
    for app, arguments in commands:
        run(app, [*arguments, *(["--json"] if as_json else [])])
        out, err = capsys.readouterr()
        assert is_harmless(out + err), arguments
        assert not any(line.startswith("fake line") for line in (out + err).splitlines()), arguments
        assert out, arguments
