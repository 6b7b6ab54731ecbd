"""How JSON values are read into columns, and the port of a reader that reads the ordinary messages of a block.

Rules:

1. A `DecodeOptions` is for one value and its content; `at` gives the reading one level inside it.
2. A native decoder returns the row that the strict decoder would, formats and NOT NULL included. It takes nothing that
   the strict decoder refuses; leaving a message proves nothing about it.
3. It may be missing, for a schema or on a machine: then the decoder does all the work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from common.schema import StructType
from common.settings.formats import EPOCH_DECIMALS, NO_FORMS, Forms, ValueFormat


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """``lenient`` is the stream's ``coerce``.

    With ``non_finite`` DOUBLE and FLOAT take the strings NaN, Infinity and -Infinity: the JSON of binary formats.
    """

    forms: Forms = NO_FORMS
    lenient: bool = False
    non_finite: bool = False

    def at(self, step: str) -> DecodeOptions:
        """The reading of a field, of an ARRAY's ``element`` or a MAP's ``value``."""
        return DecodeOptions(self.forms.at(step), self.lenient, self.non_finite)

    @property
    def format(self) -> ValueFormat | None:
        return self.forms.format

    @property
    def epoch_decimals(self) -> int | None:
        """For a time that is written as an epoch: the number of decimals of its unit."""
        return None if self.format is None else EPOCH_DECIMALS.get(self.format)

    @property
    def holds_json(self) -> bool:
        """Whether any value is kept as its JSON text."""
        return _holds_json(self.forms)


STRICT = DecodeOptions()


def _holds_json(forms: Forms) -> bool:
    return forms.format is ValueFormat.JSON or any(_holds_json(inner) for inner in forms.inner.values())


@dataclass(frozen=True, slots=True)
class DecodedBlock:
    rows: pa.StructArray
    """The rows taken, in the order of their messages."""
    is_decoded: NDArray[np.bool_]
    """For each message of the block."""
    has_unknown: NDArray[np.bool_]
    """For each row: whether its message has fields, at any depth, that have no columns."""


class NativeDecoder(Protocol):
    """Reads blocks into the columns it was made for. Not thread-safe."""

    def read(self, block: pa.BinaryArray) -> DecodedBlock:
        """The messages that it takes; none of the input is null."""


MakeNativeDecoder = Callable[[StructType, DecodeOptions], NativeDecoder | None]
"""Makes a native decoder for columns, or None (rule 3)."""


def no_native_decoder(columns: StructType, reading: DecodeOptions) -> NativeDecoder | None:  # noqa: ARG001 - a port's arguments
    """A `MakeNativeDecoder` that makes none."""
    return None
