"""What goes through a conversion: rows, each with its message, and the steps that make other rows of them.

Rules:

1. A step takes rows and gives rows. What it takes away it accounts for: as rejects, or as filtered. So at any time each
   message is with the rows, the rejects, the filtered ones or the tombstones, and with one of them only.
2. Rows stay in the order of their messages. `Rows.index` rises; strictly, until one message is exploded into several.
3. A step's columns are known when it is made, and what can be wrong about them is found then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from common.schema import StructType
    from stage_writer.core.batch import Messages
    from stage_writer.core.decoding.rejects import Reject

    Index = NDArray[np.int64]
    Mask = NDArray[np.bool_]


def _none() -> Index:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows on their way, and what became of the other messages."""

    table: pa.Table
    index: Index
    """For each row, the index of its message. Rising (rule 2)."""
    rejects: tuple[Reject, ...] = ()
    """In any order, at most one for a message."""
    filtered: Index = field(default_factory=_none)
    """The messages that a condition left out. Rising."""
    tables: Index | None = None
    """For each message, the number of the table that its rows go to; None where there is one table only."""

    def __len__(self) -> int:
        return len(self.index)

    def with_table(self, table: pa.Table) -> Rows:
        """The same rows with other columns."""
        return replace(self, table=table)

    def without(self, failing: Mask, rejects: Iterable[Reject]) -> Rows:
        """The rows without those that fail; one reject is given for each of these."""
        kept = ~failing
        return replace(
            self,
            table=self.table.filter(pa.array(kept)),
            index=self.index[kept],
            rejects=(*self.rejects, *rejects),
        )


class Step(Protocol):
    """One thing that is done to all rows of a stream. Not for two threads at a time."""

    @property
    def columns(self) -> StructType:
        """The columns of the rows that it gives."""

    @property
    def needs_headers(self) -> bool:
        """Whether it looks at the records' headers, which otherwise are not read from Kafka."""

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The rows that it makes of these (rule 1)."""
