"""Outboxes that will never be delivered: of lost claims, and of chains abandoned after a partial delivery.

Rules:

1. An outbox is removed if it is older than the safe age, and neither a marker of its chain nor the chain's origin names
   it (common/stage/task_files.py, rule 7). Outboxes are listed before the markers: one that gets its marker in between
   is younger, and is kept. The origin is read after the markers: a rewind writes it before it removes one.
2. A marker that cannot be read, or disappears during the check, keeps all outboxes of its chain; so does an origin that
   cannot be read.
3. An object that is not named like an outbox is left alone.
"""

from common.errors import MarkerError
from common.ports import ObjectStore, StoredObject
from common.spans import TopicPartition
from common.stage.chain_origins import newest_origin
from common.stage.markers import MarkerName, folder_of, marker_from_bytes
from common.stage.task_files import OUTBOX, OutboxName
from delta_loader.ports import ParallelMap, ScannedStore


def settled_outboxes(stage: ScannedStore, parallel: ParallelMap, before_ms: int) -> list[StoredObject]:
    """The outboxes that may be removed. Raises StoreError."""
    by_chain: dict[TopicPartition, list[StoredObject]] = {}
    for item in stage.scan(OUTBOX):
        name = OutboxName.parse(item.path) if item.modified_ms < before_ms else None
        if name is not None:
            by_chain.setdefault(name.partition, []).append(item)
    left: list[StoredObject] = []
    for partition, files in by_chain.items():
        named = _named(stage, parallel, partition)
        if named is not None:
            left += [item for item in files if item.path not in named]
    return left


def _named(stage: ObjectStore, parallel: ParallelMap, partition: TopicPartition) -> set[str] | None:
    """The outboxes that the markers of a chain and its origin name; None if one cannot be read (rule 2)."""
    paths = [item.path for item in stage.list(folder_of(partition))]
    named: set[str] = set()
    try:
        for path, data in zip(paths, parallel(stage.read, paths), strict=True):
            name = MarkerName.parse(path)
            if name is None or data is None:
                return None
            manifest = marker_from_bytes(name, data).manifest
            named.update(() if manifest is None else manifest.outboxes)
        origin = newest_origin(stage, partition)
        named.update(() if origin is None else origin.outboxes)
    except MarkerError:
        return None
    return named
