"""The stage, as read and changed by the tool.

Rules:

1. A marker is created exclusively. Only a rewind overwrites one, and only after a copy of it was put aside.
2. An origin is created exclusively too, under a number of its own (common/stage/chain_origins.py, rule 1).
3. A marker that is put aside keeps its path below ``stray/`` and is never overwritten: a second one of the same path
   gets a number. A marker is deleted only after its copy exists.
"""

from collections.abc import Sequence
from itertools import count

from bootstrap.plans.repair import RewindPlan
from bootstrap.plans.restart import Restart
from bootstrap.plans.state import StagedMarker
from common.errors import MarkerError, NewerFormatError, UsageError
from common.ports import AlreadyExists, ObjectStore
from common.spans import TopicPartition
from common.stage.chain_origins import SUPERSEDED, ChainOrigin, origin_path, origin_to_bytes
from common.stage.loading import loading_folder
from common.stage.marker_contents import listed_markers
from common.stage.markers import Marker, MarkerName, folder_of, marker_from_bytes, marker_to_bytes, stray_path


def staged_markers(store: ObjectStore, partition: TopicPartition) -> tuple[StagedMarker, ...]:
    """All markers of a Kafka partition by position, with their content. Raises StoreError."""
    listed = sorted(listed_markers(store, folder_of(partition)))
    staged = (read_marker(store, name, path) for name, path in listed)
    return tuple(marker for marker in staged if marker is not None)


def read_marker(store: ObjectStore, name: MarkerName, path: str) -> StagedMarker | None:
    """A listed marker; None if it was settled since the listing. Raises StoreError."""
    data = store.read(path)
    if data is None:
        return None
    try:
        return StagedMarker(path, name, marker_from_bytes(name, data, path))
    except MarkerError as error:
        return StagedMarker(path, name, None, is_newer=isinstance(error, NewerFormatError))


def make(store: ObjectStore, marker: Marker) -> None:
    """Create a marker. Raises UsageError when another process has created it meanwhile (rule 1)."""
    if isinstance(store.create(marker.name.path, marker_to_bytes(marker)), AlreadyExists):
        msg = f"another process created the marker {marker.name.path} concurrently"
        raise UsageError(msg, "check the plan again; a running stage writer continues by itself")


def begin(store: ObjectStore, partition: TopicPartition, chain_origin: ChainOrigin) -> None:
    """Record an origin (rule 2). Raises UsageError when another process has made one of its number meanwhile."""
    path = origin_path(partition, chain_origin.number)
    if isinstance(store.create(path, origin_to_bytes(chain_origin)), AlreadyExists):
        msg = f"another process wrote {path} concurrently"
        raise UsageError(msg, "check the plan again; a running stage writer continues by itself")
    if chain_origin.number:
        store.write(origin_path(partition), SUPERSEDED)


def restart(store: ObjectStore, plan: Restart) -> None:
    """Carry a restart out, in the order of bootstrap/plans/restart.py (rule 5 there)."""
    for staged in plan.put_aside:
        _copy(store, staged.path)
    if plan.chain_origin is not None:
        begin(store, plan.partition, plan.chain_origin)
    store.delete([staged_marker.path for staged_marker in plan.put_aside])
    # A crashed loader's notes are about the previous chain, whose positions mean nothing in this one.
    store.delete([item.path for item in store.list(loading_folder(plan.partition))])


def rewind(store: ObjectStore, plan: RewindPlan) -> tuple[str, ...]:
    """Carry a rewind out, in the order of bootstrap/plans/repair.py (rule 3 there).

    Returns the paths of the markers that a running writer added meanwhile, and that were put aside after the others.
    """
    if plan.chain_origin is not None:
        begin(store, plan.partition, plan.chain_origin)
    _put_aside(store, plan.put_aside[:-1], copy_also=plan.put_aside[-1:])
    last = [staged.path for staged in plan.put_aside[-1:]]
    if plan.marker is not None and plan.marker.name.path in last:  # the new one overwrites it
        store.write(plan.marker.name.path, marker_to_bytes(plan.marker))
    else:
        if plan.marker is not None:
            make(store, plan.marker)
        store.delete(last)
    return _put_late_ones_aside(store, plan)


def _put_aside(store: ObjectStore, going: Sequence[StagedMarker], copy_also: Sequence[StagedMarker] = ()) -> None:
    for staged in (*going, *copy_also):
        _copy(store, staged.path)
    for staged in going:
        store.delete([staged.path])


def _put_late_ones_aside(store: ObjectStore, plan: RewindPlan) -> tuple[str, ...]:
    """Markers that continue those put aside: claimed after the chain was read, and before the marker below was deleted.

    A later claim still finds the marker before it gone and its copy below ``stray/``, and withdraws. A marker names the
    one before it by its start, which may by now be that of another marker: what that one ends at tells them apart. What
    is below the new end stays, even where a late claim of its predecessor's position was among those put aside.
    """
    if not plan.put_aside:
        return ()
    partition = plan.put_aside[0].name.topic_partition
    gone = {aside.name.start for aside in plan.put_aside}
    late: list[str] = []
    while True:
        staged = staged_markers(store, partition)
        here = {(marker.name.start, marker.marker.span.end) for marker in staged if marker.marker is not None}
        more = [
            marker
            for marker in reversed(staged)
            if marker.name.start > plan.position and marker.marker is not None and marker.marker.previous in gone
            if (marker.marker.previous, marker.name.start) not in here
        ]
        if not more:
            return tuple(late)
        _put_aside(store, more)
        gone |= {marker.name.start for marker in more}
        late += [marker.path for marker in more]


def _copy(store: ObjectStore, path: str) -> None:
    data = store.read(path)
    if data is None:
        return
    for number in count(1):
        if not isinstance(store.create(stray_path(path, number), data), AlreadyExists):
            return
