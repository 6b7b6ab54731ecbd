"""Writers' reports of idle partitions round-trip."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import MarkerError
from common.spans import MAX_POSITION, Partition, Position, Topic, TopicPartition
from common.stage.idle import IdleFact, facts_from_bytes, facts_to_bytes, idle_path

_facts = st.builds(
    IdleFact,
    st.builds(TopicPartition, st.sampled_from(["a", "b.c"]).map(Topic), st.integers(0, 2**31 - 1).map(Partition)),
    st.integers(0, MAX_POSITION).map(Position),
    st.integers(-(2**62), 2**62),
    st.integers(0, 9),
)


@given(st.lists(_facts, max_size=4))
def test_idle_facts_round_trip(facts: list[IdleFact]) -> None:
    path = idle_path("host/1")
    assert path.count("/") == 1
    written = facts_from_bytes(path, facts_to_bytes(facts))
    assert (written.partitions, written.streams) == (tuple(facts), ())


@pytest.mark.parametrize("data", [b"", b"{", b'{"version": 2}', b'{"version": 1}'])
def test_unreadable_idle_report_is_named(data: bytes) -> None:
    with pytest.raises(MarkerError, match="idle/one"):
        facts_from_bytes(idle_path("one"), data)
