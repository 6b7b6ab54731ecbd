"""Remedies name the real config file in every output."""

import json
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer

from common import cli
from common.errors import UsageError
from common.http.server import HttpServer, Routes, json_page, text_page
from common.logs import set_up_logs
from common.remedies import CONFIG, rendered, show_config
from common.settings import LogSettings


@pytest.fixture
def shown(tmp_path: Path) -> Iterator[str]:
    """A config whose path needs quoting in a shell and in JSON."""
    show_config(tmp_path / 'my "own" $config.yaml')
    yield f"'{tmp_path}/my \"own\" $config.yaml'"
    show_config(None)


def test_path_is_quoted_for_the_shell_and_in_json(shown: str) -> None:
    assert rendered(f"bootstrap restart {CONFIG} --topic orders") == f"bootstrap restart {shown} --topic orders"
    remedy = {"remedy": f"delta-loader status {CONFIG}"}
    assert json.loads(rendered(json.dumps(remedy))) == {"remedy": f"delta-loader status {shown}"}


def test_pages_and_logs_show_the_config_path(shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    remedy = f"stage-writer check {CONFIG}"
    pages = {"/text": lambda: text_page(200, remedy), "/json": lambda: json_page(200, [remedy])}
    server = HttpServer("127.0.0.1:0", Routes(pages))
    try:
        texts = [urllib.request.urlopen(f"http://127.0.0.1:{server.port}{page}").read().decode() for page in pages]
    finally:
        server.close()
    assert [texts[0], *json.loads(texts[1])] == [f"stage-writer check {shown}"] * 2
    set_up_logs(LogSettings(format="json"), "stage-writer").error("held", remedy=remedy, also=[remedy])
    line = json.loads(capsys.readouterr().err)
    assert (line["remedy"], line["also"]) == (f"stage-writer check {shown}", [f"stage-writer check {shown}"])


@pytest.mark.parametrize("fails", [False, True])
def test_commands_print_the_config_path_and_forget_it(
    fails: bool,  # noqa: FBT001 - a parameter of pytest
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "pipeline.yaml"
    path.write_text(
        "kafka: {bootstrap.servers: 'localhost:9'}\nstage: {url: memory://stage}\n"
        "streams: [{app_id: a, topics: [a], table: memory://a, columns: a INT}]\n"
    )
    app = cli.new_app("An application.")

    @app.command()
    def tell(config: cli.ConfigArgument) -> None:
        cli.settings_from(config)
        if fails:
            problem = "it is held"
            raise UsageError(problem, f"bootstrap skip {CONFIG}")
        cli.echo(f"bootstrap skip {CONFIG}")

    @app.command()
    def other() -> None:
        typer.echo()

    assert cli.run(app, ["tell", str(path)]) == (2 if fails else 0)
    shown = capsys.readouterr()
    assert f"bootstrap skip {path}" in (shown.err if fails else shown.out)
    assert rendered(CONFIG) == CONFIG
