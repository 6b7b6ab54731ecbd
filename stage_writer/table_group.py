"""Tables of a stream that have the same columns, by the same settings: their messages become rows as one stream's.

Rules:

1. Tables have the declared columns, and those that the fields of their own records have gained
   (common/settings/own_columns.py).
2. With `merge` and `route_columns: own`, a table's keys are the names in the message key of its route's first event, or
   in a field of that event (`KEY_NAMES`), on which all writers agree with the route; or those of its next event where
   it appeared without keys (under `route_columns: shared`). An event with other names is a reject: merged by the
   table's keys, it could overwrite another row. Keys that the settings give are not compared.
3. Where such a table lacks the column of a key, message keys with the names offer it, those of tombstones too. As long
   as it lacks one, each of its events is a reject; that is staged only once nothing more can be agreed on.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import pyarrow as pa

from common.errors import ExpressionError, SchemaError
from common.schema import Field, StructType
from common.schema.agreement import PublishedColumns
from common.schema.evolution import NO_COLUMNS, joined_columns, with_additions
from common.settings import Stream
from common.settings.columns import as_in_table, rescue_column_of_table
from common.settings.envelopes import KEY_NAMES
from common.settings.loading import LoadSetting
from common.settings.merging import columns_of_rows
from stage_writer.convert import RecordPipeline, offers_of
from stage_writer.decode.batch import Index, Messages
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.decode.unknown.column_names import ColumnNames
from stage_writer.decode.unknown.evolving import Additions, usable
from stage_writer.layers import RecordInputs
from stage_writer.shape.changes.events import deletes_by_tombstones
from stage_writer.shape.changes.key_names import EventKeyNames, KeyNames, text_of
from stage_writer.shape.rows import Rows

KeysOf = Callable[[Messages], pa.BinaryArray | pa.LargeBinaryArray]
"""Message keys as JSON."""

KEYS_READ = 100
"""Of how many message keys the names, or the types of key columns, are taken."""


@dataclass(frozen=True, slots=True)
class Converted:
    rows: Rows
    tombstones: Index
    """Those that delete no row."""
    offered: list[StructType]
    """By batch."""


class TableGroup:
    """Raises SchemaError and ExpressionError for invalid settings."""

    def __init__(
        self,
        stream: Stream,
        name: str,
        part: str,
        gained: StructType,
        inputs: RecordInputs,
        *,
        keys_of: KeysOf,
        named: bool,
    ) -> None:
        """``stream`` has one of the tables as its main one; ``name`` is the key of its settings, if these are its own.

        ``gained`` are the columns in the ``part`` of what the stream has gained (`part_of`). ``named``: the keys are
        the names in message keys (rule 2).
        """
        self.name = name
        self.part, self.gained = part, gained
        self._keys_of = keys_of
        self._stream = stream
        self._keys = () if stream.merge is None else stream.merge.keys
        field = KEY_NAMES.get(stream.record.envelope)
        self._names = KeyNames(self._keys) if named and self._keys and field is None else None
        self._event_names = (
            EventKeyNames(field, inputs.native_decoder) if named and self._keys and field is not None else None
        )
        declared = stream.record.schema_of_columns
        names = ColumnNames(stream, columns_of_rows(stream))
        added = usable(declared, gained, names)
        self.has_no_keys = stream.merge is not None and not self._keys
        fields = as_in_table(stream, with_additions(declared, added))
        self.problem = self._lacking({*columns_of_rows(stream), *fields.names})
        """Why events cannot be merged into its tables."""
        self.pipeline = self._pipeline(added, inputs)
        self._offers = None
        if stream.record.evolves:
            room = PublishedColumns(declared, gained, stream.record.evolve_limit).room
            self._offers = offers_of(stream, self.pipeline, names, room)

    def _lacking(self, known: set[str]) -> str:
        route = self.name.removeprefix("routes.")
        if self.has_no_keys:
            return f"no event of the route {route!r} has named the keys of its table"
        if self._stream.record.has_own_columns and not known.issuperset(self._keys):
            return f"no event of the route {route!r} had the key columns {', '.join(self._keys)}"
        return ""

    def _pipeline(self, added: Additions, inputs: RecordInputs) -> RecordPipeline:
        if not self.problem:
            try:
                return RecordPipeline(self._stream, inputs, gained=added)
            except (SchemaError, ExpressionError) as error:  # a key of a type that cannot be one
                if not self._stream.record.has_own_columns:
                    raise
                self.problem = error.problem
        return RecordPipeline(self.unmerged(self._stream), inputs, gained=added)

    @staticmethod
    def unmerged(stream: Stream) -> Stream:
        """The stream of a table that no event can be merged into yet."""
        return stream.model_copy(update={"merge": None, "load": LoadSetting.AUTO})

    def convert(self, messages: Messages) -> Converted:
        lost = np.zeros(len(messages), np.bool_) if self._names is None else self._names.differ(self._keys_of(messages))
        rejects = self._without_keys(np.flatnonzero(lost), "message key")
        kept = np.flatnonzero(~lost)
        begun = self.pipeline.begin(messages.taken(kept))
        if self._event_names is not None:
            other = self._event_names.differ(self.pipeline.bodies_of(begun.messages), self._keys)[begun.rows.index]
            why = self._without_keys(begun.rows.index[other], self._event_names.field)
            begun = replace(begun, rows=begun.rows.without(other, why))
        rows = self.pipeline.finish(begun)
        rejects += [replace(reject, index=int(kept[reject.index])) for reject in rows.rejects]
        index, gone = kept[rows.index], kept[begun.tombstones]
        rows = replace(rows, index=index, filtered=kept[rows.filtered])
        offered = self._offered(messages, rows)
        deletes = deletes_by_tombstones(self._stream)
        if self.problem:
            if self._event_names is None:
                offered = [*map(joined_columns, offered, self._offered_by_keys(messages, kept))]
            left = np.union1d(index, gone) if deletes else index
            rejects += [Reject(place, ErrorClass.NULL_KEY, self.problem) for place in left.tolist()]
            rows = replace(rows, table=rows.table.slice(0, 0), index=index[:0])
        if self.part:
            offered = [StructType((Field(self.part, each),)) if each.fields else each for each in offered]
        return Converted(replace(rows, rejects=tuple(rejects)), gone[:0] if deletes else gone, offered)

    def _without_keys(self, index: Index, where: str) -> list[Reject]:
        why = f"its {where} does not have the names {', '.join(self._keys)}, by which its table is merged"
        return [Reject(place, ErrorClass.UNREADABLE_KEY, why) for place in index.tolist()]

    def _offered(self, messages: Messages, rows: Rows) -> list[StructType]:
        """The content of the rescue column as offers."""
        texts = None if self._offers is None else rows.table[rescue_column_of_table(self._stream)]
        if self._offers is None or texts is None or texts.null_count == len(texts):
            return [NO_COLUMNS] * len(messages.batches)
        parts = pairwise(messages.bounds(rows.index).tolist())
        return [self._offers.of(texts.slice(start, end - start).drop_null().to_pylist()) for start, end in parts]

    def _offered_by_keys(self, messages: Messages, index: Index) -> list[StructType]:
        """The key columns that the message keys of each batch offer (rule 3)."""
        offered = []
        for part in messages.parted(index):
            keys = self._keys_of(messages.taken(part[:KEYS_READ])).to_pylist()
            texts = [text for key in keys if (text := text_of(key)) is not None]
            columns = NO_COLUMNS if self._offers is None else self._offers.of(texts)
            offered.append(StructType(tuple(field for field in columns if field.name in self._keys)))
        return offered
