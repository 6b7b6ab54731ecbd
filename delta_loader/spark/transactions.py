"""Reads a table's txn actions without the table's files.

Rules:

1. Delta's own `Snapshot.transactions` builds the whole state, by Spark jobs over every file that the table has, for a
   few numbers. The checksum file of a version (`_delta_log/….crc`) has them too: each Delta commit derives it from the
   previous one, and leaves them out where it cannot be sure (a retention of txn actions, a commit by another program
   that writes no checksum, too many). Only then is the state read, and the next commit has them again.
2. The session's limit for txn actions in a checksum is high enough for a table with thousands of Kafka partitions;
   Delta's default is 100.
3. Within a transaction the app ids are recorded as read, as `OptimisticTransaction.txnVersion` does, so Delta refuses
   the commit when another one moved any of them in the meantime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from delta_loader.spark.gateway import Gateway, Java
    from delta_loader.spark.state_sessions import StateSessions

ABSENT = -1
"""Delta's txnVersion for an app id without a txn action."""


def transactions_of(gateway: Gateway, sessions: StateSessions, snapshot: Java) -> dict[str, int]:
    """The last version of each app id in a snapshot."""
    found = _of_checksum(gateway, snapshot)
    if found is not None:
        return found
    with sessions.fit(snapshot):
        return _read(gateway, snapshot.transactions())


def versions_within(
    gateway: Gateway, sessions: StateSessions, transaction: Java, app_ids: Iterable[str]
) -> dict[str, int]:
    """The versions of these app ids, which the transaction depends on from now on (rule 3)."""
    wanted = list(app_ids)
    found = _of_checksum(gateway, transaction.snapshot())
    if found is None:
        with sessions.fit(transaction.snapshot()):
            return {app_id: int(transaction.txnVersion(app_id)) for app_id in wanted}
    noted = gateway.new_list()
    for app_id in wanted:
        noted.add(app_id)
    transaction.readTxn().addAll(gateway.scala(noted))
    return {app_id: found.get(app_id, ABSENT) for app_id in wanted}


def _of_checksum(gateway: Gateway, snapshot: Java) -> dict[str, int] | None:
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else gateway.none
    if not known.isDefined():
        return None
    return {str(one["appId"]): int(one["version"]) for one in gateway.plain(known.get())}


def _read(gateway: Gateway, transactions: Java) -> dict[str, int]:
    return {str(app_id): int(version) for app_id, version in gateway.plain(transactions).items()}
