"""``pause`` and ``resume`` of both services: they pause one stream, in the stage (common/stage/paused.py)."""

import getpass
import json
import socket
from collections.abc import Callable
from typing import Annotated

import typer
from structlog.typing import FilteringBoundLogger

from common import metrics as all_metrics
from common.cli import ConfigArgument, JsonOption, echo, examples, settings_from
from common.clock import SystemClock
from common.hints import unknown_stream
from common.metrics import Metrics
from common.settings import Settings
from common.settings.stores import stage_store
from common.stage.paused import Pause, StreamPart, pause, resume
from common.stage.paused_streams import REFRESH_EVERY_S, PausedStreams

StreamOption = Annotated[str, typer.Option("--stream", metavar="APP_ID", help="The stream.")]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Shown with the pause.")]


def add_pause_commands(app: typer.Typer, part: StreamPart) -> None:
    app.command("pause", epilog=_examples(part, "pause"))(_pause(part))
    app.command("resume", epilog=_examples(part, "resume"))(_resume(part))


def paused_streams(settings: Settings, part: StreamPart, log: FilteringBoundLogger, metrics: Metrics) -> PausedStreams:
    """The paused streams of a process; nothing is read yet."""
    app_ids = [stream.app_id for stream in settings.streams]
    metric = all_metrics.LOADER_STREAM_PAUSED if part is StreamPart.LOADING else all_metrics.WRITER_STREAM_PAUSED
    return PausedStreams(
        stage_store(settings), part, app_ids, clock=SystemClock(), log=log, metrics=metrics, metric=metric
    )


def _examples(part: StreamPart, command: str) -> str:
    more = [' --reason "repairs"'] if command == "pause" else []
    return examples(*(f"{part.program} {command} pipeline.yaml --stream orders{text}" for text in ("", *more)))


def _pause(part: StreamPart) -> Callable[..., None]:
    def command(
        config: ConfigArgument, *, stream: StreamOption, reason: ReasonOption = "", as_json: JsonOption = False
    ) -> None:
        settings = settings_from(config, as_written=True)
        _require_stream(settings, stream)
        paused = pause(stage_store(settings), Pause(stream, part, SystemClock().wall_ms(), _operator(), reason))
        if as_json:
            echo(json.dumps({"stream": stream, "paused": True, "since_ms": paused.since_ms, "by": paused.by}))
        else:
            echo(f"{stream}: {paused.text}\n  processes stop within {REFRESH_EVERY_S:.0f} s; {paused.remedy}")

    command.__doc__ = f"Pause the {part} of one stream, in all processes and across restarts; all other streams go on."
    return command


def _resume(part: StreamPart) -> Callable[..., None]:
    def command(config: ConfigArgument, *, stream: StreamOption, as_json: JsonOption = False) -> None:
        settings = settings_from(config, as_written=True)
        _require_stream(settings, stream)
        was_paused = resume(stage_store(settings), part, stream)
        if as_json:
            echo(json.dumps({"stream": stream, "paused": False, "was_paused": was_paused}))
        else:
            echo(f"{stream}: {part} {'resumes' if was_paused else 'was not paused'}")

    command.__doc__ = f"Resume the {part} of one stream."
    return command


def _require_stream(settings: Settings, app_id: str) -> None:
    app_ids = [stream.app_id for stream in settings.streams]
    if app_id not in app_ids:
        raise unknown_stream(app_id, app_ids)


def _operator() -> str:
    """The user and the machine of this process, as pauses name them."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        user = "an unnamed user"
    return f"{user} on {socket.gethostname()}"
