"""`jmespath` in bulk ends every message as rewriting it alone does."""

import json

import jmespath
from hypothesis import given, settings
from hypothesis import strategies as st

from common.schema import parse_ddl
from stage_writer.decode.batch import Messages
from stage_writer.shape.jmespath.decoder import JmesPathDecoder
from tests.conftest import examples
from tests.fakes.streams import batch_of

COLUMNS = parse_ddl(
    "a INT, t STRING, s STRUCT<x: INT, t: STRING, k: STRUCT<o: BIGINT, z: STRING>>, v ARRAY<INT>, at TIMESTAMP"
)
GOALS = {
    "a": ["b", "s.x", "other.number", "a"],
    "t": ["substr(t, `1`, `2`)", "substr(s.t, `0`, `1`)", "other.text", "substr(other.text, `0`, `3`)", "kafka.topic"],
    "s.x": ["a", "other.s.x", "b"],
    "s.k.o": ["kafka.offset", "big"],
    "s.k.z": ["s.t", "substr(s.k.z, `0`, `2`)", "kafka.topic"],
    "v": ["w", "other.v", "v"],
    "at": ["kafka.timestamp", "other.text"],
}
numbers = st.integers(-3, 3) | st.sampled_from([1.5, 2.0, 2**40])
texts = st.text(st.characters(codec="utf-8"), max_size=4) | st.just("2024-01-01T00:00:00Z")
values = st.none() | numbers | texts | st.booleans() | st.lists(numbers, max_size=2)
structs = st.dictionaries(st.sampled_from(["x", "t", "text", "number", "v", "s"]), values, max_size=3)
parts = structs | values | st.fixed_dictionaries({"k": st.dictionaries(st.sampled_from("oz"), values)})
records = st.dictionaries(
    st.sampled_from(["a", "t", "s", "v", "b", "w", "other", "big", "at"]), parts | values, max_size=5
)
fitting = st.fixed_dictionaries(
    {},
    optional={
        "a": st.integers(0, 9),
        "b": st.integers(0, 9),
        "t": texts,
        "other": st.fixed_dictionaries({"text": texts}),
    },
)
messages = st.one_of(
    fitting.map(lambda record: json.dumps(record).encode()),
    records.map(lambda record: json.dumps(record).encode()),
    st.sampled_from([b"", b"[1]", b"{", b'{"a":1,"a":2}', b'{"s":{"x":1,"x":2}}', b"\xff", b'{"t":"\\ud800"}']),
    st.none(),
)


@st.composite
def transforms(draw: st.DrawFn) -> dict[str, str]:
    goals = draw(st.lists(st.sampled_from(sorted(GOALS)), min_size=1, max_size=4, unique=True))
    return {goal: draw(st.sampled_from(GOALS[goal])) for goal in goals}


@settings(max_examples=examples(0.6))
@given(transforms(), st.lists(messages, min_size=1, max_size=8))
def test_bulk_result_equals_that_of_each_message_alone(expressions: dict[str, str], values: list[bytes | None]) -> None:
    batch = Messages.from_batches([batch_of(values)])
    bulk = JmesPathDecoder(COLUMNS, expressions).decode(batch)
    alone = JmesPathDecoder(COLUMNS, expressions, in_bulk=False).decode(batch)
    assert bulk.rows.to_pylist() == alone.rows.to_pylist()
    assert bulk.row_index.tolist() == alone.row_index.tolist()
    assert bulk.rejects == alone.rejects
    assert bulk.tombstones.tolist() == alone.tombstones.tolist()
    assert sorted([*bulk.row_index, *bulk.tombstones, *(reject.index for reject in bulk.rejects)]) == list(
        range(len(values))
    )


PATHS = [
    "x",
    "s.x",
    "s.t",
    "other[0]",
    "not_null(x, `1`)",
    "length(t)",
    "{a: x, b: t}.a",
    "v[*]",
    "v | [0]",
    "x || s.x",
]


@settings(max_examples=examples(0.4))
@given(st.sampled_from(PATHS), st.lists(records | structs, min_size=1, max_size=4))
def test_expression_has_the_value_of_the_jmespath_library(expression: str, inputs: list[object]) -> None:
    """The value as JSON text, in a column that keeps it."""
    decoder = JmesPathDecoder(parse_ddl("found STRING"), {"found": f"to_string({expression})"})
    decoded = decoder.decode(Messages.from_batches([batch_of([json.dumps(record).encode() for record in inputs])]))
    meant: list[object] = []
    for record in inputs:
        try:
            meant.append(jmespath.search(f"to_string({expression})", record))
        except jmespath.exceptions.JMESPathError:
            meant.append(None)
    rows = dict(zip(decoded.row_index.tolist(), decoded.rows.column("found").to_pylist(), strict=True))
    assert [rows.get(place) for place in range(len(inputs))] == meant
    assert [reject.index for reject in decoded.rejects] == [place for place, value in enumerate(meant) if value is None]
