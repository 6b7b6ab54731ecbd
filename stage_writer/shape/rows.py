"""The data of a conversion: rows, each with its message, and the steps that transform them.

Rules:

1. A step takes rows and returns rows. What it removes it accounts for: as rejects, or as filtered. So at any time each
   message is in exactly one of the rows, the rejects, the filtered ones or the tombstones.
2. Rows stay in the order of their messages. `Rows.index` rises; strictly, until one message is exploded into several.
3. A step's columns are known at construction, and errors in them are found then.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from numpy.typing import NDArray

    from common.schema import StructType
    from stage_writer.decode.batch import Messages
    from stage_writer.decode.rejects import Reject

    Index = NDArray[np.int64]
    Mask = NDArray[np.bool_]


def _none() -> Index:
    return np.zeros(0, np.int64)


@dataclass(frozen=True, slots=True)
class Stop:
    """A message that holds its partition."""

    index: int
    problem: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows in conversion, and the outcome of the other messages."""

    table: pa.Table
    index: Index
    """For each row, the index of its message. Rising (rule 2)."""
    rejects: tuple[Reject, ...] = ()
    """In any order, at most one per message."""
    filtered: Index = field(default_factory=_none)
    """The messages that a condition filtered. Rising."""
    violations: Mapping[str, Index] = field(default_factory=dict)
    """By rule of `expect`, the messages that break it, dead letters included. Rising."""
    stops: tuple[Stop, ...] = ()
    """The messages that may not be staged, in any order; nothing after them is staged either."""
    tables: Index | None = None
    """For each message, the number of the table that its rows go to; None if there is only one table."""

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
    """A transformation of all rows of a stream. Not thread-safe."""

    @property
    def columns(self) -> StructType:
        """The columns of its result."""

    @property
    def needs_headers(self) -> bool:
        """Whether it uses the records' headers, which otherwise are not read from Kafka."""

    def apply(self, rows: Rows, messages: Messages) -> Rows:
        """The result for these rows (rule 1)."""
