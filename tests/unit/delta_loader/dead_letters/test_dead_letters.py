"""Reports of dead letters: error patterns by default, values only on request."""

import importlib.util
import json
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from common.cli import run
from common.errors import UsageError
from delta_loader.commands.dead_letters import app
from delta_loader.dead_letters.filters import (
    NUMBER,
    QUOTED,
    DeadLetterFilter,
    Group,
    as_json,
    as_text,
    moment_ms,
    selected,
)
from tests.builders import settings_of

MOMENT = datetime(2026, 3, 1, tzinfo=UTC)
GROUP = Group("orders", "wrong_type", "orders", 'status: the string "…" where INT', 1_234, 2, MOMENT, None, (0, 41))


@pytest.mark.parametrize(
    ("error", "pattern"),
    [
        ('status: the string "Ada \\"L\\"" where INT is declared', 'status: the string "…" where INT is declared'),
        ("n: -1.5e300 is out of range for FLOAT", "n: # is out of range for FLOAT"),
        ("derive date: Could not convert string 'Ada' to INT32", 'derive date: Could not convert string "…" to INT#'),
    ],
)
def test_error_pattern_contains_no_values(error: str, pattern: str) -> None:
    assert re.sub(NUMBER, "#", re.sub(QUOTED, '"…"', error)) == pattern


def test_text_lists_groups_and_shows_values_only_on_request() -> None:
    text = as_text([GROUP], ["s3://lake/clicks_dead_letters"])
    assert text.splitlines()[0].startswith("s3://lake/clicks_dead_letters does not exist")
    assert text.splitlines()[2].split()[:3] == ["1,234", "wrong_type", "orders"]
    assert "1,234 dead letters" in text
    shown = as_text([replace(GROUP, shown=('status: the string "Ada"', '{"status": "Ada"}'))], [])
    assert '{"status": "Ada"}' in shown
    assert as_text([], []) == "No dead letters."
    assert as_text([], ["s3://lake/x"]) == "s3://lake/x does not exist: no record was refused yet\nNo dead letters."


def test_json_lists_groups_without_values() -> None:
    document = json.loads(as_json([GROUP]))
    assert document["dead_letters"] == 1_234
    assert document["groups"][0]["example"] == {"partition": 0, "offset": 41}
    assert "value" not in document["groups"][0]
    shown = json.loads(as_json([replace(GROUP, shown=("a reason", "{"))]))["groups"][0]
    assert (shown["error"], shown["value"]) == ("a reason", "{")


def test_invalid_time_is_refused() -> None:
    assert moment_ms("--since", "2026-03-01T00:00:00Z") == 1_772_323_200_000
    with pytest.raises(UsageError, match="--since 'soon' is not a valid time"):
        moment_ms("--since", "soon")


def test_stream_topic_name_selects_its_stream() -> None:
    shared = [{"app_id": name, "topics": ["orders"], "table": f"file:///{name}"} for name in ("first", "second")]
    streams = settings_of(*shared).streams
    for wanted in (DeadLetterFilter(), DeadLetterFilter(topic="orders")):
        assert selected(streams, wanted) == (streams, wanted)
    matching, wanted = selected(streams, DeadLetterFilter(topic="orders@second", partition=3))
    assert [stream.app_id for stream in matching] == ["second"]
    assert wanted == DeadLetterFilter(topic="orders", partition=3)
    for none in ("orders@third", "payments@second"):
        with pytest.raises(UsageError, match=f"{none} is not a topic of first or second"):
            selected(streams, DeadLetterFilter(topic=none))


def test_replay_without_the_stage_writer_extra_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "duckdb" else find_spec(name))
    config = tmp_path / "pipeline.yaml"
    config.write_text(
        "kafka: {bootstrap.servers: 'nowhere:1'}\nstage: {url: /stage}\n"
        "streams: [{app_id: orders, topics: [orders], table: /table, columns: id INT}]\n"
    )
    assert run(app, ["replay", str(config)]) == 2
    stderr = capsys.readouterr().err
    assert "the stage writer, which decodes dead letters, is not installed here" in stderr
    assert "stage-writer replay" in stderr


def test_export_has_all_dead_letters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading = pytest.importorskip("delta_loader.dead_letters.reading")
    monkeypatch.setattr(reading, "_ROWS", 2)
    dead_letters = [
        {
            "_kafka_topic": "orders",
            "_kafka_partition": 0,
            "_kafka_offset": offset,
            "_kafka_timestamp": MOMENT,
            "key": None if offset else b"",
            "value": b"{",
            "error_class": "not_json",
            "error": "it ends early",
            "app_id": "orders",
        }
        for offset in range(5)
    ]
    written: list[int] = []
    with (tmp_path / "letters.parquet").open("wb") as file:
        assert reading.write_parquet(file, iter(dead_letters), written.append) == 5
    assert pq.read_table(tmp_path / "letters.parquet").to_pylist() == dead_letters
    assert written == [2, 2, 1]
    with (tmp_path / "letters.ndjson").open("wb") as file:
        assert reading.write_ndjson(file, iter(dead_letters), written.append) == 5
    lines = [json.loads(line) for line in (tmp_path / "letters.ndjson").read_text("utf-8").splitlines()]
    assert [(line["offset"], line["key"], line["value"]) for line in lines[:2]] == [(0, "", "ew=="), (1, None, "ew==")]
