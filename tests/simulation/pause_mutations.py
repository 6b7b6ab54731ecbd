"""Rules of pauses, each broken on purpose, with the surroundings that show it."""

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from unittest.mock import patch

from common.errors import StoreError
from common.ports import ObjectStore
from common.stage import paused_streams
from common.stage.paused import Pause, StreamPart, pause_of
from common.stage.paused_streams import PausedStreams
from delta_loader.service import LoaderService
from stage_writer.partitions.pauses import Pauses


def _messages_of_paused_streams_are_staged() -> AbstractContextManager[object]:
    return patch.object(Pauses, "drops", lambda _self, _owned: False)


def _dropped_messages_are_not_read_again() -> AbstractContextManager[object]:
    return patch.object(Pauses, "read_again", lambda _self, _owned: None)


def _nothing_is_paused_until_pauses_are_read() -> AbstractContextManager[object]:
    return patch.object(PausedStreams, "is_paused", lambda self, app_id: app_id in self.pauses)


def _pauses_are_forgotten_without_the_stage() -> AbstractContextManager[object]:
    def run(self: PausedStreams) -> None:
        self._become({})
        with suppress(StoreError):
            self.refresh()

    return patch.object(PausedStreams, "run", run)


def _an_unreadable_pause_is_ignored() -> AbstractContextManager[object]:
    def readable(store: ObjectStore, part: StreamPart, app_id: str) -> Pause | None:
        pause = pause_of(store, part, app_id)
        return None if pause is None or pause.since_ms is None else pause

    return patch.object(paused_streams, "pause_of", readable)


def _a_load_goes_on_in_spite_of_a_pause() -> AbstractContextManager[object]:
    def load(self: LoaderService, app_id: str, stop: Callable[[], bool]) -> None:
        self._run_stream(self._streams[app_id], self.unfinished.begin(app_id), stop)

    return patch.object(LoaderService, "_load", load)


RULES: tuple[tuple[str, Callable[[], AbstractContextManager[object]], tuple[str, ...]], ...] = (
    ("messages of a paused stream are dropped", _messages_of_paused_streams_are_staged, ("pauses",)),
    ("messages that a pause dropped are read again", _dropped_messages_are_not_read_again, ("pauses",)),
    ("all streams are paused until pauses are read", _nothing_is_paused_until_pauses_are_read, ("pauses", "away")),
    ("pauses count while the stage is away", _pauses_are_forgotten_without_the_stage, ("pauses", "away")),
    ("an unreadable pause counts", _an_unreadable_pause_is_ignored, ("pauses", "torn")),
    ("a load ends when its stream is paused", _a_load_goes_on_in_spite_of_a_pause, ("pauses",)),
)
