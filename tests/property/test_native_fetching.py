"""The messages that C takes from a librdkafka queue, compared with the messages themselves."""

import ctypes
from collections.abc import Callable
from typing import NamedTuple

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from common.spans import Partition, Topic, TopicPartition
from stage_writer.fetch.fetched import batches_of_fetched
from stage_writer.native.fetching import FetchedMessages, QueueReader
from stage_writer.native.library import library_path

pytestmark = pytest.mark.skipif(not library_path().exists(), reason="the native library is not built")

END = -191
NO_HEADERS = -156
MESSAGE_BYTES = 32
"""The size of each message's columns in addition to its bytes."""
HEADER_BYTES = 8


class Sent(NamedTuple):
    """A message, or an error with its text as the value."""

    topic: str | None
    partition: int
    value: bytes | None
    key: bytes | None = None
    stamp: int = -1
    error: int = 0
    headers: tuple[tuple[bytes, bytes | None], ...] | None = None

    @property
    def epoch(self) -> int | None:
        """The leader epoch, which rises with the times of a partition's messages."""
        return None if self.stamp < 0 else self.stamp // 4 % 2**31


class _Message(ctypes.Structure):
    _fields_ = (
        ("error", ctypes.c_int32),
        ("topic", ctypes.c_void_p),
        ("partition", ctypes.c_int32),
        ("value", ctypes.c_void_p),
        ("value_size", ctypes.c_size_t),
        ("key", ctypes.c_void_p),
        ("key_size", ctypes.c_size_t),
        ("offset", ctypes.c_int64),
        ("own", ctypes.c_void_p),
    )


class Queue:
    """librdkafka's calls, on given messages."""

    def __init__(self, sent: list[Sent]) -> None:
        self._names = {
            name: ctypes.create_string_buffer((name or "").encode()) for name in {message.topic for message in sent}
        }
        self._bytes = [[_buffer(message.value), _buffer(message.key)] for message in sent]
        self._messages = [
            _Message(
                *(message.error, _address(self._names[message.topic]) if message.topic else None, message.partition),
                *(
                    _address(value),
                    len(message.value or b""),
                    _address(key),
                    len(message.key or b""),
                    offset,
                    message.stamp,
                ),
            )
            for offset, (message, (value, key)) in enumerate(zip(sent, self._bytes, strict=True))
        ]
        self._headers = [
            [(_buffer(key), _buffer(value), len(value or b"")) for key, value in message.headers or ()]
            for message in sent
        ]
        self._epochs = [-1 if message.epoch is None else message.epoch for message in sent]
        self.before_take: Callable[[], object] = lambda: None
        self.given = 0
        self.freed: list[int] = []
        pointer, number, message = ctypes.c_void_p, ctypes.c_int64, ctypes.POINTER(_Message)
        self._calls = (
            ctypes.CFUNCTYPE(number, pointer, ctypes.c_int, ctypes.POINTER(pointer), ctypes.c_size_t)(self._take),
            ctypes.CFUNCTYPE(None, message)(lambda message: self.freed.append(message.contents.offset)),
            ctypes.CFUNCTYPE(number, message, pointer)(lambda message, _: number(message.contents.own or 0).value),
            ctypes.CFUNCTYPE(pointer, pointer)(lambda topic: topic),
            ctypes.CFUNCTYPE(pointer, message)(lambda error: error.contents.value),
            ctypes.CFUNCTYPE(ctypes.c_int32, message)(lambda message: self._epochs[message.contents.offset]),
            ctypes.CFUNCTYPE(ctypes.c_int32, message, ctypes.POINTER(pointer))(self._headers_of),
            ctypes.CFUNCTYPE(ctypes.c_int32, pointer, ctypes.c_size_t, *[ctypes.POINTER(pointer)] * 3)(self._header),
        )
        self.calls = [ctypes.cast(call, pointer).value or 0 for call in self._calls]

    def _headers_of(self, message: "ctypes._Pointer[_Message]", given: "ctypes._Pointer[ctypes.c_void_p]") -> int:
        offset = message.contents.offset
        given[0] = offset + 1
        return 0 if self._headers[offset] else NO_HEADERS

    def _header(self, given: int, place: int, *targets: "ctypes._Pointer[ctypes.c_void_p]") -> int:
        headers = self._headers[given - 1]
        if place >= len(headers):
            return NO_HEADERS
        key, value, size = headers[place]
        for target, part in zip(targets, (_address(key), _address(value), size), strict=True):
            target[0] = part
        return 0

    def _take(self, _queue: int, _timeout_ms: int, messages: "ctypes._Pointer[ctypes.c_void_p]", most: int) -> int:
        self.before_take()
        chosen = self._messages[self.given : self.given + most]
        for place, message in enumerate(chosen):
            messages[place] = ctypes.addressof(message)
        self.given += len(chosen)
        return len(chosen)


