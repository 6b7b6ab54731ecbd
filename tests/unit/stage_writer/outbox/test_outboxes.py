"""Outboxes as objects and in markers: what was written is read back, and anything else is refused by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pyarrow as pa
import pytest
from pydantic import ValidationError

from common.errors import MarkerError, StateError
from common.schema import to_arrow_schema
from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import Manifest, Marker, MarkerName, Origin, marker_from_bytes, marker_to_bytes
from common.stage.merged import InputEnd, ends_at, inputs_of, merged_position
from common.stage.task_files import OutboxName
from common.tables.dead_letters import DEAD_LETTER_SCHEMA, dead_letter_headers
from stage_writer.convert import StreamConverter
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.merged_batch import merged_batch
from stage_writer.outbox.records import (
    SCHEMA,
    Outgoing,
    outgoing_from_bytes,
    outgoing_table,
    outgoing_to_chunks,
    undelivered,
    with_dead_letters_sent,
)
from stage_writer.parquet.buffer import StagedRows
from stage_writer.topologies.records import TopicRecord
from tests.fakes.streams import batch_of, staged_batches, stream_of

CHAIN = TopicPartition(Topic("a+b"), Partition(3))
A, B = inputs_of(CHAIN)
NAME = OutboxName(CHAIN, Position(7), 1, "0a-b")


def batch(partition: TopicPartition, *offsets: int) -> MessageBatch:
    nothing = pa.nulls(len(offsets), pa.binary())
    return MessageBatch(
        partition, np.array(offsets, np.int64), np.zeros(len(offsets), np.int64), nothing, nothing, None
    )


def record(value: bytes | None, index: int) -> TopicRecord:
    return TopicRecord("out", b"k", value, 5, (("h", None),) if index else (), index)


def outgoing() -> Outgoing:
    both = merged_batch(
        CHAIN, (A, B), (Position(4), Position(3)), [(0, batch(A, 4, 6)), (1, batch(B, 3))], np.array([0, 2, 1])
    )
    table = outgoing_table([record(b"x", 0), record(None, 1), record(b"z", 2)], both)
    return Outgoing(CHAIN, 1, ends_at(CHAIN, both.end), table)


def test_outbox_round_trips() -> None:
    parsed = outgoing_from_bytes(NAME.path, outgoing_to_chunks(outgoing()).to_bytes())
    assert parsed == outgoing()
    assert parsed.records["offset"].to_pylist() == [4, 3, 6]
    assert parsed.records["input"].to_pylist() == [0, 1, 0]
    assert parsed.records["headers"].to_pylist() == [None, *[[{"name": "h", "value": None}]] * 2]
    assert parsed.ends == (InputEnd(A, Position(7)), InputEnd(B, Position(4)))
    plain = outgoing_table([record(b"x", 1)], batch(A, 4, 6))
    assert (plain["input"].to_pylist(), plain["offset"].to_pylist()) == ([0], [6])


def test_undelivered_messages_are_known_one_by_one() -> None:
    assert undelivered(outgoing(), [Position(6), None])["offset"].to_pylist() == [3, 6]
    assert undelivered(outgoing(), [None, None]).num_rows == 3
    assert undelivered(outgoing(), [Position(7), Position(4)]).num_rows == 0
    assert undelivered(replace(outgoing(), records=SCHEMA.empty_table()), [Position(7), None]).num_rows == 0


def with_body(body: bytes) -> Callable[[bytes], bytes]:
    """An outbox whose head fits another rest."""
    return lambda data: data[:9] + sha256(body).digest() + body


def without_head() -> bytes:
    sink = pa.BufferOutputStream()
    pa.ipc.new_stream(sink, SCHEMA).close()
    return bytes(sink.getvalue())


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (with_body(b""), "cannot be read"),
        (with_body(without_head()), "cannot be read: b'about'"),
        (lambda _: outgoing_to_chunks(replace(outgoing(), ends=outgoing().ends[:1])).to_bytes(), "cannot be read: zip"),
        (lambda data: data[:41], "its checksum does not match"),
        (lambda data: data[:-1], "its checksum does not match"),
        (lambda data: data[:20], "it is not an outbox, or it is incomplete"),
        (lambda data: b"k" + data[1:], "it is not an outbox, or it is incomplete"),
        (lambda data: b"KDXOUTBX\x02" + data[9:], "has format version 2; this program reads up to 1"),
        (lambda data: data[:60] + bytes([data[60] ^ 1]) + data[61:], "its checksum does not match"),
    ],
)
def test_damaged_or_newer_outbox_is_refused_by_name(change: object, problem: str) -> None:
    assert callable(change)
    data = change(outgoing_to_chunks(outgoing()).to_bytes())
    with pytest.raises(StateError, match=problem) as refused:
        outgoing_from_bytes(NAME.path, data)
    assert NAME.path in refused.value.problem


def test_marker_names_only_outboxes_of_its_chain() -> None:
    assert OutboxName.parse(NAME.path) == NAME
    end = merged_position([InputEnd(A, Position(7)), InputEnd(B, Position(4))])
    name = MarkerName(CHAIN, Position(7))
    manifest = Manifest(Span(Position(7), end), None, "shop", Origin.FLUSH, "w", 1, records=1, outboxes=(NAME.path,))
    data = marker_to_bytes(Marker(name, manifest))
    assert marker_from_bytes(name, data) == Marker(name, manifest)
    assert b"outboxes" not in marker_to_bytes(Marker(name, replace(manifest, outboxes=())))
    for path in ("data/a", OutboxName(A, Position(7), 1, "0a").path, "outbox/a+b/3/../../x.records"):
        wrong = json.dumps(json.loads(data) | {"outboxes": [path]}).encode()
        with pytest.raises(MarkerError, match="is not an outbox of"):
            marker_from_bytes(name, wrong)


def test_dead_letters_are_sent_unchanged_with_a_topologys_records() -> None:
    stream = stream_of(columns="id INT NOT NULL", dead_letters="kafka://errors")
    batch = batch_of([b"{", None, b'{"id": 1}', b"{}"], keys=[b"k", None, None, None])
    converter = StreamConverter(stream)
    (staged,) = staged_batches(converter, [batch])
    sent = with_dead_letters_sent(staged, converter.formats, stream, batch.partition)
    assert sent.outgoing is not None
    names = ("topic", "key", "value", "timestamp_ms", "input", "offset")
    assert list(zip(*(sent.outgoing[name].to_pylist() for name in names), strict=True)) == [
        ("errors", b"k", b"{", 1_600_000_000_000, 0, 100),
        ("errors", None, b"{}", 1_600_000_003_000, 0, 103),
    ]
    own = outgoing_table([record(b"x", 2)], batch)
    both = with_dead_letters_sent(replace(staged, outgoing=own), converter.formats, stream, batch.partition).outgoing
    assert both is not None
    assert both["topic"].to_pylist() == ["out", "errors", "errors"]
    (error,) = staged.rows[1].slice(1)["error"].to_pylist()
    source = (batch.partition.topic, batch.partition.partition, 103)
    assert both["headers"].to_pylist()[2] == dead_letter_headers(stream.app_id, ("missing_field", error), source)
    (sound,) = staged_batches(converter, [batch_of([b'{"id": 1}'])])
    assert with_dead_letters_sent(sound, converter.formats, stream, batch.partition) is sound
    silent = stream_of(columns="id INT NOT NULL")
    assert with_dead_letters_sent(staged, converter.formats, silent, batch.partition) is staged


def test_dead_letter_of_a_merged_chain_names_its_input() -> None:
    rows = pa.table(
        [["b"], [3], [4], [None], [None], [b"x"], ["late"], ["why"]], schema=to_arrow_schema(DEAD_LETTER_SCHEMA)
    )
    stream = stream_of(columns="id INT", dead_letters_topic="errors")
    staged = StagedRows(Position(9), 1, 0, {"late": 1}, None, (rows,))
    formats = (StreamConverter(stream).formats[1],)
    sent = with_dead_letters_sent(staged, formats, stream, CHAIN).outgoing
    assert sent is not None
    assert (sent["input"].to_pylist(), sent["timestamp_ms"].to_pylist()) == ([1], [-1])


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"dead_letters": "kafka://orders"}, "which the stream itself reads"),
        ({"dead_letters": "kafka://errors", "dead_letters_topic": "others"}, "is another one"),
        ({"dead_letters": "kafka://a/b"}, "dead_letters_topic"),
        ({"dead_letters_topic": "or ders"}, "dead_letters_topic"),
    ],
)
def test_unsuitable_dead_letter_topic_is_refused(more: dict[str, str], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem):
        stream_of(columns="id INT", **more)
