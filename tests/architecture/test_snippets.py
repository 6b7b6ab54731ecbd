"""Snippets in the documents work: configs load, command lines parse, Python runs."""

import json
import re
import shlex
import textwrap
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import typer
import yaml
from typer.core import TyperGroup

import bootstrap.__main__
import bootstrap.tools
import delta_loader.__main__
import stage_writer.__main__
from common.settings import Settings, Stream
from common.settings.load import parse_settings
from common.settings.section import fields_of
from stage_writer.converters import converters_of
from tests.architecture.test_documents import PAGES, ROOT

BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`((?:stage-writer|delta-loader|bootstrap|kafka-delta-express) [a-z][^`…]*)`")
PROGRAMS = {
    "stage-writer": typer.main.get_command(stage_writer.__main__.app),
    "delta-loader": typer.main.get_command(delta_loader.__main__.app),
    "bootstrap": typer.main.get_command(bootstrap.__main__.app),
    "kafka-delta-express": typer.main.get_command(bootstrap.tools.app),
}
SCHEMA = jsonschema.Draft202012Validator(json.loads((ROOT / "docs/config.schema.json").read_text("utf-8")))
ENVIRONMENT = {f"{whose}_{what}": "it" for whose in ("REGISTRY", "KAFKA") for what in ("USER", "USERNAME", "PASSWORD")}
ENVIRONMENT["UNITY_TOKEN"] = "it"
STREAM: dict[str, object] = {
    "app_id": "orders",
    "topics": ["orders"],
    "table": "s3://lake/tables/orders",
    "columns": "id BIGINT, kind STRING, amount DECIMAL(12, 2), country STRING, items ARRAY<STRUCT<price: DOUBLE>>",
}
WHOLE: dict[str, object] = {
    "kafka": {"bootstrap.servers": "localhost:9092"},
    "stage": {"url": "s3://lake/stage"},
    "streams": [STREAM],
}


def _blocks(*languages: str) -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for number, match in enumerate(BLOCK.finditer(page.read_text("utf-8")), 1):
            if match[1] in languages:
                yield f"{page.relative_to(ROOT)}-{number}", textwrap.dedent(match[2])


def _command_lines() -> Iterator[str]:
    inline = (BLOCK.sub("", page.read_text("utf-8")) for page in PAGES)
    yield from (
        re.sub(r"[\[\]]", "", " ".join(part.split()))  # brackets mark optional parts
        for text in inline
        for match in INLINE.finditer(text)
        for part in match[1].split(" && ")
    )
    for _, text in _blocks("shell", ""):
        for line in text.replace("\\\n", " ").splitlines():
            for part in line.split(" && "):
                if part.strip().split(" ")[0] in PROGRAMS:
                    yield part.strip()


@pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in _blocks("yaml")])
def test_every_shown_config_is_valid_and_its_records_can_be_converted(text: str) -> None:
    shown = yaml.safe_load(text)
    known = {key for key, _ in fields_of(Settings)}
    if set(shown) <= known:
        whole = {**WHOLE, **shown}
    else:
        assert set(shown) <= {key for key, _ in fields_of(Stream)}
        whole = {**WHOLE, "streams": [{**STREAM, **shown}]}
    SCHEMA.validate(whole)
    settings = parse_settings(yaml.safe_dump(whole), ENVIRONMENT, "the snippet")
    shown_topologies = {"shop.visits:build", "shop.devices:build", "shop.sessions:build"}  # modules of the reader's own
    plain = [stream for stream in settings.streams if stream.topology not in shown_topologies]
    converters_of(settings.model_copy(update={"streams": plain}), preview=True)


@pytest.mark.parametrize("page", sorted({name.rpartition("-")[0] for name, _ in _blocks("python")}))
def test_shown_python_runs(page: str) -> None:
    shown: dict[str, Any] = {}
    for name, text in _blocks("python"):
        if name.rpartition("-")[0] == page:
            exec(compile(text, name, "exec"), shown)  # noqa: S102 - one of our pages
    assert shown["build"]() is not None
    for name in [name for name in shown if name.startswith("test_")]:
        shown[name]()


@pytest.mark.parametrize("folder", ["demo", "deploy", "examples"])
def test_own_configs_satisfy_the_editor_schema(folder: str) -> None:
    paths = sorted((ROOT / folder).rglob("pipeline*.yaml"))
    assert paths
    for path in paths:
        SCHEMA.validate(yaml.safe_load(path.read_text("utf-8")))


@pytest.mark.parametrize("line", sorted(set(_command_lines())))
def test_every_shown_command_line_parses(line: str) -> None:
    require_taken(line)


def require_taken(line: str) -> None:
    """Fails the test unless the programs accept the command line."""
    program, *words = shlex.split(line, comments=True)
    command, name = PROGRAMS[program], program
    while isinstance(command, TyperGroup) and (
        words or name == program
    ):  # a group's name alone is a mention, not a call
        name, words = words[0], words[1:]
        assert name in command.commands, f"{program} has no command {name}"
        command = command.commands[name]
    if "--help" not in words and "…" not in words:  # a placeholder
        command.make_parser(command.context_class(command)).parse_args(words)
