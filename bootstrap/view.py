"""Formats plans and repairs: aligned text for people, JSON for programs."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import assert_never

from bootstrap.accepting import Accepting
from bootstrap.plans.accept import AcceptPlan, PartitionResolution
from bootstrap.plans.plan import (
    BeginChain,
    Make,
    NoPosition,
    NotNeeded,
    Outcome,
    PlannedPartition,
    RefusedPartition,
    StreamPlan,
)
from bootstrap.plans.repair import RewindPlan, SkipPlan
from bootstrap.plans.restart import Restart, UnchangedPartition
from common.sizes import counted
from common.spans import Span
from common.stage.chain_origins import origin_path
from common.tables.commit_metadata import Decision
from common.tables.rollback import described
from common.terminal import aligned

_HEAD = ("topic", "partition", "position", "marker")
RUNNING = "Running stage writers of that partition use it at their next flush, and one that holds it within a minute."


def plans_as_text(plans: Iterable[StreamPlan]) -> str:
    return "\n\n".join(f"stream {plan.app_id}\n{_table(plan.partitions)}" for plan in plans)


def plans_as_json(plans: Iterable[StreamPlan], *, written: bool) -> str:
    """The plans as JSON for programs; ``written`` is whether the markers were created."""
    streams = [
        {"app_id": plan.app_id, "partitions": [_record(planned) for planned in plan.partitions]} for plan in plans
    ]
    return json.dumps({"written": written, "streams": streams}, indent=2)


def skip_as_text(plan: SkipPlan, *, done: bool) -> str:
    partition, span = plan.marker.name.topic_partition, plan.marker.span
    positions = counted(span.positions, "position")
    lines = [
        f"The records of {partition} in {span}, {positions}, {_will_or_would(done)} never be loaded.",
        *plan.notes,
        f"{_if_done(done, 'created', 'to create')}  {plan.marker.name.path}",
        RUNNING if done else _DRY,
    ]
    return "\n".join(lines)


def rewind_as_text(plan: RewindPlan, late: Sequence[str], *, done: bool) -> str:
    lines = [
        f"The next owner {_will_or_would(done)} stage again from position {plan.position}.",
        *plan.notes,
    ]
    lines += [f"{_if_done(done, 'moved aside', 'to move aside')}  {staged.path}" for staged in plan.put_aside]
    lines += [f"moved aside too, created by a writer in the meantime  {path}" for path in late]
    if plan.marker is not None:
        lines.append(f"{_if_done(done, 'created', 'to create')}  {plan.marker.name.path}")
    if plan.chain_origin is not None:
        lines.append(
            f"{_if_done(done, 'written', 'to write')}  {origin_path(plan.partition, plan.chain_origin.number)}"
        )
    lines.append(RUNNING if done else _DRY)
    return "\n".join(lines)


def accept_as_text(accepting: Accepting, plans: Sequence[AcceptPlan], *, done: bool) -> str:
    lines: list[str] = []
    for plan in plans:
        lines.append(described(plan.event.url, plan.event.back))
        for resolution in plan.partitions:
            lines += [f"  {line}" for line in _accepted(plan, resolution, done=done)]
        lines.append(f"{_if_done(done, 'created', 'to create')}  {accepting.resolution(plan).path}")
    lines.append("The loader applies it at its next run." if done else _DRY)
    return "\n".join(lines)


def _accepted(plan: AcceptPlan, resolution: PartitionResolution, *, done: bool) -> Iterator[str]:
    if plan.decision is Decision.GO_ON:
        yield (
            f"{resolution.partition}: loading {_will_or_would(done)} continue at "
            f"{resolution.position}; missing records stay missing"
        )
        return
    yield f"{resolution.partition}: loading {_will_or_would(done)} start again at {resolution.position}"
    if resolution.given_up is not None:
        yield f"  Kafka no longer has {resolution.given_up}: {resolution.given_up.positions} positions are given up"
    if resolution.staged_to > resolution.position:
        yield (
            f"  the markers of {Span(resolution.position, resolution.staged_to)} "
            "exist with all their files, and are used"
        )
    if resolution.rewind is not None:
        yield f"  the writers {_will_or_would(done)} stage again from {resolution.rewind.position} on, which Kafka has"
        yield from (
            f"  {_if_done(done, 'moved aside', 'to move aside')}  {staged.path}"
            for staged in resolution.rewind.put_aside
        )


def restarts_as_text(plans: Sequence[Restart | UnchangedPartition], *, done: bool) -> str:
    lines: list[str] = []
    for plan in plans:
        if isinstance(plan, UnchangedPartition):
            lines.append(f"{plan.partition}: {plan.why}")
            continue
        begin = plan.chain_origin
        if begin is not None:
            lines.append(
                f"{plan.partition}: a new chain, of generation {begin.generation}, "
                f"{_if_done(done, 'begins', 'would begin')} at position {begin.position}"
            )
        lines += [f"  {note}" for note in plan.notes]
        lines += [f"  {_if_done(done, 'moved aside', 'to move aside')}  {staged.path}" for staged in plan.put_aside]
        if begin is not None:
            lines.append(f"  {_if_done(done, 'written', 'to write')}  {origin_path(plan.partition, begin.number)}")
    if not all(isinstance(plan, UnchangedPartition) for plan in plans):
        lines.append(RUNNING_HELD if done else _DRY)
    return "\n".join(lines)


RUNNING_HELD = "Running stage writers use it within half a minute."
_DRY = "Nothing was changed; add --yes to do it."


def _will_or_would(done: bool) -> str:  # noqa: FBT001 - one word
    return "will" if done else "would"


def _if_done(done: bool, text: str, planned: str) -> str:  # noqa: FBT001 - one word
    return text if done else planned


def _table(partitions: Sequence[PlannedPartition]) -> str:
    rows = (
        (
            planned.partition.topic,
            str(planned.partition.partition),
            "-" if planned.position is None else str(planned.position),
            _marker_or_why(planned.outcome),
        )
        for planned in partitions
    )
    return aligned(_HEAD, rows)


def _marker_or_why(outcome: Outcome) -> str:
    match outcome:
        case Make(marker, note):
            return f"{marker.name.path}{f' ({note})' if note else ''}"
        case BeginChain():
            return outcome.path
        case NotNeeded(why) | NoPosition(why):
            return f"none: {why}"
        case RefusedPartition(problem, remedy):
            return f"refused: {problem}; {remedy}"
        case _:
            assert_never(outcome)


_NAMES: dict[type[Outcome], str] = {
    Make: "make",
    BeginChain: "make",
    NotNeeded: "not_needed",
    NoPosition: "left_out",
    RefusedPartition: "refused",
}


def _record(planned: PlannedPartition) -> dict[str, object]:
    outcome = planned.outcome
    return {
        "topic": planned.partition.topic,
        "partition": planned.partition.partition,
        "position": planned.position,
        "outcome": _NAMES[type(outcome)],
        "marker": _path(outcome),
        "why": _why(outcome),
        "remedy": outcome.remedy if isinstance(outcome, RefusedPartition) else None,
    }


def _path(outcome: Outcome) -> str | None:
    if isinstance(outcome, Make):
        return outcome.marker.name.path
    return outcome.path if isinstance(outcome, BeginChain) else None


def _why(outcome: Outcome) -> str | None:
    match outcome:
        case BeginChain():
            return None
        case Make(_, note):
            return note or None
        case NotNeeded(why) | NoPosition(why):
            return why
        case RefusedPartition(problem, _):
            return problem
        case _:
            assert_never(outcome)


Record = dict[str, object]


def skip_as_json(plan: SkipPlan, *, done: bool) -> str:
    marker = plan.marker
    return _text(
        {
            **marker.name.topic_partition.to_json(),
            "given_up": _span(marker.span),
            "marker": marker.name.path,
            "notes": list(plan.notes),
        },
        done=done,
    )


def rewind_as_json(plan: RewindPlan, late: Sequence[str], *, done: bool) -> str:
    return _text(_rewind(plan) | {"put_aside_late": list(late)}, done=done)


def accept_as_json(accepting: Accepting, plans: Sequence[AcceptPlan], *, done: bool) -> str:
    tables = [
        {
            "table": plan.event.url,
            "kind": plan.event.back.kind.value,
            "what": described(plan.event.url, plan.event.back),
            "decision": plan.decision.value,
            "answer": accepting.resolution(plan).path,
            "partitions": [_answer(resolution) for resolution in plan.partitions],
        }
        for plan in plans
    ]
    return _text({"tables": tables}, done=done)


def restarts_as_json(plans: Sequence[Restart | UnchangedPartition], *, done: bool) -> str:
    return _text({"partitions": [_restart(plan) for plan in plans]}, done=done)


def _restart(plan: Restart | UnchangedPartition) -> Record:
    if isinstance(plan, UnchangedPartition):
        return {**plan.partition.to_json(), "left": plan.why}
    begin = plan.chain_origin
    return {
        **plan.partition.to_json(),
        "left": None,
        "generation": None if begin is None else begin.generation,
        "position": None if begin is None else begin.position,
        "put_aside": [staged.path for staged in plan.put_aside],
        "notes": list(plan.notes),
    }


def _answer(resolution: PartitionResolution) -> Record:
    return {
        **resolution.partition.to_json(),
        "position": resolution.position,
        "staged_to": resolution.staged_to,
        "given_up": None if resolution.given_up is None else _span(resolution.given_up),
        "rewind": None if resolution.rewind is None else _rewind(resolution.rewind),
    }


def _rewind(plan: RewindPlan) -> Record:
    return {
        **plan.partition.to_json(),
        "asked": plan.requested,
        "position": plan.position,
        "put_aside": [staged.path for staged in plan.put_aside],
        "marker": None if plan.marker is None else plan.marker.name.path,
        "beginning": None if plan.chain_origin is None else origin_path(plan.partition, plan.chain_origin.number),
        "notes": list(plan.notes),
    }


def _span(span: Span) -> Record:
    return {"start": int(span.start), "end": int(span.end), "positions": span.positions}


def _text(record: Record, *, done: bool) -> str:
    return json.dumps({"done": done, **record}, indent=2)
