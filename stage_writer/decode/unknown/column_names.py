"""Which fields can be columns of a stream's table, in addition to those that it has.

Rules:

1. A new column needs a name that no other column has, under the names that the table gives its fields (`rename`,
   `field_names`). Of several such fields known ones come first, then those that the stream gained first.
2. Nor does its field have the name of a derived column or another one that expressions know.
"""

from collections.abc import Iterable

from common.schema import StructType
from common.schema.evolution import extended
from common.schema.naming import restricted
from common.settings import Stream
from common.settings.columns import as_in_table, having_columns, made_columns, naming_of
from common.tables.changes import RESERVED as OF_MERGES

RESERVED = ("kafka", "_metadata", "_change_type", "_commit_version", "_commit_timestamp")
"""Names with a meaning of their own in expressions, Spark or Delta's change data feed."""


class ColumnNames:
    def __init__(self, stream: Stream, table: Iterable[str]) -> None:
        """``table`` are the names of the table's columns, without those that it gains."""
        self._stream = stream
        self._naming, self._made = naming_of(stream), made_columns(stream)
        declared = stream.record.schema_of_columns
        self._declared = {*map(str.casefold, declared.names)}
        others = {*table} - {*as_in_table(stream, declared).names}
        special = {*map(str.casefold, (*self._made, *RESERVED))} - self._declared
        self._taken = special.union(map(str.casefold, others))
        self._reserved = "" if stream.merge is None else OF_MERGES

    def free(self, known: StructType, offered: StructType) -> StructType:
        """What is offered of fields, at any depth, that have a column, or can have one next to those of ``known``."""
        names = {*known.names}
        free = StructType(tuple(field for field in offered if field.name in names or self._is_free(field.name)))
        if not self._naming.renames:
            return free
        return restricted(free, having_columns(self._stream, extended(known, free)))

    def _is_free(self, name: str) -> bool:
        column = self._naming.name_of((name,), self._made) or name
        return name.casefold() not in self._declared and not any(map(self._is_taken, (name, column)))

    def _is_taken(self, name: str) -> bool:
        folded = name.casefold()
        return folded in self._taken or bool(self._reserved and folded.startswith(self._reserved))
