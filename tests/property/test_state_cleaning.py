"""Cleaning of state files: after any history, each position that the chain can be rewound to keeps its state."""

from dataclasses import replace

from hypothesis import example, given
from hypothesis import strategies as st

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path, origin_to_bytes
from common.stage.markers import Marker, MarkerName, marker_to_bytes
from common.stage.task_files import (
    EMPTY_STATE,
    MarkedState,
    StateFileName,
    StateFiles,
    StateKind,
    TopicChanges,
    changes_digest,
    later_snapshot_name,
    with_later_snapshot,
)
from common.storage.store import FsspecStore
from stage_writer.stage.state_cleaning import StateCleaning
from tests.builders import required
from tests.fakes.markers import ORDERS, flush

STEPS = st.lists(
    st.sampled_from(
        (
            *("changes", "changes", "snapshot", "nothing", "lost claim", "settle", "rewind", "clean"),
            *("in topic", "in topic", "later snapshot", "skip", "origin"),
        )
    ),
    max_size=30,
)


class History:
    """A chain with a task's state, in an in-memory store; each flush is of one position."""

    def __init__(self) -> None:
        self.store = FsspecStore("memory://state-cleaning")
        for item in list(self.store.list("")):
            self.store.delete([item.path])
        self.markers: list[Marker] = []
        self.position = 0
        self.names = 0
        self.later_snapshots: set[str] = set()
        self.begun = EMPTY_STATE
        self.origins = 0
        self.cleaning = StateCleaning(self.store, 0)

    @property
    def marked(self) -> StateFiles:
        last = self.markers[-1].manifest if self.markers else None
        return EMPTY_STATE if last is None or last.state is None else last.state.files

    @property
    def state(self) -> StateFiles:
        return with_later_snapshot(self.marked, self.files)

    def write(self, kind: StateKind) -> str:
        self.names += 1
        path = StateFileName(ORDERS, Position(self.position), 0, f"u{self.names}", kind).path
        self.store.write(path, b"state")
        return path

    def changes_in_topic(self) -> TopicChanges:
        self.names += 1
        place, offset = TopicPartition(Topic("changes"), Partition(0)), Position(self.names)
        return TopicChanges(place, None, (Span(offset, Position(offset + 1)),), 5, changes_digest(b"state"), 0)

    def flush(self, kind: StateKind | None, files: StateFiles | None = None) -> None:
        before = self.state
        files = files or before
        if kind is StateKind.CHANGES:
            files = before.with_changes(self.write(kind))
        elif kind is StateKind.SNAPSHOT:
            files = StateFiles(self.write(kind))
        self.mark(MarkedState(files, before))

    def mark(self, state: MarkedState) -> None:
        marker = flush(self.position, self.position + 1)
        marker = replace(marker, manifest=replace(required(marker.manifest), state=state))
        self.store.write(marker.name.path, marker_to_bytes(marker))
        self.markers.append(marker)
        self.position += 1

    def drop(self, index: int) -> None:
        self.store.delete([self.markers.pop(index).name.path])

    def step(self, step: str) -> None:
        match step:
            case "changes" | "snapshot" | "nothing":
                self.flush(None if step == "nothing" else StateKind(step))
            case "in topic" if self.state.paths:
                self.flush(None, self.state.with_changes(self.changes_in_topic()))
            case "later snapshot" if self.marked.in_topics:
                name = later_snapshot_name(ORDERS, self.markers[-1].name.start, 0, self.marked)
                self.store.write(name.path, b"state")
                self.later_snapshots.add(name.path)
            case "skip" if self.markers:
                self.mark(MarkedState(self.marked, self.marked))
            case "lost claim":
                self.write(StateKind.SNAPSHOT)
            case "origin" if self.markers:
                self.begun = self.marked
                origin = ChainOrigin(self.markers[-1].span.end, state=self.begun)
                self.origins += 1
                self.store.write(origin_path(ORDERS, self.origins), origin_to_bytes(origin))
            case "settle" if len(self.markers) > 1:
                self.drop(0)
            case "rewind" if len(self.markers) > 1:
                self.position = int(self.markers[-1].name.start)
                self.drop(-1)
            case "clean":
                self.cleaning.clean(ORDERS)

    @property
    def stood_in_for(self) -> set[str]:
        """The later snapshots that the remaining markers need."""
        states = [marker.manifest.state for marker in self.markers if marker.manifest and marker.manifest.state]
        both = [self.begun, *(files for state in states for files in (state.files, state.before))]
        return {
            path for path in self.later_snapshots if any(with_later_snapshot(files, [path]) != files for files in both)
        }

    @property
    def files(self) -> set[str]:
        return {item.path for item in self.store.list("state")}


@given(STEPS)
@example(["changes", "in topic", "later snapshot", "skip", "changes", "settle", "settle", "clean"])
@example(["changes", "origin", "snapshot", "changes", "settle", "settle", "clean"])
@example(
    ["changes", "in topic", "later snapshot", "origin", "snapshot", "changes", "settle", "settle", "settle", "clean"]
)
def test_each_position_that_a_chain_can_be_rewound_to_keeps_its_state(steps: list[str]) -> None:
    history = History()
    for step in steps:
        history.step(step)
        assert history.files.issuperset(history.begun.paths), "the chain may continue at its origin"
        for marker in history.markers:
            assert marker.manifest is not None
            assert marker.manifest.state is not None
            needed = {*marker.manifest.state.files.paths, *marker.manifest.state.before.paths}
            assert needed <= history.files
        assert history.stood_in_for <= history.files, "the topic may no longer have the changes that these replace"


def test_unneeded_files_are_deleted_once_they_are_old_enough() -> None:
    history = History()
    for step in ("changes", "changes", "lost claim", "snapshot", "changes"):
        history.step(step)
    assert history.cleaning.clean(ORDERS) == 0
    for _ in range(3):
        history.step("settle")
    early = StateCleaning(history.store, 3600)
    assert early.clean(ORDERS) == 0
    assert len(history.files) == 5
    assert history.cleaning.clean(ORDERS) == 3
    assert history.files == {*history.state.paths}


def test_all_files_stay_without_a_marker_that_knows_the_state() -> None:
    history = History()
    for step in ("changes", "snapshot", "settle"):
        history.step(step)
    history.store.write(MarkerName(ORDERS, Position(0)).path, b"")
    assert history.cleaning.clean(ORDERS) == 0
    history.store.delete([MarkerName(ORDERS, Position(0)).path, history.markers[0].name.path])
    assert history.cleaning.clean(ORDERS) == 0
    assert len(history.files) == 2


def test_files_of_another_generation_go_once_its_chain_is_gone() -> None:
    history = History()
    for step in ("changes", "changes"):
        history.step(step)
    old = StateFileName(ORDERS, Position(9), 0, "old", StateKind.SNAPSHOT).path
    history.store.write(old, b"state")
    first = history.markers[0]
    renewed = replace(first, manifest=replace(required(first.manifest), generation=1))
    history.store.write(renewed.name.path, marker_to_bytes(renewed))
    history.cleaning.clean(ORDERS)
    assert old not in history.files
