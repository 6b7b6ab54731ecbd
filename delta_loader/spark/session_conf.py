"""Spark's names for what more than one module of the loader needs: settings of a session, and a table's URL."""

STATE_PARTITIONS = "spark.databricks.delta.snapshotPartitions"
LOCAL_STATE_PARTITIONS = "4"
"""Delta splits a table's state into 50 parts by default, which costs two seconds per commit on one machine."""
TRANSACTIONS_IN_CHECKSUM = "spark.databricks.delta.setTransactionsInCrc.maxAllowed"
MOST_TRANSACTIONS = "20000"


def spark_url(url: str) -> str:
    """A table's URL as Spark spells it: fsspec's ``s3`` is ``s3a``."""
    for scheme in ("s3://", "s3n://"):
        if url.startswith(scheme):
            return "s3a://" + url.removeprefix(scheme)
    return url
