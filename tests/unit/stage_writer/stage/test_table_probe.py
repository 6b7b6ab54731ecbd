"""Before it starts, a writer probes that it can write below every table that receives its data files."""

from collections.abc import Callable
from pathlib import Path

import pytest

from common.cli import run
from common.errors import StoreRefusedError
from common.storage.store import FsspecStore, stores_of
from stage_writer.__main__ import app
from stage_writer.stage.table_compatibility import prove_stage_folders, prove_tables
from tests.builders import config_file, instance, settings_of
from tests.unit.stage_writer.stage.test_table_compatibility import write_log


def prove(folder: Path, **options: object) -> int:
    stream = {"table": f"{folder}/lake/orders", "columns": "id BIGINT, k INT", **options}
    return prove_tables(settings_of(stream, folder=str(folder)), stores_of({}))


def test_probe_writes_to_every_table_and_leaves_nothing(tmp_path: Path) -> None:
    routes = {"1": f"{tmp_path}/lake/one", "2": f"file://{tmp_path}/lake/one/"}
    assert prove(tmp_path, route="k", routes=routes) == 3
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("key", "options"),
    [
        ("streams[0].table", lambda blocked: {"table": blocked}),
        ("streams[0].dead_letters", lambda blocked: {"dead_letters": blocked}),
        ("streams[0].routes.1", lambda blocked: {"route": "k", "routes": {"1": blocked}}),
    ],
)
def test_unwritable_table_is_named(tmp_path: Path, key: str, options: Callable[[str], dict[str, object]]) -> None:
    (tmp_path / "blocked").write_text("a file where the folder of tables should be", "utf-8")
    with pytest.raises(StoreRefusedError) as caught:
        prove(tmp_path, **options(f"{tmp_path}/blocked/orders"))
    assert caught.value.problem.startswith(
        f"{key} (orders): this writer cannot create data files below {tmp_path}/blocked/"
    )


def test_table_written_only_by_spark_is_not_probed(tmp_path: Path) -> None:
    (tmp_path / "blocked").write_text("", "utf-8")
    options = {"load": "append", "table": f"{tmp_path}/blocked/orders", "dead_letters": f"{tmp_path}/lake/dead"}
    assert prove(tmp_path, **options) == 1


@pytest.mark.parametrize(
    ("folder", "options"),
    [
        ("done", {}),
        ("data", {"load": "append"}),
        ("columns", {"columns": "from_records"}),
        ("columns", {"columns": "from_schema_file", "format": "avro", "schema_file": "x"}),
        ("routes", {"route": "k", "route_table": "{folder}/lake/{route}"}),
    ],
)
def test_unwritable_stage_folder_is_named(tmp_path: Path, folder: str, options: dict[str, str]) -> None:
    (tmp_path / "stage").mkdir()
    (tmp_path / "stage" / folder).write_text("a file where the folder should be", "utf-8")
    wanted = {key: value.replace("{folder}", str(tmp_path)) for key, value in options.items()}
    stream = {"columns": "id BIGINT, k INT", "table": f"{tmp_path}/lake/orders", **wanted}
    settings = settings_of(stream, folder=str(tmp_path))
    with pytest.raises(
        StoreRefusedError, match=f"this writer cannot create objects below {settings.stage.url}/{folder}: "
    ):
        prove_stage_folders(settings, stores_of({}))
    (tmp_path / "stage" / folder).unlink()
    prove_stage_folders(settings, stores_of({}))
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_check_lists_every_incompatible_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    streams = [
        {"app_id": name, "topics": [name], "table": f"{tmp_path}/{name}", "columns": "qty INT"}
        for name in ("one", "two")
    ]
    path = config_file(tmp_path, *streams, writer={"http": None})
    for name in ("one", "two"):
        write_log(instance(FsspecStore, stores_of({})(f"{tmp_path}/{name}")), "qty STRING")
    assert run(app, ["check", str(path)]) == 2
    errors = capsys.readouterr().err
    assert "2 tables cannot take their rows" in errors
    assert errors.count("→ write qty STRING in columns") == 2


@pytest.mark.parametrize("command", [["check"], ["run", "--until-caught-up"]])
def test_check_and_run_stop_at_an_unwritable_table(
    tmp_path: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "blocked").write_text("", "utf-8")
    path = config_file(tmp_path, {"table": f"{tmp_path}/blocked/orders"}, writer={"http": None})
    assert run(app, [command[0], str(path), *command[1:]]) == 2
    assert "streams[0].table (orders): this writer cannot create data files below" in capsys.readouterr().err


def test_check_stops_at_an_unwritable_stage_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, {"table": f"{tmp_path}/orders"}, writer={"http": None})
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "done").write_text("", "utf-8")
    assert run(app, ["check", str(path)]) == 2
    assert f"stage.url: this writer cannot create objects below {stage}/done" in capsys.readouterr().err
