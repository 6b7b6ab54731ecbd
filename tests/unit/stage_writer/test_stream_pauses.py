"""A stream whose staging an operator has paused, in the writer's loop; the pauses are in a real stage."""

from pathlib import Path

import pytest

from common.errors import HeldError, StoreError
from common.remedies import CONFIG
from common.stage.paused import Pause, StreamPart, pause, pause_of, pause_path, resume
from common.storage.store import FsspecStore
from tests.fakes.pauses import paused_streams
from tests.unit.stage_writer.test_service import FIRST, SECOND, World

PAUSE = Pause("orders", StreamPart.STAGING, 1_000, "a test")


def paused_world(folder: Path, *, is_paused: bool = True) -> World:
    class Paused(World):
        paused = paused_streams(part=StreamPart.STAGING, store=FsspecStore(f"{folder}/stage"))

    if is_paused:
        pause(FsspecStore(f"{folder}/stage"), PAUSE)
        Paused.paused.refresh()
    return Paused(folder, {FIRST: 10, SECOND: 5})


def test_paused_stream_is_not_staged_at_startup_and_fully_staged_after_resume(tmp_path: Path) -> None:
    """Records that the Kafka client delivers before the pause reaches it are read again later."""
    world = paused_world(tmp_path)
    world.steps(20)
    assert world.spans() == []
    assert world.group.paused == {FIRST, SECOND}
    assert world.problems() == ""
    assert f"`stage-writer resume {CONFIG} --stream orders` ends it" in world.writer.health().notes[0]
    resume(world.store, StreamPart.STAGING, "orders")
    world.steps(60)
    assert world.spans() == [(0, 10)]


def test_pause_stops_a_running_writer_after_its_buffered_records(tmp_path: Path) -> None:
    world = paused_world(tmp_path, is_paused=False)
    world.steps(1)
    pause(world.store, PAUSE)
    world.steps(60)
    world.group.ends |= {FIRST: 20}
    world.steps(60)
    assert world.spans() == [(0, 10)]
    resume(world.store, StreamPart.STAGING, "orders")
    world.steps(60)
    assert world.spans() == [(0, 10), (10, 20)]


def test_messages_dropped_during_a_pause_do_not_extend_a_buffered_span(tmp_path: Path) -> None:
    """A span that covered dropped messages would lose them."""
    world = paused_world(tmp_path, is_paused=False)
    world.writer = world.new_writer(flush_after_s=10**6)
    world.steps(1)
    pause(world.store, PAUSE)
    assert world.paused is not None
    world.paused.refresh()
    world.group.ends[FIRST] = 20  # before the pause reaches Kafka's client
    world.steps(1)
    resume(world.store, StreamPart.STAGING, "orders")
    world.paused.refresh()
    world.steps(5)
    owned = world.writer.assignment.by_partition[FIRST]
    assert (owned.buffer.records, owned.buffer.end) == (20, 20)


def test_until_caught_up_fails_with_the_paused_stream(tmp_path: Path) -> None:
    world = paused_world(tmp_path)
    with pytest.raises(HeldError, match=r"staging is paused since 1970-01-01T00:00:01\+00:00 by a test"):
        world.writer.run(until_caught_up=True)
    assert world.spans() == []


def test_first_pause_is_kept_until_resume(tmp_path: Path) -> None:
    store = FsspecStore(str(tmp_path))
    assert pause(store, PAUSE) == PAUSE
    assert pause(store, Pause("orders", StreamPart.STAGING, 2_000, "another")) == PAUSE
    assert pause_of(store, StreamPart.LOADING, "orders") is None
    assert [resume(store, StreamPart.STAGING, "orders") for _ in range(2)] == [True, False]
    assert pause_of(store, StreamPart.STAGING, "orders") is None


def test_unreadable_pause_object_pauses_the_stream(tmp_path: Path) -> None:
    store = FsspecStore(str(tmp_path))
    store.write(pause_path(StreamPart.LOADING, "a/b"), b"paused")
    paused = paused_streams(["a/b", "orders"], store=store)
    assert (paused.is_paused("a/b"), paused.is_paused("orders")) == (True, False)
    assert paused.notes[0].startswith("a/b: loading is paused →")


def test_all_streams_are_paused_until_the_stage_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FsspecStore(str(tmp_path))
    known, unknown = paused_streams(store=store), paused_streams(store=store)
    unknown._pauses = None

    def away(_prefix: str) -> None:
        raise StoreError("unavailable", "wait")

    monkeypatch.setattr(store, "list", away)
    for pauses in (known, unknown):
        pauses.run()
    assert (known.is_paused("orders"), unknown.is_paused("orders")) == (False, True)


@pytest.mark.parametrize("call", ["pause", "resume"])
def test_call_for_one_stream_before_the_stage_was_read_resumes_no_other(tmp_path: Path, call: str) -> None:
    store = FsspecStore(str(tmp_path))
    pause(store, Pause("audit", StreamPart.LOADING, 1_000))
    paused = paused_streams(("orders", "audit"), store=store)
    paused._pauses = None
    paused.pause("orders", "a test") if call == "pause" else paused.resume("orders")
    assert paused.is_paused("audit")
    paused.refresh()
    assert [paused.is_paused(app_id) for app_id in ("orders", "audit")] == [call == "pause", True]


def test_stream_resumed_elsewhere_is_reported_once(tmp_path: Path) -> None:
    store = FsspecStore(str(tmp_path))
    pause(store, Pause("orders", StreamPart.LOADING, 1_000))
    paused = paused_streams(store=store)
    resume(store, StreamPart.LOADING, "orders")
    paused.refresh()
    assert [paused.take_resumed() for _ in range(2)] == [{"orders"}, frozenset()]
