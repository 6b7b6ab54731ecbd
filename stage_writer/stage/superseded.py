"""Which of a task's state files are no longer needed.

Rules:

1. A file is needed if a marker names it, for the state at its end or at its start, or if it replaces such a file: an
   operator may rewind the chain to any place where a marker stands. The markers above the lowest one name only the
   files that it names, or their replacements, and files that were written from there on; so the lowest marker alone
   determines what is needed, with the chain's origin, to which the chain may be rewound too.
2. A file that was written from the lowest marker's start on may belong to a flush in progress.
3. Superseded files are still kept for a time: a marker that was put aside may be put back. Without a lowest marker that
   knows its state nothing is known, and everything stays.
"""

from collections.abc import Iterable

from common.ports import StoredObject
from common.stage.chain_origins import ChainOrigin
from common.stage.markers import Marker
from common.stage.task_files import MarkedState, StateFileName


def superseded(files: Iterable[StoredObject], lowest: Marker, origin: ChainOrigin | None, before_ms: int) -> list[str]:
    """The files of ``before_ms`` or older that are not needed, when ``lowest`` is the lowest existing marker."""
    manifest = lowest.manifest
    if manifest is None or manifest.state is None:
        return []
    needed = [manifest.state]
    if origin is not None and origin.state is not None:
        needed.append(MarkedState(origin.state, origin.state))
    return [
        item.path
        for item in files
        if item.modified_ms <= before_ms
        and (name := StateFileName.parse(item.path)) is not None
        and not any(state.needs(name) for state in needed)
        and (name.generation, name.start) < (manifest.generation, lowest.name.start)
    ]
