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

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from common.errors import ExpressionError, SchemaError
from common.schema import Field, StructType
from common.schema.agreement import PublishedColumns
from common.schema.evolution import NO_COLUMNS, joined_columns, with_additions
from common.settings import Stream
from common.settings.columns import as_in_table, rescue_column_of_table
from common.settings.envelopes import KEY_NAMES
from common.settings.merging import columns_of_rows
from common.settings.values import LoadSetting
from stage_writer.convert import RecordPipeline, offers_of
from stage_writer.decode.batch import Index, Mask, Messages
from stage_writer.decode.rejects import ErrorClass, Reject, moved
from stage_writer.decode.unknown.column_names import ColumnNames
from stage_writer.decode.unknown.evolving import Additions, usable
from stage_writer.layers import RecordInputs
from stage_writer.shape.changes.events import deletes_by_tombstones
from stage_writer.shape.changes.key_names import EventKeyNames, KeyNames, text_of
from stage_writer.shape.explode import Exploder
from stage_writer.shape.rows import Destinations, Rows
from stage_writer.shape.slicing import Slice

KeysOf = Callable[[Messages], pa.BinaryArray | pa.LargeBinaryArray]
"""Message keys as JSON."""

KEYS_READ = 100
"""Of how many message keys the names, or the types of key columns, are taken."""


@dataclass(frozen=True, slots=True)
class Begun:
    """The messages of one group before their rows may become several."""

    group: TableGroup
    tables: Destinations
    """Of all messages: only the group's have any."""
    kept: Index
    """The slice's messages, among all."""
    slice: Slice
    rejects: tuple[Reject, ...]
    """The group's other messages."""

    @property
    def index(self) -> Index:
        """The message of each row."""
        return self.kept[self.slice.rows.index]

    @property
    def refused(self) -> list[int]:
        """The messages without rows, in any order."""
        return [reject.index for reject in (*moved(self.slice.rows.rejects, self.kept), *self.rejects)]

    def without(self, refused: Mask) -> Begun:
        """Without the rows of messages that another table refuses."""
        lost = refused[self.index]
        return self._with(self.slice.rows.without(lost, ())) if lost.any() else self

    @property
    def _exploder(self) -> Exploder:
        if self.group.pipeline.exploder is None:
            raise TypeError("the group does not explode")
        return self.group.pipeline.exploder

    def sizes(self) -> Index:
        """The size of the rows that each message becomes, in bytes."""
        sizes = np.zeros(len(self.tables), np.int64)
        np.add.at(sizes, self.index, self._exploder.sizes(self.slice.rows))
        return sizes

    def pieces(self, most_bytes: int) -> list[Begun]:
        """The one message's row as several; none where it has no row here."""
        rows = self.slice.rows
        size_bytes = int(self._exploder.sizes(rows).sum())
        pieces = self._exploder.pieces(rows, size_bytes, most_bytes) if len(rows) else ()
        return [self._with(piece) for piece in pieces]

    def _with(self, rows: Rows) -> Begun:
        return replace(self, slice=replace(self.slice, rows=rows))


@dataclass(frozen=True, slots=True)
class Converted:
    """The result for the messages of one group, among all messages."""

    rows: Rows
    tombstones: Index
    """The tombstones that delete no row."""
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

    @property
    def explodes(self) -> bool:
        return self.pipeline.exploder is not None

    def begin(self, messages: Messages, tables: Destinations, keep: Callable[[Rows], Rows] | None = None) -> Begun:
        """The steps before a row may become several, for the messages with ``tables``.

        ``keep`` as of `RecordPipeline.begin`, without message keys.
        """
        picked = kept = tables.messages
        rejects: list[Reject] = []
        if self._names is not None:
            lost = self._names.differ(self._keys_of(messages.taken(picked)))
            rejects, kept = self._without_keys(picked[lost], "message key"), picked[~lost]
        begun = self.pipeline.begin(messages.taken(kept), keep)
        if self._event_names is not None:
            other = self._event_names.differ(self.pipeline.bodies_of(begun.messages), self._keys)[begun.rows.index]
            why = self._without_keys(begun.rows.index[other], self._event_names.field)
            begun = replace(begun, rows=begun.rows.without(other, why))
        return Begun(self, tables, kept, begun, tuple(rejects))

    def finish(self, begun: Begun, messages: Messages) -> Converted:
        """The remaining steps, for some of all ``messages``."""
        kept, rows = begun.kept, self.pipeline.finish(begun.slice)
        rejects = [*begun.rejects, *moved(rows.rejects, kept)]
        index, gone = kept[rows.index], kept[begun.slice.tombstones]
        rows = replace(rows, index=index, filtered=kept[rows.filtered], tables=begun.tables)
        offered = self._offered(messages, index, rows.table, rescue_column_of_table(self._stream))
        deletes = deletes_by_tombstones(self._stream)
        if self.problem:
            if self._event_names is None:
                offered = [*map(joined_columns, offered, self._offered_by_keys(messages, kept))]
            left = np.union1d(index, gone) if deletes else index
            rejects += [Reject(place, ErrorClass.NULL_KEY, self.problem) for place in left.tolist()]
            rows = replace(rows, table=rows.table.slice(0, 0), index=index[:0])
        name = f" (in {self.name})" if self.name else ""
        rows = replace(rows, rejects=tuple(replace(reject, error=f"{reject.error}{name}") for reject in rejects))
        return Converted(rows, gone[:0] if deletes else gone, self._of_part(offered))

    def offered(self, begun: Begun, messages: Messages) -> list[StructType]:
        """What messages offer before their rows are made."""
        name = self._stream.record.rescue_column
        return self._of_part(self._offered(messages, begun.index, begun.slice.rows.table, name))

    def _of_part(self, offered: list[StructType]) -> list[StructType]:
        if not self.part:
            return offered
        return [StructType((Field(self.part, each),)) if each.fields else each for each in offered]

    def _without_keys(self, index: Index, where: str) -> list[Reject]:
        why = f"its {where} does not have the names {', '.join(self._keys)}, by which its table is merged"
        return [Reject(place, ErrorClass.UNREADABLE_KEY, why) for place in index.tolist()]

    def _offered(self, messages: Messages, index: Index, rows: pa.Table, name: str | None) -> list[StructType]:
        """The content of the rescue column, which has a ``name``, as offers."""
        if self._offers is None:
            return [NO_COLUMNS] * len(messages.batches)
        return self.pipeline.offered(self._offers, rows[name], index, messages)

    def _offered_by_keys(self, messages: Messages, index: Index) -> list[StructType]:
        """The key columns that the message keys of each batch offer (rule 3)."""
        offered = []
        for part in messages.parted(index):
            keys = self._keys_of(messages.taken(part[:KEYS_READ])).to_pylist()
            texts = [text for key in keys if (text := text_of(key)) is not None]
            columns = NO_COLUMNS if self._offers is None else self._offers.of(texts)
            offered.append(StructType(tuple(field for field in columns if field.name in self._keys)))
        return offered
