"""Which of a task's state files nobody needs any more.

Rules:

1. A file is needed that a marker names, for the state at its end or at its start, or that stands in for one of these:
   an operator may rewind the chain to any place where a marker stands. The markers above the lowest one name no others
   than it does, or what stands in for these, and files that were written from there on; so the lowest marker alone says
   what is needed.
2. A file that was written from the lowest marker's start on may be of a flush that is under way.
3. What nobody needs is kept for a time all the same: a marker that was put aside may be put back. Without a lowest
   marker that knows its state nothing is known, and everything stays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.stage.state_files import StateFileName

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.ports import StoredObject
    from common.stage.markers import Marker


def superseded(files: Iterable[StoredObject], lowest: Marker, before_ms: int) -> list[str]:
    """The files of ``before_ms`` or older that are not needed, when ``lowest`` is the lowest marker that is there."""
    manifest = lowest.manifest
    if manifest is None or manifest.state is None:
        return []
    state = manifest.state
    return [
        item.path
        for item in files
        if item.modified_ms <= before_ms
        and (name := StateFileName.parse(item.path)) is not None
        and not state.needs(name)
        and (name.generation, name.start) < (manifest.generation, lowest.name.start)
    ]
