"""State files round-trip, and damaged ones are refused by name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import StateError
from stage_writer.topologies.stores import Changes, MemoryBackend, Stores, TaskStores
from stage_writer.topologies.stores import files as form
from stage_writer.topologies.stores.files import (
    MAGIC,
    changes_from_bytes,
    changes_to_chunks,
    snapshot_from_bytes,
    snapshot_to_chunks,
)

SPACES = st.dictionaries(
    st.sampled_from(["a", "b", "__task"]),
    st.dictionaries(st.binary(max_size=6), st.none() | st.binary(max_size=30), min_size=1, max_size=20),
)
KINDS = {"a": "key_value", "b": "window", "__task": "key_value"}
PATH = "state/orders/3/00000000000000000007-0-x.changes"


@given(SPACES, st.sampled_from([1, 40, 2**20]))
def test_changes_round_trip(spaces: dict[str, dict[bytes, bytes | None]], block_bytes: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "_BLOCK_BYTES", block_bytes)
        data = changes_to_chunks(Changes(spaces, KINDS)).to_bytes()
    assert changes_from_bytes(PATH, data) == Changes(spaces, KINDS)


@given(SPACES, st.data())
def test_truncated_or_changed_file_is_refused(
    spaces: dict[str, dict[bytes, bytes | None]], data: st.DataObject
) -> None:
    whole = changes_to_chunks(Changes(spaces, KINDS)).to_bytes()
    place = data.draw(st.integers(0, len(whole) - 1))
    with pytest.raises(StateError, match=f"the state file {PATH} cannot be read"):
        changes_from_bytes(PATH, whole[:place])
    bad = bytearray(whole)
    bad[place] ^= data.draw(st.integers(1, 255))
    if place != len(MAGIC):
        with pytest.raises(StateError, match="cannot be read"):
            changes_from_bytes(PATH, bytes(bad))
    with pytest.raises(StateError, match="more data follows its end"):
        changes_from_bytes(PATH, whole + b"\x00")


@given(st.binary(max_size=40))
def test_any_bytes_are_refused_by_name(data: bytes) -> None:
    for start in (b"", MAGIC, MAGIC + b"\x01"):
        with pytest.raises(StateError, match=PATH):
            changes_from_bytes(PATH, start + data)


def test_newer_version_and_the_other_kind_are_refused() -> None:
    data = bytearray(changes_to_chunks(Changes({"a": {b"k": None}}, KINDS)).to_bytes())
    with pytest.raises(StateError, match="it holds changes, but snapshot was expected"):
        list(snapshot_from_bytes(PATH, bytes(data)))
    data[len(MAGIC)] = 2
    with pytest.raises(StateError, match="has format version 2; this program reads up to 1"):
        changes_from_bytes(PATH, bytes(data))


def test_crafted_block_is_refused() -> None:
    head = MAGIC + b"\x01" + form._block(0, {"kind": "changes", "stores": {}})
    for content in ([], ["a"], ["a", [b"k"]], ["a", ["k", b"v"]], ["a", [b"k", 1]], {"a": 1}, True, 7, ["a", "bc"]):
        with pytest.raises(StateError, match="cannot be read"):
            changes_from_bytes(PATH, head + form._block(1, content) + form._block(2, 2))
    assert changes_from_bytes(PATH, head + form._block(1, 1)) == Changes({})


def test_state_of_a_store_of_another_kind_is_refused_by_its_name() -> None:
    stores = TaskStores([Stores.key_value("table")], MemoryBackend())
    stores.store("table").put("a", 1)
    stores.seal()
    data = snapshot_to_chunks(stores.snapshot()).to_bytes()
    from datetime import timedelta

    other = TaskStores([Stores.session("table", timedelta(hours=1))], MemoryBackend())
    with pytest.raises(
        StateError, match="table is a session store in the topology, but a key_value store in the state"
    ):
        other.restore(snapshot_from_bytes("file", data), [], "mark")
    assert other.mark is None
    without = TaskStores([Stores.key_value("other")], MemoryBackend())
    without.restore(snapshot_from_bytes("file", data), [], "mark")
    assert without.entries == 0
