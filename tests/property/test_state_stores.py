"""State stores against plain dicts: undo, seal, snapshots, crashes and restores at any point of a history.

The oracle holds each store as a dict of live entries and has no bytes, layers or indexes.
"""

import os
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from stage_writer.topologies.stores import (
    Backend,
    Changes,
    MemoryBackend,
    Snapshot,
    Stores,
    TaskStores,
    Windowed,
    WindowStore,
)
from stage_writer.topologies.stores.disk import DiskBackend, open_backend
from stage_writer.topologies.stores.files import (
    changes_from_bytes,
    changes_to_chunks,
    snapshot_from_bytes,
    snapshot_to_chunks,
)
from tests.conftest import examples

Anything: TypeAlias = Any  # a key or a value
RETENTION_MS = 40
SIZE_MS = 10
KEYS = st.sampled_from(["a", "a\x00", 1, None])
TIMES = st.sampled_from([0, 10, 11, 20, 30, 50, 51, 90, 130])
VALUES = st.none() | st.integers(0, 9) | st.lists(st.integers(0, 3), max_size=2)
BUILDERS = (
    Stores.key_value("table"),
    Stores.window("windows", timedelta(milliseconds=RETENTION_MS), timedelta(milliseconds=SIZE_MS)),
    Stores.window("joins", timedelta(milliseconds=RETENTION_MS), timedelta(milliseconds=SIZE_MS), duplicates=True),
    Stores.session("sessions", timedelta(milliseconds=RETENTION_MS)),
)


@dataclass
class Timed:
    """A store of windows or sessions, as plain entries and the highest time."""

    entries: dict[Any, Any] = field(default_factory=dict)
    highest_ms: int = -(10**9)

    def admits(self, time_ms: int) -> bool:
        self.highest_ms = max(self.highest_ms, time_ms)
        return time_ms > self.highest_ms - RETENTION_MS

    def live(self, time_ms: int) -> bool:
        return time_ms > self.highest_ms - RETENTION_MS

    def copy(self) -> "Timed":
        return Timed(dict(self.entries), self.highest_ms)


@dataclass
class Model:
    table: dict[Any, Any] = field(default_factory=dict)
    windows: Timed = field(default_factory=Timed)
    joins: Timed = field(default_factory=Timed)
    sessions: Timed = field(default_factory=Timed)
    number: int = 0

    def copy(self) -> "Model":
        return Model(dict(self.table), self.windows.copy(), self.joins.copy(), self.sessions.copy(), self.number)


def put(entries: dict[Any, Any], key: Anything, value: Anything) -> None:
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value


