"""Changes as messages of a topic: the changes that a marker names are read back unchanged, or refused."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.errors import StateError
from common.metrics import Metrics
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.task_files import StateFileName, StateKind, TopicChanges, changes_digest, spans_of
from common.storage.chunks import ByteChunks
from stage_writer.changelog.changelog import TopicChangelog, cut, iterate, joined
from tests.fakes.changelog import MemoryTopics
from tests.fakes.group import HandClock

NAME = StateFileName(TopicPartition(Topic("orders"), Partition(3)), Position(7), 0, "unique", StateKind.CHANGES)
parts = st.lists(st.binary(max_size=40), min_size=1, max_size=8)
sizes = st.integers(1, 50)


@given(parts, sizes)
def test_messages_are_short_and_join_to_the_original(data: list[bytes], piece_bytes: int) -> None:
    pieces = cut("shop", NAME, ByteChunks(data), piece_bytes)
    assert b"".join(piece.value for piece in pieces) == b"".join(data)
    assert max(len(piece.value) for piece in pieces) <= piece_bytes


@given(st.lists(parts, min_size=1, max_size=5), sizes, st.data())
def test_flushes_are_read_back_in_any_order(flushes: list[list[bytes]], piece_bytes: int, data: st.DataObject) -> None:
    changelog = TopicChangelog(MemoryTopics(), HandClock(), Metrics(), piece_bytes)
    changes = [changelog.write(Topic("changes"), "shop", NAME, ByteChunks(flush)) for flush in flushes]
    wanted = data.draw(st.permutations(range(len(flushes))))
    with changelog.reading() as reading:
        assert [reading.read(changes[index]) for index in wanted] == [b"".join(flushes[index]) for index in wanted]


@given(st.binary(min_size=1, max_size=200), sizes, st.data())
def test_damaged_changes_are_refused(value: bytes, piece_bytes: int, data: st.DataObject) -> None:
    pieces = cut("shop", NAME, ByteChunks([value]), piece_bytes)
    place = TopicPartition(Topic("changes"), Partition(0))
    changes = TopicChanges(place, None, spans_of(range(5, 5 + len(pieces))), len(value), changes_digest(value), 0)
    offsets = list(iterate(changes))
    assert joined(changes, zip(offsets, pieces, strict=True)) == value
    index = data.draw(st.integers(0, len(pieces) - 1))
    (other,) = cut("shop", NAME, ByteChunks([data.draw(st.binary(max_size=piece_bytes))]), piece_bytes)
    same_size = cut("shop", NAME, ByteChunks([bytes(byte ^ 1 for byte in value)]), piece_bytes)[index]
    wrong = data.draw(
        st.sampled_from([other, same_size, replace(pieces[index], headers=()), replace(pieces[index], value=b"")])
    )
    damaged = [*pieces[:index], wrong, *pieces[index + 1 :]]
    if damaged != pieces:
        with pytest.raises(StateError, match="of changes/0"):
            joined(changes, zip(offsets, damaged, strict=True))


def test_first_message_in_the_wrong_place_is_named_by_its_offset() -> None:
    first, second, third = cut("shop", NAME, ByteChunks([b"abc"]), 1)
    place = TopicPartition(Topic("changes"), Partition(0))
    changes = TopicChanges(place, None, spans_of(range(5, 8)), 3, changes_digest(b"abc"), 0)
    with pytest.raises(StateError, match="message at offset 6 of changes/0"):
        joined(changes, zip(iterate(changes), (first, third, second), strict=True))


@given(st.lists(st.integers(0, 1_000), min_size=1, unique=True).map(sorted))
def test_spans_cover_exactly_their_offsets(offsets: list[int]) -> None:
    spans = spans_of(offsets)
    assert [offset for span in spans for offset in range(span.start, span.end)] == offsets
    assert all(span.end < other.start for span, other in pairwise(spans))
