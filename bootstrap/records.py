"""The repairs as JSON, for programs; `bootstrap.view` shows the same as text."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from bootstrap.plans.restart import Left
from common.stage.chain_origins import origin_path
from common.tables.rollback import described

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bootstrap.accepting import Accepting
    from bootstrap.plans.accept import AcceptPlan, PartitionResolution
    from bootstrap.plans.repair import RewindPlan, SkipPlan
    from bootstrap.plans.restart import Restart
    from common.spans import Span, TopicPartition

Record = dict[str, object]


def skip_as_json(plan: SkipPlan, *, done: bool) -> str:
    """The positions that a skip gives up."""
    marker = plan.marker
    return _text(
        _place(marker.name.topic_partition)
        | {"given_up": _span(marker.span), "marker": marker.name.path, "notes": list(plan.notes)},
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
            "answer": accepting.answer(plan).path,
            "partitions": [_answer(resolution) for resolution in plan.partitions],
        }
        for plan in plans
    ]
    return _text({"tables": tables}, done=done)


def restarts_as_json(plans: Sequence[Restart | Left], *, done: bool) -> str:
    """What a restart changes in each partition."""
    return _text({"partitions": [_restart(plan) for plan in plans]}, done=done)


def _restart(plan: Restart | Left) -> Record:
    if isinstance(plan, Left):
        return _place(plan.partition) | {"left": plan.why}
    begin = plan.beginning
    return _place(plan.partition) | {
        "left": None,
        "generation": None if begin is None else begin.generation,
        "position": None if begin is None else begin.position,
        "put_aside": [staged.path for staged in plan.put_aside],
        "notes": list(plan.notes),
    }


def _answer(found: PartitionResolution) -> Record:
    return _place(found.partition) | {
        "position": found.position,
        "staged_to": found.staged_to,
        "given_up": None if found.given_up is None else _span(found.given_up),
        "rewind": None if found.rewind is None else _rewind(found.rewind),
    }


def _rewind(plan: RewindPlan) -> Record:
    return _place(plan.partition) | {
        "asked": plan.asked,
        "position": plan.position,
        "put_aside": [staged.path for staged in plan.put_aside],
        "marker": None if plan.marker is None else plan.marker.name.path,
        "beginning": None if plan.beginning is None else origin_path(plan.partition, plan.beginning.number),
        "notes": list(plan.notes),
    }


def _place(partition: TopicPartition) -> Record:
    return {"topic": str(partition.topic), "partition": int(partition.partition)}


def _span(span: Span) -> Record:
    return {"start": int(span.start), "end": int(span.end), "positions": span.positions}


def _text(record: Record, *, done: bool) -> str:
    return json.dumps({"done": done, **record}, indent=2)
