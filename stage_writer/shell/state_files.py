"""A task's state files in the stage: reading and writing them, and finding those of a chain's end.

Rules:

1. The state at a chain's end is what its last flush's marker names. Markers right above that were made by hand (an
   empty one, a skip, a bootstrap) change nothing of it: their positions are no part of it. Above a gap nobody knows it.
2. A chain without any marker begins with an empty state, and so does one whose flushes never had any. Where there was
   one and nobody knows it any more, nothing is guessed: the partition is held.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, BinaryIO

from common.errors import StateError
from common.markers import MarkerName, Origin, folder_of, marker_from_bytes
from common.pieces import Pieces
from common.state_files import EMPTY_STATE, StateFileName, StateFiles, state_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from common.markers import Marker
    from common.ports import ObjectStore
    from common.spans import Position, TopicPartition
    from stage_writer.ports import Tail


class StageState:
    """A `stage_writer.ports.StateStore` over the stage's store."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def write(self, name: StateFileName, data: bytes | Pieces) -> None:
        """Write a file; its name is nobody else's."""
        self._store.upload(name.path, data if isinstance(data, Pieces) else Pieces([data]))

    def read(self, path: str) -> bytes:
        """A file's bytes. Raises StateError when it is not there."""
        data = self._store.read(path)
        if data is None:
            raise _missing(path)
        return data

    def open(self, path: str) -> BinaryIO:
        """A file that is read as it is needed. Raises StateError when it is not there."""
        if self._store.stat(path) is None:
            raise _missing(path)
        return self._store.open(path)


def state_at(store: ObjectStore, source: TopicPartition, tail: Tail | None) -> StateFiles:
    """The state at a chain's end (rules 1 and 2). Raises StateError."""
    if tail is None:
        return EMPTY_STATE
    generation = tail.lineage.generation
    chain = list(_downwards(store, source, tail, generation))
    there = {item.path for item in store.list(state_folder(source))}
    last = chain[-1] if chain else None
    if last is None or last.manifest is None or last.manifest.state is None:
        lowest = tail.marker if last is None else last.name.start
        _require_none_lost(source, there, lowest, generation, flushed=last is not None and _is_flush(last))
        return EMPTY_STATE
    files = last.manifest.state.files
    for path in files.paths:
        if path not in there:
            raise _missing(path)
    return files


def _downwards(store: ObjectStore, source: TopicPartition, tail: Tail, generation: int) -> Iterator[Marker]:
    """The markers from the end down to the first that was flushed, or that says what the state is; none below a gap."""
    found = [(name, item.path) for item in store.list(folder_of(source)) if (name := MarkerName.parse(item.path))]
    above: Position | None = None
    for name, path in sorted(found, reverse=True):
        if name.start > tail.marker:
            continue
        data = store.read(path)
        if data is None:
            continue  # settled, with all below it; or put aside, and then the end is no end
        marker = marker_from_bytes(name, data)
        if marker.is_older_than(generation) or (above is not None and marker.span.end < above):
            return
        if above is not None and marker.span.end > above:
            continue  # a stray: of what it covers another one was there first
        above = marker.span.start
        yield marker
        if _is_flush(marker) or (marker.manifest is not None and marker.manifest.state is not None):
            return


def _is_flush(marker: Marker) -> bool:
    return marker.manifest is not None and marker.manifest.origin is Origin.FLUSH


def _require_none_lost(
    source: TopicPartition, there: set[str], lowest: Position, generation: int, *, flushed: bool
) -> None:
    """Raises StateError when something was written for a flush below all that the chain still has."""
    names = [name for path in there if (name := StateFileName.parse(path))]
    if not any(name.start < lowest and name.generation == generation for name in names):
        return
    if flushed:
        msg = f"the records of {source} from {lowest} on were staged without its topology, so that its state lacks them"
        remedy = f"rewind the chain to {lowest} or below"
    else:
        msg = f"the state of {source} at {lowest} is not known: the markers that named it are gone"
        remedy = "rewind the chain to a marker that is still there, or to position 0 (`--to 0 --below-table`)"
    folder = state_folder(source)
    raise StateError(msg, f"{remedy}; or delete {folder} in the stage, to go on from here with an empty state")


def _missing(path: str) -> StateError:
    return StateError(
        f"the state file {path}, which the chain's last marker names, is not there",
        "bring it back from a version or a backup of the bucket; or rewind the chain to a marker whose state is there, "
        "or to position 0 (`--to 0 --below-table`)",
    )
