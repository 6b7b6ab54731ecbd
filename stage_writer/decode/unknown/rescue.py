"""The rescue column: the undeclared fields of each record, for `unknown_fields: rescue` and `evolve`.

Rules:

1. The column is null for a record without undeclared fields, and otherwise as described in `leftovers`.
2. Records without unknown fields cost no Python object each where the first pass takes them, which tells the ones that
   have some. These are read one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from common.schema import Field, Primitive
from stage_writer.decode.unknown.leftovers import Leftovers

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from common.schema import StructType


class Rescuer:
    """Makes the rescue column."""

    def __init__(self, name: str, columns: StructType) -> None:
        """``name`` is the column's name."""
        self.field = Field(name, Primitive.STRING)
        self._leftovers = Leftovers(columns)

    def of_some(self, texts: pa.StringArray, has_unknown: NDArray[np.bool_]) -> pa.StringArray:
        """For messages where the ones that may have unknown fields are known; ``texts`` are these."""
        if len(texts) == 0:
            return pa.nulls(len(has_unknown), pa.string())
        places = np.cumsum(has_unknown, dtype=np.int64) - 1
        left = pa.array([self._leftovers.of(text) for text in texts.to_pylist()], pa.string())
        return left if len(left) == len(has_unknown) else left.take(pa.array(places, mask=~has_unknown))
