"""Runs the cases in the DSL and its test driver."""

import json
from datetime import timedelta
from typing import Any, TypeAlias

from stage_writer.topologies.dsl import (
    JoinWindows,
    KTable,
    Materialized,
    SessionWindows,
    StreamsBuilder,
    Suppressed,
    TimeWindows,
    Windowed,
)
from stage_writer.topologies.testing import TopologyTestDriver

Shown: TypeAlias = list[Any]

PREDICATES = {
    "even": lambda _key, value: value is not None and len(_text(value)) % 2 == 0,
    "has_a": lambda _key, value: value is not None and "a" in _text(value),
    "key_b": lambda key, _value: key == "b",
}
PAIRS = {"swap": lambda key, value: (value, key), "mark": lambda key, value: (key, f"{_text(value)}!")}
VALUES = {
    "twice": lambda value: None if value is None else _text(value) * 2,
    "no_a": lambda value: None if value is None or "a" in _text(value) else value,
}


def run(case: dict[str, Any]) -> list[list[Shown]]:
    """For each input what came out: topic, key, value and time."""
    plan = Plan(case["plan"])
    driver = TopologyTestDriver(plan.builder)
    answers = []
    for topic, key, value, timestamp_ms in case["inputs"]:
        driver.pipe_input(topic, key, value, timestamp_ms)
        answers.append(
            [
                [sink, _parsed(record.key), _parsed(record.value), record.timestamp_ms]
                for sink in plan.sinks
                for record in driver.topic_records(sink)
            ]
        )
    assert driver.dead_letters() == []
    return answers


