"""The output of ``delta-loader services``: the last runs for each table, and due tasks.

Rule: JSON keys are only ever added. Figures are those of the tables' own logs.
"""

from collections.abc import Iterator, Sequence
from typing import assert_never

from common.json_value import Json
from common.sizes import counted, size_text, time_text
from delta_loader.maintenance.services.due import (
    Done,
    MaintenanceTask,
    Outcome,
    RunReport,
    TableSnapshot,
    TaskAborted,
    TaskFailed,
    TaskReport,
)
from delta_loader.maintenance.services.facts import Service, ServiceRun, TableFacts


def tables_to_json(snapshots: Sequence[TableSnapshot]) -> Json:
    return {"tables": [_table_json(snapshot) for snapshot in snapshots]}


def _table_json(snapshot: TableSnapshot) -> Json:
    facts = snapshot.facts
    return {
        "table": snapshot.url,
        "failure": snapshot.failure,
        "version": None if facts is None else facts.log.version,
        "files": None if facts is None else facts.files,
        "bytes": None if facts is None else facts.size_bytes,
        "partitions": None if facts is None else len(facts.partitions),
        "small_files": None if facts is None else sum(partition.small_files for partition in facts.partitions),
        "log": None if facts is None else _log_json(facts),
        "runs": [] if facts is None else [_run_json(run) for run in facts.runs],
        "due": [_task_json(task) for task in snapshot.due.tasks],
        "refused": [
            {"service": refused.service.value, "problem": refused.why, "remedy": refused.remedy}
            for refused in snapshot.due.refused
        ],
        "vacuum_waits": snapshot.due.vacuum_waits or None,
    }


def _log_json(facts: TableFacts) -> Json:
    log = facts.log
    return {
        "commits": log.commits,
        "oldest_version": log.oldest_version,
        "oldest_ms": log.oldest_ms,
        "bytes": log.size_bytes,
        "commits_since_checkpoint": log.commits_since_checkpoint,
    }


def _run_json(run: ServiceRun) -> Json:
    return {
        "service": run.service.value,
        "version": run.version,
        "at_ms": run.at_ms,
        "files_before": run.files_removed,
        "files_after": run.files_added,
        "bytes_before": run.bytes_removed,
        "bytes_after": run.bytes_added,
        "words": run.words,
        "completed": run.completed,
    }


def _task_json(task: MaintenanceTask) -> dict[str, Json]:
    return {
        "service": task.service.value,
        "why": task.why,
        "bytes": task.size_bytes,
        "partitions": [dict(values) for values in task.partitions],
        "z_order": list(task.z_order),
    }


def tables_to_text(snapshots: Sequence[TableSnapshot]) -> str:
    nothing = "no table: `table_services.enabled` is false for each stream"
    return "\n".join(line for snapshot in snapshots for line in _table_lines(snapshot)) or nothing


def _table_lines(snapshot: TableSnapshot) -> Iterator[str]:
    if snapshot.facts is None:
        yield f"{snapshot.url}: " + (f"unknown: {snapshot.failure}" if snapshot.failure else "not created yet")
        return
    facts = snapshot.facts
    parts = f" in {len(facts.partitions):,} partitions" if facts.partition_by else ""
    yield f"{snapshot.url} (version {facts.log.version})"
    yield f"  {counted(facts.files, 'file')}{parts}, {size_text(facts.size_bytes)}"
    yield f"  log: {_log_words(facts)}"
    yield from (f"  last {_run_words(run)}" for run in _last_of_each(facts))
    for task in snapshot.due.tasks:
        yield f"  due: {task.service.value}: {task.why}"
    for refused in snapshot.due.refused:
        yield f"  refused: {refused.service.value}: {refused.why}"
        yield f"  → {refused.remedy}"
    if not snapshot.due.tasks and not snapshot.due.refused:
        yield "  nothing is due"
    if snapshot.due.vacuum_waits:
        yield f"  no vacuum is due: {snapshot.due.vacuum_waits}"


def _log_words(facts: TableFacts) -> str:
    log = facts.log
    kept = facts.properties.get("delta.logRetentionDuration", "30 days").removeprefix("interval ")
    return (
        f"{counted(log.commits, 'commit')} since {time_text(log.oldest_ms)}, {size_text(log.size_bytes)}, "
        f"kept for {kept}; {log.commits_since_checkpoint:,} since the last checkpoint"
    )


def _rewritten(by: ServiceRun | Done) -> str:
    return (
        f"{by.files_removed:,} files became {by.files_added:,}, "
        f"{size_text(by.bytes_removed)} became {size_text(by.bytes_added)}"
    )


def _last_of_each(facts: TableFacts) -> Iterator[ServiceRun]:
    for service in Service:
        run = next((run for run in facts.runs if run.service is service), None)
        if run is not None:
            yield run


def _run_words(run: ServiceRun) -> str:
    head = f"{run.service.value} at {time_text(run.at_ms)} (version {run.version})"
    match run.service:
        case Service.OPTIMIZE:
            words = f", {run.words}" if run.words else ""
            return f"{head}{words}: {_rewritten(run)}"
        case Service.VACUUM:
            if not run.completed:
                return f"{head}: did not complete"
            freed = f", {size_text(run.bytes_removed)}" if run.bytes_removed else ""
            return f"{head}: {run.files_removed:,} files deleted{freed}"
        case Service.CHECKPOINT | Service.STATISTICS:
            return head
        case _:
            assert_never(run.service)


def run_to_json(run: RunReport) -> Json:
    return {
        "done": [
            {
                "table": report.task.url,
                **_task_json(report.task),
                **_outcome_json(report.outcome),
                "duration_s": round(report.duration_s, 3),
            }
            for report in run.tasks
        ],
        "left": [{"table": task.url, **_task_json(task)} for task in run.left],
        "stopped_by": run.stopped_by or None,
    }


def _outcome_json(outcome: Outcome) -> dict[str, Json]:
    match outcome:
        case Done():
            return {
                "outcome": "done",
                "files_before": outcome.files_removed,
                "files_after": outcome.files_added,
                "bytes_before": outcome.bytes_removed,
                "bytes_after": outcome.bytes_added,
            }
        case TaskAborted(problem):
            return {"outcome": "given_up", "problem": problem}
        case TaskFailed(problem):
            return {"outcome": "failed", "problem": problem}
        case _:
            assert_never(outcome)


def run_to_text(run: RunReport) -> str:
    lines = [
        f"{report.task.url}: {report.task.service.value}: {_outcome_words(report)} ({report.duration_s:.1f} s)"
        for report in run.tasks
    ]
    why = run.stopped_by or "failed"
    lines += [f"{task.url}: {task.service.value}: left for the next run ({why})" for task in run.left]
    return "\n".join(lines) or "nothing was due"


def _outcome_words(report: TaskReport) -> str:
    match report.outcome:
        case Done() as done:
            if report.task.service is Service.OPTIMIZE:
                return _rewritten(done)
            if report.task.service is Service.VACUUM:
                return f"{done.files_removed:,} files deleted, {size_text(done.bytes_removed)}"
            return "done"
        case TaskAborted(problem):
            return f"aborted, because of a concurrent commit: {problem}"
        case TaskFailed(problem):
            return f"failed: {problem}"
        case _:
            assert_never(report.outcome)
