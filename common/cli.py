"""The shared parts of the three commands: exit codes, how an error is shown, and the config argument.

Rules: a command's exit status is an `ExitCode`. An error that a user can cause is two sentences on standard error,
never a stack trace.
"""

import io
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from common.errors import ExitCode, KafkaDeltaExpressError, UsageError
from common.http.pages import release
from common.printable import printable
from common.remedies import rendered, show_config
from common.settings import Settings, load_settings, print_settings

EXIT_WITHIN_S = 10.0

ConfigArgument = Annotated[Path, typer.Argument(metavar="CONFIG", help="The YAML config file.")]
PrintConfigOption = Annotated[
    bool, typer.Option("--print-config", help="Print the settings in force, with secrets masked, and exit.")
]


JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


EXIT_CODES = (
    "Exit codes: 0 done; 1 failed, a retry may help; 2 wrong usage or config; 3 done as far as possible, but something "
    "is held or not compatible and needs an operator."
)


def examples(*lines: str) -> str:
    """The end of a command's help: examples to copy, one per line, and the exit codes."""
    # typer joins the lines of a paragraph and keeps paragraphs apart.
    return "\n\n".join(["Examples:", *lines, EXIT_CODES])


def new_group(help_text: str, *calls: str) -> typer.Typer:
    epilog = examples(*calls) if calls else None
    return typer.Typer(help=help_text, epilog=epilog, no_args_is_help=True, pretty_exceptions_enable=False)


def new_app(help_text: str, *calls: str) -> typer.Typer:
    app = new_group(help_text, *calls)

    @app.callback()
    def top(
        *,
        version: Annotated[
            bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
        ] = False,
    ) -> None:
        """The options before a command; each is handled by its callback."""

    top.__doc__ = help_text
    return app


def _print_version(requested: bool) -> None:  # noqa: FBT001 - typer calls it so
    if requested:
        write(release())
        raise typer.Exit


def end_process(code: int) -> NoReturn:
    """End the process even while threads wait for a store that hangs: Python would wait for each pool's threads."""
    code = _flushed(code)
    watchdog = threading.Timer(EXIT_WITHIN_S, os._exit, [code])
    watchdog.daemon = True
    watchdog.start()
    sys.exit(code)


def _flushed(code: int) -> int:
    """Flush the output; returns another code where that fails, so that no result is lost in silence."""
    for stream in (stream for stream in (sys.stdout, sys.stderr) if stream is not None):
        try:
            stream.flush()
        except OSError as error:
            if stream is sys.stdout and code == ExitCode.DONE and not isinstance(error, BrokenPipeError):
                echo(f"error: {unwritable(error)}", err=True)
                code = ExitCode.USAGE
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # or Python flushes again, and fails
    return code


def _require_output() -> None:
    """Raise UsageError if standard output was closed by the caller."""
    if sys.stdout is None:
        raise UsageError("standard output is closed", "redirect it to a file or to /dev/null")


def unwritable(error: OSError) -> UsageError:
    """The error where a command's result cannot be written."""
    msg = f"standard output cannot be written: {error.strerror}"
    return UsageError(msg, "redirect it to a place with space and rights")


def write(text: str, *, nl: bool = True) -> None:
    """Write to standard output. Raises UsageError where that fails; the end of a pipe ends the command."""
    _require_output()
    try:
        typer.echo(text, nl=nl)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise unwritable(error) from None


def echo(text: str, *, err: bool = False) -> None:
    """Print a text with the config's path in its remedies (common/remedies.py), safe for a terminal.

    All output of commands goes through it.
    """
    shown = printable(rendered(text))
    if err:
        with suppress(OSError):  # the exit code remains
            typer.echo(shown, err=True)
    else:
        write(shown)


def stage_writer_command() -> list[str]:
    """The command line to start ``stage-writer`` in another process; ``-P`` ignores packages of the current folder."""
    return [sys.executable, "-P", "-m", "kafka_delta_express"]


def settings_from(config: Path, *, print_config: bool = False, as_written: bool = False) -> Settings:
    """Load the settings; with ``print_config``, show them and end the command.

    Unless ``as_written``, they have the routes that appeared by `route_table`; raises StoreError and MarkerError then.
    """
    show_config(config)
    settings = load_settings(config, os.environ)
    if print_config:
        write(print_settings(settings), nl=False)
        raise typer.Exit
    if as_written or all(stream.routing.route_table is None for stream in settings.streams):
        return settings
    # Only such streams need the stage to know their settings.
    from common.settings.stores import stage_store  # noqa: PLC0415
    from common.stage.appeared_routes import with_appeared  # noqa: PLC0415

    return with_appeared(settings, stage_store(settings))


def run(app: typer.Typer, arguments: Sequence[str] | None = None) -> int:
    """Run a command and turn its result into an exit code; a command raises `typer.Exit` for any other code."""
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        # A character that the encoding lacks (the locale's, or PYTHONIOENCODING) is escaped, as on standard error.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(args=arguments)
    except KafkaDeltaExpressError as error:
        echo(f"error: {error}", err=True)
        return error.exit_code
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except OSError as error:
        if "--help" not in (sys.argv if arguments is None else arguments):
            raise
        refused = unwritable(error)  # typer writes the help by itself
        echo(f"error: {refused}", err=True)
        return refused.exit_code
    finally:
        show_config(None)
    return 0
