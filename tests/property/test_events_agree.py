"""The native reader opens events as the strict one does: the same image, or the same refusal."""

import json

import numpy as np
import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from common.schema import parse_ddl
from common.settings.formats import forms_of
from stage_writer.decode.batch import Messages
from stage_writer.decode.decode import Decoded
from stage_writer.decode.decode_options import DecodeOptions
from stage_writer.decode.envelopes.debezium import DebeziumOpener, open_strictly
from stage_writer.decode.envelopes.row_change_decoder import RowChangeDecoder
from stage_writer.decode.rejects import Refusal, Reject
from stage_writer.decode.strict import StrictDecoder
from tests.fakes.native import native_decoders
from tests.unit.stage_writer.decode.test_debezium import messages_of

COLUMNS = parse_ddl(
    "op STRING NOT NULL, ts_ms TIMESTAMP, "
    "source STRUCT<db: STRING, `schema`: STRING, `table`: STRING, collection: STRING, ts_ms: TIMESTAMP>"
)
ABOUT = StrictDecoder(COLUMNS, DecodeOptions(forms_of(COLUMNS, {"ts_ms": "epoch_ms", "source.ts_ms": "epoch_ms"})))
SPACES = st.sampled_from(["", "", " ", "\n ", " " * 70])
NAMES = st.sampled_from(["op", "before", "after", "payload", "schema", "source", "ts_ms", "\\u006fp", "other", ""])


def objects(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(NAMES, SPACES, inner, SPACES).map(
        lambda parts: f'"{parts[0]}"{parts[1]}:{parts[3]}{parts[2]}{parts[1]}'
    )
    return st.lists(pair, max_size=5).map(lambda pairs: f"{{{','.join(pairs)}}}")


VALUES = st.recursive(
    st.sampled_from(r'"c" "d" "u" "r" "t" null 1 1.10 "\"" "{" {} [] [1,] "cc" "\u0063"'.split()),
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


class Images:
    """A decoder that keeps any image unchanged."""

    columns = parse_ddl("image STRING")

    def decode(self, messages: Messages) -> Decoded:
        values = messages.values.cast(pa.large_binary())
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        rows = pa.table({"image": values.drop_null().cast(pa.large_string()).cast(pa.string())})
        return Decoded(rows, np.flatnonzero(is_there), (), np.flatnonzero(~is_there))


DECODERS = [RowChangeDecoder(Images(), DebeziumOpener(native_decoder)) for native_decoder in native_decoders()]


@given(st.lists(messages() | st.none(), max_size=10))
@example(['{"schema":{},"payload":{"op":"c","after":{}}}', '{"schema":{},"payload":{"op":"c","after":{}},"op":"c"}'])
@example(['{"op":null,"payload":{"op":"c","after":{}}}', '{"op":"c","after":{},"payload":{"op":"c","after":{"a":1}}}'])
@example(['{"op":"\\u0063","after":{}}', '{"op":"c","after": [1]}', '{"op":"c","after":{},"payload":1,"payload":1}'])
def test_each_event_ends_as_opened_alone(batch: list[str | None]) -> None:
    values = [None if message is None else message.encode() for message in batch]
    wanted: list[tuple[int, str]] = []
    rejects: list[Reject] = []
    for place, value in enumerate(values):
        outcome = None if value is None else open_strictly(value)
        if isinstance(outcome, Refusal):
            rejects.append(Reject(place, outcome.error_class, outcome.error))
        elif outcome is not None:
            about = ABOUT.decode(outcome[1].encode())
            if isinstance(about, Refusal):
                rejects.append(Reject(place, about.error_class, about.error))
            else:
                wanted.append((place, outcome[0]))
    for decoder in DECODERS:
        decoded = decoder.decode(messages_of(pa.array(values, pa.binary())))
        images = decoded.rows["image"].to_pylist()
        assert list(zip(decoded.row_index.tolist(), images, strict=True)) == wanted
        assert decoded.rejects == tuple(rejects)
        assert decoded.tombstones.tolist() == [place for place, value in enumerate(values) if value is None]
        assert decoded.rows.column("_cdc").null_count == 0
