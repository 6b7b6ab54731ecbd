"""The next load of a stream: the runs of markers that can be loaded now, within one commit's limits."""

from collections.abc import Mapping

from common.spans import TopicPartition
from delta_loader.load.context import LoadContext
from delta_loader.plan.held import Held, MainTable, held, unknown_partition
from delta_loader.plan.plan import (
    Limits,
    Load,
    Loadable,
    MissingOrigin,
    Overlap,
    Run,
    has_mixed,
    next_run,
    plan_load,
    require_splittable,
)


def plan(context: LoadContext, lost: Mapping[TopicPartition, Held], limits: Limits) -> Load | None:
    """The next load, or None when nothing is left; partitions that cannot move are held.

    ``lost`` are partitions that wait for an operator (`RollbackFence.partitions`).
    """
    return plan_load(_one_at_a_time(context, _runs(context, lost)), limits)


def _runs(context: LoadContext, lost: Mapping[TopicPartition, Held]) -> dict[TopicPartition, Loadable]:
    stream, runs, unknown = context.stream, {}, context.unknown_partitions
    for partition, listed in context.listing.items():
        markers = context.markers(partition)
        if partition in unknown:
            paths = [path for marker in markers for path in listed.paths(marker.name)]
            context.reporter.held(partition, unknown_partition(partition, paths))
        if partition in context.report.held:
            continue
        outcome = next_run(context.position(partition), markers, context.origin(partition))
        outcome = require_splittable(outcome, stream.row_tables, kafka_columns=stream.kafka_columns)
        main = _main_table(context, partition) if isinstance(outcome, MissingOrigin) else None
        reason = lost.get(partition) or held(partition, outcome, main)
        if isinstance(outcome, Run | Overlap) and partition not in lost:
            runs[partition] = outcome
        elif reason is not None:
            context.reporter.held(partition, reason)
    return runs


def _main_table(context: LoadContext, partition: TopicPartition) -> MainTable:
    stream, tables = context.stream, context.tables
    positions = {url: tables.position(url, partition) for url in stream.secondary_tables}
    others = {url: position for url, position in positions.items() if position is not None}
    return MainTable(stream.table, stream.table in tables.targets, others, stream.row_tables)


def _one_at_a_time(context: LoadContext, runs: dict[TopicPartition, Loadable]) -> dict[TopicPartition, Loadable]:
    """Once Spark could not write rows of several Kafka partitions: the other runs, and one of these at a time."""
    if not context.one_at_a_time:
        return runs
    every = context.tables.by_spark
    mixed = [partition for partition, run in runs.items() if every or any(has_mixed(marker) for marker in run.markers)]
    return {partition: run for partition, run in runs.items() if partition not in mixed[1:]}
