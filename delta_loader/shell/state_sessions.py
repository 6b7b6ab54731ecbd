"""How many parts a table's state is put together in.

Rules:

1. Delta reads the last checkpoint and the commits after it, shuffles them by path, and has each part's files as objects
   in the heap at once. So the size of a part is what bounds the memory, and not the size of the table.
2. A local session has few parts (delta_loader/shell/spark.py), since each costs some hundredths of a second; a table
   of many files gets more, by a session beside the loader's whose setting differs. Delta asks the thread's active one.
3. What the user's ``loader.spark`` says stays as it is.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from delta_loader.shell.spark import LOCAL_STATE_PARTITIONS, STATE_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delta_loader.shell.gateway import Gateway, Java

_FILES_OF_A_PART = 25_000
_BYTES_OF_A_FILE = 100
_BYTES_OF_A_LINE = 400
"""Of a file in a checkpoint, and in the commits after it, where nothing else tells how many files there are."""
_MOST_PARTS = 512


def parts_for(files: int) -> int:
    """A power of two, so that there are few sessions; no more than Delta's own number where few do."""
    parts = int(LOCAL_STATE_PARTITIONS)
    while parts < _MOST_PARTS and parts * _FILES_OF_A_PART < files:
        parts *= 2
    return parts


class StateSessions:
    """The sessions beside one session."""

    def __init__(self, gateway: Gateway) -> None:
        """Makes none yet."""
        self._gateway = gateway
        self._sessions: dict[int, Java] = {}
        given = gateway.session.conf().getOption(STATE_PARTITIONS)
        self._is_ours = bool(given.isDefined()) and str(given.get()) == LOCAL_STATE_PARTITIONS

    def _files_of(self, snapshot: Java) -> int:
        checksum = snapshot.checksumOpt()
        if checksum.isDefined():
            return int(checksum.get().numFiles())
        commits = self._gateway.java(snapshot.logSegment().deltas())
        in_commits = sum(int(commit.getLen()) for commit in commits) // _BYTES_OF_A_LINE
        in_checkpoint = int(snapshot.checkpointProvider().effectiveCheckpointSizeInBytes()) // _BYTES_OF_A_FILE
        return in_checkpoint + in_commits

    @contextmanager
    def fit(self, snapshot: Java) -> Iterator[None]:
        """Have what this thread does with a table's state done by the session that is fit for its size."""
        parts = parts_for(self._files_of(snapshot)) if self._is_ours else int(LOCAL_STATE_PARTITIONS)
        if parts == int(LOCAL_STATE_PARTITIONS):
            yield
            return
        self._gateway.activate(self._session(parts))
        try:
            yield
        finally:
            self._gateway.activate(self._gateway.session)

    def set_for(self, snapshot: Java) -> None:
        """Have the one session that these are beside, which is nobody else's, be fit itself from now on."""
        if self._is_ours:
            self._gateway.session.conf().set(STATE_PARTITIONS, str(parts_for(self._files_of(snapshot))))

    def _session(self, parts: int) -> Java:
        session = self._sessions.get(parts)
        if session is None:
            session = self._gateway.session.newSession()
            session.conf().set(STATE_PARTITIONS, str(parts))
            self._sessions[parts] = session
        return session
