"""Debezium's change events: the image of the row becomes the record, and the change itself the column `_cdc`.

Rules:

1. An event is the message, or its `payload` (Connect's JSON with its schema); an object with a `payload` whose `op` is
   absent or null is of the second kind.
2. The record is `after` for the ops c, r and u, and `before` for d. It is read like any record: formats, lenience and
   unknown fields apply to its fields. The other image is ignored. `_cdc` is made of ``op``, ``ts_ms`` and ``source``.
3. An event with another op, or without its image, is refused: it is not a row change (m, a message); t, a truncated
   table, has a class of its own. So is one with a duplicate part or payload.
4. The native decoder reads ordinary events into columns of which the images are JSON text. The others are opened one at
   a time, and only that refuses.
5. Records of the topics for schema changes, for transactions and for heartbeats are passed over: such topics have the
   connector's prefix, so a pattern that matches its tables matches them too.
"""

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import Field, Primitive, nullable_columns, parse_ddl
from common.settings.envelopes import DEBEZIUM_PARTS
from common.settings.formats import forms_of
from stage_writer.decode.batch import Index, Mask, blocks, in_order
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import DecodeOptions, MakeNativeDecoder, no_native_decoder
from stage_writer.decode.envelopes.row_changes import Images, Opened, about_of, is_object, is_one_of, no_image
from stage_writer.decode.json_document import Json, Members, Object, end_of, space_end
from stage_writer.decode.rejects import ErrorClass, Refusal, Reject, moved, truncated
from stage_writer.decode.strict import document_of

_ABOUT = parse_ddl(
    "op STRING NOT NULL, ts_ms TIMESTAMP, "
    "source STRUCT<db: STRING, `schema`: STRING, `table`: STRING, collection: STRING, ts_ms: TIMESTAMP>"
)
_ABOUT_FORMS = {"ts_ms": "epoch_ms", "source.ts_ms": "epoch_ms"}
_EVENT = nullable_columns(_ABOUT).with_fields((Field("before", Primitive.STRING), Field("after", Primitive.STRING)))
_EVENT_FORMS = {**_ABOUT_FORMS, "before": "json", "after": "json"}
_MESSAGE = _EVENT.with_fields((Field("payload", _EVENT),))
_MESSAGE_FORMS = {**_EVENT_FORMS, **{f"payload.{path}": form for path, form in _EVENT_FORMS.items()}}
_IMAGES = {"c": "after", "r": "after", "u": "after", "d": "before"}
_PARTS = _EVENT.names
_TRUNCATES = "t"


_Part = tuple[Index, pa.StructArray]
"""Some events: the indices of their messages; the columns of `_ABOUT`, and the images as JSON objects."""


class DebeziumOpener:
    """An `Opener`."""

    def __init__(self, native_decoder: MakeNativeDecoder = no_native_decoder) -> None:
        self._first = native_decoder(_MESSAGE, DecodeOptions(forms_of(_MESSAGE, _MESSAGE_FORMS)))
        self._about = Decoder(_ABOUT, DecodeOptions(forms_of(_ABOUT, _ABOUT_FORMS)))

    def opened(self, values: pa.BinaryArray) -> Opened:
        nulls = values.is_null().to_numpy(zero_copy_only=False)
        parts, left = self._opened_natively(values, np.flatnonzero(~nulls))
        strict, rejects, passed_over = self._opened_strictly(values, left)
        index, events = in_order([*parts, strict])
        op, ts, source, texts = events.flatten()
        space = pc.coalesce(pc.struct_field(source, "schema"), pc.struct_field(source, "db"))
        table = pc.coalesce(pc.struct_field(source, "table"), pc.struct_field(source, "collection"))
        about = about_of(ts, pc.binary_join_element_wise(space, table, "."), pc.struct_field(source, "ts_ms"))
        images = Images(texts, np.arange(len(index)), op, pa.nulls(len(index), pa.string()))
        return Opened(images, about, index, rejects, np.flatnonzero(nulls), passed_over)

    def _opened_natively(self, values: pa.BinaryArray, present: Index) -> tuple[list[_Part], Index]:
        """The events that the native decoder takes, by block, and the indices of the other messages."""
        parts: list[_Part] = []
        if self._first is None:
            return parts, present
        left = [np.zeros(0, np.int64)]
        for start, block in blocks(values.drop_null() if len(present) < len(values) else values):
            index = present[start : start + len(block)]
            taken = self._first.read(block)
            opened, is_event = _events(taken.rows, index[taken.is_decoded])
            parts.append(opened)
            is_left = np.ones(len(block), np.bool_)
            is_left[np.flatnonzero(taken.is_decoded)[is_event]] = False
            left.append(index[is_left])
        return parts, np.concatenate(left)

    def _opened_strictly(self, values: pa.BinaryArray, left: Index) -> tuple[_Part, tuple[Reject, ...], Index]:
        """The events among these messages, the refused ones, and those that are passed over."""
        passed_over: list[int] = []
        images: list[str] = []
        abouts: list[bytes] = []
        indexes: list[int] = []
        rejects: list[Reject] = []
        for row in left.tolist():
            outcome = open_strictly(values[row].as_py())
            if isinstance(outcome, Refusal):
                rejects.append(outcome.at(row))
            elif outcome is None:
                passed_over.append(row)
            else:
                images.append(outcome[0])
                abouts.append(outcome[1].encode())
                indexes.append(row)
        about = self._about.decode(abouts)
        rejects += moved(about.rejects, indexes)
        columns = [column.combine_chunks() for column in about.rows.columns]
        texts = pa.array(images, pa.string()).take(pa.array(about.row_index))
        index = np.array(indexes, np.int64)[about.row_index]
        return (index, _rows(columns, texts)), tuple(rejects), np.array(passed_over, np.int64)