class Plan:
    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.builder = StreamsBuilder()
        self.made: dict[str, Any] = {}
        sinks = set()
        for step in steps:
            made = getattr(self, f"_{step['op']}")(step)
            for number, branch in enumerate(made if isinstance(made, list) else []):
                self.made[f"{step['id']}{number}"] = branch
            self.made[step["id"]] = made
            if step["op"] == "to":
                sinks.add(step["topic"])
        self.sinks = sorted(sinks)

    def _of(self, step: dict[str, Any]) -> Any:  # noqa: ANN401 - a stream, a table or a group
        return self.made[step["of"]]

    def _stream(self, step: dict[str, Any]) -> object:
        return self.builder.stream(step["topic"])

    def _table(self, step: dict[str, Any]) -> object:
        return self.builder.table(step["topic"], materialized=_kept(step))

    def _filter(self, step: dict[str, Any]) -> object:
        of, predicate = self._of(step), PREDICATES[step["function"]]
        return of.filter(predicate, materialized=_kept(step)) if isinstance(of, KTable) else of.filter(predicate)

    def _filter_not(self, step: dict[str, Any]) -> object:
        return self._of(step).filter_not(PREDICATES[step["function"]])

    def _map(self, step: dict[str, Any]) -> object:
        return self._of(step).map(PAIRS[step["function"]])

    def _map_values(self, step: dict[str, Any]) -> object:
        return self._of(step).map_values(VALUES[step["function"]])

    def _flat_map(self, step: dict[str, Any]) -> object:
        return self._of(step).flat_map(lambda _key, value: [(letter, value) for letter in value or ""])

    def _flat_map_values(self, step: dict[str, Any]) -> object:
        return self._of(step).flat_map_values(lambda value: value or "")

    def _select_key(self, step: dict[str, Any]) -> object:
        return self._of(step).select_key(lambda _key, value: _first(value))

    def _branch(self, step: dict[str, Any]) -> object:
        predicates = [PREDICATES[name] for name in step["functions"]]
        return self._of(step).branch(*predicates, default=step.get("default", False))

    def _merge(self, step: dict[str, Any]) -> object:
        return self._of(step).merge(self.made[step["with"]])

    def _group_by_key(self, step: dict[str, Any]) -> object:
        return self._of(step).group_by_key()

    def _group_by(self, step: dict[str, Any]) -> object:
        of = self._of(step)
        if isinstance(of, KTable):
            return of.group_by(lambda _key, value: (_first(value), value), keeps_partition=True)
        return of.group_by(lambda _key, value: _first(value), keeps_partition=True)

    def _windowed_by(self, step: dict[str, Any]) -> object:
        windows = TimeWindows.of_size_and_grace(_ms(step["size"]), _ms(step["grace"])).advance_by(_ms(step["advance"]))
        return self._of(step).windowed_by(windows)

    def _sessions(self, step: dict[str, Any]) -> object:
        windows = SessionWindows.of_inactivity_gap_and_grace(_ms(step["gap"]), _ms(step["grace"]))
        return self._of(step).windowed_by_sessions(windows)

    def _count(self, step: dict[str, Any]) -> object:
        return self._of(step).count()

    def _reduce(self, step: dict[str, Any]) -> object:
        of = self._of(step)
        if type(of).__name__ == "KGroupedTable":
            return of.reduce(lambda so, value: f"{so}+{value}", lambda so, value: f"{so}-{value}")
        return of.reduce(lambda so, value: _unless(step, _text(so) + _text(value)))

    def _aggregate(self, step: dict[str, Any]) -> object:
        of = self._of(step)
        add = lambda _key, value, so: _unless(step, f"{so},{_text(value)}")  # noqa: E731 - three of a kind
        match type(of).__name__:
            case "SessionWindowedKStream":
                return of.aggregate(str, add, lambda _key, left, right: f"{left}|{right}")
            case "KGroupedTable":
                return of.aggregate(
                    str,
                    lambda _key, value, so: _unless(step, f"{_text(so)}+{value}"),
                    lambda _key, value, so: _unless(step, f"{_text(so)}-{value}"),
                )
            case _:
                return of.aggregate(str, add)

    def _to_table(self, step: dict[str, Any]) -> object:
        return self._of(step).to_table()

    def _to_stream(self, step: dict[str, Any]) -> object:
        return self._of(step).to_stream()

    def _suppress(self, step: dict[str, Any]) -> object:
        if "limit" in step:
            return self._of(step).suppress(Suppressed.until_time_limit(_ms(step["limit"]), step.get("records")))
        return self._of(step).suppress(Suppressed.until_window_closes())

    def _join(self, step: dict[str, Any]) -> object:
        of, other = self._of(step), self.made[step["with"]]
        join = getattr(of, step["op"])
        both = lambda own, other_value: _unless(step, f"{_text(own)}/{_text(other_value)}")  # noqa: E731 - the joiner
        if isinstance(of, KTable):
            return join(other, both, materialized=_kept(step))
        if isinstance(other, KTable):
            return join(other, both)
        windows = JoinWindows.of_time_difference_and_grace(_ms(step["before"]), _ms(step["grace"]))
        return join(other, both, windows.after(_ms(step["after"])))

    _left_join = _outer_join = _join

    def _to(self, step: dict[str, Any]) -> None:
        shown = self._of(step).map(lambda key, value: (_text_of_key(key), None if value is None else _text(value)))
        shown.to_topic(step["topic"], key="JSON")


def _kept(step: dict[str, Any]) -> Materialized | None:
    return Materialized(step["store"]) if "store" in step else None


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _unless(step: dict[str, Any], value: str) -> str | None:
    """What a function gives: nothing, where the step is without what it has."""
    return None if "without" in step and step["without"] in value else value


def _first(value: str | None) -> str | None:
    return value[0] if value else None


def _text(value: object) -> str:
    return "null" if value is None else f"{value!s}"


def _text_of_key(key: object) -> object:
    if isinstance(key, Windowed):
        return f"{_text(key.key)}@{key.start_ms}/{key.end_ms}"
    return key


def _parsed(data: bytes | None) -> Any:  # noqa: ANN401 - text or None
    return None if data is None else json.loads(data)
