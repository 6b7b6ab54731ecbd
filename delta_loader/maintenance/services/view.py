"""The output of ``delta-loader services``: the last runs of each table, and what is due.

Rule: JSON keys are only ever added. Figures are those of the tables' own logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from common.json_value import Json  # noqa: TC001 - an alias of a union
from common.sizes import size_text, time_text
from delta_loader.maintenance.services.facts import Service, ServiceRun
from delta_loader.maintenance.services.outcomes import Done, GivenUp, TaskFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from delta_loader.maintenance.services.due import CommitPiece
    from delta_loader.maintenance.services.facts import TableFacts
    from delta_loader.maintenance.services.outcomes import Outcome, PieceReport, RunReport, TableSnapshot


def tables_to_json(looks: Sequence[TableSnapshot]) -> Json:
    return {"tables": [_table_json(look) for look in looks]}


def _table_json(look: TableSnapshot) -> Json:
    facts = look.facts
    return {
        "table": look.url,
        "failure": look.failure,
        "version": None if facts is None else facts.log.version,
        "files": None if facts is None else facts.files,
        "bytes": None if facts is None else facts.size_bytes,
        "partitions": None if facts is None else len(facts.partitions),
        "small_files": None if facts is None else sum(partition.small_files for partition in facts.partitions),
        "log": None if facts is None else _log_json(facts),
        "runs": [] if facts is None else [_run_json(run) for run in facts.runs],
        "due": [_piece_json(piece) for piece in look.due.pieces],
        "refused": [
            {"service": refused.service.value, "problem": refused.why, "remedy": refused.remedy}
            for refused in look.due.refused
        ],
        "vacuum_waits": look.due.vacuum_waits or None,
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


def _piece_json(piece: CommitPiece) -> Json:
    return {
        "service": piece.service.value,
        "why": piece.why,
        "bytes": piece.size_bytes,
        "partitions": [dict(values) for values in piece.partitions],
        "z_order": list(piece.z_order),
    }


def tables_to_text(looks: Sequence[TableSnapshot]) -> str:
    nothing = "no table: `table_services.enabled` is false for each stream"
    return "\n".join(line for look in looks for line in _table_lines(look)) or nothing


def _table_lines(look: TableSnapshot) -> Iterator[str]:
    if look.facts is None:
        yield f"{look.url}: " + (f"unknown: {look.failure}" if look.failure else "not created yet")
        return
    facts = look.facts
    parts = f" in {len(facts.partitions):,} partitions" if facts.partition_by else ""
    yield f"{look.url} (version {facts.log.version})"
    yield f"  {facts.files:,} files{parts}, {size_text(facts.size_bytes)}"
    yield f"  log: {_log_words(facts)}"
    yield from (f"  last {_run_words(run)}" for run in _last_of_each(facts))
    for piece in look.due.pieces:
        yield f"  due: {piece.service.value}: {piece.why}"
    for refused in look.due.refused:
        yield f"  refused: {refused.service.value}: {refused.why}"
        yield f"  → {refused.remedy}"
    if not look.due.pieces and not look.due.refused:
        yield "  nothing is due"
    if look.due.vacuum_waits:
        yield f"  no vacuum is due: {look.due.vacuum_waits}"


def _log_words(facts: TableFacts) -> str:
    log = facts.log
    kept = facts.properties.get("delta.logRetentionDuration", "30 days").removeprefix("interval ")
    return (
        f"{log.commits:,} commits since {time_text(log.oldest_ms)}, {size_text(log.size_bytes)}, kept for {kept}; "
        f"{log.commits_since_checkpoint:,} since the last checkpoint"
    )


def _last_of_each(facts: TableFacts) -> Iterator[ServiceRun]:
    for service in Service:
        run = next((one for one in facts.runs if one.service is service), None)
        if run is not None:
            yield run


def _run_words(run: ServiceRun) -> str:
    head = f"{run.service.value} at {time_text(run.at_ms)} (version {run.version})"
    match run.service:
        case Service.OPTIMIZE:
            words = f", {run.words}" if run.words else ""
            return (
                f"{head}{words}: {run.files_removed:,} files became {run.files_added:,}, "
                f"{size_text(run.bytes_removed)} became {size_text(run.bytes_added)}"
            )
        case Service.VACUUM:
            if not run.completed:
                return f"{head}: did not come to its end"
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
                "table": report.piece.url,
                **_as_dict(_piece_json(report.piece)),
                **_as_dict(_outcome_json(report.outcome)),
                "duration_s": round(report.duration_s, 3),
            }
            for report in run.pieces
        ],
        "left": [{"table": piece.url, **_as_dict(_piece_json(piece))} for piece in run.left],
        "stopped_by": run.stopped_by or None,
    }


def _as_dict(value: Json) -> dict[str, Json]:
    return value if isinstance(value, dict) else {}


def _outcome_json(outcome: Outcome) -> Json:
    match outcome:
        case Done():
            return {
                "outcome": "done",
                "files_before": outcome.files_removed,
                "files_after": outcome.files_added,
                "bytes_before": outcome.bytes_removed,
                "bytes_after": outcome.bytes_added,
            }
        case GivenUp(problem):
            return {"outcome": "given_up", "problem": problem}
        case TaskFailed(problem):
            return {"outcome": "failed", "problem": problem}
        case _:
            assert_never(outcome)


def run_to_text(run: RunReport) -> str:
    lines = [
        f"{report.piece.url}: {report.piece.service.value}: {_outcome_words(report)} ({report.duration_s:.1f} s)"
        for report in run.pieces
    ]
    why = run.stopped_by or "failed"
    lines += [f"{piece.url}: {piece.service.value}: left for the next run ({why})" for piece in run.left]
    return "\n".join(lines) or "nothing was due"


def _outcome_words(report: PieceReport) -> str:
    match report.outcome:
        case Done() as done:
            if report.piece.service is Service.OPTIMIZE:
                return (
                    f"{done.files_removed:,} files became {done.files_added:,}, "
                    f"{size_text(done.bytes_removed)} became {size_text(done.bytes_added)}"
                )
            if report.piece.service is Service.VACUUM:
                return f"{done.files_removed:,} files deleted, {size_text(done.bytes_removed)}"
            return "done"
        case GivenUp(problem):
            return f"given up, another commit came in between: {problem}"
        case TaskFailed(problem):
            return f"failed: {problem}"
        case _:
            assert_never(report.outcome)
