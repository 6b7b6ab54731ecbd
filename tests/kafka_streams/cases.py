"""The cases that the DSL is compared by with Kafka Streams: plans of operators, and inputs.

A plan is a list of steps, each of which names what it makes (``id``), what it is made of (``of``, ``with``) and the
operator; `Comparison.java` and ``ours.py`` read the same. Keys and values are text. Each plan runs on inputs of several
seeds, in which time mostly goes on, jumps now and then, and goes back, and keys and values are missing sometimes.
"""

import random
from collections.abc import Iterable
from typing import Any, TypeAlias

Step: TypeAlias = dict[str, Any]
Plan: TypeAlias = list[Step]
Input: TypeAlias = tuple[str, str | None, str | None, int]

KEYS = ["a", "b", "c"]
VALUES = ["a", "b", "ab", "ba", "xyz", "bc", "cab", "x"]


def step(name: str, op: str, **rest: Any) -> Step:  # noqa: ANN401 - the plan's JSON
    return {"id": name, "op": op, **rest}


def stream(name: str = "s", topic: str = "A") -> Step:
    return step(name, "stream", topic=topic)


def to(of: str, topic: str = "OUT") -> Step:
    return step("", "to", of=of, topic=topic)


def on_stream(*steps: Step) -> Plan:
    """Steps on ``s``, the last of which gives the stream that is shown."""
    return [stream(), *steps, to(steps[-1]["id"])]


def shown(*steps: Step) -> Plan:
    """Steps on ``s``, the last of which gives the table that is shown."""
    return [stream(), *steps, step("shown", "to_stream", of=steps[-1]["id"]), to("shown")]


def aggregated(op: str, *before: Step, **how: str) -> Plan:
    grouped = step("g", "group_by_key", of="s")
    return shown(grouped, *before, step("t", op, of=before[-1]["id"] if before else "g", **how))


def time_windows(size: int, advance: int, grace: int) -> Step:
    return step("w", "windowed_by", of="g", size=size, advance=advance, grace=grace)


def sessions(gap: int, grace: int) -> Step:
    return step("w", "sessions", of="g", gap=gap, grace=grace)


def joined(op: str, before: int, after: int, grace: int) -> Plan:
    windows = {"before": before, "after": after, "grace": grace}
    return [stream("l", "A"), stream("r", "B"), step("j", op, of="l", **{"with": "r"}, **windows), to("j")]


def looked_up(op: str) -> Plan:
    return [stream(), step("t", "table", topic="B"), step("j", op, of="s", **{"with": "t"}), to("j")]


def tables(op: str, *after: Step, **how: str) -> Plan:
    both = [step("l", "table", topic="A"), step("r", "table", topic="B")]
    last = after[-1]["id"] if after else "j"
    shows = [step("shown", "to_stream", of=last), to("shown")]
    return [*both, step("j", op, of="l", **{"with": "r"}, **how), *after, *shows]


def final(*steps: Step) -> Plan:
    return shown(step("g", "group_by_key", of="s"), *steps, step("f", "suppress", of=steps[-1]["id"]))


