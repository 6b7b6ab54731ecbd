"""librdkafka's messages as columns, by the part in C (`taker.c`): the interface between it and Python.

Rules:

1. The group, its rebalances, errors and closing are confluent-kafka's, on the consumer's own queue. Only the queues of
   partitions are forwarded to one of our own, which has messages, errors and ends. An error that librdkafka reports by
   callback from there (a partition that its topic no longer has) is dropped in C (`taker.c`, rule 6): confluent-kafka's
   callback would abort the process. The group's metadata shows such a partition, too.
2. librdkafka removes a partition's forwarding when it stops the partition, possibly after it was assigned again, and
   then does not replace ours with its own. So assigned partitions are forwarded again periodically; messages that
   waited in their own queue follow, in order.
3. All librdkafka objects that we hold are released before its consumer is closed.
4. The handle is read from where confluent-kafka has it, and used only if librdkafka confirms that it belongs to that
   object. If anything differs from what is expected, this module is not used, and messages are read as Python objects.
"""

from __future__ import annotations

import ctypes
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, cimpl
from numpy.typing import NDArray

from stage_writer.decode.batch import HEADERS

_CONSUMER = 1
_LOOKED_AT_BYTES = 4096
_SIZES = 15
_RUN, _PROBLEM = 4, 6
_CALLS = (
    "rd_kafka_consume_batch_queue",
    "rd_kafka_message_destroy",
    "rd_kafka_message_timestamp",
    "rd_kafka_topic_name",
    "rd_kafka_message_errstr",
    "rd_kafka_message_leader_epoch",
    "rd_kafka_message_headers",
    "rd_kafka_header_get_all",
)
_POINTER, _NUMBER, _TEXT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_char_p
_ADDRESS_CHARACTERS = 32


@dataclass(frozen=True, slots=True)
class MessageRun:
    """Messages of one Kafka partition, one after the other."""

    topic: str
    partition: int
    start: int
    end: int
    leader_epoch: int | None
    """The leader epoch of all of them; None where the broker does not report it."""


@dataclass(frozen=True, slots=True)
class FetchedError:
    """An error, or the end of a partition."""

    topic: str | None
    partition: int
    offset: int
    code: int
    text: str


@dataclass(frozen=True, slots=True)
class FetchedMessages:
    """Messages in the order in which they were read."""

    offsets: NDArray[np.int64]
    timestamps_ms: NDArray[np.int64]
    values: pa.BinaryArray
    keys: pa.BinaryArray
    headers: pa.ListArray | None
    """`decode.batch.HEADERS`; None where no topic's headers are read, null for messages of other topics."""
    runs: tuple[MessageRun, ...]
    errors: tuple[FetchedError, ...]


class _Kafka:
    """librdkafka's functions, from the library that confluent-kafka has loaded."""

    def __init__(self) -> None:
        kafka = ctypes.CDLL(cimpl.__file__)
        self.calls = [ctypes.cast(getattr(kafka, name), _POINTER).value or 0 for name in _CALLS]
        self.opaque = _typed(kafka.rd_kafka_opaque, _POINTER, _POINTER)
        self.type = _typed(kafka.rd_kafka_type, ctypes.c_int, _POINTER)
        self.queue_new = _typed(kafka.rd_kafka_queue_new, _POINTER, _POINTER)
        self.queue_of = _typed(kafka.rd_kafka_queue_get_partition, _POINTER, _POINTER, _TEXT, ctypes.c_int32)
        self.forward = _typed(kafka.rd_kafka_queue_forward, None, _POINTER, _POINTER)
        self.queue_destroy = _typed(kafka.rd_kafka_queue_destroy, None, _POINTER)
        self.properties = _typed(kafka.rd_kafka_conf, _POINTER, _POINTER)
        self.property = _typed(kafka.rd_kafka_conf_get, ctypes.c_int, _POINTER, _TEXT, _POINTER, _POINTER)
        self.call_for_errors = _typed(kafka.rd_kafka_conf_set_error_cb, None, _POINTER, _POINTER)


class _Own:
    """The functions of `taker.c`."""

    def __init__(self, path: Path) -> None:
        own = ctypes.CDLL(str(path))
        self.new = _typed(own.kde_taker_new, _POINTER, _POINTER, _POINTER)
        self.free = _typed(own.kde_taker_free, None, _POINTER)
        self.read_headers = _typed(own.kde_taker_read_headers, ctypes.c_bool, _POINTER, _TEXT)
        self.take = _typed(own.kde_taker_take, _NUMBER, _POINTER, _NUMBER, _NUMBER, ctypes.c_int, _POINTER)
        self.sizes = _typed(own.kde_taker_sizes, None, _POINTER, _POINTER)
        self.give = _typed(own.kde_taker_give, _POINTER, _POINTER, _POINTER)
        self.bytes_free = _typed(own.kde_bytes_free, None, _POINTER)
        self.guard_errors = _typed(own.kde_guard_errors, _POINTER, _POINTER)


