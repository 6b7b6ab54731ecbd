"""The next load of a stream: the runs of markers that can be loaded now, within one commit's limits."""

from collections.abc import Mapping

from common.spans import TopicPartition
from delta_loader.load.context import LoadContext
from delta_loader.load.settle import unknown_partitions
from delta_loader.plan.held import Held, unknown_partition
from delta_loader.plan.plan import Limits, Load, Loadable, Overlap, Run, has_mixed, plan_load


def plan(context: LoadContext, lost: Mapping[TopicPartition, Held], limits: Limits) -> Load | None:
    """The next load, or None when nothing is left; partitions that cannot move are held.

    ``lost`` are partitions that wait for an operator (`RollbackFence.partitions`).
    """
    return plan_load(_one_at_a_time(context, _runs(context, lost)), limits)


def _runs(context: LoadContext, lost: Mapping[TopicPartition, Held]) -> dict[TopicPartition, Loadable]:
    chains = context.chains()
    unknown = unknown_partitions(chains.markers, context.partitions)
    runs: dict[TopicPartition, Loadable] = {}
    for partition, listed in context.listing.items():
        if partition in unknown:
            paths = [path for marker in chains.markers[partition] for path in listed.paths(marker.name)]
            context.reporter.held(partition, unknown_partition(partition, paths))
        if partition in context.report.held:
            continue
        outcome = chains.outcome(partition)
        reason = lost.get(partition) or chains.held(partition, outcome)
        if isinstance(outcome, Run | Overlap) and partition not in lost:
            runs[partition] = outcome
        elif reason is not None:
            context.reporter.held(partition, reason)
    return runs


def _one_at_a_time(context: LoadContext, runs: dict[TopicPartition, Loadable]) -> dict[TopicPartition, Loadable]:
    """Once Spark could not write rows of several Kafka partitions: the other runs, and one of these at a time."""
    if not context.one_at_a_time:
        return runs
    every = context.tables.by_spark
    mixed = [partition for partition, run in runs.items() if every or any(has_mixed(marker) for marker in run.markers)]
    return {partition: run for partition, run in runs.items() if partition not in mixed[1:]}
