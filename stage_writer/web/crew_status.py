"""Merges the status pages of several workers: partitions are listed together, counts are summed."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from pydantic import TypeAdapter

from common.http.pages import release
from common.pages.model import DeadLetters, Figure, FlowStep, Status, StreamFlow, Unit, Violations, added, counted

if TYPE_CHECKING:
    from collections.abc import Sequence

_EVENTS = 50
_STATUS = TypeAdapter(Status)


def status_from_json(text: str) -> Status:
    """A worker's status. Raises ValueError."""
    return _STATUS.validate_json(text)


def merged_status(found: Sequence[Status], workers: int, now_ms: int, started_ms: int) -> Status:
    """``found`` are the statuses of the workers that answered."""
    flows: dict[str, list[StreamFlow]] = {}
    for flow in (flow for status in found for flow in status.streams):
        flows.setdefault(flow.app_id, []).append(flow)
    partitions = sorted(
        (row for status in found for row in status.partitions), key=lambda row: (row.stream, row.topic, row.partition)
    )
    states = {status.state for status in found}
    return Status(
        service="stage-writer",
        version=release(),
        now_ms=now_ms,
        started_ms=started_ms,
        state=states.pop() if len(states) == 1 else ", ".join(sorted(states)) or "starting",
        verdict=f"{len(found)} of {workers} workers answer; they stage {counted(len(partitions), 'Kafka partition')}.",
        figures=_figures(found),
        problems=tuple(dict.fromkeys(problem for status in found for problem in status.problems)),
        streams=tuple(_flow(same) for _, same in sorted(flows.items())),
        stops=found[0].stops if found else (),
        partitions=tuple(partitions),
        events_title="Recent flushes",
        events=tuple(
            sorted((event for status in found for event in status.events), key=lambda one: -one.time_ms)[:_EVENTS]
        ),
        dead_letters=_dead_letters(found),
        violations=_violations(found),
        is_known=len(found) == workers and all(status.is_known for status in found),
    )


def _figures(found: Sequence[Status]) -> tuple[Figure, ...]:
    by_label: dict[str, list[Figure]] = {}
    for figure in (figure for status in found for figure in status.figures):
        by_label.setdefault(figure.label, []).append(figure)
    return tuple(_figure(same) for same in by_label.values())


def _figure(same: Sequence[Figure]) -> Figure:
    numbers = [figure.value for figure in same if isinstance(figure.value, int | float)]
    if not numbers or same[0].unit is Unit.TEXT:
        return same[0]
    bounds = [figure.of for figure in same if figure.of is not None]
    added = same[0].unit in {Unit.COUNT, Unit.BYTES}
    return replace(same[0], value=sum(numbers) if added else max(numbers), of=sum(bounds) if bounds else None)


def _flow(same: Sequence[StreamFlow]) -> StreamFlow:
    first = same[0]
    partitions = sum(flow.partitions for flow in same)
    stops = [_stop([flow.stops[index] for flow in same]) for index in range(len(first.stops))]
    levels = [flow.level for flow in same if flow.level is not None]
    return replace(
        first,
        way=f"{counted(partitions, 'partition')} here",
        stops=tuple(stops),
        partitions=partitions,
        held=sum(flow.held for flow in same),
        level=levels[0] if levels else None,
    )


def _stop(same: Sequence[FlowStep]) -> FlowStep:
    lags = [step.lag for step in same if step.lag is not None]
    return replace(same[0], lag=added(lags) if lags else None)


def _dead_letters(found: Sequence[Status]) -> tuple[DeadLetters, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    samples: dict[tuple[str, str], DeadLetters] = {}
    for letters in (letters for status in found for letters in status.dead_letters):
        counts[letters.stream, letters.error_class] += letters.count
        if letters.samples:
            samples[letters.stream, letters.error_class] = letters
    return tuple(
        DeadLetters(*key, count, samples[key].samples if key in samples else ()) for key, count in counts.most_common()
    )


def _violations(found: Sequence[Status]) -> tuple[Violations, ...]:
    counts: Counter[tuple[str, str]] = Counter()
    for each in (each for status in found for each in status.violations):
        counts[each.stream, each.rule] += each.count
    return tuple(Violations(*key, count) for key, count in counts.most_common())
