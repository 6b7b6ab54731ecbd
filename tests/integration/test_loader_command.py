"""``delta-loader`` as a person or an orchestrator calls it."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from common.tables.delta_log import read_table_state
from tests.fakes.staging import DECLARED, OneOfMany, Staging
from tests.integration.conftest import Programs
from tests.waiting import until

pytestmark = pytest.mark.spark
ROOT = Path(__file__).parents[2]
PATIENCE_S = 600


def config_of(*stagings: Staging, programs: Programs, small_tables: bool = True, **loader: object) -> Path:
    return programs.config(
        {
            "kafka": {"bootstrap.servers": "127.0.0.1:1"},
            "stage": {"url": stagings[0].stage_url},
            "loader": {"http": "127.0.0.1:0", "spark": {"spark.master": "local[2]"}, **loader},
            "logs": {"format": "json"},
            "streams": [
                {"app_id": staging.topic, "topics": [staging.topic], "table": staging.table, **DECLARED}
                for staging in stagings
            ],
        },
        small_tables=small_tables,
    )


def test_run_once_loads_all_markers_and_status_reports_them(tmp_path: Path, programs: Programs) -> None:
    """Of two streams: one whose partition is held, and one whose table no loader of today can write.

    The loader has Spark's own settings, as those of images and users; other tests have some for small tables.
    """
    staging, broken = (OneOfMany(f"{tmp_path}/{name}", topic=name) for name in ("orders", "returns"))
    broken.flush(0, 0, 10)
    protocol = b'{"protocol":{"minReaderVersion":99,"minWriterVersion":99}}\n'
    broken.store(broken.table).write(f"_delta_log/{0:020}.json", protocol)
    staging.flush(0, 0, 10)
    staging.flush(0, 10, 30)
    staging.flush(1, 5, 8)
    staging.flush(1, 20, 22)
    config = config_of(staging, broken, programs=programs, small_tables=False)

    before = json.loads(programs.run("delta-loader", "status", config, "--json").stdout)["streams"][0]
    assert (before["version"], before["way"]) == (None, None)
    assert [
        (partition["staged_to"], partition["loaded_to"], partition["waiting_markers"])
        for partition in before["partitions"]
    ] == [(30, None, 2), (22, None, 2)]

    done = programs.run("delta-loader", "run", config, "--once")
    assert done.returncode == 1, done.stderr
    assert "orders: done, 1 commit, 3 files, 33 rows" in done.stdout
    assert "returns: failed" in done.stdout
    assert "orders/1 is held (gap): nothing is staged for the positions [8, 20)" in done.stdout
    chatter = (" WARN ", "WARNING", "Exception", "Inbox", "log level")
    assert [line for line in done.stderr.splitlines() if any(word in line for word in chatter)] == []

    after = json.loads(programs.run("delta-loader", "status", config, "--json").stdout)["streams"][0]
    assert after["way"]["kind"] == "add"
    first, second = after["partitions"]
    assert (first["staged_to"], first["loaded_to"], first["lag"], first["held"]) == (30, 30, 0, None)
    assert (second["staged_to"], second["loaded_to"], second["lag"]) == (22, 8, 14)
    assert second["held"]["reason"] == "gap"
    assert first["kafka_end"] is None
    shown = programs.run("delta-loader", "status", config)
    text = shown.stdout
    assert shown.returncode == 1
    assert "held (gap)" in text
    assert "the last load failed at" in text
    assert f"bootstrap rewind {config} --topic orders --partition 1 --to 8" in text


def test_status_needs_no_spark(tmp_path: Path, programs: Programs) -> None:
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 10)
    program = (
        "import sys; sys.modules['pyspark'] = None\n"
        "from delta_loader.__main__ import app; from common.cli import run\n"
        f"sys.exit(run(app, ['status', {str(config_of(staging, programs=programs))!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "orders/0" in done.stdout


def test_wrong_schedule_exits_with_2(tmp_path: Path, programs: Programs) -> None:
    config = config_of(Staging.below(tmp_path), programs=programs, schedule="99 * * * *")
    done = programs.run("delta-loader", "run", config)
    assert done.returncode == 2
    assert "loader.schedule" in done.stderr
    assert "Traceback" not in done.stderr


def test_service_loads_on_its_schedule_answers_and_ends_in_1_when_its_spark_dies(
    tmp_path: Path, programs: Programs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_OF_ITS_OWN", "1")  # tests/integration/warm_java.py
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 10)
    config = config_of(staging, programs=programs, schedule="1s")
    service = programs.start("delta-loader", "run", config)
    until(lambda: _loaded(staging) == 9, within_s=PATIENCE_S)
    staging.flush(0, 10, 20)
    until(lambda: _loaded(staging) == 19, within_s=PATIENCE_S)
    port = next(
        json.loads(line)["port"] for line in service.log.read_text("utf-8").splitlines() if '"event": "serving"' in line
    )
    position = 'delta_loader_loaded_position{partition="0",topic="orders"} 20.0'
    until(lambda: position in _page(port, "/metrics"), within_s=PATIENCE_S)
    for page, expected in (
        ("/", "<title>kafka-delta-express</title>"),
        ("/status.json", '"service":"delta-loader"'),
        ("/healthcheck", "ok"),
        ("/ready", "ok"),
        ("/version", "delta-loader"),
    ):
        assert expected in _page(port, page), page
    assert "Traceback" not in service.log.read_text("utf-8")
    for child in Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    assert service.process.wait(600) == 1
    assert "the Spark process has ended" in service.log.read_text("utf-8")


def test_loader_that_still_starts_spark_ends_on_sigterm_with_0(tmp_path: Path, programs: Programs) -> None:
    staging = Staging.below(tmp_path)
    staging.flush(0, 0, 10)
    service = programs.start("delta-loader", "run", config_of(staging, programs=programs, schedule="1s"))
    until(lambda: "starting spark" in service.log.read_text("utf-8"), within_s=PATIENCE_S)
    assert service.stop(600) == 0
    assert "Traceback" not in service.log.read_text("utf-8")


def _page(port: int, page: str) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}") as answer:
        return str(answer.read().decode())


def _loaded(staging: Staging) -> int | None:
    state = read_table_state(staging.store(staging.table))
    return None if state is None else state.transactions.get("orders-0")
