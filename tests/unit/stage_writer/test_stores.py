"""State stores: what the histories of tests/property do not look at."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

from common.errors import ConfigError
from stage_writer.topologies.stores import MemoryBackend, Stores, Windowed
from stage_writer.topologies.stores.layers import Layer

if TYPE_CHECKING:
    from collections.abc import Iterator


def test_nothing_is_merged_while_a_snapshot_is_read() -> None:
    backend = MemoryBackend()
    stores = Stores.open([Stores.key_value("counts")], backend)
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


def test_an_iterator_that_outlives_its_record_says_so() -> None:
    stores = Stores.open([Stores.key_value("counts")], MemoryBackend())
    counts = stores.store("counts")
    for number in range(3):
        counts.put(number, number)
    stores.seal()
    stores.sealed("first")
    kept = counts.all()
    next(kept)
    stores.seal()
    stores.sealed("second")
    with pytest.raises(RuntimeError, match="kept beyond the record that opened it"):
        next(kept)


def test_a_store_may_be_changed_while_it_is_iterated_over() -> None:
    stores = Stores.open([Stores.key_value("counts")], MemoryBackend())
    counts = stores.store("counts")
    for number in range(4):
        counts.put(number, number)
    stores.seal()
    stores.sealed("first")
    for key, _ in counts.all():
        counts.delete(key)
        counts.put(10 + key, "new")
    assert [key for key, _ in counts.all()] == [10, 11, 12, 13]


def test_what_comes_too_late_is_counted_to_the_millisecond() -> None:
    windows = Stores.window("w", timedelta(milliseconds=40), timedelta(milliseconds=10))
    sessions = Stores.session("s", timedelta(milliseconds=40))
    stores = Stores.open([windows, sessions], MemoryBackend())
    for time_ms in (50, 11, 10):
        stores.store("w").put("a", 1, time_ms)
        stores.store("s").put(Windowed("a", 0, time_ms), 1)
    assert [start for start, _ in stores.store("w").fetch_range("a")] == [11, 50]
    assert [session.end_ms for session, _ in stores.store("s").fetch("a")] == [11, 50]
    assert (stores.store("w").dropped, stores.store("s").dropped) == (1, 1)


def test_expired_windows_do_not_stay_in_memory() -> None:
    stores = Stores.open([Stores.window("w", timedelta(seconds=1), timedelta(seconds=1))], MemoryBackend())
    for time_ms in range(0, 60_000, 100):
        stores.store("w").put("a", "x" * 100, time_ms)
        stores.seal()
        stores.sealed(str(time_ms))
    assert stores.size_bytes < 5_000


@pytest.mark.parametrize("kind", ["window", "session"])
def test_windows_that_have_expired_are_not_passed_again(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    passed, within = [0], Layer.within

    def counted(self: Layer, low: bytes, high: bytes | None) -> Iterator[bytes]:
        for key in within(self, low, high):
            passed[0] += 1
            yield key

    monkeypatch.setattr(Layer, "within", counted)
    retention = timedelta(milliseconds=80)
    windows, sessions = Stores.window("w", retention, timedelta(milliseconds=1)), Stores.session("w", retention)
    stores = Stores.open([windows if kind == "window" else sessions], MemoryBackend())
    store = stores.store("w")
    puts = 2_000
    for number in range(puts):  # within one flush, in which deleted ones are still noted
        stores.begin_record()
        if kind == "window":
            store.put("a", number, number)
        else:
            store.put(Windowed("a", number, number), number)
    assert len(list(store.all())) <= 80 + 10
    assert passed[0] < 3 * puts


@pytest.mark.parametrize("name", ["", "a/b", "a b", "ü", "x" * 201])
def test_a_store_has_a_plain_name(name: str) -> None:
    with pytest.raises(ConfigError, match="a state store cannot be called"):
        Stores.key_value(name)


def test_names_and_retentions_are_checked() -> None:
    with pytest.raises(ConfigError, match="two state stores are called a"):
        Stores.open([Stores.key_value("a"), Stores.key_value("a")], MemoryBackend())
    with pytest.raises(ConfigError, match="the state store w has no retention"):
        Stores.window("w", timedelta(0), timedelta(seconds=1))
    stores = Stores.open([Stores.key_value("a")], MemoryBackend())
    with pytest.raises(ConfigError, match=r"there is no state store 'b'\n.*there are: __task, a"):
        stores.store("b")
