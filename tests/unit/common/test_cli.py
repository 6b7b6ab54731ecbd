import io
import subprocess
import sys

import pytest
import typer

from bootstrap.__main__ import app as bootstrap
from common.cli import echo, new_app, run
from common.errors import BrokerError, ConfigError, KafkaDeltaExpressError, UnsafeStoreError, UsageError
from common.http.pages import release
from common.terminal import aligned, has_colors, progress

app = new_app("Try things.")


@app.command()
def fail(kind: str) -> None:
    """Fail."""
    errors = {"config": ConfigError, "usage": UsageError, "unfit": UnsafeStoreError, "broker": BrokerError}
    raise errors[kind]("something is wrong", "do something")


@app.command()
def code(number: int) -> None:
    """Exit."""
    raise typer.Exit(number)


@app.command()
def nothing() -> None: ...


@app.command()
def say(text: str) -> None:
    """Print."""
    echo(text)


@pytest.mark.parametrize(("kind", "expected"), [("config", 2), ("usage", 2), ("unfit", 2), ("broker", 1)])
def test_error_prints_two_sentences_and_sets_the_exit_code(
    kind: str, expected: int, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run(app, ["fail", kind]) == expected
    assert capfd.readouterr() == ("", "error: something is wrong\n  → do something\n")


def test_command_s_own_exit_code_is_kept() -> None:
    assert [run(app, ["code", str(number)]) for number in (0, 1, 2, 3)] == [0, 1, 2, 3]
    assert run(app, ["nothing"]) == 0


@pytest.mark.parametrize("arguments", [["no-such-command"], ["code"], ["code", "x"], ["nothing", "--no-such-option"]])
def test_wrong_usage_exits_with_2_and_no_stack_trace(arguments: list[str], capfd: pytest.CaptureFixture[str]) -> None:
    assert run(app, arguments) == 2
    captured = capfd.readouterr()
    assert captured.out == ""
    assert "Traceback" not in captured.err
    assert "Usage" in captured.err


def test_help_and_version_exit_with_0(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(app, ["--help"]) == 0
    assert "Try things." in capfd.readouterr().out
    assert run(app, ["--version"]) == 0
    assert capfd.readouterr().out == f"{release()}\n"


def test_character_that_standard_output_cannot_encode_is_escaped(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding="iso-8859-1"))

    assert run(app, ["say", "é – 日"]) == 0

    sys.stdout.flush()
    assert written.getvalue() == b"\xe9 \\u2013 \\u65e5\n"


def test_unexpected_exception_is_raised() -> None:
    with pytest.raises(KeyError):
        run(app, ["fail", "bug"])


def test_error_text_has_the_problem_and_the_remedy() -> None:
    assert str(KafkaDeltaExpressError("a", "b")) == "a\n  → b"
    assert str(KafkaDeltaExpressError("a")) == "a"


@pytest.mark.parametrize("command", ["plan", "write", "skip", "rewind"])
def test_bootstrap_commands_have_help(command: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(bootstrap, [command, "--help"]) == 0
    assert "CONFIG" in capfd.readouterr().out


def test_bootstrap_without_a_config_file_exits_with_2() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bootstrap", "plan", "/no/such/file", "--from", "latest"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the config file /no/such/file cannot be read")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("redirection", "problem"),
    [
        (">/dev/full", "standard output cannot be written: No space left on device"),
        (">&-", "standard output is closed"),
    ],
)
@pytest.mark.parametrize("arguments", [["--version"], ["config", "schema"]])
def test_unwritable_result_is_one_error(arguments: list[str], redirection: str, problem: str) -> None:
    command = [sys.executable, "-m", "bootstrap", *arguments]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {redirection}', "sh", *command], stderr=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stderr.partition("\n")[0]) == (2, f"error: {problem}")
    assert "Traceback" not in done.stderr


def test_help_that_cannot_be_written_is_one_error() -> None:
    command = ["sh", "-c", 'exec "$@" >/dev/full', "sh", sys.executable, "-m", "bootstrap", "plan", "--help"]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr.partition("\n")[0]) == (
        2,
        "error: standard output cannot be written: No space left on device",
    )
    assert "Traceback" not in done.stderr


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colors_are_only_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert has_colors(Terminal())
    assert not has_colors(io.StringIO())
    monkeypatch.setenv("NO_COLOR", "1")
    assert not has_colors(Terminal())


@pytest.mark.parametrize(
    ("stream", "term", "shows"), [(Terminal, "xterm", True), (Terminal, "dumb", False), (io.StringIO, "xterm", False)]
)
def test_progress_bar_is_only_for_terminals(
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    stream: type[io.StringIO],
    term: str,
    shows: bool,  # noqa: FBT001 - a parameter of pytest
) -> None:
    stderr = stream()
    monkeypatch.setattr(sys, "stderr", stderr)
    monkeypatch.setenv("TERM", term)
    with progress("files", 3) as report:
        report(1)
    assert ("files" in stderr.getvalue(), "1/3" in stderr.getvalue()) == (shows, shows)
    assert shows or not stderr.getvalue()
    assert capfd.readouterr() == ("", "")


def test_table_is_aligned_and_not_truncated() -> None:
    long = "x" * 300
    assert aligned(("a", "n"), [(long, "1"), ("b", "1,000")], right=(1,)).splitlines() == [
        "a" + " " * 299 + "      n",
        long + "      1",
        "b" + " " * 299 + "  1,000",
    ]
