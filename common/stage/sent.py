"""How far the dead letters of a stream's refused records were sent to its topic, for longer than Kafka keeps positions.

Rules:

1. ``sent/<app_id>.json`` is overwritten after a delivery. The position that is committed in Kafka with the records may
   be newer, and the higher one of a generation counts: Kafka forgets positions (``offsets.retention.minutes``), and
   this object may be late by one delivery.
2. An object that cannot be read counts as a missing one.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote

from common.ports import ObjectStore
from common.spans import TopicPartition
from common.stage.stored import Count, StoredPosition, read_if_readable
from common.stored_types import StoredForm, with_partition

SENT = "sent"


@dataclass(frozen=True, slots=True)
class SentTo:
    partition: TopicPartition
    position: StoredPosition
    generation: Count
    """The generation of the chain (common/stage/chain_origins.py)."""


@dataclass(frozen=True, slots=True)
class _Sent:
    partitions: tuple[Annotated[SentTo, with_partition(SentTo, "partition")], ...]


_FORM = StoredForm(_Sent)


def sent_path(app_id: str) -> str:
    return f"{SENT}/{quote(app_id, safe='')}.json"


def read_sent(store: ObjectStore, app_id: str) -> dict[TopicPartition, SentTo]:
    """The recorded positions, by Kafka partition. Raises StoreError."""
    sent = read_if_readable(_FORM, sent_path(app_id), store.read(sent_path(app_id)))
    return {} if sent is None else {each.partition: each for each in sent.partitions}


def write_sent(store: ObjectStore, app_id: str, sent: Iterable[SentTo]) -> None:
    """Replaces what was recorded. Raises StoreError."""
    store.write(sent_path(app_id), _FORM.to_bytes(_Sent(tuple(sorted(sent, key=lambda each: each.partition)))))
