"""Deletes a task's superseded state files; their owner does, after it has sealed a snapshot.

Rules: see superseded.py for which. It runs right after a marker was claimed, in the flush's own thread: the writer
that claims is the owner, and the newest file is as new as the flush, so ages come from the store's clock. Failures are
left for the next time.
"""

from contextlib import suppress

from common.errors import MarkerError, StoreError
from common.ports import ObjectStore
from common.spans import TopicPartition
from common.stage.chain_origins import newest_origin
from common.stage.marker_contents import listed_markers
from common.stage.markers import folder_of, marker_from_bytes
from common.stage.task_files import state_folder
from stage_writer.stage.superseded import superseded

KEEP_S = 86_400.0


class StateCleaning:
    def __init__(self, store: ObjectStore, keep_s: float) -> None:
        """``keep_s`` is how long a superseded file stays, in seconds."""
        self._store = store
        self._keep_ms = int(keep_s * 1000)

    def clean(self, partition: TopicPartition) -> int:
        """Delete a partition's superseded files. Returns how many."""
        with suppress(StoreError, MarkerError):
            superseded = self._superseded(partition)
            self._store.delete(superseded)
            return len(superseded)
        return 0

    def _superseded(self, partition: TopicPartition) -> list[str]:
        # List the files first: a marker that is settled during the check raises the lowest one, and names no file that
        # was written after the list was made.
        files = list(self._store.list(state_folder(partition)))
        markers = sorted(listed_markers(self._store, folder_of(partition)))
        if not markers:
            return []
        name, path = markers[0]
        data = self._store.read(path)
        if data is None:
            return []  # just settled
        origin = newest_origin(self._store, partition)
        newest_ms = max((item.modified_ms for item in files), default=0)
        return superseded(files, marker_from_bytes(name, data), origin, newest_ms - self._keep_ms)