def _events(rows: pa.StructArray, index: Index) -> tuple[_Part, Mask]:
    """The events among rows of `_MESSAGE`, and which rows they are (rules 1 and 3)."""
    outer = dict(zip(_MESSAGE.names, rows.flatten(), strict=True))
    inner = dict(zip(_PARTS, outer["payload"].flatten(), strict=True))
    is_inner = outer["op"].is_null().to_numpy(zero_copy_only=False)
    parts = {name: _chosen(is_inner, inner[name], outer[name]) for name in _PARTS}
    image = _chosen(is_one_of(parts["op"], ("d",)), parts["before"], parts["after"])
    mask = is_one_of(parts["op"], _IMAGES) & is_object(image)
    events = _rows([parts[name] for name in _ABOUT.names], image)
    return (index[mask], events if mask.all() else events.filter(pa.array(mask))), mask


def _chosen(mask: Mask, yes: pa.Array, no: pa.Array) -> pa.Array:
    if not mask.any():
        return no
    if mask.all():
        return yes
    indexes = np.arange(len(mask))
    return pa.concat_arrays([no, yes]).take(pa.array(indexes + np.where(mask, len(mask), 0)))


def _rows(about: list[pa.Array], images: pa.Array) -> pa.StructArray:
    columns = [*about, images.cast(pa.large_binary())]
    return pa.StructArray.from_arrays(columns, names=[*_ABOUT.names, "image"])


def open_strictly(message: bytes) -> tuple[str, str] | Refusal | None:
    """The image of one message and its other fields, or why it has none; None if it is passed over (rule 5).

    The native decoder must agree with it.
    """
    document = document_of(message, sourced=False)
    if isinstance(document, Refusal):
        return _refusal_of(message)
    text = message.decode()
    event, begin = document, space_end(text, 0)
    outer = dict(document)
    payload = outer.get("payload")
    if isinstance(payload, Object) and outer.get("op") is None:
        event, begin = payload, _spans(text, begin)["payload"][0]
    names = [name for name, _ in document if name == "payload"] + [name for name, _ in event if name in _PARTS]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return Refusal(ErrorClass.DUPLICATE_FIELD, f"{twice}: the field occurs twice")
    texts = {name: text[first:end] for name, (first, end) in _spans(text, begin).items()}
    parts = dict(event)
    return None if _is_passed_over(parts) else _image_of(parts, texts)


def _is_passed_over(parts: Mapping[str, Json]) -> bool:
    """Whether it is a schema change, the start or end of a transaction, or a heartbeat."""
    if not DEBEZIUM_PARTS.isdisjoint(parts):
        return False
    is_schema_change = {"source", "databaseName"} <= parts.keys() and not {"ddl", "tableChanges"}.isdisjoint(parts)
    is_border = parts.get("status") in ("BEGIN", "END") and isinstance(parts.get("id"), str)
    return is_schema_change or is_border or parts.keys() == {"ts_ms"}


def _refusal_of(message: bytes) -> Refusal:
    """Why a message is no object, in the words of a sourced document's parser."""
    document = document_of(message, sourced=True)
    if not isinstance(document, Refusal):
        raise TypeError("the parsers disagree about a message")
    return document


def _spans(text: str, begin: int) -> dict[str, tuple[int, int]]:
    """Where the values of the object that begins there are."""
    spans: dict[str, tuple[int, int]] = {}
    for name, _, first in (members := Members(text, begin)):
        members.at = end_of(text, first)
        spans[name] = (first, members.at)
    return spans


def _image_of(parts: Mapping[str, Json], texts: Mapping[str, str]) -> tuple[str, str] | Refusal:
    op = parts.get("op")
    if op == _TRUNCATES:
        return truncated()
    if not isinstance(op, str) or op not in _IMAGES:
        problem = "it has no op" if op is None else f"its op is {texts['op'][:40]}"
        return Refusal(ErrorClass.NOT_AN_EVENT, f"the message is not a row change: {problem}, not one of c, r, u, d")
    image = _IMAGES[op]
    if not isinstance(parts.get(image), Object):
        return no_image("op", op, image)
    about = (f'"{name}":{texts.get(name, "null")}' for name in _ABOUT.names)
    return texts[image], f"{{{','.join(about)}}}"
