"""Which message keys have a table's names, compared with Python's own parser."""

import json

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stage_writer.shape.changes.key_names import KeyNames, names_in
from tests.conftest import examples

NAMES = ("id", "part", "payload", "schema", "größe")
VALUES = st.none() | st.booleans() | st.integers(-5, 5) | st.sampled_from(["", "null", "x", '"payload":{'])
FIELDS = st.dictionaries(st.sampled_from(NAMES), VALUES | st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=2))
SCHEMAS = st.sampled_from([None, {"type": "struct"}, {"payload": {"id": 1}}, '"payload":{"id":1}'])


def wrapped(fields: object, schema: object) -> object:
    return {"schema": schema, "payload": fields}


TEXTS = st.builds(
    lambda content, spaces: json.dumps(content, indent=1 if spaces else None, ensure_ascii=False).encode(),
    FIELDS | st.builds(wrapped, FIELDS, SCHEMAS) | VALUES,
    st.booleans(),
)
KEYS = st.lists(st.none() | TEXTS | st.sampled_from([b"", b"{", b"\xff", b'{"id":1,"id":2}']), max_size=6)


def fields_of(key: bytes | None) -> dict[str, object] | None:
    """The fields of a fully parsed key; None where it has none or repeats one."""
    try:
        pairs = json.loads(key or b"", object_pairs_hook=list)
    except ValueError:
        return None
    if not isinstance(pairs, list) or not pairs:
        return {} if pairs == [] and key is not None and key.strip() == b"{}" else None
    if {name for name, _ in pairs} == {"schema", "payload"} and len(pairs) == 2:
        payload = dict(pairs)["payload"]
        pairs = payload if isinstance(payload, list) else None
    if pairs is None or len(dict(pairs)) < len(pairs):
        return None
    return dict(pairs)


@settings(max_examples=examples(0.5))
@given(KEYS, st.lists(st.sampled_from(["id", "part", "größe"]), min_size=1, max_size=3, unique=True))
@example([b'{"schema": {"payload": {"id": 1}}, "payload": {"id": 1}}'], ["id"])
@example([b'{"schema": {"payload": {"id": 1}}, "payload": {"id": 1, "part": 2}}'], ["id"])
@example([b'{ "payload" : { "id": 1, "part": 2 }, "schema": null }'], ["id"])
def test_keys_with_names_other_than_the_table_s_are_found(keys: list[bytes | None], names: list[str]) -> None:
    wanted = []
    for key in keys:
        fields = fields_of(key)
        same = fields is not None and fields.keys() == set(names) and None not in fields.values()
        wanted.append(not same)
    assert KeyNames(names).differ(pa.array(keys, pa.binary())).tolist() == wanted


@settings(max_examples=examples(0.2))
@given(FIELDS, SCHEMAS)
def test_names_are_those_of_the_fields_in_order(fields: dict[str, object], schema: object) -> None:
    plain = fields.keys() != {"schema", "payload"}
    assert not plain or names_in(json.dumps(fields).encode()) == tuple(fields)
    assert names_in(json.dumps(wrapped(fields, schema)).encode()) == tuple(fields)
