"""A task's state files: reading and writing them, and finding those of a chain's end.

Rules:

1. The state at a chain's end is what its last flush's marker names. Markers right above it that were made by hand (an
   empty one, a skip, a bootstrap) do not change the state: it does not cover their positions. Above a gap it is
   unknown.
2. A chain without any marker starts with the state that its origin names, or an empty one, and so does one whose
   flushes never had any. Where there was a state and it is no longer known, the partition is held.
3. Changes in a Kafka topic are read only if needed: a renewed copy of the state in the stage is used instead where
   there is one.
4. An unsuitable topic gets no changes, and blocks nothing: they go to the stage. The periodic topic check
   (stage_writer/changelog/watch.py) reports it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from common.errors import ConfigError, StateError, StoreError
from common.ports import ObjectStore
from common.settings import Stream
from common.spans import Position, Topic, TopicPartition
from common.stage.chain_origins import ChainOrigin, origin_path
from common.stage.marker_contents import listed_markers
from common.stage.markers import Marker, Origin, folder_of, marker_from_bytes
from common.stage.task_files import (
    EMPTY_STATE,
    Change,
    StateFileName,
    StateFiles,
    StateKind,
    state_folder,
    with_later_snapshot,
)
from common.storage.chunks import ByteChunks
from stage_writer.chain_end import Tail
from stage_writer.ports import NO_CHANGELOG, Changelog


class StageState:
    """A `stage_writer.ports.StateStore` over the stage's store, and a stream's changelog topic where it has one."""

    def __init__(
        self, store: ObjectStore, changelog: Changelog = NO_CHANGELOG, topic: Topic | None = None, app_id: str = ""
    ) -> None:
        """Writes changes to ``topic``, or to the stage without one; reads them from either."""
        self._store = store
        self._changelog = changelog
        self._topic = topic
        self._app_id = app_id

    def of(self, stream: Stream) -> StageState:
        """The destination of a stream's flushes."""
        topic = stream.state_changelog
        return self if topic is None else StageState(self._store, self._changelog, Topic(topic), stream.app_id)

    def write(self, name: StateFileName, data: ByteChunks) -> Change:
        if self._topic is not None and name.kind is StateKind.CHANGES:
            with suppress(ConfigError):  # rule 4
                return self._changelog.write(self._topic, self._app_id, name, data)
        self._store.upload(name.path, data)
        return name.path

    def changes(self, partition: TopicPartition, state: StateFiles) -> Iterator[tuple[str, bytes]]:
        """The changes to a state since its snapshot. Raises StateError for missing ones."""
        if not state.in_topics:
            paths = [path for path in state.changes if isinstance(path, str)]
            for path, data in zip(paths, self._store.read_each(paths), strict=True):
                yield path, _required(path, data)
            return
        with self._changelog.reading() as reading:
            for change in state.changes:
                if isinstance(change, str):
                    yield change, _required(change, self._store.read(change))
                    continue
                try:
                    yield f"at {change.place}, offset {change.spans[0].start}", reading.read(change)
                except StateError as error:
                    raise self._gone(partition, error) from error

    def _gone(self, partition: TopicPartition, error: StateError) -> StateError:
        """The error for changes that a topic no longer has, with the position to rewind to."""
        last = last_in_stage(self._store, partition)
        where = "position 0 (`--to 0 --below-table`)"
        if last:
            where = f"{last}, the last position whose entire state is in the stage (`--to {last} --below-table`)"
        remedy = f"rewind the chain to {where}: writers continue from there, as far as Kafka has the records"
        return StateError(error.problem, remedy)

    def open(self, path: str) -> BinaryIO:
        """Open a file that is read on demand. Raises StateError when it does not exist."""
        if self._store.stat(path) is None:
            raise _missing(path)
        return self._store.open(path)


def _required(path: str, data: bytes | None) -> bytes:
    if data is None:
        raise _missing(path)
    return data