PLANS: dict[str, Plan] = {
    "filter": on_stream(step("x", "filter", of="s", function="even")),
    "filter_not": on_stream(step("x", "filter_not", of="s", function="has_a")),
    "map": on_stream(step("x", "map", of="s", function="swap")),
    "map_values": on_stream(step("x", "map_values", of="s", function="twice")),
    "flat_map": on_stream(step("x", "flat_map", of="s")),
    "flat_map_values": on_stream(step("x", "flat_map_values", of="s")),
    "select_key": on_stream(step("x", "select_key", of="s")),
    "chain": on_stream(
        step("x", "filter", of="s", function="has_a"),
        step("y", "flat_map_values", of="x"),
        step("z", "map", of="y", function="mark"),
    ),
    "branch": [
        stream(),
        step("b", "branch", of="s", functions=["even", "key_b"]),
        to("b0", "EVEN"),
        to("b1", "B-KEYS"),
    ],
    "branch_default": [
        stream(),
        step("b", "branch", of="s", functions=["even", "key_b"], default=True),
        to("b0", "EVEN"),
        to("b2", "REST"),
    ],
    "merge": [stream("l", "A"), stream("r", "B"), step("m", "merge", of="l", **{"with": "r"}), to("m")],
    "diamond": [
        stream(),
        step("x", "filter", of="s", function="even"),
        step("y", "map_values", of="s", function="twice"),
        step("m", "merge", of="x", **{"with": "y"}),
        to("m"),
    ],
    "count": aggregated("count"),
    "reduce": aggregated("reduce"),
    "aggregate": aggregated("aggregate"),
    "group_by_count": shown(step("g", "group_by", of="s"), step("t", "count", of="g")),
    "group_by_reduce": shown(step("g", "group_by", of="s"), step("t", "reduce", of="g")),
    "to_table": shown(step("t", "to_table", of="s")),
    "table_filter": shown(step("t", "to_table", of="s"), step("f", "filter", of="t", function="has_a")),
    "table_filter_not": shown(step("t", "to_table", of="s"), step("f", "filter_not", of="t", function="has_a")),
    "table_filter_kept": shown(step("t", "to_table", of="s"), step("f", "filter", of="t", function="has_a", store="k")),
    "kept_table_filter": [
        step("t", "table", topic="A", store="k"),
        step("f", "filter", of="t", function="has_a"),
        step("o", "to_stream", of="f"),
        to("o"),
    ],
    "table_map_values": shown(step("t", "to_table", of="s"), step("f", "map_values", of="t", function="no_a")),
    "count_filter": shown(
        step("g", "group_by_key", of="s"), step("t", "reduce", of="g"), step("f", "filter", of="t", function="even")
    ),
    "table_group_count": shown(
        step("t", "to_table", of="s"), step("g", "group_by", of="t"), step("c", "count", of="g")
    ),
    "table_group_reduce": shown(
        step("t", "to_table", of="s"), step("g", "group_by", of="t"), step("c", "reduce", of="g")
    ),
    "table_group_aggregate": shown(
        step("t", "to_table", of="s"),
        step("f", "filter", of="t", function="even"),
        step("g", "group_by", of="f"),
        step("c", "aggregate", of="g"),
    ),
    "tumbling_count": aggregated("count", time_windows(10, 10, 0)),
    "tumbling_aggregate_grace": aggregated("aggregate", time_windows(10, 10, 7)),
    "tumbling_reduce": aggregated("reduce", time_windows(7, 7, 20)),
    "hopping_count": aggregated("count", time_windows(10, 4, 0)),
    "hopping_aggregate_grace": aggregated("aggregate", time_windows(12, 5, 9)),
    "session_count": aggregated("count", sessions(5, 0)),
    "session_reduce_grace": aggregated("reduce", sessions(4, 10)),
    "session_aggregate": aggregated("aggregate", sessions(6, 3)),
    "session_count_long": aggregated("count", sessions(3, 1000)),
    "stream_join": joined("join", 5, 5, 0),
    "stream_join_grace": joined("join", 4, 4, 30),
    "stream_join_before": joined("join", 8, 0, 10),
    "stream_join_after": joined("join", 0, 8, 10),
    "stream_left_join": joined("left_join", 5, 5, 0),
    "stream_left_join_grace": joined("left_join", 5, 5, 12),
    "stream_left_join_later": joined("left_join", 3, 9, 5),
    "stream_outer_join": joined("outer_join", 5, 5, 0),
    "stream_outer_join_grace": joined("outer_join", 6, 6, 9),
    "self_join": [stream(), step("j", "join", of="s", **{"with": "s"}, before=5, after=5, grace=3), to("j")],
    "stream_table_join": looked_up("join"),
    "stream_table_left_join": looked_up("left_join"),
    "stream_aggregate_join": [
        stream(),
        stream("r", "B"),
        step("g", "group_by_key", of="r"),
        step("t", "reduce", of="g"),
        step("j", "left_join", of="s", **{"with": "t"}),
        to("j"),
    ],
    "stream_view_join": [
        stream(),
        step("t", "table", topic="B"),
        step("f", "filter", of="t", function="has_a"),
        step("m", "map_values", of="f", function="twice"),
        step("j", "left_join", of="s", **{"with": "m"}),
        to("j"),
    ],
    "table_join": tables("join"),
    "table_left_join": tables("left_join"),
    "table_outer_join": tables("outer_join"),
    "table_join_kept": tables("join", store="k"),
    "table_left_join_kept": tables("left_join", store="k"),
    "table_outer_join_kept": tables("outer_join", store="k"),
    "table_join_group": tables("join", step("g", "group_by", of="j"), step("c", "aggregate", of="g")),
    "table_left_join_group": tables("left_join", step("g", "group_by", of="j"), step("c", "aggregate", of="g")),
    "table_outer_join_filter": tables("outer_join", step("f", "filter", of="j", function="even")),
    # Functions that give nothing now and then, which takes the key, or its window, out of the table.
    "aggregate_gone": aggregated("aggregate", without="x"),
    "reduce_gone": aggregated("reduce", without="x"),
    "hopping_reduce_gone": aggregated("reduce", time_windows(10, 4, 7), without="x"),
    "session_reduce_gone": aggregated("reduce", sessions(5, 4), without="x"),
    "table_group_aggregate_gone": shown(
        step("t", "to_table", of="s"), step("g", "group_by", of="t"), step("c", "aggregate", of="g", without="x")
    ),
    "table_outer_join_gone": tables(
        "outer_join", step("g", "group_by", of="j"), step("c", "aggregate", of="g"), without="x"
    ),
    "joined_view_join": [
        step("l", "table", topic="A"),
        step("r", "table", topic="B"),
        step("c", "table", topic="C"),
        step("m", "map_values", of="l", function="no_a"),
        step("j", "outer_join", of="m", **{"with": "r"}, without="x"),
        step("k", "left_join", of="j", **{"with": "c"}),
        step("o", "outer_join", of="c", **{"with": "j"}),
        step("k-shown", "to_stream", of="k"),
        step("o-shown", "to_stream", of="o"),
        to("k-shown", "LEFT"),
        to("o-shown", "OUTER"),
    ],
    "window_table_group": shown(
        step("g", "group_by_key", of="s"),
        time_windows(10, 10, 5),
        step("t", "reduce", of="w"),
        step("h", "group_by", of="t"),
        step("c", "aggregate", of="h"),
    ),
    "session_table_group": shown(
        step("g", "group_by_key", of="s"),
        sessions(5, 4),
        step("t", "reduce", of="w"),
        step("h", "group_by", of="t"),
        step("c", "aggregate", of="h"),
    ),
    "suppress_tumbling": final(time_windows(10, 10, 0), step("t", "count", of="w")),
    "suppress_hopping_grace": final(time_windows(10, 5, 6), step("t", "aggregate", of="w")),
    "suppress_sessions": final(sessions(5, 0), step("t", "reduce", of="w")),
    "suppress_limit": shown(
        step("g", "group_by_key", of="s"), step("t", "count", of="g"), step("f", "suppress", of="t", limit=8)
    ),
    "suppressed_table_join": [
        step("l", "table", topic="A"),
        step("r", "table", topic="B"),
        step("f", "suppress", of="l", limit=12),
        step("j", "outer_join", of="r", **{"with": "f"}),
        step("shown", "to_stream", of="j"),
        to("shown"),
    ],
    "suppress_records": shown(
        step("g", "group_by_key", of="s"),
        step("t", "count", of="g"),
        step("f", "suppress", of="t", limit=1000, records=2),
    ),
}


