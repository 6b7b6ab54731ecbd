"""Change events: the images of the rows become the records, and the change itself the column `_cdc`.

Rules:

1. A message is opened into the few fields of its envelope, with the rows' images as JSON text (`Opener`); the images
   are then read like any record, so formats, lenience and unknown fields apply to their fields.
2. A message may have several images, in the order of their changes. All become rows, or none: if one is refused, the
   message is a dead letter.
3. A message that is part of the feed and changes no row (a schema change, the start of a snapshot) is passed over, and
   counted as filtered. One that is neither is refused. So is a truncated table, by a class of its own.
4. Where events are merged, an update that changes the key is a delete of the old key, then an upsert: the source sends
   one event for both. Its ``old`` image says so (`stage_writer.decode.envelopes.row_change_decoder`).
"""

import json
from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import Field, parse_ddl, to_arrow_type
from common.settings import Stream
from common.settings.columns import CDC_COLUMN
from common.settings.envelopes import DELETES, UPDATE
from common.settings.formats import forms_of
from common.settings.merging import KeyFields, key_fields_of
from stage_writer.decode.batch import Index, Messages
from stage_writer.decode.decode import Decoded, Decoder, MessageDecoder
from stage_writer.decode.decode_options import DecodeOptions, MakeNativeDecoder, no_native_decoder
from stage_writer.decode.envelopes.row_changes import Envelope, Images, Opened, Opener
from stage_writer.decode.json_document import Object, json_text, parse_document
from stage_writer.decode.rejects import Reject

CDC_FIELD = Field(CDC_COLUMN, parse_ddl("op STRING, ts TIMESTAMP, source STRING, source_ts TIMESTAMP"))


@dataclass(frozen=True, slots=True)
class OldKeys:
    key: KeyFields
    op: str
    """The envelope's operation for a delete."""
    update: str

    def with_deletes(self, images: Images) -> Images:
        """The images, with a delete of the old key before each update that changes it."""
        candidates = pc.and_(pc.equal(images.ops, self.update), pc.starts_with(images.old, "{"))
        if not self.key.is_derived:
            named = [pc.match_substring(images.old, text) for text in (*map(_quoted, self.key.fields), "\\")]
            candidates = pc.and_(candidates, reduce(pc.or_, named))
        indexes = np.flatnonzero(pc.fill_null(candidates, fill_value=False).to_numpy(zero_copy_only=False))
        deletes = [
            (index, text)
            for index in indexes.tolist()
            if (text := self.deleted(images.texts[index].as_py(), images.old[index].as_py())) is not None
        ]
        if not deletes:
            return images
        before = np.array([index for index, _ in deletes])
        order = np.argsort(np.concatenate([np.arange(len(images.owners)) * 2 + 1, before * 2]), kind="stable")
        taken, chosen = pa.array(order), pa.array(before)
        texts = pa.array([text for _, text in deletes], images.texts.type)
        return Images(
            pa.concat_arrays([images.texts, texts]).take(taken),
            np.concatenate([images.owners, images.owners[before]])[order],
            pa.concat_arrays([images.ops, pa.array([self.op] * len(deletes), images.ops.type)]).take(taken),
            pa.concat_arrays([images.old, images.old.take(chosen)]).take(taken),
        )

    def deleted(self, image: str, old: str) -> str | None:
        """The image of the row that an update has moved; None where its key is the same."""
        now, before = _texts_of(image), _texts_of(old)
        if self.key.is_derived:
            changed = {name: text for name, text in before.items() if name != self.key.sequence}
        else:
            changed = {
                name: before[name] for name in self.key.fields if before.get(name, now.get(name)) != now.get(name)
            }
        if not changed or any(changed.get(name) == "null" for name in self.key.fields):
            return None
        members = (f"{_quoted(name)}:{text}" for name, text in (now | changed).items())
        return f"{{{','.join(members)}}}"


def old_keys_of(stream: Stream) -> OldKeys | None:
    """None for a stream without such updates."""
    key, envelope = key_fields_of(stream), stream.record.envelope
    return None if key is None else OldKeys(key, DELETES[envelope][0], UPDATE[envelope])


def _texts_of(text: str) -> dict[str, str]:
    document = parse_document(text, sourced=True)
    return {name: json_text(value) for name, value in document} if isinstance(document, Object) else {}


def _quoted(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


class EnvelopeOpener:
    """An `Opener` of messages whose parts are read like columns."""

    def __init__(self, envelope: Envelope, native_decoder: MakeNativeDecoder = no_native_decoder) -> None:
        self._envelope = envelope
        reading = DecodeOptions(forms_of(envelope.fields, envelope.forms))
        self._parts = Decoder(envelope.fields, reading, native_decoder=native_decoder)

    def opened(self, values: pa.BinaryArray) -> Opened:
        return self._envelope.opened(self._parts.decode(values))


class RowChangeDecoder:
    """Decodes the rows' images with a decoder, and adds `_cdc`. Not thread-safe."""

    def __init__(self, inner: MessageDecoder, opener: Opener, old_keys: OldKeys | None = None) -> None:
        """With ``old_keys`` updates that change the key delete the old one (rule 4)."""
        self._inner = inner
        self._opener = opener
        self._old_keys = old_keys
        self.columns = inner.columns.with_fields((CDC_FIELD,))

    def decode(self, messages: Messages) -> Decoded:
        """The result for the messages; a message may have several rows."""
        opened = self._opener.opened(messages.values)
        images = opened.images if self._old_keys is None else self._old_keys.with_deletes(opened.images)
        owners = opened.events[images.owners]
        values = images.texts.cast(pa.large_binary())
        decoded = self._inner.decode(replace(replace(messages, values=messages.keys).taken(owners), values=values))
        rows, indexes = decoded.rows, decoded.row_index
        rejects = {reject.index: reject for reject in _of_images(decoded.rejects, owners)}
        if rejects and (owners[1:] == owners[:-1]).any():
            kept = ~np.isin(owners[indexes], list(rejects))
            rows, indexes = rows.filter(pa.array(kept)), indexes[kept]
        rejects |= {reject.index: reject for reject in opened.rejects}
        about = opened.about.take(pa.array(images.owners[indexes])).flatten()
        columns = [images.ops.take(pa.array(indexes)), *about]
        cdc = pa.StructArray.from_arrays(columns, fields=list(to_arrow_type(CDC_FIELD.type)))
        return replace(
            decoded,
            rows=rows.append_column(CDC_COLUMN, cdc),
            row_index=owners[indexes],
            rejects=tuple(rejects[each] for each in sorted(rejects)),
            tombstones=opened.tombstones,
            passed_over=opened.passed_over,
        )


def _of_images(rejects: tuple[Reject, ...], owners: Index) -> list[Reject]:
    """The rejects of messages, each for its first image that is refused."""
    by_owner: dict[int, Reject] = {}
    for reject in rejects:
        owner = int(owners[reject.index])
        first, end = np.searchsorted(owners, [owner, owner + 1]).tolist()
        where = f"row {reject.index - first + 1} of {end - first}: " if end - first > 1 else ""
        by_owner.setdefault(owner, replace(reject, index=owner, error=where + reject.error))
    return list(by_owner.values())
