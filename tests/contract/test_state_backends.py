"""One suite for the backends of state stores: in memory and on disk."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.errors import StateError
from stage_writer.topologies.stores import Backend, MemoryBackend, disk
from stage_writer.topologies.stores.disk import open_backend

LONG = b"\x07" + b"x" * 520
LONGS = [LONG[:499], LONG[:500], LONG[:501], LONG, LONG + b"y"]
KEYS = st.sampled_from(
    [b"\x01", b"\x02", b"\x02\x00", b"a", b"ab", LONG[:499], LONG[:500], LONG[:501], LONG, LONG + b"y"]
)
KEYS = KEYS | st.binary(min_size=1, max_size=3)


@pytest.fixture(params=["memory", "disk"])
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Backend]:
    opened = MemoryBackend() if request.param == "memory" else open_backend(tmp_path)
    yield opened
    with suppress(StateError):
        opened.close()


def all_of(backend: Backend, space: str) -> dict[bytes, bytes]:
    return dict(backend.scan(space))


def test_new_backend_is_empty_and_has_no_mark(backend: Backend) -> None:
    assert backend.mark is None
    assert backend.get("a", b"k") is None
    assert all_of(backend, "a") == {}
    assert backend.count("a") == 0


def test_applied_changes_are_read_back_with_their_mark(backend: Backend) -> None:
    backend.apply({"a": {b"k": b"v", b"l": b""}, "b": {b"k": b"w"}}, "first")
    assert (backend.get("a", b"k"), backend.get("a", b"l"), backend.get("b", b"k")) == (b"v", b"", b"w")
    assert backend.mark == "first"
    backend.apply({"a": {b"k": None, b"absent": None}}, "second")
    assert all_of(backend, "a") == {b"l": b""}
    assert backend.count("a") == 1
    assert backend.mark == "second"
    backend.apply({}, None)
    assert backend.mark is None


def test_clear_removes_all_entries_and_the_mark(backend: Backend) -> None:
    backend.apply({"a": {b"k": b"v"}}, "mark")
    backend.clear()
    assert backend.mark is None
    assert all_of(backend, "a") == {}
    backend.apply({"a": {b"l": b"v"}}, "again")
    assert all_of(backend, "a") == {b"l": b"v"}


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.dictionaries(KEYS, st.none() | st.binary(max_size=3), max_size=8), max_size=4),
    st.just(b"") | KEYS,
    st.none() | KEYS,
)
def test_backend_behaves_like_an_ordered_dict(
    backend: Backend, applied: list[dict[bytes, bytes | None]], low: bytes, high: bytes | None
) -> None:
    backend.clear()
    expected: dict[bytes, bytes] = {}
    for number, changes in enumerate(applied):
        backend.apply({"a": changes, "b": {}}, str(number))
        for key, value in changes.items():
            if value is None:
                expected.pop(key, None)
            else:
                expected[key] = value
    within = [(key, expected[key]) for key in sorted(expected) if low <= key and (high is None or key < high)]
    assert list(backend.scan("a", low, high)) == within
    assert list(backend.scan("a", low, high, reverse=True)) == within[::-1]
    for key in {low, *expected, LONG, b"none"} - {b""}:
        assert backend.get("a", key) == expected.get(key)


def test_backend_can_be_read_by_two_threads(backend: Backend) -> None:
    entries = {b"%05d" % number: b"v" * 50 for number in range(3000)}
    backend.apply({"a": entries}, "mark")
    contents: list[dict[bytes, bytes]] = []
    thread = threading.Thread(target=lambda: contents.append(all_of(backend, "a")))
    thread.start()
    for key in entries:
        assert backend.get("a", key) is not None
    thread.join()
    assert contents == [entries]


def test_backend_grows(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "_FIRST_MAP_BYTES", 2**17)
    backend.clear()
    for number in range(40):
        backend.apply({"a": {b"%d-%d" % (number, each): b"v" * 500 for each in range(100)}}, str(number))
    assert backend.count("a") == 4000
    assert backend.mark == "39"
    assert backend.size_bytes > 2_000_000


class TestOnDisk:
    """The disk backend persists."""

    def test_closed_backend_opens_with_its_entries(self, tmp_path: Path) -> None:
        first = open_backend(tmp_path)
        first.apply({"a": {b"k": b"v", LONG: b"w"}}, "mark")
        first.close()
        again = open_backend(tmp_path)
        assert again.mark == "mark"
        assert all_of(again, "a") == {b"k": b"v", LONG: b"w"}
        again.close()

    def test_killed_process_leaves_its_applied_entries(self, tmp_path: Path) -> None:
        program = (
            "import os, sys\nfrom pathlib import Path\nfrom stage_writer.topologies.stores.disk import open_backend\n"
            "held = open_backend(Path(sys.argv[1]))\n"
            "for number in range(100):\n    held.apply({'a': {b'%d' % number: b'v'}}, str(number))\n"
            "os.kill(os.getpid(), 9)\n"
        )
        subprocess.run([sys.executable, "-c", program, str(tmp_path)], check=False, env=dict(os.environ))
        again = open_backend(tmp_path)
        assert again.mark == "99"
        assert len(all_of(again, "a")) == 100
        again.close()

    @pytest.mark.parametrize("closed", [True, False])
    @pytest.mark.parametrize(("before", "after"), [("a start", "another start"), ("", "")])
    def test_backend_of_another_boot_is_trusted_only_if_it_was_closed(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: str, after: str, *, closed: bool
    ) -> None:
        """Where boots have no identifiers, as on macOS, every boot may be another one."""
        monkeypatch.setattr(disk, "_machine", lambda: before)
        first = open_backend(tmp_path)
        first.apply({"a": {b"k": b"v"}}, "mark")
        if closed:
            first.close()
        else:
            first._release()
            os.close(first._lock)
        monkeypatch.setattr(disk, "_machine", lambda: after)
        again = open_backend(tmp_path)
        assert again.mark == ("mark" if closed else None)
        assert all_of(again, "a") == ({b"k": b"v"} if closed else {})
        again.close()

    def test_unreadable_backend_is_discarded(self, tmp_path: Path) -> None:
        first = open_backend(tmp_path)
        first.apply({"a": {b"k": b"v"}}, "mark")
        first.close()
        (tmp_path / "0" / "lmdb" / "data.mdb").write_bytes(b"something else" * 1000)
        again = open_backend(tmp_path)
        assert again.mark is None
        again.close()

    def test_two_open_backends_use_separate_folders(self, tmp_path: Path) -> None:
        first, second = open_backend(tmp_path), open_backend(tmp_path)
        first.apply({"a": {b"k": b"v"}}, "mark")
        assert second.mark is None
        second.close()
        first.close()
        assert (tmp_path / "1" / "lmdb").exists()
        again = open_backend(tmp_path)
        assert again.mark == "mark"
        assert not (tmp_path / "1" / "lmdb").exists()
        again.close()

    def test_unwritable_folder_is_named(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(StateError, match=r"cannot keep state in .*file/task/0"):
            open_backend(tmp_path / "file" / "task")
