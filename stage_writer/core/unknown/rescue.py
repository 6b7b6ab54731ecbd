"""The rescue column: what each record has besides the declared fields, for `unknown_fields: rescue` and `evolve`.

Rules:

1. The column is null for a record that has nothing besides, and otherwise as `leftovers` beside this says.
2. Records without unknown fields cost no Python object each: `pyarrow.json` proves that a block has none, or
   `stage_writer.core.unknown.unknown_fields` finds those that have. These are read one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.schema import Field, Primitive
from stage_writer.core.unknown.leftovers import Leftovers
from stage_writer.core.unknown.unknown_fields import UnknownFinder

if TYPE_CHECKING:
    import duckdb

    from common.schema import StructType


class Rescuer:
    """Makes the rescue column. Over a connection that nobody else uses meanwhile."""

    def __init__(self, name: str, columns: StructType, connection: duckdb.DuckDBPyConnection) -> None:
        """``name`` is the column's."""
        self.field = Field(name, Primitive.STRING)
        self._finder = UnknownFinder(columns, connection)
        self._leftovers = Leftovers(columns)

    def of_proved(self, texts: pa.StringArray) -> pa.StringArray:
        """For messages that are proved to be one object each."""
        places = np.flatnonzero(self._finder.find(texts))
        if len(places) == 0:
            return pa.nulls(len(texts), pa.string())
        found = self.of(texts.take(pa.array(places)))
        taken = np.zeros(len(texts), np.int64)
        taken[places] = np.arange(len(places))
        absent = np.ones(len(texts), np.bool_)
        absent[places] = False
        return found.take(pa.array(taken, mask=absent))

    def of(self, texts: pa.StringArray) -> pa.StringArray:
        """For messages that the strict decoder takes, one at a time."""
        return pa.array([self._leftovers.of(text) for text in texts.to_pylist()], pa.string())