# What is compared without the inputs in which we differ from Kafka Streams; docs/internals/peers.md has the reasons.
STREAM_JOINS = frozenset(name for name, plan in PLANS.items() if any("before" in source for source in plan))
"""Stream–stream joins: inputs without missing values, which move the time of its stores there and not of ours."""
UNMATCHED_LATER = frozenset(name for name in STREAM_JOINS if "left" in name or "outer" in name)
"""It gives on what has no match later than it could, now and then."""
EVEN_TIMES = frozenset({"suppress_sessions"})
"""A final session comes a millisecond later from us: with even times and an odd gap this is never seen."""


def inputs(name: str, seed: int, length: int = 40) -> list[Input]:
    chance = random.Random(f"{name}-{seed}")  # noqa: S311 - the same each time, and no secret
    topics = sorted({step["topic"] for step in PLANS[name] if step["op"] in ("stream", "table")})
    made: list[Input] = []
    time_ms = chance.randrange(20)
    for _ in range(length):
        time_ms += chance.choice([0, 0, 1, 1, 2, 3, 5, 25]) if chance.random() < 0.9 else 60
        at_ms = max(0, time_ms - chance.choice([0, 0, 0, 0, 2, 5, 12, 30]))
        key = None if chance.random() < 0.05 else chance.choice(KEYS)
        value = None if chance.random() < 0.08 and name not in STREAM_JOINS else chance.choice(VALUES)
        made.append((chance.choice(topics), key, value, at_ms * 2 if name in EVEN_TIMES else at_ms))
    return made + [(topic, "end", "end", made[-1][3] + 1_000) for topic in topics]


