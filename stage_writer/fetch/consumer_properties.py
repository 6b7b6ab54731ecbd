"""The properties of the writer's consumer: our defaults, the user's own, and the fixed ones.

Rules:

1. ``read_committed`` always; cooperative rebalancing and a prefetch within the memory bound, unless the settings
   differ. There is no automatic reset or commit: Kafka's group offsets are never the truth.
2. Where topics are read together (fetch/merged), partitions with the same number must go to one member, which
   the range assignor guarantees. It revokes everything from every member at each rebalance; static members keep what
   they have.
"""

from collections.abc import Mapping

from common.errors import ConfigError
from common.settings import Settings
from common.settings.section import Option
from stage_writer.memory_shares import MemoryShares

TOPICS_EVERY_S = 30.0
"""How soon an added topic or partition is seen; librdkafka's default is five minutes."""
_LEAST_FETCH_BYTES = 2**20  # librdkafka rejects a value below its message.max.bytes
_SESSION_MS = 45_000


def consumer_properties(settings: Settings, *, co_partitioned: bool = False) -> dict[str, Option]:
    """The consumer's properties; ``co_partitioned``: one member gets the partitions with the same number (rule 2)."""
    shares = MemoryShares.divided(settings.writer.memory_bytes)
    defaults: dict[str, Option] = {
        "client.id": "kafka-delta-express",
        "partition.assignment.strategy": "cooperative-sticky",
        "topic.metadata.refresh.interval.ms": int(TOPICS_EVERY_S * 1000),
        # For all partitions together, which share one queue. One response per broker may exceed it.
        "queued.max.messages.kbytes": shares.prefetch // 1024,
        "queued.min.messages": shares.queued_messages,
        "fetch.max.bytes": max(shares.fetch, _LEAST_FETCH_BYTES),
        # librdkafka's default stops fetching for a second when the queue is full: long enough to run dry.
        "fetch.queue.backoff.ms": 50,
    }
    if settings.kafka.get("group.protocol") == "consumer":
        del defaults["partition.assignment.strategy"]  # the broker assigns, and librdkafka rejects the property
    if co_partitioned:
        defaults |= _co_partitioned(settings.kafka)
    fixed: dict[str, Option] = {
        "group.id": settings.writer.group_id,
        "isolation.level": "read_committed",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        "enable.partition.eof": True,
    }
    return {**defaults, **settings.kafka, **fixed}


def _co_partitioned(given: Mapping[str, Option]) -> dict[str, Option]:
    """Raises ConfigError for a setting that conflicts with rule 2."""
    key = "group.remote.assignor" if given.get("group.protocol") == "consumer" else "partition.assignment.strategy"
    if given.get(key, "range") != "range":
        msg = f"kafka: {key} is {given[key]!r}, but a topology joins topics by partition number"
        raise ConfigError(
            msg, f"remove {key}, or set it to range; with group.instance.id, members keep their partitions"
        )
    return {key: "range"}


def is_cooperative(properties: Mapping[str, Option]) -> bool:
    """Whether a rebalance revokes only what moves to another member; librdkafka has different calls for each kind."""
    strategy = str(properties.get("partition.assignment.strategy", ""))
    return properties.get("group.protocol") == "consumer" or "cooperative" in strategy


def session_s(kafka: Mapping[str, Option]) -> float:
    return float(str(kafka.get("session.timeout.ms", _SESSION_MS))) / 1000
