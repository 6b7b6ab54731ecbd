"""A pause in the stage, of two operators at once."""

from pathlib import Path

from common.stage.paused import Pause, StreamPart, pause, pause_of, resume
from common.storage.store import FsspecStore
from tests.fakes.stores import TrappedStore, acting


def test_pause_while_an_earlier_one_ends_is_in_the_stage(tmp_path: Path) -> None:
    first, second = (Pause("orders", StreamPart.LOADING, since_ms, "operator") for since_ms in (1, 2))
    stage = FsspecStore(f"{tmp_path}/stage")
    assert (pause(stage, first), pause(stage, second)) == (first, first)
    ended = acting("read", lambda: resume(stage, StreamPart.LOADING, "orders"))
    assert pause(TrappedStore(f"{tmp_path}/stage", before=ended), second) == second
    assert pause_of(stage, StreamPart.LOADING, "orders") == second
