"""Keeps rewinds and loads apart, by the rules of `common.stage.loading`, and new chains and loaders."""

from collections.abc import Callable, Iterable, Mapping

from bootstrap.plans.repair import RewindPlan
from common.errors import UsageError
from common.ports import Clock, ObjectStore
from common.remedies import CONFIG, repair, replay
from common.sizes import time_text
from common.spans import Position, Span
from common.stage.leases import Epoch, Grant, current_grants
from common.stage.loading import LoadNote, loading_folder
from common.stage.merged import is_merged


def require_not_loading(store: ObjectStore, plan: RewindPlan, table: Callable[[], Position | None]) -> None:
    """Call this under the repair lock of a rewind, before its first change; ``table`` reads the table's position again.

    Raises UsageError where a loader is loading, or has loaded meanwhile, what would be staged again in another order,
    or the first records of a chain that is rewound to before them.
    """
    partition = plan.partition
    if not is_merged(partition.topic) and plan.chain_start is None:
        return
    for item in store.list(loading_folder(partition)):
        data = store.read(item.path)
        note = None if data is None else LoadNote.from_bytes(data)
        if note is not None and note.end > plan.position:
            began = time_text(note.began_ms)
            msg = f"a loader has started to load {partition} up to {note.end}, at {began} ({item.path})"
            raise UsageError(
                msg,
                "wait for its next run, and check the plan again; if it died, and its successor cannot load that far "
                f"either (`delta-loader status {CONFIG}` says why), delete this object once that process is "
                "certainly gone",
            )
    position = table()
    if position is not None and position > plan.position:
        msg = f"the table now has {partition} up to {position}, so the plan is outdated"
        raise UsageError(msg, "check the plan again")


def require_no_load_begun(plan: RewindPlan, tables: Callable[[], Position | None]) -> None:
    """Call this under the repair lock of a rewind, before its first change; ``tables`` reads their highest position.

    Raises UsageError where a load was interrupted between two tables, or was made since the plan, and the loader would
    pass over what is staged again for the tables that have it: the records from before a chain's start, or other
    records, in a chain of several topics.
    """
    partition, start = plan.partition, plan.chain_start
    position = None if start is None and not is_merged(partition.topic) else tables()
    if position is None or position <= plan.position:
        return
    if start is None:
        msg = (
            f"a table of the stream already has {partition} up to {position}, and its topics may be read in another "
            f"order from {plan.position} on, so it would be unknown which records it has"
        )
        remedy = (
            "let a loader complete that load; if it cannot, start the stream again under another app_id, with "
            "tables of its own"
        )
        raise UsageError(msg, remedy)
    msg = (
        f"a table of the stream already has {partition} up to {position}, and would miss the records staged "
        f"from before the chain's start, {start}"
    )
    remedy = (
        f"let a loader complete that load (if it is held, after `{repair('rewind', partition, start)}`), then load "
        f"what is before it: `{replay(partition, plan.position, start)}`"
    )
    raise UsageError(msg, remedy)


def require_not_loaded(plan: RewindPlan, tables: Callable[[], Position | None]) -> None:
    """Call this after a rewind's last change; ``tables`` reads the highest position of the stream's tables.

    Raises UsageError where a loader has loaded the chain's first records since the plan was made: it will pass over
    what is staged from before them.
    """
    position = None if plan.chain_start is None else tables()
    if position is not None and position > plan.position:
        msg = (
            f"a loader has loaded {plan.partition} up to {position} since the chain was read: it will skip what "
            f"is staged from {plan.position} to there"
        )
        command = replay(plan.partition, plan.position, position)
        raise UsageError(msg, f"load these records separately: `{command}`")


def require_loaded_alike(
    plan: RewindPlan, lacking: Callable[[], Span | None], ahead: Callable[[], Span | None]
) -> None:
    """Call this after a rewind's last change.

    ``lacking`` reads what the main table has and another one lacks, ``ahead`` what another one has and the main table
    lacks. Raises UsageError where a load since the plan left such a table out: it gets what is staged again, by the
    config as it is then (bootstrap/plans/repair.py, rule 5).
    """
    known = ((plan.to_replay, lacking), (plan.tables_ahead, ahead))
    spans = (read() for planned, read in known if planned is None)
    span = next((span for span in spans if span is not None and span.end > plan.position), None)
    if span is None:
        return
    start = max(span.start, plan.position)
    msg = (
        f"{plan.partition} is rewound to {plan.position}; since the chain was read, a loader has loaded it up to "
        f"{span.end}, and not into every table of the stream"
    )
    command = replay(plan.partition, start, span.end)
    raise UsageError(msg, f"if routes or conditions have changed since then, load these records again: `{command}`")


_CHECKS = 10  # per lease time


def require_no_loader(
    store: ObjectStore,
    clock: Clock,
    lease_s: float,
    streams: Mapping[str, frozenset[str]],
    *,
    say: Callable[[str], None],
) -> None:
    """Return once no loader holds the lease of one of ``streams`` (topics by app_id). Raises StoreError.

    Raises UsageError when a loader renews its lease meanwhile, or takes one. A lease that is not renewed for its whole
    time has expired (delta_loader/lease/rules.py, rule 3); until then this waits.
    """
    began_s = clock.monotonic_s()
    first = _grants(store, lease_s, streams)
    waits_s = max((grant.lease_s for grant in first.values()), default=0.0)
    if first:
        holders = ", ".join(sorted({grant.holder for grant in first.values()}))
        say(f"waiting up to {waits_s:.0f} s to learn whether the loader {holders} still runs")
    while (now := _grants(store, lease_s, streams)) and clock.monotonic_s() - began_s < waits_s:
        renewed = next((grant for key, grant in now.items() if key not in first), None)
        if renewed is not None:
            loads = ", ".join(sorted(app_id for app_id in streams if renewed.has(app_id, frozenset())))
            msg = f"the loader {renewed.holder} still loads the stream {loads}: what it adds would be loaded twice"
            raise UsageError(msg, "stop it, or restart it with the current config; then run this command again")
        clock.sleep_s(waits_s / _CHECKS)


def _grants(
    store: ObjectStore, lease_s: float, streams: Mapping[str, frozenset[str]]
) -> dict[tuple[str, Epoch], Grant]:
    grants = (grant for grant in current_grants(store, lease_s) if _includes(grant, streams.items()))
    return {(grant.holder, grant.renewed): grant for grant in grants}


def _includes(grant: Grant, streams: Iterable[tuple[str, frozenset[str]]]) -> bool:
    """Whether a stream is in it. A topic that is given by a pattern may be any."""
    for app_id, topics in streams:
        named = grant.topics.get(app_id, topics)
        if grant.has(app_id, frozenset()) and any(topic in topics or topic.startswith("^") for topic in named):
            return True
    return False
