"""The markers that repairs put aside, and the outboxes that only they name.

Rules:

1. A rewind puts a marker aside, and a loader may commit that marker at the same moment. The table then has records that
   the chain lacks. Usually they are staged again, and the new flush has an outbox for them. If another repair continues
   the chain at the table's position before that, they are not. Only the outbox of the marker that was put aside has
   these records then, so the repair's marker names it. If its writer has delivered it meanwhile, the delivery passes
   over it (stage_writer/outbox/delivery.py, rules 3 and 4).
2. An outbox is named in this way only if the table has everything up to its end. Later records are staged again,
   perhaps with another result. It is not named either if the chain continues at its start or below: its delivery would
   pass over what is staged there.
3. While the chain is below the end of such an outbox, the clean-up keeps it.
"""

from collections.abc import Iterable

from common.ports import ObjectStore
from common.spans import Position, TopicPartition
from common.stage.marker_contents import manifest_of
from common.stage.markers import STRAY, Manifest, folder_of, is_late_path, name_of_copy
from common.stage.task_files import OutboxName


def put_aside_manifests(store: ObjectStore, partition: TopicPartition) -> list[Manifest]:
    """What repairs put aside of a chain, in no order, without what cannot be read. Raises StoreError."""
    paths = [item.path for item in store.list(f"{STRAY}/{folder_of(partition)}") if not is_late_path(item.path)]
    names = ((name_of_copy(path), path) for path in paths)
    manifests = (manifest_of(name, store.read(path)) for name, path in names if name is not None)
    return [manifest for manifest in manifests if manifest is not None]


def outboxes_beyond(
    aside: Iterable[Manifest], chain_end: Position, generation: int, table: Position | None = None
) -> tuple[str, ...]:
    """The outboxes that reach beyond a chain's end, oldest first; with ``table``, only those that end there or before.

    ``generation`` is the chain's: positions of an earlier one are those of another topic.
    """
    ends: dict[OutboxName, Position] = {}
    for manifest in aside:
        if manifest.generation != generation:
            continue
        for name in filter(None, map(OutboxName.parse, manifest.outboxes)):
            # Only the marker's own outbox has records of its span; the others are of markers before it.
            end = manifest.span.end if name.start >= manifest.span.start else manifest.span.start
            ends[name] = min(end, ends.get(name, end))
    chosen = (name for name, end in ends.items() if end > chain_end and (table is None or end <= table))
    return tuple(name.path for name in sorted(chosen, key=lambda name: (name.start, name.path)))
