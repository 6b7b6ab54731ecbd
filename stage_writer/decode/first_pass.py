"""The port of a reader that takes the ordinary messages of a block, in one pass, before the decoder runs.

Rules:

1. What it takes is the row that the strict decoder would give, formats and NOT NULL included. It takes nothing that the
   strict decoder refuses; leaving a message proves nothing about it.
2. It may be missing, for a schema or on a machine: then the decoder does all the work.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    from numpy.typing import NDArray

    from common.schema import StructType
    from stage_writer.decode.reading import Reading


@dataclass(frozen=True, slots=True)
class Taken:
    """The messages of a block that a first pass took."""

    rows: pa.StructArray
    """The rows taken, in the order of their messages."""
    is_taken: NDArray[np.bool_]
    """For each message of the block."""
    has_unknown: NDArray[np.bool_]
    """For each row: whether its message has fields, at any depth, that have no columns."""


class FirstPass(Protocol):
    """Reads blocks into the columns it was made for. Not thread-safe."""

    def read(self, block: pa.BinaryArray) -> Taken:
        """The messages that it takes; none of the input is null."""


class MakeFirstPass(Protocol):
    """Makes first passes."""

    def __call__(self, columns: StructType, reading: Reading) -> FirstPass | None:
        """A first pass for these columns, or None if there is none (rule 2)."""


def no_first_pass(columns: StructType, reading: Reading) -> FirstPass | None:  # noqa: ARG001 - a port's arguments
    """A `MakeFirstPass` that makes none."""
    return None
