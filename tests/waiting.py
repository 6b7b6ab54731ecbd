"""Waiting for what comes when it comes: tests know conditions, and no durations."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import KafkaError, KafkaException

from devservices.kafka import KafkaCluster


def until(condition: Callable[[], object], what: str = "it", within_s: float = 600.0) -> None:
    """Wait for a condition. `Child.wait_until` is for one that a process has to live for."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.02)


def until_left(kafka: KafkaCluster, group: str) -> None:
    """Wait until a group has no members: one that was killed keeps its partitions for the length of a session.

    Without this, a writer that catches up next to it ends once its own partitions are staged.
    """
    admin = kafka.admin  # held, because the answer is lost when the client is collected

    def has_no_members() -> bool:
        try:
            return not admin.describe_consumer_groups([group])[group].result(60).members
        except KafkaException as error:
            if error.args[0].code() != KafkaError.GROUP_ID_NOT_FOUND:
                raise
            return True  # an empty one that committed nothing is forgotten

    until(has_no_members, f"the end of {group}")