def _buffer(value: bytes | None) -> ctypes.Array[ctypes.c_char] | None:
    return None if value is None else ctypes.create_string_buffer(value)


def _address(buffer: ctypes.Array[ctypes.c_char] | None) -> int | None:
    return None if buffer is None else ctypes.addressof(buffer)


REPORTED: list[int] = []
ErrorCallback = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)
CALLBACK = ErrorCallback(lambda _client, error, _reason, _opaque: REPORTED.append(error))
"""Like confluent-kafka's callback, which aborts the process outside its own calls; the library keeps its address."""


def test_error_is_reported_except_in_a_thread_that_takes() -> None:
    queue = Queue([Sent("a", 0, b"{}")])
    reader = QueueReader(library_path(), queue.calls, 1)
    guarded = ErrorCallback(reader.guard_errors(ctypes.cast(CALLBACK, ctypes.c_void_p).value or 0))
    queue.before_take = lambda: guarded(None, 3, b"the topic no longer has the partition", None)
    assert reader.take(1, 1000, 0.0)[0] == 1
    assert REPORTED == []
    guarded(None, 7, b"a broker is away", None)
    assert REPORTED == [7]
    assert reader.guard_errors(0) == ctypes.cast(guarded, ctypes.c_void_p).value, "a client without a callback"
    guarded(None, 9, b"a broker is away", None)
    assert REPORTED == [7, 9]
    reader.free()


VALUES = st.none() | st.binary(max_size=40) | st.binary(min_size=5000, max_size=5001)
STAMPS = st.integers(-1, 2**60)
TEXTS = st.sampled_from([b"no", b"\xc3", b"x" * 300])
HEADERS = st.none() | st.lists(st.tuples(st.sampled_from([b"", b"h", b"\xc3\xa9", b"\xff"]), VALUES), min_size=1).map(
    tuple
)
ORDINARY = st.tuples(st.sampled_from(["a", "b", "ä"]), st.integers(0, 2), VALUES, VALUES, STAMPS, st.just(0), HEADERS)
ERRORS = st.tuples(
    st.sampled_from([None, "a"]), st.integers(-1, 1), TEXTS, st.none(), st.just(-1), st.just(END), st.none()
)
MESSAGES = ORDINARY | ERRORS


@given(st.lists(MESSAGES.map(Sent._make), max_size=40), st.integers(1, 50), st.integers(1, 20_000))
@example([Sent("a", 0, b"{}")] * 600, 1000, 2**20)
@example([Sent("a", 0, None)] * 9, 1000, 1)
def test_every_message_is_taken_once_unchanged_and_freed(sent: list[Sent], most: int, most_bytes: int) -> None:
    queue = Queue(sent)
    reader = QueueReader(library_path(), queue.calls, 1)
    rows: list[tuple[object, ...]] = []
    errors: list[tuple[object, ...]] = []
    while queue.given < len(sent):
        before = queue.given
        held, held_bytes = reader.take(most, most_bytes, 0.0)
        taken = reader.give()
        assert held == len(taken.offsets) <= most
        columns = (*taken.values.to_pylist(), *taken.keys.to_pylist())
        assert held_bytes == sum(len(value or b"") for value in columns) + held * MESSAGE_BYTES
        assert queue.given > before
        rows += _rows(taken)
        errors += [(error.topic, error.partition, error.offset, error.code, error.text) for error in taken.errors]
    numbered = list(enumerate(sent))
    assert rows == [
        (message.topic, message.partition, message.epoch, number, message.stamp, message.value, message.key)
        for number, message in numbered
        if not message.error
    ]
    assert errors == [
        (message.topic, message.partition, number, END, (message.value or b"")[:256].decode(errors="replace"))
        for number, message in numbered
        if message.error
    ]
    assert sorted(queue.freed) == list(range(len(sent)))
    reader.free()


