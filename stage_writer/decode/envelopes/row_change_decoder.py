"""Change events other than Debezium's: the images of the rows become the records, and the change the column `_cdc`.

Rules:

1. A message is read into the few fields of its envelope, with the rows' images as JSON text (`Envelope.fields`); the
   images are then read like any record, so formats, lenience and unknown fields apply to their fields.
2. A message may have several images, in the order of their changes. All become rows, or none: if one is refused, the
   message is a dead letter.
3. A message that is part of the feed and changes no row (a schema change, the start of a snapshot) is passed over, and
   counted as filtered. One that is neither is refused. So is a truncated table, by a class of its own.
4. Where events are merged, an update that changes the key is a delete of the old key, then an upsert: the source sends
   one event for both. Its ``old`` image says so (`stage_writer.decode.envelopes.old_keys`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.schema import to_arrow_type
from common.settings.columns import CDC_COLUMN
from common.settings.formats import forms_of
from stage_writer.decode.decode import Decoder
from stage_writer.decode.decode_options import DecodeOptions, no_native_decoder
from stage_writer.decode.envelopes.canal import Canal
from stage_writer.decode.envelopes.debezium import CDC_FIELD
from stage_writer.decode.envelopes.dms import Dms
from stage_writer.decode.envelopes.maxwell import Maxwell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from stage_writer.decode.batch import Messages
    from stage_writer.decode.decode import Decoded, Decodes
    from stage_writer.decode.decode_options import MakeNativeDecoder
    from stage_writer.decode.envelopes.old_keys import OldKeys
    from stage_writer.decode.envelopes.row_changes import Envelope, Images, RowChanges
    from stage_writer.decode.rejects import Reject

    Index = NDArray[np.int64]


class RowChangeDecoder:
    """Decodes the rows' images with a decoder, and adds `_cdc`. Not thread-safe."""

    def __init__(
        self,
        inner: Decodes,
        envelope: Envelope,
        old_keys: OldKeys | None = None,
        native_decoder: MakeNativeDecoder = no_native_decoder,
    ) -> None:
        """With ``old_keys`` updates that change the key delete the old one (rule 4)."""
        self._inner = inner
        self._envelope = envelope
        self._old_keys = old_keys
        self._parts = Decoder(
            envelope.fields, DecodeOptions(forms_of(envelope.fields, envelope.forms)), native_decoder=native_decoder
        )
        self.columns = inner.columns.with_fields((CDC_FIELD,))

    def decode(self, messages: Messages) -> Decoded:
        """The result for the messages; a message may have several rows."""
        parts = self._parts.decode(messages.values)
        changes = self._envelope.changes(parts.rows)
        images = changes.images if self._old_keys is None else self._old_keys.with_deletes(changes.images)
        owners = parts.row_index[images.owners]
        values = images.texts.cast(pa.large_binary())
        decoded = self._inner.decode(replace(replace(messages, values=messages.keys).taken(owners), values=values))
        rows, indexes = decoded.rows, decoded.row_index
        rejects = {reject.index: reject for reject in _of_images(decoded.rejects, owners)}
        if rejects and (owners[1:] == owners[:-1]).any():
            kept = ~np.isin(owners[indexes], list(rejects))
            rows, indexes = rows.filter(pa.array(kept)), indexes[kept]
        of_parts = (replace(reject, index=int(parts.row_index[reject.index])) for reject in changes.refused)
        rejects |= {reject.index: reject for reject in (*parts.rejects, *of_parts)}
        return replace(
            decoded,
            rows=rows.append_column(CDC_COLUMN, _cdc(changes, images, indexes)),
            row_index=owners[indexes],
            rejects=tuple(rejects[each] for each in sorted(rejects)),
            tombstones=parts.tombstones,
            passed_over=parts.row_index[changes.passed_over],
        )


def _cdc(changes: RowChanges, images: Images, indexes: Index) -> pa.StructArray:
    """The column `_cdc` for rows of these images."""
    owners = pa.array(images.owners[indexes])
    parts = [changes.ts.take(owners), changes.source.take(owners), changes.source_ts.take(owners)]
    return pa.StructArray.from_arrays(
        [images.ops.take(pa.array(indexes)), *parts], fields=list(to_arrow_type(CDC_FIELD.type))
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


ENVELOPES: Mapping[str, Envelope] = {"maxwell": Maxwell(), "canal": Canal(), "dms": Dms()}