class Histories(RuleBasedStateMachine):
    """One task's life: only state that a marker has sealed survives everything."""

    def new_backend(self) -> Backend:
        return MemoryBackend()

    @initialize()
    def begin(self) -> None:
        self.backend = self.new_backend()
        self.stores = TaskStores(BUILDERS, self.backend)
        self.model = Model()
        self.undone_to = Model()
        self.sealed: list[tuple[Model, Changes]] = []
        # The chain: the state at its tail, and the files that its tail names.
        self.at_tail = Model()
        self.markers = 0
        self.snapshot = b""
        self.changes: list[bytes] = []
        self.reading: Snapshot | None = None
        self.read = b""
        self.covered = 0

    @rule()
    def begin_record(self) -> None:
        self.stores.begin_record()
        self.undone_to = self.model.copy()

    @rule()
    def undo_record(self) -> None:
        self.stores.undo_record()
        self.model = self.undone_to.copy()

    @rule(key=KEYS, value=VALUES, start=TIMES)
    def change_and_go_back_to_a_savepoint(self, key: Anything, value: Anything, start: int) -> None:
        savepoint = self.stores.savepoint()
        before = self.model.copy()
        self.put(key, value)
        self.put_window(key, value, start)
        self.put_join(key, value, start)
        self.stores.undo_to(savepoint)
        self.model = before

    @rule(key=KEYS, value=VALUES)
    def put(self, key: Anything, value: Anything) -> None:
        self.stores.store("table").put(key, value)
        put(self.model.table, key, value)

    @rule(key=KEYS, value=VALUES, start=TIMES)
    def put_window(self, key: Anything, value: Anything, start: int) -> None:
        self.stores.store("windows").put(key, value, start)
        if self.model.windows.admits(start):
            put(self.model.windows.entries, (start, key), value)

    @rule(key=KEYS, value=VALUES, start=TIMES)
    def put_join(self, key: Anything, value: Anything, start: int) -> None:
        self.stores.store("joins").put(key, value, start)
        joins = self.model.joins
        if not joins.admits(start):
            return
        if value is None:
            joins.entries = {join_key: held for join_key, held in joins.entries.items() if join_key[:2] != (start, key)}
        else:
            joins.entries[start, key, self.model.number] = value
            self.model.number += 1

    @rule(key=KEYS, value=VALUES, start=TIMES, length=st.integers(0, 20))
    def put_session(self, key: Anything, value: Anything, start: int, length: int) -> None:
        self.stores.store("sessions").put(Windowed(key, start, start + length), value)
        if self.model.sessions.admits(start + length):
            put(self.model.sessions.entries, (start + length, key, start), value)

    @rule()
    def seal(self) -> None:
        self.sealed.append((self.model.copy(), self.stores.seal()))
        self.undone_to = self.model.copy()

    @precondition(lambda self: self.sealed and self.reading is None)
    @rule()
    def open_snapshot(self) -> None:
        self.seal()
        self.reading = self.stores.snapshot()
        self.covered = len(self.sealed)

    @precondition(lambda self: self.reading is not None)
    @rule()
    def read_snapshot(self) -> None:
        assert self.reading is not None
        data = snapshot_to_chunks(self.reading).to_bytes()
        self.reading.close()
        self.reading = None
        state, _ = self.sealed[self.covered - 1]
        again = TaskStores(BUILDERS, MemoryBackend())
        again.restore(snapshot_from_bytes("read", data), [], "read")
        assert_same(again, state)
        self.read = data

    # The flush that writes a snapshot has no marker before it has read it.
    @precondition(lambda self: self.sealed and not (self.reading is not None and self.covered == 1))
    @rule()
    def marker_is_there(self) -> None:
        state, changes = self.sealed.pop(0)
        self.markers += 1
        self.covered -= 1
        if self.covered == 0 and self.read:
            self.snapshot, self.changes, self.read = self.read, [], b""
        else:
            self.changes.append(changes_to_chunks(changes).to_bytes())
        self.at_tail = state
        self.stores.sealed(f"marker {self.markers}")

    @precondition(lambda self: self.reading is None)
    @rule()
    def flush(self) -> None:
        """Seals every change, up to the last marker."""
        self.seal()
        while self.sealed:
            self.marker_is_there()

    @rule(same_machine=st.booleans())
    def crash(self, *, same_machine: bool) -> None:
        """Another task, or this one again: from its own backend if that is at the chain's end."""
        tail = f"marker {self.markers}" if self.markers else None
        self.crash_backend(same_machine=same_machine)
        self.stores = TaskStores(BUILDERS, self.backend)
        if self.stores.mark != tail or tail is None:
            snapshot = snapshot_from_bytes("snapshot", self.snapshot) if self.snapshot else ()
            self.stores.restore(snapshot, (changes_from_bytes("changes", data) for data in self.changes), tail)
        self.model = self.at_tail.copy()
        self.undone_to = self.model.copy()
        self.sealed, self.reading, self.read, self.covered = [], None, b"", 0

    def crash_backend(self, *, same_machine: bool) -> None:
        if not same_machine:
            self.backend = self.new_backend()

    @invariant()
    def the_stores_hold_what_the_dicts_hold(self) -> None:
        assert_same(self.stores, self.model)

    @rule(low=KEYS, high=KEYS)
    def a_range_is_what_lies_between(self, low: Anything, high: Anything) -> None:
        kinds = {type(low), type(high)}
        if len(kinds) > 1 or low is None:
            return
        entries = list(self.stores.store("table").range(low, high))
        same = {key: value for key, value in self.model.table.items() if type(key) is type(low)}
        assert entries == sorted((key, value) for key, value in same.items() if low <= key <= high)
        assert list(self.stores.store("table").reverse_range(low, high)) == entries[::-1]

    @rule(key=KEYS, low=TIMES, high=TIMES)
    def the_windows_of_a_key_are_those_between(self, key: Anything, low: int, high: int) -> None:
        for name, timed in (("windows", self.model.windows), ("joins", self.model.joins)):
            expected = [
                (window[0], value)
                for window, value in sorted(timed.entries.items(), key=lambda item: (item[0][0], item[0][2:]))
                if type(window[1]) is type(key)
                and window[1] == key
                and low <= window[0] <= high
                and timed.live(window[0])
            ]
            assert list(self.stores.store(name).fetch_range(key, low, high)) == expected
            assert list(self.stores.store(name).fetch_range(key, low, high, reverse=True)) == expected[::-1]
            first = next((value for start, value in expected if start == low), None)
            if low <= high:
                assert self.stores.store(name).fetch(key, low) == first

    @rule(key=KEYS, earliest=TIMES, latest=TIMES)
    def the_sessions_of_a_key_are_those_that_touch(self, key: Anything, earliest: int, latest: int) -> None:
        expected = [
            (Windowed(key, start, end), value)
            for (end, of, start), value in sorted(
                self.model.sessions.entries.items(), key=lambda item: (item[0][0], item[0][2])
            )
            if type(of) is type(key) and of == key and end >= earliest and start <= latest
            if self.model.sessions.live(end)
        ]
        assert list(self.stores.store("sessions").find_sessions(key, earliest, latest)) == expected


