"""Outboxes that nobody delivers any more: of claims that were lost, and of chains that were left with some delivered.

Rules:

1. An outbox goes if it is older than the safe age, and no marker of its chain names it (common/stage/outboxes.py, rule
   2). It is listed before the markers are: one that gets its marker meanwhile is younger, and is kept.
2. A marker that cannot be read, or goes while this looks, keeps all of its chain's.
3. What is no outbox by its name is left alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from common.errors import MarkerError
from common.stage.markers import MarkerName, folder_of, marker_from_bytes
from common.stage.outboxes import OUTBOX, OutboxName

if TYPE_CHECKING:
    from common.ports import ObjectStore, StoredObject
    from common.spans import TopicPartition
    from delta_loader.ports import ParallelMap, ScannedStore


def settled_outboxes(stage: ScannedStore, parallel: ParallelMap, before_ms: int) -> list[StoredObject]:
    """Those that may be removed. Raises StoreError."""
    by_chain: dict[TopicPartition, list[StoredObject]] = {}
    for found in stage.scan(OUTBOX):
        name = OutboxName.parse(found.path) if found.modified_ms < before_ms else None
        if name is not None:
            by_chain.setdefault(name.source, []).append(found)
    left: list[StoredObject] = []
    for source, files in by_chain.items():
        named = _named(stage, parallel, source)
        if named is not None:
            left += [found for found in files if found.path not in named]
    return left


def _named(stage: ObjectStore, parallel: ParallelMap, source: TopicPartition) -> set[str] | None:
    """What the markers of a chain name; None where one cannot be read (rule 2)."""
    paths = [found.path for found in stage.list(folder_of(source))]
    named: set[str] = set()
    for path, data in zip(paths, parallel(stage.read, paths), strict=True):
        name = MarkerName.parse(path)
        if name is None or data is None:
            return None
        try:
            manifest = marker_from_bytes(name, data).manifest
        except MarkerError:
            return None
        named.update(() if manifest is None else manifest.outboxes)
    return named
