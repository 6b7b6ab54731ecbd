"""Updates that change a row's key, where the source sends one event: the old key is deleted, then the new row comes.

Rules:

1. A key column that is a field of the record has changed where the old image has another text for it. The delete's
   image is then the new one with the old values of these fields, so it has the new ``sequence``: the moment of the
   change.
2. A derived key is known only once it is computed, so each update deletes the row of its old image first. The event's
   own row follows it in the same message: for a key that did not change, that row counts.
3. An old key that is null deletes nothing: no row has it.
"""

import json
from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.settings import Stream
from common.settings.envelopes import DELETES, UPDATE
from common.settings.merging import KeyFields, key_fields_of
from stage_writer.decode.envelopes.row_changes import Images
from stage_writer.decode.json_document import Object, json_text, parse_document


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
