"""Events that cannot be merged because they lack something: their key, or their sequence."""

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow.compute as pc

from common.tables.changes import DELETE_COLUMN, MergeBy
from stage_writer.decode.batch import Mask
from stage_writer.decode.rejects import ErrorClass, Reject
from stage_writer.shape.rows import Rows


def with_keys(rows: Rows, by: MergeBy, keys: Mapping[str, str], sequence: str | None) -> Rows:
    """The rows of events whose key is known, and of upserts whose sequence is; with ``by.history`` of deletes, too.

    ``keys`` are the rows' columns by the table's key columns, ``sequence`` is that of its sequence.
    """
    lacking = []
    for key, name in keys.items():
        if rows.table[name].null_count:
            lost = rows.table[name].is_null().to_numpy()
            lacking.append((lost, ErrorClass.NULL_KEY, f"its key column {key} is null"))
    if sequence is not None and rows.table[sequence].null_count:
        lost = rows.table[sequence].is_null()
        if not by.history:
            lost = pc.and_(lost, pc.invert(rows.table[DELETE_COLUMN]))
        lacking.append((lost.to_numpy(), ErrorClass.NULL_SEQUENCE, f"its sequence {by.sequence} is null"))
    return without_lacking(rows, lacking)


def without_lacking(rows: Rows, lacking: Sequence[tuple[Mask, ErrorClass, str]]) -> Rows:
    """The rows without those that lack something; each is refused for the first thing that it lacks."""
    failing = np.zeros(len(rows), np.bool_)
    rejects = []
    for lost, error_class, why in lacking:
        failing |= lost
        rejects += [Reject(int(index), error_class, why) for index in rows.index[lost]]
    return rows.without(failing, rejects) if rejects else rows
