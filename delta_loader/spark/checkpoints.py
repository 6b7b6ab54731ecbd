"""Moves a commit's checkpoint out of the commit.

Rules:

1. Delta still decides which versions get one (`delta.checkpointInterval`), and writes it as usual, with the cleaning of
   its log after it: it is only kept from doing so within the commit, where it takes seconds.
2. The checkpoint is the state right after the commit, including what others may have committed by then.
3. The checksum stays in the commit: the next load reads it, and it costs one small file.
4. Delta has no setting for this. Its transaction is extended by one method (`delta_loader/java`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from delta_loader.spark.checkpoint_threads import DueCheckpoint
from delta_loader.spark.gateway import table_errors

if TYPE_CHECKING:
    from delta_loader.spark.checkpoint_threads import Checkpoints
    from delta_loader.spark.gateway import Gateway, Java
    from delta_loader.spark.state_sessions import StateSessions


class LoadTransactions:
    """Starts transactions whose checkpoints are written in the background."""

    def __init__(self, gateway: Gateway, sessions: StateSessions, checkpoints: Checkpoints) -> None:
        self._gateway = gateway
        self._sessions = sessions
        self._checkpoints = checkpoints

    def begin(self, log: Java, catalog_table: Java) -> Java:
        """The equivalent of ``log.startTransaction(catalog_table)``."""
        return self._gateway.jvm.io.github.kafkadeltaexpress.LoadTransaction(log, catalog_table)

    def committed(self, transaction: Java, url: str) -> None:
        """Request the checkpoint that is due now."""
        if not transaction.checkpointIsDue():
            return
        committed = transaction.committed().get()
        snapshot = committed.postCommitSnapshot()

        def write() -> None:
            with table_errors("write a checkpoint of", url, "check Spark's rights to the table's log, and its memory"):
                self._gateway.log(url)  # this thread's session
                with self._sessions.fit(snapshot):
                    committed.deltaLog().checkpointAndCleanUpDeltaLog(snapshot, committed.catalogTable())

        self._checkpoints.ask(DueCheckpoint(url, int(snapshot.version()), write))