def _typed(function: ctypes._NamedFuncPointer, result: type | None, *arguments: type) -> ctypes._NamedFuncPointer:
    function.restype, function.argtypes = result, list(arguments)
    return function


class QueueReader:
    """Reads messages from one queue into columns. Raises OSError for an incompatible library."""

    def __init__(self, path: Path, calls: Sequence[int], queue: int) -> None:
        """``calls`` are the addresses of the functions `_CALLS`, ``queue`` is the argument of the first."""
        try:
            self._own = _Own(path)
        except AttributeError as error:
            raise OSError(f"{path} is a different library: {error}") from error
        given = (_POINTER * len(_CALLS))(*calls)
        self._reader_of_queues = self._own.new(ctypes.addressof(given), queue)
        if not self._reader_of_queues:
            raise MemoryError("no memory to consume messages")
        self.free = weakref.finalize(self, self._own.free, self._reader_of_queues)

    def guard_errors(self, callback: int) -> int:
        """The address of a callback for errors that calls ``callback``, but not in a thread that takes."""
        return int(self._own.guard_errors(callback))

    def read_headers(self, topic: str) -> None:
        """Read the headers of this topic's messages, too."""
        if not self._own.read_headers(self._reader_of_queues, topic.encode()):
            raise MemoryError("no memory for the name of a topic")

    def take(self, most: int, most_bytes: int, timeout_s: float) -> tuple[int, int]:
        """Read what is available, or wait for the first message; returns how many are held now, and how many bytes."""
        taken_bytes = np.zeros(1, np.int64)
        held = self._own.take(self._reader_of_queues, most, most_bytes, int(timeout_s * 1000), taken_bytes.ctypes.data)
        if held < 0:
            raise MemoryError("no memory for a batch of messages")
        return held, int(taken_bytes[0])

    def give(self) -> FetchedMessages:
        """The held messages; they are removed from here."""
        sizes = np.zeros(_SIZES, np.int64)
        self._own.sizes(self._reader_of_queues, sizes.ctypes.data)
        count, runs, problems, value_bytes, key_bytes, values_valid, keys_valid, texts, names = sizes[:9].tolist()
        offsets, stamps = np.empty(count, np.int64), np.empty(count, np.int64)
        ends = [pa.allocate_buffer(4 * (count + 1)) for _ in range(2)]
        valid = [pa.allocate_buffer(size) if size else None for size in (values_valid, keys_valid)]
        keys = pa.allocate_buffer(key_bytes)
        numbers = np.empty((runs, _RUN), np.int64), np.empty((problems, _PROBLEM), np.int64)
        text = np.empty(texts, np.uint8), np.empty(names, np.uint8)
        arrays = [array.ctypes.data for array in (offsets, stamps)]
        arrays += [0 if buffer is None else buffer.address for buffer in (*ends, *valid, keys)]
        arrays += [array.ctypes.data for array in (*numbers, *text)]
        headers = _Headers(sizes[9:].tolist())
        arrays += headers.targets
        targets = np.array(arrays, np.uintp)
        address = self._own.give(self._reader_of_queues, targets.ctypes.data)
        values = _LibraryBytes(address, self._own).buffer(value_bytes) if address else pa.allocate_buffer(0)
        topics = text[1].tobytes().decode().split("\0")[:-1]
        error_text = text[0].tobytes()

        return FetchedMessages(
            offsets,
            stamps,
            _binaries(count, valid[0], ends[0], values),
            _binaries(count, valid[1], ends[1], keys),
            headers.column if headers.messages else None,
            _runs(numbers[0], topics, count),
            tuple(
                FetchedError(
                    topics[topic] or None,
                    partition,
                    offset,
                    code,
                    error_text[first : first + size].decode(errors="replace"),
                )
                for topic, partition, offset, code, first, size in numbers[1].tolist()
            ),
        )


