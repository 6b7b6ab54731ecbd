"""Events are opened in bulk as one at a time: the same image and what is said about it, or the same refusal."""

import json

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from stage_writer.decode.envelopes.debezium import Opener, open_strictly
from stage_writer.decode.rejects import Refusal, Reject

SPACES = st.sampled_from(["", "", " ", "\n ", " " * 70])
NAMES = st.sampled_from(["op", "before", "after", "payload", "schema", "source", "ts_ms", "\\u006fp", "other", ""])


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(NAMES, SPACES, inner, SPACES).map(
        lambda parts: f'"{parts[0]}"{parts[1]}:{parts[3]}{parts[2]}{parts[1]}'
    )
    return st.lists(pair, max_size=5).map(lambda pairs: f"{{{','.join(pairs)}}}")


VALUES = st.recursive(
    st.sampled_from(
        [
            '"c"',
            '"d"',
            '"u"',
            '"r"',
            '"t"',
            "null",
            "1",
            "1.10",
            '"\\""',
            '"{"',
            "{}",
            "[]",
            "[1,]",
            '"cc"',
            '"\\u0063"',
        ]
    ),
    lambda inner: objects(inner) | st.lists(inner, max_size=2).map(lambda items: f"[{','.join(items)}]"),
    max_leaves=8,
)


@st.composite
def events(draw: st.DrawFn) -> str:
    op = draw(st.sampled_from(["c", "u", "d", "r", "t"]))
    image = draw(objects(VALUES))
    members = [f'"op":{json.dumps(op)}', f'"before":{image if op == "d" else draw(VALUES)}']
    members.append(f'"after":{draw(VALUES) if op == "d" else image}')
    members.append('"source":{"db":"a"}')
    members += draw(
        st.lists(
            st.sampled_from(
                ['"ts_ms":1', '"op":"c"', '"source":{}', '"before":{}', '"after":{}', '"payload":{}', '"x":{"op":"c"}']
            ),
            max_size=1,
        )
    )
    space = draw(SPACES)
    return f"{space}{{{space}{f',{space}'.join(draw(st.permutations(members)))}{space}}}{space}"


@st.composite
def messages(draw: st.DrawFn) -> str:
    whim = draw(st.integers(0, 9))
    if whim == 0:
        return draw(st.sampled_from(["", "{", "[]", "1", '{"op":NaN}', '{"payload":']))
    if whim == 1:
        return draw(objects(VALUES))
    event = draw(events())
    if whim <= 4:
        return event
    schema = draw(st.sampled_from(['{"a":[1,2]}', '{"a":"}"}', "null"]))
    after = draw(st.sampled_from(["", "", ',"other":1', ',"op":"c"', ',"payload":1', ' , "schema":1']))
    return f'{{"schema":{schema},"payload":{event}{after}}}'


OPENER = Opener()


@given(st.lists(messages() | st.none(), max_size=10))
@example(['{"schema":{},"payload":{"op":"c","after":{}}}', '{"schema":{},"payload":{"op":"c","after":{}},"op":"c"}'])
def test_bulk_and_one_at_a_time_agree(batch: list[str | None]) -> None:
    values = [None if message is None else message.encode() for message in batch]
    opened = OPENER.opened(pa.array(values, pa.binary()))
    wanted: list[tuple[bytes | None, bytes | None]] = []
    rejects: list[Reject] = []
    for place, value in enumerate(values):
        outcome = None if value is None else open_strictly(value)
        if isinstance(outcome, Refusal):
            rejects.append(Reject(place, outcome.error_class, outcome.error))
        wanted.append((outcome[0].encode(), outcome[1].encode()) if isinstance(outcome, tuple) else (None, None))
    assert list(zip(opened.images.to_pylist(), opened.abouts.to_pylist(), strict=True)) == wanted
    assert sorted(opened.rejects, key=lambda reject: reject.index) == rejects
