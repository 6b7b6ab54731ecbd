"""`merge` with `explode`: the rows that a stream of events with arrays stages."""

import json
from collections.abc import Sequence

import pytest

from common.errors import ExpressionError, SchemaError
from common.settings import Stream
from stage_writer.convert import StreamConverter
from stage_writer.parquet.buffer import StagedRows
from stage_writer.shape.slicing import ExplodeLimits
from tests.fakes.streams import batch_of, staged_batches, stream_of

COLUMNS = "id BIGINT, at BIGINT, op STRING, items ARRAY<STRUCT<sku: STRING, n: INT>>"
MERGE = {"keys": ["id", "items.sku"], "operation": "op", "deletes": ["d"]}


def exploding(columns: str = COLUMNS, **more: object) -> Stream:
    return stream_of(columns=columns, **{"explode": "items", "load": "merge", "merge": MERGE, **more})


def items(*skus: str | None) -> list[dict[str, object]]:
    return [{"sku": sku, "n": number} for number, sku in enumerate(skus)]


def converted(stream: Stream, *records: object, keys: Sequence[bytes | None] | None = None) -> StagedRows:
    values = [None if record is None else json.dumps(record).encode() for record in records]
    (staged,) = staged_batches(StreamConverter(stream), [batch_of(values, keys=keys)])
    assert staged.records == len(values)
    return staged


def events(staged: StagedRows, element: str = "items") -> list[tuple[object, ...]]:
    """For each row: its record, its element, its offset, and whether it deletes."""
    names = ("id", element, "_kafka_offset", "_merge_delete")
    rows = zip(*(staged.rows[0].column(name).to_pylist() for name in names), strict=True)
    return [
        (key, value["sku"] if isinstance(value, dict) else value, offset, gone) for key, value, offset, gone in rows
    ]


def test_each_element_is_a_row_and_an_event_without_elements_deletes() -> None:
    staged = converted(
        exploding(),
        {"id": 1, "items": items("a", "b")},
        {"id": 2, "items": []},
        {"id": 3},
        {"id": 4, "op": "d", "items": items("a", "a", None)},
        None,
        keys=[None, None, None, None, b'{"id": 5}'],
    )
    assert events(staged) == [
        (1, "a", 100, False),
        (1, "b", 100, False),
        (2, None, 101, True),
        (3, None, 102, True),
        (4, None, 103, True),
        (5, None, 104, True),
    ]
    assert (staged.exploded, staged.dead_letters, staged.tombstones) == (1, {}, 0)


def test_event_that_would_lose_an_element_is_a_dead_letter() -> None:
    merge = {**MERGE, "sequence": "at"}
    staged = converted(
        exploding(merge=merge),
        {"id": 1, "at": 1, "items": items("a", "b", "a")},
        {"id": 1, "at": 1, "items": items("a", None)},
        {"id": 1, "at": 1, "items": [{"sku": "a"}, None]},
        {"id": None, "at": 1, "items": items("a", "a")},
        {"id": 1, "items": []},
        {"id": 1, "op": "d"},
        {"id": 1, "at": 2, "items": items("a")},
    )
    assert dict(staged.dead_letters) == {"repeated_key": 1, "null_key": 3, "null_sequence": 1}
    assert staged.rows[1].column("error").to_pylist() == [
        "two of its elements have the same key (items.sku)",
        "the key column items.sku of one of its elements is null",
        "the key column items.sku of one of its elements is null",
        "its key column id is null",
        "its sequence at is null",
    ]
    assert events(staged) == [(1, None, 105, True), (1, "a", 106, False)]


def test_key_may_be_renamed_derived_or_the_element() -> None:
    record = {"id": 1, "items": items("a", "b"), "more": {"tags": ["x", "y"]}}
    merge = {**MERGE, "keys": ["number", "line.code"]}
    renamed = exploding(merge=merge, rename={"id": "number", "items": "line", "items.sku": "code"})
    staged = converted(renamed, record, {"id": 2, "items": items("a", "a")})
    assert [line["code"] for line in staged.rows[0].column("line").to_pylist()] == ["a", "b"]
    assert dict(staged.dead_letters) == {"repeated_key": 1}
    tags = {"explode": "tag", "derive": {"tag": "more.tags"}, "drop": ["more"], "merge": {"keys": ["id", "tag"]}}
    staged = converted(exploding("id BIGINT, more STRUCT<tags: ARRAY<STRING>>", **tags), record, {"id": 2})
    assert events(staged, "tag") == [(1, "x", 100, False), (1, "y", 100, False), (2, None, 101, True)]


@pytest.mark.parametrize(
    ("key", "problem"), [("tag.x", "'tag.x', which is not a field of the element"), ("tag", "cannot tell rows apart")]
)
def test_key_of_a_derived_array_is_checked_once_its_type_is_known(key: str, problem: str) -> None:
    columns = "id BIGINT, more STRUCT<tags: ARRAY<STRUCT<name: STRING>>>"
    merge = {"keys": ["id", key]}
    with pytest.raises(SchemaError) as caught:
        StreamConverter(exploding(columns, explode="tag", derive={"tag": "more.tags"}, merge=merge))
    assert problem in caught.value.problem


def test_elements_keyed_without_the_record_are_separate_events() -> None:
    merge = {**MERGE, "keys": ["items.sku"], "tombstones": "ignore"}
    staged = converted(
        exploding(merge=merge),
        {"id": 1, "items": items("a", "b")},
        {"id": 2, "items": []},
        {"id": 3, "op": "d", "items": items("a")},
        {"id": 4, "items": items("a", "a")},
    )
    assert events(staged) == [(1, "a", 100, False), (1, "b", 100, False), (3, "a", 102, True)]
    assert (list(staged.filtered_offsets), dict(staged.dead_letters)) == ([101], {"repeated_key": 1})


def test_message_split_into_slices_is_refused_as_a_whole() -> None:
    stream = exploding(merge={**MERGE, "sequence": "at"})
    names = [f"{number:04}" for number in range(400)]
    records = [
        {"id": 1, "at": 1, "items": items(*names, "0000")},
        {"id": 2, "at": 1, "items": items(*names, None)},
        {"at": 1, "items": items(*names)},
        {"id": 4, "items": items(*names)},
        {"id": 5, "at": 1, "items": items(*names)},
    ]
    batch = batch_of([json.dumps(record).encode() for record in records])
    converter = StreamConverter(stream, limits=ExplodeLimits(slice_bytes=2_000))
    staged = [rows for parts in converter.slices([batch]) for _, rows in parts]
    assert len(staged) > len(records)
    letters = [name for rows in staged for name in rows.rows[1].column("error_class").to_pylist()]
    assert sorted(letters) == ["null_key", "null_key", "null_sequence", "repeated_key"]
    assert [row[:3] for rows in staged for row in events(rows)] == [(5, name, 104) for name in names]


def test_route_may_use_record_keys_only() -> None:
    routes = {"a": "s3://lake/tables/other"}
    tagged = {"explode": "tags", "merge": {"keys": ["id", "tags"]}, "routes": routes}
    for columns, more, element in (
        (COLUMNS, {"routes": routes}, "items[1].sku"),
        ("id BIGINT, tags ARRAY<STRING>", tagged, "tags[1]"),
    ):
        StreamConverter(exploding(columns, route="CASE WHEN id > 3 THEN 'a' END", **more))
        with pytest.raises(ExpressionError, match=r"it uses more than the key \(id\)"):
            StreamConverter(exploding(columns, route=element, **more))
