"""Rules for all commands: help shows a working call, and reports are available as JSON."""

import re
from collections.abc import Iterator

import pytest
from typer.core import TyperCommand, TyperGroup

from common.cli import EXIT_CODES
from tests.architecture.test_snippets import PROGRAMS, require_taken

NO_JSON = {
    "stage-writer run",  # they log
    "delta-loader dead-letters export",  # it is JSON lines, or Parquet
    "delta-loader dead-letters replay",  # it calls `stage-writer replay`
    "config init",  # a config
    "config schema",  # JSON always
}

IN_ORDER = ["run", "plan", "write", "check", "status", "verify", "skip", "rewind", "clean", "pause"]


def commands() -> Iterator[tuple[str, TyperCommand]]:
    waiting = list(PROGRAMS.items())
    while waiting:
        name, command = waiting.pop()
        if isinstance(command, TyperGroup):
            waiting += [(f"{name} {word}", inner) for word, inner in command.commands.items()]
        elif isinstance(command, TyperCommand):
            yield name, command


COMMANDS = sorted(commands(), key=lambda item: item[0])


def test_each_command_is_known_once() -> None:
    names = [name for name, _ in COMMANDS]
    assert len(names) == len(set(names))
    assert {"stage-writer run", "bootstrap markers ls", "kafka-delta-express config init"} <= set(names)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_help_shows_calls_that_work(name: str, command: TyperCommand) -> None:
    assert command.epilog, f"{name}: give it epilog=common.cli.examples(…)"
    head, *lines, codes = re.split(r"\n\n", command.epilog)
    assert (head, bool(lines), codes) == ("Examples:", True, EXIT_CODES)
    for line in lines:
        if not line.startswith("#"):
            require_taken(re.split(r" [|>] ", line)[0])
    assert any(name.rsplit(maxsplit=1)[-1] in line for line in lines)


@pytest.mark.parametrize("program", ["stage-writer", "delta-loader", "bootstrap", "kafka-delta-express"])
def test_program_help_lists_the_first_commands_and_ends_with_working_calls(program: str) -> None:
    group = PROGRAMS[program]
    assert isinstance(group, TyperGroup)
    listed = [name for name in group.commands if name in IN_ORDER]
    assert listed == [name for name in IN_ORDER if name in listed]
    head, *lines, codes = (group.epilog or "").split("\n\n")
    assert (head, bool(lines), codes) == ("Examples:", True, EXIT_CODES)
    for line in lines:
        require_taken(line)


@pytest.mark.parametrize(("name", "command"), COMMANDS, ids=[name for name, _ in COMMANDS])
def test_every_report_is_available_as_json(name: str, command: TyperCommand) -> None:
    options = {option for parameter in command.params for option in parameter.opts}
    exempt = name in NO_JSON or " ".join(name.split()[1:]) in NO_JSON
    assert ("--json" in options) != exempt
