"""The common part of envelopes: which parts of a message are rows, and their `_cdc`.

Rule: a message has images, or is passed over, or is refused. It is passed over where it belongs to the feed and changes
no row (a schema change, the start of a snapshot).
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from common.schema import StructType
from stage_writer.decode.batch import Index, Mask
from stage_writer.decode.decode import Decoded
from stage_writer.decode.json_document import Object
from stage_writer.decode.rejects import ErrorClass, Refusal, Reject

_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Images:
    texts: pa.StringArray
    """JSON objects."""
    owners: Index
    """For each image the index of its message. Rising."""
    ops: pa.StringArray
    old: pa.StringArray
    """For an update the JSON text of what the row was, or of the parts that were different; null if that is unknown."""


@dataclass(frozen=True, slots=True)
class Opened:
    """The content of a batch: each message has images, is a tombstone, is passed over, or is refused."""

    images: Images
    """With the numbers of events as their owners."""
    about: pa.StructArray
    """As `about_of` has it, for each event."""
    events: Index
    """For each event the index of its message. Rising."""
    rejects: tuple[Reject, ...]
    tombstones: Index
    passed_over: Index


class Opener(Protocol):
    """Opens the messages of an envelope. Not thread-safe."""

    def opened(self, values: pa.BinaryArray) -> Opened: ...


class Envelope(Protocol):
    """A form of change events whose parts are read like columns."""

    @property
    def fields(self) -> StructType:
        """The fields that are read of a message, all nullable; images are STRING with the format `json`."""

    @property
    def forms(self) -> Mapping[str, str]: ...

    def opened(self, parts: Decoded) -> Opened:
        """The content of messages with these fields."""

    def image_of(self, message: Object) -> object:
        """The first image of one message."""


def about_of(ts: pa.Array, source: pa.Array, source_ts: pa.Array) -> pa.StructArray:
    """The content of `_cdc` for events, without their operations."""
    return pa.StructArray.from_arrays([ts, source, source_ts], names=["ts", "source", "source_ts"])


def column_of(parts: Decoded, name: str) -> pa.Array:
    column = parts.rows.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def mask_of(values: pa.BooleanArray) -> Mask:
    """Booleans as a mask, in which null is false."""
    mask: Mask = pc.fill_null(values, fill_value=False).to_numpy(zero_copy_only=False)
    return mask


def is_one_of(column: pa.Array, values: Collection[str]) -> Mask:
    """Which entries are one of these texts."""
    return mask_of(pc.is_in(column, value_set=pa.array(values, pa.string())))


def is_object(images: pa.Array) -> Mask:
    """Which JSON texts are objects."""
    return mask_of(pc.starts_with(images, "{"))


def single_images(texts: pa.Array, ops: pa.Array, old: pa.Array, rows: Mask) -> Images:
    """The images of messages that have at most one; ``rows`` are those that change a row."""
    owners = np.flatnonzero(rows & is_object(texts))
    taken = pa.array(owners)
    return Images(texts.take(taken), owners, ops.take(taken), old.take(taken))


def opened(
    parts: Decoded, images: Images, about: pa.StructArray, passed_over: Mask, why: Callable[[int], Refusal]
) -> Opened:
    """The content of messages with these parts; ``why`` refuses one that has no image and is not passed over."""
    others = np.setdiff1d(np.flatnonzero(~passed_over), images.owners).tolist()
    rejects = (*parts.rejects, *(why(index).at(int(parts.row_index[index])) for index in others))
    return Opened(images, about, parts.row_index, rejects, parts.tombstones, parts.row_index[passed_over])


def not_a_row_change(name: str, value: object, known: Collection[str]) -> Refusal:
    """The refusal of a message whose operation is missing or unknown."""
    problem = f"it has no {name}" if value is None else f"its {name} is {str(value)[:_SHOWN_CHARACTERS]!r}"
    text = f"the message is not a row change: {problem}, not one of {', '.join(known)}"
    return Refusal(ErrorClass.NOT_AN_EVENT, text)


def no_image(name: str, value: object, field: str) -> Refusal:
    """The refusal of a change without an object in its place."""
    return Refusal(ErrorClass.NOT_AN_EVENT, f"the event of {name} {value} has no object in `{field}`")
