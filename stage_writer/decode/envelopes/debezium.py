"""Debezium's change events: the image of the row becomes the record, and the change itself the column `_cdc`.

Rules:

1. An event is the message, or its `payload` (Connect's JSON with its schema); an object with a `payload` and no `op` is
   of the second kind.
2. The record is `after` for the ops c, r and u, and `before` for d. It is read like any record: formats, lenience and
   unknown fields apply to its fields. The other image is ignored. `_cdc` is made of ``op``, ``ts_ms`` and ``source``.
3. An event with another op, or without its image, is refused: it is not a row change (t, a truncated table; m, a
   message). So is one with a duplicate part or payload.
4. The parts of events are found for many at once (`decoding.json_structure`); uncertain events are opened one at a
   time. A long schema before the payload, repeated in each message, is read once: messages that start with identical
   bytes are JSON exactly if the rest is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import Field, Primitive, StructType, parse_ddl, to_arrow_type
from common.settings.columns import CDC_COLUMN
from common.settings.formats import forms_of
from stage_writer.decode.blocks import begin_as_objects, blocks, offsets_of, small_pieces, spans, texts_of
from stage_writer.decode.decode import Decoder
from stage_writer.decode.documents import doubts_about, proved_documents
from stage_writer.decode.first_pass import no_first_pass
from stage_writer.decode.json_document import Object, json_text
from stage_writer.decode.json_structure import Structure, Values
from stage_writer.decode.reading import Reading
from stage_writer.decode.rejects import ErrorClass, Refusal, Reject
from stage_writer.decode.strict import document_of
from stage_writer.duck import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from stage_writer.decode.batch import Messages
    from stage_writer.decode.decode import Decoded, Decodes
    from stage_writer.decode.first_pass import MakeFirstPass
    from stage_writer.decode.json_document import Json

    Numbers = NDArray[np.int64]
    Mask = NDArray[np.bool_]

_ABOUT = parse_ddl(
    "op STRING NOT NULL, ts_ms TIMESTAMP, "
    "source STRUCT<db: STRING, `schema`: STRING, `table`: STRING, collection: STRING, ts_ms: TIMESTAMP>"
)
_FORMS = {"ts_ms": "epoch_ms", "source.ts_ms": "epoch_ms"}
CDC_FIELD = Field(
    CDC_COLUMN,
    StructType(
        (
            Field("op", Primitive.STRING),
            Field("ts", Primitive.TIMESTAMP),
            Field("source", Primitive.STRING),
            Field("source_ts", Primitive.TIMESTAMP),
        )
    ),
)
_IMAGES = {"c": "after", "r": "after", "u": "after", "d": "before"}
_ABOUT_PARTS = ("op", "ts_ms", "source")
_PARTS = ("before", "after", *_ABOUT_PARTS)
_OP_BYTES = 3
_SCHEMA_FIRST = '{"schema":'
_MOST_PREFIXES = 8
_NO_DOUBTS = doubts_about(StructType(()))


class EventDecoder:
    """Decodes the rows' images with a decoder, and adds `_cdc`. Not thread-safe."""

    def __init__(self, inner: Decodes, first_pass: MakeFirstPass = no_first_pass) -> None:
        self._inner = inner
        self._about = Decoder(_ABOUT, Reading(forms_of(_ABOUT, _FORMS)), first_pass=first_pass)
        self._opener = Opener()
        self._columns = inner.columns.with_fields((CDC_FIELD,))

    @property
    def columns(self) -> StructType:
        """The columns of the rows."""
        return self._columns

    def decode(self, messages: Messages) -> Decoded:
        """The result for the messages."""
        opened = self._opener.opened(messages.values)
        decoded = self._inner.decode(replace(messages, values=opened.images))
        about = self._about.decode(opened.abouts)
        rejects = {reject.index: reject for reject in (*about.rejects, *decoded.rejects, *opened.rejects)}
        place = np.full(len(messages), -1)
        place[about.row_index] = np.arange(len(about.row_index))
        found = place[decoded.row_index]
        kept = found >= 0
        rows, index = decoded.rows, decoded.row_index
        if not kept.all():
            rows, index, found = rows.filter(pa.array(kept)), index[kept], found[kept]
        return replace(
            decoded,
            rows=rows.append_column(CDC_COLUMN, _cdc(about.rows.combine_chunks().take(pa.array(found)))),
            row_index=index,
            rejects=tuple(rejects[each] for each in sorted(rejects)),
            tombstones=np.flatnonzero(messages.values.is_null().to_numpy(zero_copy_only=False)),
        )


def _cdc(about: pa.Table) -> pa.StructArray:
    source = _column(about, "source")
    space = pc.coalesce(pc.struct_field(source, "schema"), pc.struct_field(source, "db"))
    table = pc.coalesce(pc.struct_field(source, "table"), pc.struct_field(source, "collection"))
    columns = [
        _column(about, "op"),
        _column(about, "ts_ms"),
        pc.binary_join_element_wise(space, table, "."),
        pc.struct_field(source, "ts_ms"),
    ]
    return pa.StructArray.from_arrays(columns, fields=list(to_arrow_type(CDC_FIELD.type)))


