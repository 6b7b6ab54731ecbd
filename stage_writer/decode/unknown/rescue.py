"""The rescue column: the undeclared fields of each record, for `unknown_fields: rescue` and `evolve`.

Rules:

1. The column is null for a record without undeclared fields, and otherwise as described in `leftovers`.
2. Records without unknown fields cost no Python object each: `pyarrow.json` proves that a block has none, or
   `stage_writer.decode.unknown.unknown_fields` finds the records that have some. These are read one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.schema import Field, Primitive
from stage_writer.decode.unknown.leftovers import Leftovers
from stage_writer.decode.unknown.unknown_fields import UnknownFinder

if TYPE_CHECKING:
    import duckdb
    from numpy.typing import NDArray

    from common.schema import StructType


class Rescuer:
    """Makes the rescue column. Needs exclusive use of its connection."""

    def __init__(self, name: str, columns: StructType, connection: duckdb.DuckDBPyConnection) -> None:
        """``name`` is the column's name."""
        self.field = Field(name, Primitive.STRING)
        self._finder = UnknownFinder(columns, connection)
        self._leftovers = Leftovers(columns)

    def of_proved(self, texts: pa.StringArray) -> pa.StringArray:
        """For messages that are proved to be one object each."""
        has_unknown = self._finder.find(texts)
        return self.of_some(texts.filter(pa.array(has_unknown)), has_unknown)

    def of_some(self, texts: pa.StringArray, has_unknown: NDArray[np.bool_]) -> pa.StringArray:
        """For messages where the ones that may have unknown fields are known; ``texts`` are these."""
        if len(texts) == 0:
            return pa.nulls(len(has_unknown), pa.string())
        places = np.cumsum(has_unknown, dtype=np.int64) - 1
        return self.of(texts).take(pa.array(places, mask=~has_unknown))

    def of(self, texts: pa.StringArray) -> pa.StringArray:
        """For messages that the strict decoder accepts, one at a time."""
        return pa.array([self._leftovers.of(text) for text in texts.to_pylist()], pa.string())