def cases(seeds: Iterable[int]) -> dict[str, dict[str, Any]]:
    """Each plan on inputs of each seed, by name."""
    return {
        f"{name}-{seed}": {"plan": plan, "inputs": inputs(name, seed)} for name, plan in PLANS.items() for seed in seeds
    }


DIFFERENCES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "a session that ended exactly a gap ago, after another key moved the time": (
        {
            "plan": [*PLANS["session_count"][:2], {**sessions(5, 0), "exact": True}, *PLANS["session_count"][3:]],
            "inputs": [("A", "c", "x", 361), ("A", "a", "x", 366), ("A", "c", "x", 366)],
        },
        [["OUT", "c@361/361", None, 361], ["OUT", "c@361/366", "2", 366]],
        [["OUT", "c@366/366", "1", 366]],
    ),
    "a final session, when a record exactly as late as the grace may still come": (
        {"plan": PLANS["suppress_sessions"], "inputs": [("A", "c", "x", 86), ("A", "b", "x", 91)]},
        [],
        [["OUT", "c@86/86", "x", 86]],
    ),
    "a record without a value, which moves the time of a join's stores there": (
        {"plan": PLANS["stream_join"], "inputs": [("A", "c", "x", 9), ("A", "a", None, 42), ("B", "c", "y", 12)]},
        [["OUT", "c", "x/y", 12]],
        [],
    ),
    "records of the very same time, joined with no time between them": (
        {"plan": joined("join", 0, 0, 0), "inputs": [("A", "c", "x", 9), ("B", "c", "y", 9)]},
        [["OUT", "c", "x/y", 9]],
        [],
    ),
    "changes held for a while, of which the first one's old value is what is taken out of an aggregate": (
        {
            "plan": shown(
                step("t", "to_table", of="s"),
                step("f", "suppress", of="t", limit=8),
                step("g", "group_by", of="f"),
                step("c", "aggregate", of="g"),
            ),
            "inputs": [("A", "a", "x", 0), ("A", "a", "y", 1), ("A", "a", "z", 2), ("A", "b", "q", 20)],
        },
        [["OUT", "z", "+z", 2]],
        [["OUT", "y", None, 2], ["OUT", "z", "+z", 2]],
    ),
    "an aggregate's first value, before which it had none": (
        {
            "plan": shown(
                step("g", "group_by_key", of="s"),
                step("t", "aggregate", of="g"),
                step("f", "filter", of="t", function="even"),
            ),
            "inputs": [("A", "a", "xy", 0)],
        },
        [],
        [["OUT", "a", None, 0]],
    ),
    "a table joined with itself, and kept: one record changes both sides": (
        {
            "plan": [
                step("l", "table", topic="A"),
                step("j", "join", of="l", **{"with": "l"}, store="k"),
                step("g", "group_by", of="j"),
                step("c", "aggregate", of="g"),
                step("shown", "to_stream", of="c"),
                to("shown"),
            ],
            "inputs": [("A", "a", "x", 0)],
        },
        [["OUT", "x", "+x/x", 0], ["OUT", "x", "+x/x-x/x+x/x", 0]],
        [["OUT", "x", "+x/x", 0], ["OUT", "x", "+x/x+x/x", 0]],
    ),
}
"""By what they are: a case, and what comes of its last input from us and from Kafka Streams."""