def _column(table: pa.Table, name: str) -> pa.Array:
    column = table.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


@dataclass(frozen=True, slots=True)
class Opened:
    """The rows' images, and the events' other fields, as JSON objects; null where there is none."""

    images: pa.LargeBinaryArray
    abouts: pa.LargeBinaryArray
    rejects: tuple[Reject, ...]


class Opener:
    """Finds the parts of events. Not thread-safe."""

    def __init__(self) -> None:
        self._connection = connect()
        self._prefixes: list[str] = []

    def opened(self, values: pa.BinaryArray | pa.LargeBinaryArray) -> Opened:
        """The parts of the messages with these values."""
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        present = np.flatnonzero(~nulls)
        found: list[pa.Table] = []
        places: list[Numbers] = []
        rejects: list[Reject] = []
        for start, block in blocks(values.drop_null() if nulls.any() else values):
            index = present[start : start + len(block)]
            for table, where in self._open_block(block):
                found.append(table)
                places.append(index[where])
            opened = np.concatenate([np.zeros(0, np.int64), *places])
            for place in np.setdiff1d(index, opened, assume_unique=True).tolist():
                outcome = open_strictly(values[place].as_py())
                if isinstance(outcome, Refusal):
                    rejects.append(Reject(place, outcome.error_class, outcome.error))
                else:
                    found.append(_texts_table([outcome[0]], [outcome[1]]))
                    places.append(np.array([place]))
        texts = pa.concat_tables([_texts_table([], []), *found]).combine_chunks()
        place = np.full(len(values), -1)
        opened = np.concatenate([np.zeros(0, np.int64), *places])
        place[opened] = np.arange(len(opened))
        parts = texts.take(pa.array(place, mask=place < 0))
        return Opened(_column(parts, "image"), _column(parts, "about"), tuple(rejects))

    def _open_block(self, block: pa.BinaryArray) -> Iterator[tuple[pa.Table, Numbers]]:
        """Images and other fields, and the indices of their messages in the block, if certain in bulk."""
        texts = self._without_schemas(texts_of(block))
        proved = proved_documents(texts, self._connection, _NO_DOUBTS) & begin_as_objects(texts)
        places = np.flatnonzero(proved)
        start = 0
        for piece in small_pieces(texts if len(places) == len(texts) else texts.filter(pa.array(proved))):
            offsets = offsets_of(piece)
            data = piece.buffers()[2].slice(offsets[0], offsets[-1] - offsets[0])
            parts = _Parts.of(Structure(np.frombuffer(data, np.uint8)), offsets - offsets[0])
            sure = np.flatnonzero(parts.sure)
            yield _texts_table(parts.image.texts(data, sure), parts.about_texts(data, sure)), places[start + sure]
            start += len(piece)

    def _without_schemas(self, texts: pa.StringArray) -> pa.StringArray:
        """The messages with a schema that was read before, without it (rule 4)."""
        left = pc.starts_with(texts, _SCHEMA_FIRST)
        for prefix in self._prefixes:
            texts, left = _without(texts, left, prefix)
        for _ in range(_MOST_PREFIXES):
            if not pc.any(left).as_py():
                break
            learned = self._prefix_of(texts[pc.index(left, pa.scalar(value=True)).as_py()].as_py())
            if learned is None:
                break
            self._prefixes = [learned, *self._prefixes[: _MOST_PREFIXES - 1]]
            texts, left = _without(texts, left, learned)
        return texts

    def _prefix_of(self, text: str) -> str | None:
        """The part before the payload, in a message that starts with its schema."""
        array = pa.array([text])
        if not proved_documents(array, self._connection, _NO_DOUBTS)[0]:
            return None
        structure = Structure(np.frombuffer(array.buffers()[2], np.uint8))
        members = structure.members(1)
        names = [
            structure.text[first:end].tobytes()
            for first, end in zip(members.name_starts, members.name_ends, strict=True)
        ]
        if len(structure.doubtful()) or names[1:2] != [b"payload"]:
            return None
        return structure.text[: members.starts[1]].tobytes().decode()


def _without(texts: pa.StringArray, left: pa.BooleanArray, prefix: str) -> tuple[pa.StringArray, pa.BooleanArray]:
    known = pc.and_(left, pc.starts_with(texts, prefix)) if pc.any(left).as_py() else left
    if not pc.any(known).as_py():
        return texts, left
    places = np.flatnonzero(known.to_numpy(zero_copy_only=False))
    some = texts.take(pa.array(places))
    offsets = offsets_of(some)
    events = spans(some.buffers()[2], offsets[:-1] + len(prefix.encode()), offsets[1:])
    shorter = pc.binary_join_element_wise('{"payload":', events, "")
    chosen = np.arange(len(texts))
    chosen[places] = len(texts) + np.arange(len(places))
    return pa.concat_arrays([texts, shorter]).take(pa.array(chosen)), pc.and_not(left, known)


