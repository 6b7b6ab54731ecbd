"""The ranges that a load leaves out for a table that cannot take its part now (common/tables/deferred_ranges.py). Pure.

Rules:

1. A table that lacks records of a Kafka partition gets no later records before it has those. Otherwise its own txn
   action would say that it has them all. A load's records for such a table therefore extend the deferred range.
2. A deferred range starts with the first marker that has files for the table. Markers before it had none, or were
   loaded.
3. A table is committed to only for markers with files for it. Its txn action may therefore be far behind, and that
   alone is not a deferred range.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from common.spans import Position, Span, TopicPartition
from common.tables.deferred_ranges import DeferredIds, DeferredRange
from common.tables.transactions import TxnIds
from delta_loader.plan.plan import Load, Loadable, Run, files_for
from delta_loader.tables.commits import TableCommit


def without_sources(load: Load, partitions: Collection[TopicPartition]) -> Load:
    return Load({partition: run for partition, run in load.runs.items() if partition not in partitions})


def excluded_spans(load: Load, url: str, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, Span]:
    """The span over a load's files for a table that gets none of them, by Kafka partition."""
    spans: dict[TopicPartition, Span] = {}
    for partition in partitions:
        needed = [marker for marker in load.runs[partition].markers if files_for(url, marker)]
        if needed:
            spans[partition] = Span(load.start_of(needed[0]), needed[-1].span.end)
    return spans


def with_deferred(
    commit: TableCommit, url: str, spans: Mapping[TopicPartition, Span], deferred: Iterable[DeferredRange], ids: TxnIds
) -> TableCommit:
    """The commit to the main table, also noting the ranges that a secondary table does not get (rules 1 and 2)."""
    known = {missing.partition: missing.span for missing in deferred if missing.url == url}
    versions: dict[str, int] = {}
    for partition, span in spans.items():
        before = known.get(partition, span)
        wider = Span(min(before.start, span.start), max(before.end, span.end))
        versions |= DeferredIds.for_table(ids, partition, url).written(wider)
    return _moved(commit, versions)


def with_caught_up(commit: TableCommit, missing: DeferredRange, ids: TxnIds) -> TableCommit:
    """The commit to the main table, also noting that a deferred range is complete, under each spelling that has it."""
    first, *others = DeferredIds.all_for_table(ids, missing.partition, missing.url)
    ended = [first, *(other for other in others if other.read(commit.target.transactions) is not None)]
    return _moved(commit, {txn_id: at for each in ended for txn_id, at in each.caught_up(missing.span).items()})


def _moved(commit: TableCommit, versions: Mapping[str, int]) -> TableCommit:
    seen = {txn_id: commit.target.transactions.get(txn_id) for txn_id in versions}
    return replace(commit, expected={**commit.expected, **seen}, advances={**commit.advances, **versions})


def first_part(load: Loadable, end: Position) -> Loadable:
    """The loadable markers up to the first one that starts at ``end`` or later."""
    if not isinstance(load, Run):
        return load
    return Run(tuple(marker for marker in load.markers if marker.span.start < end) or load.markers[:1])
