"""Moves a commit's checkpoint out of the commit.

Rules:

1. Delta still decides which versions get one (`delta.checkpointInterval`), and writes it as usual, with the cleaning of
   its log after it: it is only kept from doing so within the commit, where it takes seconds.
2. The checkpoint is the state right after the commit, including what others may have committed by then.
3. The checksum stays in the commit: the next load reads it, and it costs one small file.
4. Delta has no setting for this. Its transaction is extended by one method (`delta_loader/java`), compiled in the JVM
   with the compiler that Spark uses for its queries, so no JDK is needed.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from delta_loader.spark.checkpoint_threads import DueCheckpoint
from delta_loader.spark.gateway import Java, table_errors

if TYPE_CHECKING:
    from delta_loader.spark.checkpoint_threads import Checkpoints
    from delta_loader.spark.gateway import Gateway
    from delta_loader.spark.state_sessions import StateSessions

_SOURCE = Path(__file__).parent.parent / "java" / "LoadTransaction.java"
_MAKER = "io.github.kafkadeltaexpress.LoadTransaction$Maker"


_makers: WeakKeyDictionary[Java, Java] = WeakKeyDictionary()


def _maker(jvm: Java) -> Java:
    """One per JVM: Py4J caches methods by class name, and would use another one's for this."""
    if jvm not in _makers:
        compiler = jvm.org.codehaus.janino.SimpleCompiler()
        compiler.setParentClassLoader(jvm.java.lang.Thread.currentThread().getContextClassLoader())
        compiler.cook(_SOURCE.read_text("utf-8"))
        _makers[jvm] = compiler.getClassLoader().loadClass(_MAKER).newInstance()
    return _makers[jvm]


class LoadTransactions:
    """Starts transactions whose checkpoints are written in the background."""

    def __init__(self, gateway: Gateway, sessions: StateSessions, checkpoints: Checkpoints) -> None:
        """Compiles one class, once per JVM. Raises Py4JError."""
        self._gateway = gateway
        self._sessions = sessions
        self._checkpoints = checkpoints
        self._maker = _maker(gateway.jvm)

    def begin(self, log: Java, catalog_table: Java) -> Java:
        """The equivalent of ``log.startTransaction(catalog_table)``."""
        return self._maker.apply(log, catalog_table)

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