def _texts_table(images: pa.StringArray | list[str], abouts: pa.StringArray | list[str]) -> pa.Table:
    columns = [pa.array(texts, pa.string()) if isinstance(texts, list) else texts for texts in (images, abouts)]
    return pa.table([column.cast(pa.large_binary()) for column in columns], names=["image", "about"])


@dataclass(frozen=True, slots=True)
class _One:
    """For each document one of its members, and how often it occurs."""

    starts: Numbers
    ends: Numbers
    count: Numbers

    @property
    def once(self) -> Mask:
        """Which documents have it once."""
        mask: Mask = self.count == 1
        return mask

    def texts(self, data: pa.Buffer, chosen: Numbers) -> pa.StringArray:
        """The values in some documents; null where there is none."""
        starts = self.starts[chosen]
        there = np.flatnonzero(self.count[chosen])
        found = spans(data, starts[there], self.ends[chosen][there])
        if len(there) == len(chosen):
            return found
        place = np.full(len(chosen), -1)
        place[there] = np.arange(len(there))
        return found.take(pa.array(place, mask=place < 0))


@dataclass(frozen=True, slots=True)
class _Parts:
    """The parts of some documents, where they are certain."""

    image: _One
    about: tuple[_One, ...]
    sure: Mask

    @classmethod
    def of(cls, structure: Structure, offsets: Numbers) -> _Parts:
        """The parts of the documents that start at ``offsets``."""
        top = _Members(structure, structure.members(1), offsets)
        op_at_top, payload = top.one("op"), top.one("payload")
        is_wrapped = payload.once & (structure.text[payload.starts] == ord("{")) & (op_at_top.count == 0)
        inner = _Members(structure, structure.members(2, payload.starts[is_wrapped]), offsets)
        parts = {name: _chosen(is_wrapped, inner.one(name), top.one(name)) for name in _PARTS}
        op = parts["op"]
        letters = structure.text[np.minimum(op.starts + 1, len(structure.text) - 1)]
        image = _chosen(letters == ord("d"), parts["before"], parts["after"])
        sure = op.once & (op.ends - op.starts == _OP_BYTES) & np.isin(letters, [ord(letter) for letter in _IMAGES])
        sure &= image.once & (structure.text[image.starts] == ord("{")) & (payload.count <= 1)
        for part in parts.values():
            sure &= part.count <= 1
        sure[np.searchsorted(offsets, structure.doubtful(), side="right") - 1] = False
        return cls(image, tuple(parts[name] for name in _ABOUT_PARTS), sure)

    def about_texts(self, data: pa.Buffer, chosen: Numbers) -> pa.StringArray:
        """For some documents an object of the parts other than images."""
        values = (pc.fill_null(part.texts(data, chosen), "null") for part in self.about)
        return _about(*values)


def _about(op: pa.StringArray, ts_ms: pa.StringArray, source: pa.StringArray) -> pa.StringArray:
    return pc.binary_join_element_wise('{"op":', op, ',"ts_ms":', ts_ms, ',"source":', source, "}", "")


@dataclass(frozen=True, slots=True)
class _Members:
    """Members of documents that start at ``offsets``."""

    structure: Structure
    values: Values
    offsets: Numbers

    def one(self, name: str) -> _One:
        """The member with that name of each document."""
        named = self.structure.named(self.values, name.encode())
        owners = np.searchsorted(self.offsets, named.starts, side="right") - 1
        starts, ends = np.zeros((2, len(self.offsets) - 1), np.int64)
        starts[owners], ends[owners] = named.starts, named.ends
        return _One(starts, ends, np.bincount(owners, minlength=len(starts)))


def _chosen(mask: Mask, yes: _One, no: _One) -> _One:
    return _One(
        np.where(mask, yes.starts, no.starts), np.where(mask, yes.ends, no.ends), np.where(mask, yes.count, no.count)
    )


def open_strictly(message: bytes) -> tuple[str, str] | Refusal:
    """The image of one message and its other fields, or why it has none: the reference for the bulk code."""
    document = document_of(message, sourced=True)
    if isinstance(document, Refusal):
        return document
    event = document
    payload = dict(document).get("payload")
    if isinstance(payload, Object) and "op" not in dict(document):
        event = payload
    names = [name for name, _ in document if name == "payload"] + [name for name, _ in event if name in _PARTS]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return Refusal(ErrorClass.DUPLICATE_FIELD, f"{twice}: the field is given twice")
    return _image_of(event)


def _image_of(event: Object) -> tuple[str, str] | Refusal:
    parts: dict[str, Json] = dict(event)
    op = parts.get("op")
    if not isinstance(op, str) or op not in _IMAGES:
        problem = "it has no op" if op is None else f"its op is {json_text(op)[:40]}"
        return Refusal(ErrorClass.NOT_AN_EVENT, f"the message is no change of a row: {problem}, not one of c, r, u, d")
    image = parts.get(_IMAGES[op])
    if not isinstance(image, Object):
        return Refusal(ErrorClass.NOT_AN_EVENT, f"the event of op {op} has no object as its `{_IMAGES[op]}`")
    about = (f'"{name}":{json_text(parts.get(name))}' for name in _ABOUT_PARTS)
    return json_text(image), f"{{{','.join(about)}}}"
