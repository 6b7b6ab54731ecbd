"""How many parts a table's state is built in.

Rules:

1. Delta reads the last checkpoint and the commits after it, shuffles them by path, and has each part's files as objects
   in the heap at once. The memory is therefore bounded by the size of a part, and not by the size of the table.
2. A local session has few parts (spark/session.py), because each costs some hundredths of a second; a table
   with many files gets more, in a second session with another setting. Delta uses the thread's active session.
3. A setting in the user's ``loader.spark`` is left as it is.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from delta_loader.spark.session_conf import LOCAL_STATE_PARTITIONS, STATE_PARTITIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from delta_loader.spark.gateway import Gateway, Java

_FILES_OF_A_PART = 25_000
_BYTES_OF_A_FILE = 100
_BYTES_OF_A_LINE = 400
"""Per file in a checkpoint and in the commits after it, if the number of files is not known otherwise."""
_MOST_PARTS = 512


def parts_for(files: int) -> int:
    """How many parts a table with ``files`` files needs: a power of two, to limit the number of sessions."""
    parts = int(LOCAL_STATE_PARTITIONS)
    while parts < _MOST_PARTS and parts * _FILES_OF_A_PART < files:
        parts *= 2
    return parts


class StateSessions:
    """The additional sessions of one session."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._sessions: dict[int, Java] = {}
        given = gateway.session.conf().getOption(STATE_PARTITIONS)
        self._is_ours = bool(given.isDefined()) and str(given.get()) == LOCAL_STATE_PARTITIONS

    def _files_of(self, snapshot: Java) -> int:
        checksum = snapshot.checksumOpt()
        if checksum.isDefined():
            return int(checksum.get().numFiles())
        commits = self._gateway.java(snapshot.logSegment().deltas())
        in_commits = sum(int(commit.getLen()) for commit in self._gateway.items(commits)) // _BYTES_OF_A_LINE
        in_checkpoint = int(snapshot.checkpointProvider().effectiveCheckpointSizeInBytes()) // _BYTES_OF_A_FILE
        return in_checkpoint + in_commits

    @contextmanager
    def fit(self, snapshot: Java) -> Iterator[None]:
        """Run this thread's work on a table's state in the session for its size."""
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
        """From now on, set the base session itself, which must not be shared, to the size of a table's state."""
        if self._is_ours:
            self._gateway.session.conf().set(STATE_PARTITIONS, str(parts_for(self._files_of(snapshot))))

    def _session(self, parts: int) -> Java:
        session = self._sessions.get(parts)
        if session is None:
            session = self._gateway.session.newSession()
            session.conf().set(STATE_PARTITIONS, str(parts))
            self._sessions[parts] = session
        return session
