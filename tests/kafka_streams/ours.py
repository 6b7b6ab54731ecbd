"""Runs the cases in the DSL and its test driver."""

from __future__ import annotations

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
    """The streams and tables of a plan."""

    def __init__(self, steps: list[dict[str, Any]]) -> None:
        self.builder = StreamsBuilder()
        self.made: dict[str, Any] = {}
        sinks = set()
        for one in steps:
            made = getattr(self, f"_{one['op']}")(one)
            for number, branch in enumerate(made if isinstance(made, list) else []):
                self.made[f"{one['id']}{number}"] = branch
            self.made[one["id"]] = made
            if one["op"] == "to":
                sinks.add(one["topic"])
        self.sinks = sorted(sinks)

    def _of(self, one: dict[str, Any]) -> Any:  # noqa: ANN401 - a stream, a table or a group
        return self.made[one["of"]]

    def _stream(self, one: dict[str, Any]) -> object:
        return self.builder.stream(one["topic"])

    def _table(self, one: dict[str, Any]) -> object:
        return self.builder.table(one["topic"], materialized=_kept(one))

    def _filter(self, one: dict[str, Any]) -> object:
        of, predicate = self._of(one), PREDICATES[one["function"]]
        return of.filter(predicate, materialized=_kept(one)) if isinstance(of, KTable) else of.filter(predicate)

    def _filter_not(self, one: dict[str, Any]) -> object:
        return self._of(one).filter_not(PREDICATES[one["function"]])

    def _map(self, one: dict[str, Any]) -> object:
        return self._of(one).map(PAIRS[one["function"]])

    def _map_values(self, one: dict[str, Any]) -> object:
        return self._of(one).map_values(VALUES[one["function"]])

    def _flat_map(self, one: dict[str, Any]) -> object:
        return self._of(one).flat_map(lambda _key, value: [(letter, value) for letter in value or ""])

    def _flat_map_values(self, one: dict[str, Any]) -> object:
        return self._of(one).flat_map_values(lambda value: value or "")

    def _select_key(self, one: dict[str, Any]) -> object:
        return self._of(one).select_key(lambda _key, value: _first(value))

    def _branch(self, one: dict[str, Any]) -> object:
        predicates = [PREDICATES[name] for name in one["functions"]]
        return self._of(one).branch(*predicates, default=one.get("default", False))

    def _merge(self, one: dict[str, Any]) -> object:
        return self._of(one).merge(self.made[one["with"]])

    def _group_by_key(self, one: dict[str, Any]) -> object:
        return self._of(one).group_by_key()

    def _group_by(self, one: dict[str, Any]) -> object:
        of = self._of(one)
        if isinstance(of, KTable):
            return of.group_by(lambda _key, value: (_first(value), value), keeps_partition=True)
        return of.group_by(lambda _key, value: _first(value), keeps_partition=True)

    def _windowed_by(self, one: dict[str, Any]) -> object:
        windows = TimeWindows.of_size_and_grace(_ms(one["size"]), _ms(one["grace"])).advance_by(_ms(one["advance"]))
        return self._of(one).windowed_by(windows)

    def _sessions(self, one: dict[str, Any]) -> object:
        windows = SessionWindows.of_inactivity_gap_and_grace(_ms(one["gap"]), _ms(one["grace"]))
        return self._of(one).windowed_by_sessions(windows)

    def _count(self, one: dict[str, Any]) -> object:
        return self._of(one).count()

    def _reduce(self, one: dict[str, Any]) -> object:
        of = self._of(one)
        if type(of).__name__ == "KGroupedTable":
            return of.reduce(lambda so, value: f"{so}+{value}", lambda so, value: f"{so}-{value}")
        return of.reduce(lambda so, value: _unless(one, _text(so) + _text(value)))

    def _aggregate(self, one: dict[str, Any]) -> object:
        of = self._of(one)
        add = lambda _key, value, so: _unless(one, f"{so},{_text(value)}")  # noqa: E731 - three of a kind
        match type(of).__name__:
            case "SessionWindowedKStream":
                return of.aggregate(str, add, lambda _key, left, right: f"{left}|{right}")
            case "KGroupedTable":
                return of.aggregate(
                    str,
                    lambda _key, value, so: _unless(one, f"{_text(so)}+{value}"),
                    lambda _key, value, so: _unless(one, f"{_text(so)}-{value}"),
                )
            case _:
                return of.aggregate(str, add)

    def _to_table(self, one: dict[str, Any]) -> object:
        return self._of(one).to_table()

    def _to_stream(self, one: dict[str, Any]) -> object:
        return self._of(one).to_stream()

    def _suppress(self, one: dict[str, Any]) -> object:
        if "limit" in one:
            return self._of(one).suppress(Suppressed.until_time_limit(_ms(one["limit"]), one.get("records")))
        return self._of(one).suppress(Suppressed.until_window_closes())

    def _join(self, one: dict[str, Any]) -> object:
        of, other = self._of(one), self.made[one["with"]]
        join = getattr(of, one["op"])
        both = lambda own, found: _unless(one, f"{_text(own)}/{_text(found)}")  # noqa: E731 - the joiner
        if isinstance(of, KTable):
            return join(other, both, materialized=_kept(one))
        if isinstance(other, KTable):
            return join(other, both)
        windows = JoinWindows.of_time_difference_and_grace(_ms(one["before"]), _ms(one["grace"]))
        return join(other, both, windows.after(_ms(one["after"])))

    _left_join = _outer_join = _join

    def _to(self, one: dict[str, Any]) -> None:
        shown = self._of(one).map(lambda key, value: (_text_of_key(key), None if value is None else _text(value)))
        shown.to_topic(one["topic"], key="JSON")


def _kept(one: dict[str, Any]) -> Materialized | None:
    return Materialized(one["store"]) if "store" in one else None


def _ms(milliseconds: int) -> timedelta:
    return timedelta(milliseconds=milliseconds)


def _unless(one: dict[str, Any], value: str) -> str | None:
    """What a function gives: nothing, where the step is without what it has."""
    return None if "without" in one and one["without"] in value else value


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
