"""What a table still needs of a marker, when it may have some of the marker's positions already.

Rules:

1. A file that lies above the table's position by its statistics is added as it is, one that lies below is left out.
   Only a file that has both, or does not tell, goes through Spark, which leaves out the rows below.
2. The statistics of the offset column are exact: a whole number is never cut, and the column is always among them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_loader.core.plan import TableShape, files_for, shape_of

if TYPE_CHECKING:
    from common.markers import Marker, StagedFile
    from common.spans import Position, TopicPartition

OFFSET_COLUMN = "_kafka_offset"


@dataclass(frozen=True, slots=True)
class SparkWrite:
    """Staged files whose rows Spark reads and writes into a table, because they cannot be added as they are."""

    source: TopicPartition
    """Where all their records are from."""
    root: str
    """The URL that the files' paths are below."""
    shape: TableShape
    """What they were written with; the table may have more columns."""
    files: tuple[StagedFile, ...]
    start: Position | None
    """Rows whose offset is lower are left out; None brings all rows."""


@dataclass(frozen=True, slots=True)
class Share:
    """What a table needs of a marker."""

    added: tuple[StagedFile, ...] = ()
    """Files that are added as they are."""
    written: tuple[SparkWrite, ...] = ()
    """Files whose rows go through Spark."""

    @property
    def files(self) -> tuple[StagedFile, ...]:
        """Every file that has to be there."""
        return (*self.added, *(file for write in self.written for file in write.files))


def share_of(url: str, marker: Marker, start: Position) -> Share:
    """What the table at ``url`` needs of a marker, when it has all positions below ``start``."""
    if marker.span.end <= start:
        return Share()
    if marker.span.start >= start:
        return Share(files_for(url, marker))
    added: list[StagedFile] = []
    written: list[SparkWrite] = []
    for table in marker.tables:
        if table.url != url:
            continue
        bounds = {file.path: _offsets(file) for file in table.files}
        added += [file for file in table.files if (found := bounds[file.path]) and found[0] >= start]
        cut = [file for file in table.files if not (found := bounds[file.path]) or found[0] < start <= found[1]]
        if cut:
            written.append(SparkWrite(marker.name.topic_partition, url, shape_of(table), tuple(cut), start))
    return Share(tuple(added), tuple(written))


def _offsets(file: StagedFile) -> tuple[int, int] | None:
    """The lowest and the highest offset in a file; None when it does not tell."""
    try:
        statistics = json.loads(file.statistics)
        return int(statistics["minValues"][OFFSET_COLUMN]), int(statistics["maxValues"][OFFSET_COLUMN])
    except (ValueError, KeyError, TypeError):
        return None