def last_in_stage(store: ObjectStore, partition: TopicPartition) -> Position | None:
    """The highest position of the chain whose state needs no topic; None if no marker knows one."""
    there = {item.path for item in store.list(state_folder(partition))}
    for name, path in sorted(listed_markers(store, folder_of(partition)), reverse=True):
        data = store.read(path)
        manifest = None if data is None else marker_from_bytes(name, data).manifest
        if manifest is None or manifest.state is None:
            continue
        state = manifest.state
        for position, marked in ((manifest.span.end, state.files), (manifest.span.start, state.before)):
            files = with_later_snapshot(marked, there)
            if not files.in_topics and there.issuperset(files.paths):
                return position
    return None


def state_of_origin(store: ObjectStore, partition: TopicPartition, origin: ChainOrigin) -> StateFiles:
    """The state where a chain without a marker begins (rule 2). Raises StateError."""
    there = {item.path for item in store.list(state_folder(partition))}
    if origin.state is None:
        _require_none_lost(partition, there, origin.position, origin.generation, flushed=False)
        return EMPTY_STATE
    return _all_there(origin.state, there, origin_path(partition, origin.number))


def state_at(store: ObjectStore, partition: TopicPartition, tail: Tail) -> StateFiles:
    """The state at a chain's end (rules 1 and 2). Raises StateError, and StoreError where that marker is gone."""
    generation = tail.lineage.generation
    chain = list(_downwards(store, partition, tail, generation))
    if not chain or chain[0].name.start != tail.marker:  # settled below a rewind: the chain's origin has the state
        msg = f"the marker {tail.path} disappeared while the state at its end was read"
        raise StoreError(msg, "the state is read again; no action is needed")
    there = {item.path for item in store.list(state_folder(partition))}
    last = chain[-1]
    if last.manifest is None or last.manifest.state is None:
        _require_none_lost(partition, there, last.name.start, generation, flushed=last.origin is Origin.FLUSH)
        return EMPTY_STATE
    return _all_there(last.manifest.state.files, there, "the chain's last marker")


def _all_there(state: StateFiles, there: set[str], named_by: str) -> StateFiles:
    """The files to read a state from. Raises StateError if a file is missing."""
    files = with_later_snapshot(state, there)
    for path in files.paths:
        if path not in there:
            raise _missing(path, named_by)
    return files


def _downwards(store: ObjectStore, partition: TopicPartition, tail: Tail, generation: int) -> Iterator[Marker]:
    """The markers from the end down to the first one that was flushed or records the state; none below a gap."""
    above: Position | None = None
    for name, path in sorted(listed_markers(store, folder_of(partition)), reverse=True):
        if name.start > tail.marker:
            continue
        data = store.read(path)
        if data is None:
            continue  # settled, with all below it; or put aside, and then the end is not the end
        marker = marker_from_bytes(name, data)
        if marker.is_older_than(generation) or (above is not None and marker.span.end < above):
            return
        if above is not None and marker.span.end > above:
            continue  # a stray: another marker already covers its range
        above = marker.span.start
        yield marker
        if marker.origin is Origin.FLUSH or (marker.manifest is not None and marker.manifest.state is not None):
            return


def _require_none_lost(
    partition: TopicPartition, there: set[str], lowest: Position, generation: int, *, flushed: bool
) -> None:
    """Raises StateError if a state was written for a flush below the whole remaining chain."""
    names = [name for path in there if (name := StateFileName.parse(path))]
    if not any(name.start < lowest and name.generation == generation for name in names):
        return
    if flushed:
        msg = f"the records of {partition} from {lowest} on were staged without its topology, so its state lacks them"
        remedy = f"rewind the chain to {lowest} or below"
    else:
        msg = f"the state of {partition} at {lowest} is unknown: the markers that named it are gone"
        remedy = "rewind the chain to a marker that still exists, or to position 0 (`--to 0 --below-table`)"
    folder = state_folder(partition)
    raise StateError(msg, f"{remedy}; or delete {folder} in the stage, to continue from here with an empty state")


def _missing(path: str, named_by: str = "the chain's last marker") -> StateError:
    return StateError(
        f"the state file {path}, which {named_by} names, does not exist",
        "restore it from a version or a backup of the bucket; or rewind the chain to a marker whose state exists, "
        "or to position 0 (`--to 0 --below-table`)",
    )
