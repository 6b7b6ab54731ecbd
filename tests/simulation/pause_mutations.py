"""Rules of pauses, each broken on purpose, with the surroundings that show it."""

from collections.abc import Callable
from contextlib import suppress

from common.errors import StoreError
from common.stage import paused_streams
from common.stage.paused import Pause
from common.stage.paused_streams import PausedStreams
from delta_loader.service import LoaderService
from stage_writer.partitions.pauses import Pauses
from tests.simulation.mutation import changed, hostile, wrapped


def _forget_without_the_stage(self: PausedStreams) -> None:
    self._set_pauses({})
    with suppress(StoreError):
        self.refresh()


def _readable(real: Callable[..., Pause | None], *of: object) -> Pause | None:
    pause = real(*of)
    return None if pause is None or pause.since_ms is None else pause


def _load_regardless(self: LoaderService, app_id: str, stop: Callable[[], bool]) -> None:
    self._run_stream(self._streams[app_id], self.unfinished.begin(app_id), stop)


_forgotten = changed(PausedStreams, "run", _forget_without_the_stage)
_is_known = changed(PausedStreams, "is_paused", lambda self, app_id: app_id in self.pauses)
RULES = (
    hostile("messages of a paused stream are dropped", changed(Pauses, "drops", lambda *_: False), "pauses"),
    hostile("messages that a pause dropped are read again", changed(Pauses, "read_again", lambda *_: None), "pauses"),
    hostile("all streams are paused until pauses are read", _is_known, "pauses", "away"),
    hostile("an unreadable pause counts", wrapped(paused_streams, "pause_of", _readable), "pauses", "torn"),
)
RARE = (
    hostile(
        "pauses count while the stage is away",
        changed(PausedStreams, "run", _forget_without_the_stage),
        "pauses",
        "away",
    ),
    hostile("a load ends when its stream is paused", changed(LoaderService, "_load", _load_regardless), "pauses"),
)
