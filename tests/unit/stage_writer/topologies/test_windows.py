"""Windows of event time, and window stores at the limits of the time range."""

from collections.abc import Callable
from datetime import timedelta

import pytest

from common.errors import ConfigError
from stage_writer.topologies.dsl.windows import JoinWindows, SessionWindows, TimeWindows, milliseconds
from stage_writer.topologies.stores import MemoryBackend, Stores, TaskStores, Windowed, WindowStore
from stage_writer.topologies.stores.keys import FOREVER_MS, NEVER_MS

RETENTION_MS, SIZE_MS = 40, 10
BUILDERS = (
    Stores.window("windows", timedelta(milliseconds=RETENTION_MS), timedelta(milliseconds=SIZE_MS)),
    Stores.window("joins", timedelta(milliseconds=RETENTION_MS), timedelta(milliseconds=SIZE_MS), duplicates=True),
)


def ms(count: float) -> timedelta:
    return timedelta(milliseconds=count)


@pytest.mark.parametrize(
    ("size", "advance", "timestamp_ms", "starts"),
    [
        (10, None, 0, [0]),
        (10, None, 9, [0]),
        (10, None, 10, [10]),
        (10, 4, 0, [0]),
        (10, 4, 9, [0, 4, 8]),
        (10, 4, 10, [4, 8]),
        (10, 10, 25, [20]),
        (1, 1, 0, [0]),
        (1, 1, 3, [3]),
    ],
)
def test_timestamp_is_in_every_window_that_covers_it(
    size: int, advance: int | None, timestamp_ms: int, starts: list[int]
) -> None:
    windows = TimeWindows.of_size_with_no_grace(ms(size))
    windows = windows if advance is None else windows.advance_by(ms(advance))
    assert list(windows.starts(timestamp_ms)) == starts


def test_window_factories_set_size_advance_gap_and_grace() -> None:
    assert TimeWindows.of_size_with_no_grace(ms(1)) == TimeWindows(1, 1, 0)
    assert TimeWindows.of_size_and_grace(ms(10), ms(3)).advance_by(ms(5)) == TimeWindows(10, 5, 3)
    assert SessionWindows.of_inactivity_gap_with_no_grace(ms(1)) == SessionWindows(1, 0)
    assert SessionWindows.of_inactivity_gap_and_grace(ms(10), ms(3)) == SessionWindows(10, 3)
    assert SessionWindows.of_inactivity_gap_and_grace(ms(10), ms(3)).closing_ms == 14
    assert JoinWindows.of_time_difference_with_no_grace(ms(0)) == JoinWindows(0, 0, 0)
    joins = JoinWindows.of_time_difference_and_grace(ms(10), ms(4))
    assert joins == JoinWindows(10, 10, 4)
    assert joins.before(ms(1)).after(ms(2)) == JoinWindows(1, 2, 4)
    assert joins.before(ms(1)).after(ms(2)).retention_ms == 7


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: milliseconds(ms(-1), "it"), "it is -1 day"),
        (lambda: milliseconds(ms(1.5), "it"), "it is 0:00:00.001500"),
        (lambda: TimeWindows.of_size_with_no_grace(ms(0)), "size is zero"),
        (lambda: TimeWindows.of_size_with_no_grace(ms(10)).advance_by(ms(0)), "advance by 0 ms"),
        (lambda: TimeWindows.of_size_with_no_grace(ms(10)).advance_by(ms(11)), "advance by 11 ms"),
        (lambda: SessionWindows.of_inactivity_gap_with_no_grace(ms(0)), "gap is zero"),
    ],
)
def test_windows_of_zero_length_or_with_gaps_are_refused(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


@pytest.fixture
def stores() -> TaskStores:
    return TaskStores(BUILDERS, MemoryBackend())


@pytest.fixture
def windows(stores: TaskStores) -> WindowStore:
    return stores.store("windows")  # type: ignore[no-any-return]


@pytest.fixture
def joins(stores: TaskStores) -> WindowStore:
    return stores.store("joins")  # type: ignore[no-any-return]


def test_range_includes_both_ends(windows: WindowStore) -> None:
    assert (windows.size_ms, windows.retention_ms) == (SIZE_MS, RETENTION_MS)
    for start_ms in (10, 20, 21, 30):
        windows.put("a", start_ms, start_ms)
        windows.put("b", -start_ms, start_ms)
    assert list(windows.fetch_range("a", 10, 20)) == [(10, 10), (20, 20)]
    assert list(windows.fetch_range("a", 11, 29)) == [(20, 20), (21, 21)]
    assert list(windows.fetch_range("a", reverse=True)) == [(30, 30), (21, 21), (20, 20), (10, 10)]
    assert list(windows.fetch_keys(20, 20)) == [(Windowed("a", 20, 30), 20), (Windowed("b", 20, 30), -20)]
    windows.put("a", None, 20)
    assert (windows.fetch("a", 20), windows.fetch("b", 20), windows.fetch("a", 22)) == (None, -20, None)


@pytest.mark.parametrize("name", ["windows", "joins"])
def test_time_outside_all_windows_is_not_found(stores: TaskStores, name: str) -> None:
    store = stores.store(name)
    store.put("a", 1, 10)
    for time_ms in (NEVER_MS - 1, NEVER_MS, FOREVER_MS, FOREVER_MS + 1):
        assert store.fetch("a", time_ms) is None


def test_duplicates_are_returned_in_order_and_deleted_together(joins: WindowStore) -> None:
    for value in (3, 1, 2):
        joins.put("a", value, 10)
    joins.put("b", 4, 10)
    joins.put("a", 5, 11)
    assert list(joins.fetch_range("a")) == [(10, 3), (10, 1), (10, 2), (11, 5)]
    assert (joins.fetch("a", 10), joins.fetch("a", 11), joins.fetch("a", 12)) == (3, 5, None)
    assert [(key.start_ms, value) for key, value in joins.all()] == [(10, 3), (10, 1), (10, 2), (10, 4), (11, 5)]
    joins.put("a", None, 10)
    assert list(joins.all()) == [(Windowed("b", 10, 20), 4), (Windowed("a", 11, 21), 5)]


def test_duplicate_numbering_continues_after_a_restart() -> None:
    backend = MemoryBackend()
    for value in (2, 1):
        stores = TaskStores(BUILDERS, backend)
        stores.store("joins").put("a", value, 10)
        stores.seal()
        stores.sealed("marker")
    assert list(TaskStores(BUILDERS, backend).store("joins").fetch_range("a")) == [(10, 2), (10, 1)]


@pytest.mark.parametrize("name", ["windows", "joins"])
def test_store_stream_time_survives_restarts(name: str) -> None:
    backend = MemoryBackend()
    for run in range(3):
        stores = TaskStores(BUILDERS, backend)
        if run == 0:
            stores.store(name).put("a", 1, 100)
        stores.seal()
        stores.sealed("marker")
    store = TaskStores(BUILDERS, backend).store(name)
    store.put("a", 2, 60)
    assert (store.dropped, list(store.all())) == (1, [(Windowed("a", 100, 110), 1)])
