"""`route`: the table that each record goes to."""

import json
from collections.abc import Sequence
from random import Random

import pytest

from common.errors import ExpressionError
from common.settings import Stream
from common.spans import Position
from common.stage.markers import TableKind
from stage_writer.convert import StreamConverter
from stage_writer.parquet.buffer import Buffer, StagedRows
from tests.fakes.streams import batch_of, staged_batches, stream_of

ROUTES = {"a": "/tables/a", "b": "/tables/b", "also a": "/tables/a/"}


def routed(route: str = "kind", **more: object) -> Stream:
    settings: dict[str, object] = {"columns": "id BIGINT, kind STRING", "routes": ROUTES, **more}
    return stream_of(route=route, **settings)


def places(staged: StagedRows) -> dict[str, list[int]]:
    """The offsets of each table's rows; `own` is the main table, `dead` the dead letters."""
    named = {"own": staged.rows[0], "dead": staged.rows[1], **{table.url: rows for table, rows in staged.routed}}
    return {name: rows.column("_kafka_offset").to_pylist() for name, rows in named.items()}


def values(*kinds: object) -> list[bytes | None]:
    return [json.dumps({"id": place, "kind": kind}).encode() for place, kind in enumerate(kinds)]


def test_record_goes_to_the_table_of_its_route() -> None:
    (staged,) = staged_batches(StreamConverter(routed()), [batch_of(values("b", "a", "also a", "b", "c", None, ""))])
    assert places(staged) == {"/tables/a": [101, 102], "/tables/b": [100, 103], "own": [104, 105, 106], "dead": []}


def test_unrouted_record_is_a_dead_letter_if_configured() -> None:
    stream = routed(unrouted="dead_letters")
    (staged,) = staged_batches(StreamConverter(stream), [batch_of([*values("a", "c", None), None])])
    assert places(staged) == {"/tables/a": [100], "own": [], "dead": [101, 102]}
    assert dict(staged.dead_letters) == {"unrouted": 2}
    assert staged.rows[1].column("error").to_pylist() == [
        "its route is 'c', which is not in routes",
        "its route is null, which is not in routes",
    ]
    assert staged.rows[1].column("value").to_pylist() == values("a", "c", None)[1:]


def test_failing_route_is_always_a_dead_letter() -> None:
    (staged,) = staged_batches(
        StreamConverter(routed("CAST(kind AS INT)::VARCHAR", routes={"1": "/one"})), [batch_of(values("1", "x", "2"))]
    )
    assert places(staged) == {"/one": [100], "own": [102], "dead": [101]}
    assert dict(staged.dead_letters) == {"expression_failed": 1}


def test_route_may_be_a_regular_expression_over_the_topic() -> None:
    stream = routed("regexp_extract(kafka.topic, '^([a-z]+)', 1)", routes={"orders": "/tables/shop"})
    (staged,) = staged_batches(StreamConverter(stream), [batch_of(values("a"))])
    assert places(staged)["/tables/shop"] == [100]


def test_route_may_be_a_derived_column() -> None:
    stream = routed("size", derive={"size": "CASE WHEN id > 0 THEN 'a' END"})
    (staged,) = staged_batches(StreamConverter(stream), [batch_of(values("x", "x"))])
    assert places(staged) == {"/tables/a": [101], "own": [100], "dead": []}


def test_route_may_lead_to_the_streams_main_table() -> None:
    stream = routed(routes={"a": "/tables/a", "mine": "/tables/orders"}, unrouted="dead_letters")
    (staged,) = staged_batches(StreamConverter(stream), [batch_of(values("mine", "a", "x"))])
    assert places(staged) == {"/tables/a": [101], "own": [100], "dead": [102]}


@pytest.mark.parametrize("seed", range(20))
def test_batches_are_routed_like_single_records(seed: int) -> None:
    rng = Random(seed)  # noqa: S311 - a test's dice
    stream = routed(unrouted=rng.choice(["table", "dead_letters"]))
    batches = [
        batch_of(
            [
                rng.choice([None, b"{", *values(rng.choice(["a", "b", "also a", "c", None]))])
                for _ in range(rng.randrange(1, 30))
            ],
            partition=partition,
        )
        for partition in range(4)
    ]
    for batch, staged in zip(batches, staged_batches(StreamConverter(stream), batches), strict=True):
        assert {name: routed for name, routed in places(staged).items() if routed} == oracle(stream, batch.values)


def oracle(stream: Stream, values: Sequence[object]) -> dict[str, list[int]]:
    expected: dict[str, list[int]] = {}
    for offset, value in enumerate((scalar.as_py() for scalar in values), 100):  # type: ignore[attr-defined]
        if value is None:
            continue
        unrouted = "own" if stream.routing.unrouted == "table" else "dead"
        kind = (
            "dead"
            if value == b"{"
            else {"a": "/tables/a", "also a": "/tables/a", "b": "/tables/b"}.get(json.loads(value)["kind"], unrouted)
        )
        expected.setdefault(kind, []).append(offset)
    return expected


def test_buffer_has_no_entry_for_tables_without_rows() -> None:
    stream = routed(routes={str(number): f"/tables/{number}" for number in range(300)})
    converter = StreamConverter(stream)
    buffer = Buffer.begin(Position(100), converter.formats)
    for batch in (values("7", "299", "7"), values("x")):
        (staged,) = staged_batches(converter, [batch_of(batch)])
        buffer.add(staged, 0.0)
    assert [(rows.table.url, rows.table.kind) for rows in buffer.tables] == [
        (stream.table, TableKind.ROWS),
        (stream.dead_letters, TableKind.DEAD_LETTERS),
        ("/tables/7", TableKind.ROWS),
        ("/tables/299", TableKind.ROWS),
    ]
    assert [sum(file.rows for file in rows.finish()) for rows in buffer.tables] == [1, 0, 2, 1]


@pytest.mark.parametrize(
    ("route", "text"),
    [
        ("id", "route: id: its type is BIGINT"),
        ("kindd", "did you mean kind"),
        ("kind, id", "more than one expression"),
        ("random()::VARCHAR", "a different value each time"),
    ],
)
def test_invalid_route_is_refused_at_startup(route: str, text: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        StreamConverter(routed(route))
    assert text in str(caught.value)


def test_routing_field_may_be_dropped_and_exploded_rows_stay_together() -> None:
    stream = routed(columns="kind STRING, items ARRAY<INT>", drop=["kind"], explode="items")
    values: list[bytes | None] = [b'{"kind":"a","items":[1,2]}', b'{"kind":"b","items":[3]}', b'{"items":[4,5]}']
    (staged,) = staged_batches(StreamConverter(stream), [batch_of(values)])
    assert places(staged) == {"/tables/a": [100, 100], "/tables/b": [101], "own": [102, 102], "dead": []}
    assert "kind" not in staged.rows[0].column_names
    assert staged.exploded == 2