@given(st.lists(MESSAGES.map(Sent._make), max_size=40), st.lists(st.sampled_from(["a", "ä"]), unique=True))
def test_headers_are_read_for_the_topics_that_want_them(sent: list[Sent], topics: list[str]) -> None:
    queue = Queue(sent)
    reader = QueueReader(library_path(), queue.calls, 1)
    for topic in topics:
        reader.read_headers(topic)
    returned: list[object] = []
    while queue.given < len(sent):
        _, held_bytes = reader.take(7, 20_000, 0.0)
        taken = reader.give()
        lists = [None] * len(taken.offsets) if taken.headers is None else taken.headers.to_pylist()
        returned += lists
        headers = [(header["key"], header["value"]) for some in lists for header in some or ()]
        columns = (*taken.values.to_pylist(), *taken.keys.to_pylist(), *(part for pair in headers for part in pair))
        more = len(taken.offsets) * MESSAGE_BYTES + len(headers) * HEADER_BYTES
        assert held_bytes == sum(len(value or b"") for value in columns) + more
    assert returned == [
        [{"key": key, "value": value} for key, value in message.headers]
        if message.headers and message.topic in topics
        else None
        for message in sent
        if not message.error
    ]
    reader.free()


def test_key_bytes_of_tombstones_count_toward_the_limit() -> None:
    queue = Queue([Sent("a", 0, None, b"k" * 1000)] * 2000)
    reader = QueueReader(library_path(), queue.calls, 1)
    held, held_bytes = reader.take(10_000, 100_000, 0.0)
    assert (held, held_bytes) == (len(reader.give().offsets), held * (1000 + MESSAGE_BYTES))
    assert held < 110
    reader.free()


def _rows(taken: FetchedMessages) -> list[tuple[object, ...]]:
    places = [(run.topic, run.partition, run.leader_epoch) for run in taken.runs for _ in range(run.start, run.end)]
    columns = (taken.offsets.tolist(), taken.timestamps_ms.tolist(), taken.values.to_pylist(), taken.keys.to_pylist())
    return [(*place, *row) for place, *row in zip(places, *columns, strict=True)]


RUNS = st.lists(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 5), st.integers(1, 4)), max_size=12)


@given(RUNS, st.sampled_from([1, 70]))
def test_taken_messages_are_split_by_partition_in_their_order(runs: list[tuple[str, int, int]], times: int) -> None:
    sent = [
        Sent(topic, partition, b"%d" % number, stamp=number)
        for number, (topic, partition, count) in enumerate(runs)
        for _ in range(count * times)
    ]
    queue = Queue(sent)
    reader = QueueReader(library_path(), queue.calls, 1)
    reader.take(len(sent) + 1, 2**20, 0.0)
    rows_by_partition: dict[TopicPartition, list[tuple[object, ...]]] = {}
    for batch in batches_of_fetched(reader.give()):
        rows = zip(batch.offsets.tolist(), batch.timestamps_ms.tolist(), batch.values.to_pylist(), strict=True)
        rows_by_partition.setdefault(batch.partition, []).extend((batch.leader_epoch, *row) for row in rows)
    expected: dict[TopicPartition, list[tuple[object, ...]]] = {}
    for offset, message in enumerate(sent):
        topic_partition = TopicPartition(Topic(str(message.topic)), Partition(message.partition))
        expected.setdefault(topic_partition, []).append((message.epoch, offset, message.stamp, message.value))
    assert rows_by_partition == expected
