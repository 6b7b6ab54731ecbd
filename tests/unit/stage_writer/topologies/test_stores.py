"""State stores: cases that the histories in tests/property do not cover."""

import sys
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from common.errors import ConfigError
from stage_writer.topologies.stores import MemoryBackend, Stores, TaskStores, Windowed


def test_nothing_is_merged_while_a_snapshot_is_open() -> None:
    backend = MemoryBackend()
    stores = TaskStores([Stores.key_value("counts")], backend)
    counts = stores.store("counts")
    for number in range(10):
        counts.put(number, number)
    stores.seal()
    counts.put(3, "later")
    stores.seal()
    snapshot = stores.snapshot()
    entries = snapshot.entries()
    first = [next(entries) for _ in range(3)]
    stores.sealed("first")
    assert backend.count("counts") == 0
    counts.put(5, "not sealed")
    assert len([*first, *entries]) == 10
    snapshot.close()
    stores.sealed("second")
    assert stores.mark == "second"
    assert (counts.get(3), counts.get(5)) == ("later", "not sealed")


def test_value_that_a_key_has_stays() -> None:
    counts = TaskStores([Stores.key_value("counts")], MemoryBackend()).store("counts")
    assert (counts.put_if_absent("a", 1), counts.put_if_absent("a", 2), counts.get("a")) == (None, 1, 1)


def test_iterator_used_after_its_record_raises() -> None:
    stores = TaskStores([Stores.key_value("counts")], MemoryBackend())
    counts = stores.store("counts")
    for number in range(3):
        counts.put(number, number)
    stores.seal()
    stores.sealed("first")
    kept = counts.all()
    next(kept)
    stores.seal()
    stores.sealed("second")
    with pytest.raises(RuntimeError, match="used after the record that opened it"):
        next(kept)


def test_cost_of_a_scan_does_not_depend_on_the_number_of_scans_before() -> None:
    stores = TaskStores([Stores.window("w", timedelta(hours=1), timedelta(seconds=1))], MemoryBackend())
    windows = stores.store("w")
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1

    def cost_of_a_record(time_ms: int) -> int:
        before = calls
        assert len(list(windows.fetch_range("a", time_ms - 5, time_ms))) == min(time_ms, 5)
        windows.put("a", "x", time_ms)
        return calls - before

    sys.setprofile(count)
    try:
        costs = [cost_of_a_record(time_ms) for time_ms in range(100)]
    finally:
        sys.setprofile(None)
    assert costs[99] <= costs[10]


def test_store_may_change_during_iteration() -> None:
    stores = TaskStores([Stores.key_value("counts")], MemoryBackend())
    counts = stores.store("counts")
    for number in range(4):
        counts.put(number, number)
    stores.seal()
    stores.sealed("first")
    for key, _ in counts.all():
        counts.delete(key)
        counts.put(10 + key, "new")
    assert [key for key, _ in counts.all()] == [10, 11, 12, 13]


def test_late_entries_are_dropped_and_counted_to_the_millisecond() -> None:
    windows = Stores.window("w", timedelta(milliseconds=40), timedelta(milliseconds=10))
    sessions = Stores.session("s", timedelta(milliseconds=40))
    stores = TaskStores([windows, sessions], MemoryBackend())
    for time_ms in (50, 11, 10):
        stores.store("w").put("a", 1, time_ms)
        stores.store("s").put(Windowed("a", 0, time_ms), 1)
    assert [start for start, _ in stores.store("w").fetch_range("a")] == [11, 50]
    assert [session.end_ms for session, _ in stores.store("s").fetch("a")] == [11, 50]
    assert (stores.store("w").dropped, stores.store("s").dropped) == (1, 1)
    assert (stores.store("w").approximate_num_entries(), stores.store("s").approximate_num_entries()) == (2, 2)


def test_expired_entries_are_not_found_from_the_exact_millisecond() -> None:
    """Even though nothing is deleted before a flush."""
    windows = Stores.window("w", timedelta(milliseconds=40), timedelta(milliseconds=10))
    sessions = Stores.session("s", timedelta(milliseconds=40))
    stores = TaskStores([windows, sessions], MemoryBackend())
    for highest_ms, is_kept in ((11, True), (50, True), (51, False)):
        stores.store("w").put("a", highest_ms, highest_ms)
        stores.store("s").put(Windowed("a", 5, highest_ms), highest_ms)
        assert stores.store("w").fetch("a", 11) == (11 if is_kept else None)
        assert (11 in dict(stores.store("w").fetch_range("a"))) is is_kept
        assert stores.store("s").fetch_session(Windowed("a", 5, 11)) == (11 if is_kept else None)
        assert (Windowed("a", 5, 11) in dict(stores.store("s").fetch("a"))) is is_kept


def test_sessions_are_found_by_both_ends_to_the_millisecond() -> None:
    stores = TaskStores([Stores.session("s", timedelta(seconds=1))], MemoryBackend())
    sessions = stores.store("s")
    sessions.put(Windowed("a", 10, 20), 1)
    assert len(list(sessions.find_sessions("a", 20, 10))) == 1
    assert not list(sessions.find_sessions("a", 21, 10))
    assert not list(sessions.find_sessions("a", 20, 9))