def assert_same(stores: TaskStores, model: Model) -> None:
    table = stores.store("table")
    entries = list(table.all())
    assert dict(entries) == model.table
    assert len(entries) == len(model.table)
    assert all(table.get(key) == value for key, value in model.table.items())
    assert_windows(stores.store("windows"), model.windows)
    joins = list(stores.store("joins").all())
    live = [(join_key, value) for join_key, value in model.joins.entries.items() if model.joins.live(join_key[0])]
    assert [key.start_ms for key, _ in joins] == sorted(join_key[0] for join_key, _ in live)
    assert sorted(map(str, joins)) == sorted(
        str((Windowed(join_key[1], join_key[0], join_key[0] + SIZE_MS), v)) for join_key, v in live
    )
    sessions = dict(stores.store("sessions").all())
    expected = {
        Windowed(key, start, end): value
        for (end, key, start), value in model.sessions.entries.items()
        if model.sessions.live(end)
    }
    assert sessions == expected
    assert [key.end_ms for key in sessions] == sorted(key.end_ms for key in expected)


def assert_windows(store: WindowStore, timed: Timed) -> None:
    windows = dict(store.all())
    live = {window: value for window, value in timed.entries.items() if timed.live(window[0])}
    assert windows == {Windowed(key, start, start + SIZE_MS): value for (start, key), value in live.items()}
    assert all(store.fetch(key, start) == timed.entries[start, key] for start, key in live)


class HistoriesOnDisk(Histories):
    """The same on disk: a killed process finds the changes that it had applied, a new machine finds nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = TemporaryDirectory(prefix="state")

    def new_backend(self) -> Backend:
        return open_backend(Path(self.folder.name))

    def crash_backend(self, *, same_machine: bool) -> None:
        assert isinstance(self.backend, DiskBackend)
        if same_machine:
            self.backend._release()
            os.close(self.backend._lock)
        else:
            self.backend.clear()
            self.backend.close()
        self.backend = self.new_backend()

    def teardown(self) -> None:
        self.stores.close()
        self.folder.cleanup()


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=examples(1.2), stateful_step_count=40, deadline=None)
TestHistoriesOnDisk = HistoriesOnDisk.TestCase
TestHistoriesOnDisk.settings = settings(max_examples=examples(0.25), stateful_step_count=40, deadline=None)