class _Headers:
    """Room for the headers of the held messages: six sizes of `kde_taker_sizes`, seven targets of `kde_taker_give`."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.messages, valid, self._count, key_bytes, value_bytes, values_valid = sizes
        self._ends = [pa.allocate_buffer(4 * (length + 1)) for length in (self.messages, self._count, self._count)]
        self._valid = [pa.allocate_buffer(size) if size else None for size in (valid, values_valid)]
        self._data = [pa.allocate_buffer(size) for size in (key_bytes, value_bytes)]
        buffers = (*self._ends, *self._valid, *self._data)
        self.targets = [0 if buffer is None else buffer.address for buffer in buffers]

    @property
    def column(self) -> pa.ListArray:
        """The headers, once they are there."""
        keys = _binaries(self._count, None, self._ends[1], self._data[0])
        values = _binaries(self._count, self._valid[1], self._ends[2], self._data[1])
        pairs = pa.StructArray.from_arrays([keys, values], fields=list(HEADERS.value_type))
        return pa.ListArray.from_buffers(HEADERS, self.messages, [self._valid[0], self._ends[0]], children=[pairs])


class NativeFetch:
    """Reads the messages of one consumer. Raises OSError where that is not supported (rule 4)."""

    def __init__(self, path: Path, consumer: Consumer, with_headers: Callable[[str], bool]) -> None:
        """``path`` is the compiled library's; ``with_headers`` says whether a topic's headers are wanted."""
        try:
            self._functions = _Kafka()
        except AttributeError as error:
            raise OSError(f"confluent-kafka does not export the functions of librdkafka: {error}") from error
        self._kafka = _handle_of(consumer, self._functions)
        properties = self._functions.properties(self._kafka)
        callback = _error_callback(properties, self._functions)
        self._queue = self._functions.queue_new(self._kafka)
        self._reader = QueueReader(path, self._functions.calls, self._queue)
        self._functions.call_for_errors(properties, self._reader.guard_errors(callback))
        self.take, self.give = self._reader.take, self._reader.give
        self._with_headers = with_headers
        self._partitions: dict[tuple[str, int], int] = {}
        self._is_closed = False

    def take_over(self, partitions: Iterable[tuple[str, int]]) -> None:
        """Forward the messages of partitions that are about to be assigned to our queue.

        Does nothing once this is closed: the group may still assign partitions while the consumer leaves it.
        """
        for topic, partition in () if self._is_closed else partitions:
            self.release([(topic, partition)])
            if self._with_headers(topic):
                self._reader.read_headers(topic)
            queue = self._functions.queue_of(self._kafka, topic.encode(), partition)
            if queue:
                self._partitions[topic, partition] = queue
                self._functions.forward(queue, self._queue)

    def forward(self) -> None:
        """Forward assigned partitions again (rule 2)."""
        for queue in self._partitions.values():
            self._functions.forward(queue, self._queue)

    def release(self, partitions: Iterable[tuple[str, int]]) -> None:
        for partition in partitions:
            queue = self._partitions.pop(partition, None)
            if queue is not None:
                self._functions.queue_destroy(queue)

    def close(self) -> None:
        """Release everything; call it before the consumer is closed (rule 3). May be called several times."""
        if not self._is_closed:
            self._is_closed = True
            self.release(list(self._partitions))
            self._reader.free()
            self._functions.queue_destroy(self._queue)


class _LibraryBytes:
    """Bytes that we must free, once no buffer refers to them."""

    def __init__(self, address: int, own: _Own) -> None:
        self._address = address
        weakref.finalize(self, own.bytes_free, address)

    def buffer(self, size_bytes: int) -> pa.Buffer:
        return pa.foreign_buffer(self._address, size_bytes, self)


def _error_callback(properties: int, functions: _Kafka) -> int:
    """The address of a client's callback for errors, 0 for none; raises OSError when it is not known (rule 4)."""
    text, size = ctypes.create_string_buffer(_ADDRESS_CHARACTERS), ctypes.c_size_t(_ADDRESS_CHARACTERS)
    functions.property(properties, b"error_cb", text, ctypes.byref(size))
    try:
        return int(text.value or b"0", 16)
    except ValueError:
        raise OSError(f"librdkafka's callback for errors has an unknown form: {text.value!r}") from None


def _handle_of(consumer: Consumer, functions: _Kafka) -> int:
    """The handle of a consumer in librdkafka; raises OSError when it is not found (rule 4)."""
    with open("/proc/self/mem", "rb", buffering=0) as memory:  # noqa: PTH123 - where a wrong address is an error only
        memory.seek(id(consumer) + object.__basicsize__)
        handle = int.from_bytes(memory.read(8), sys.byteorder)
        if handle % 8 or handle >> 47:
            raise OSError("confluent-kafka's consumer has an unknown layout")
        memory.seek(handle)
        memory.read(_LOOKED_AT_BYTES)
    if functions.opaque(handle) != id(consumer) or functions.type(handle) != _CONSUMER:
        raise OSError("confluent-kafka's consumer has an unknown layout")
    return handle


def _binaries(count: int, valid: pa.Buffer | None, ends: pa.Buffer, data: pa.Buffer) -> pa.BinaryArray:
    return pa.BinaryArray.from_buffers(pa.binary(), count, [valid, ends, data])


def _runs(numbers: NDArray[np.int64], topics: list[str], count: int) -> tuple[MessageRun, ...]:
    starts = numbers[:, 2].tolist()
    ends = [*starts[1:], count][: len(starts)]
    return tuple(
        MessageRun(topics[topic], partition, start, end, None if epoch < 0 else epoch)
        for (topic, partition, start, epoch), end in zip(numbers.tolist(), ends, strict=True)
    )