def test_expired_windows_are_freed_from_memory() -> None:
    stores = TaskStores([Stores.window("w", timedelta(seconds=1), timedelta(seconds=1))], MemoryBackend())
    for time_ms in range(0, 60_000, 100):
        stores.store("w").put("a", "x" * 100, time_ms)
        stores.seal()
        stores.sealed(str(time_ms))
    assert stores.size_bytes < 5_000


def _timed(kind: str) -> tuple[TaskStores, Callable[[int], None]]:
    """A store with 80 ms retention, and a function that puts an entry at a given time."""
    retention = timedelta(milliseconds=80)
    windows, sessions = Stores.window("w", retention, timedelta(milliseconds=1)), Stores.session("w", retention)
    repeated = Stores.window("w", retention, timedelta(milliseconds=1), duplicates=True)
    stores = TaskStores([{"window": windows, "repeated": repeated, "session": sessions}[kind]], MemoryBackend())
    store = stores.store("w")
    if kind == "session":
        return stores, lambda time_ms: store.put(Windowed("a", time_ms // 2, time_ms), time_ms)
    return stores, lambda time_ms: store.put("a", time_ms, time_ms)


@pytest.mark.parametrize("kind", ["window", "repeated", "session"])
def test_entry_that_expires_within_its_flush_is_not_in_the_state(kind: str) -> None:
    stores, put = _timed(kind)
    for number in range(2_000):
        stores.begin_record()
        put(number)
    assert [value for _, value in stores.store("w").all()] == list(range(1_920, 2_000))
    assert stores.seal().entries == 80 + (2 if kind == "repeated" else 1)  # and the store's own bookkeeping
    assert [value for _, value in stores.store("w").all()] == list(range(1_920, 2_000))


@pytest.mark.parametrize("kind", ["window", "repeated", "session"])
def test_entry_that_expires_in_a_later_flush_is_deleted_from_the_state(kind: str) -> None:
    stores, put = _timed(kind)
    put(0)
    stores.seal()
    put(50)
    stores.seal()  # the first flush has no marker yet
    put(100)
    stores.seal()
    assert [value for _, value in stores.store("w").all()] == [50, 100]
    for mark in "abc":
        stores.sealed(mark)
    put(101)
    deleted = [key for key, value in stores.seal().spaces["w"].items() if value is None]
    stores.sealed("d")
    assert len(deleted) == 1
    assert stores.entries == 3 + (2 if kind == "repeated" else 1)
    put(500)
    assert len([key for key, value in stores.seal().spaces["w"].items() if value is None]) == 3
    stores.sealed("e")
    assert [value for _, value in stores.store("w").all()] == [500]


def test_expired_entry_of_an_unsealed_flush_is_deleted_once_it_is_sealed() -> None:
    stores, put = _timed("window")
    put(0)
    stores.seal()
    put(100)
    stores.seal()  # the expired entry belongs to a flush without a marker
    stores.sealed("a")
    stores.sealed("b")
    assert [None in stores.seal().spaces.get("w", {}).values() for _ in range(2)] == [True, False]


def test_no_scan_for_expired_entries_while_time_stands_still() -> None:
    class Scanned(MemoryBackend):
        scans = 0

        def scan(
            self, space: str, low: bytes = b"", high: bytes | None = None, *, reverse: bool = False
        ) -> Iterator[tuple[bytes, bytes]]:
            self.scans += 1
            return super().scan(space, low, high, reverse=reverse)

    backend = Scanned()
    stores = TaskStores([Stores.window("w", timedelta(seconds=1), timedelta(seconds=1))], backend)
    scans: list[int] = []
    for time_ms in (5_000, 5_000, 4_500, 6_000, 6_000):
        stores.store("w").put(f"{len(scans)}", "x", time_ms)
        before = backend.scans
        stores.seal()
        stores.sealed(f"{len(scans)}")
        scans.append(backend.scans - before)
    assert scans == [1, 0, 0, 1, 0]


def test_undone_record_restores_the_stream_time() -> None:
    stores, put = _timed("window")
    put(10)
    stores.begin_record()
    put(1_000)
    stores.undo_record()
    put(9)
    assert [value for _, value in stores.store("w").all()] == [9, 10]
    assert stores.store("w").dropped == 0


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ü", "x" * 201])
def test_invalid_store_name_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="is not a valid name of a state store"):
        Stores.key_value(name)


def test_duplicate_names_and_zero_retention_are_refused() -> None:
    with pytest.raises(ConfigError, match="two state stores are named a"):
        TaskStores([Stores.key_value("a"), Stores.key_value("a")], MemoryBackend())
    with pytest.raises(ConfigError, match="the state store w has no retention"):
        Stores.window("w", timedelta(0), timedelta(seconds=1))
    stores = TaskStores([Stores.key_value("a")], MemoryBackend())
    with pytest.raises(ConfigError, match=r"there is no state store 'b'\n.*it has: __task, a"):
        stores.store("b")
