"""Tables of one stream with rows of a record, and with rows of its elements."""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from common.schema import parse_ddl, to_ddl
from common.schema.evolution import NO_COLUMNS
from common.storage.store import FsspecStore
from stage_writer.convert_by_table import TablesConverter, converter_of
from stage_writer.decode.batch import MessageBatch
from stage_writer.layers import RecordInputs
from stage_writer.parquet.buffer import StagedRows
from stage_writer.shape.slicing import ExplodeLimits
from tests.fakes.answering import route_registry
from tests.fakes.streams import batch_of, stream_of

LINE = "id BIGINT, items ARRAY<STRUCT<sku: STRING, n: BIGINT>>"
LINES = {"table": "/tables/lines", "columns": LINE, "explode": "items"}
TAGS = {"table": "/tables/tags", "columns": "id BIGINT, tags ARRAY<STRING>", "explode": "tags"}
ORDERS: dict[str, Any] = {"columns": "id BIGINT, city STRING", "tables": [LINES, TAGS]}
MERGED: dict[str, Any] = {
    "columns": "id BIGINT, city STRING",
    "route": "array['o', 'l']",
    "routes": {"o": "/tables/orders", "l": LINES},
    "load": "merge",
    "merge": {"keys": ["id"], "route_keys": {"l": ["items.sku"]}, "tombstones": "ignore"},
}
LARGE = ExplodeLimits()
SMALL = ExplodeLimits(slice_bytes=300)
Rows = dict[str, list[dict[str, object]]]


def record(number: int, lines: int, tags: int = 1, **more: object) -> bytes:
    items = [{"sku": f"{number}-{line}", "n": line} for line in range(lines)]
    value = {"id": number, "city": "Ulm", "items": items, "tags": [f"t{tag}" for tag in range(tags)], **more}
    return json.dumps(value).encode()


def converted(
    batches: Sequence[MessageBatch], limits: ExplodeLimits, gained: str = "", **settings: object
) -> tuple[list[list[tuple[MessageBatch, StagedRows]]], Rows]:
    stream = stream_of(**{**ORDERS, **settings})
    converter = converter_of(stream, RecordInputs(), limits)
    assert isinstance(converter, TablesConverter)
    if gained:
        converter = converter.at(parse_ddl(gained))
    slices = list(converter.slices(batches))
    rows: Rows = {}
    for _, staged in (each for part in slices for each in part):
        rows.setdefault("/tables/orders", []).extend(staged.rows[0].to_pylist())
        rows.setdefault("dead", []).extend(staged.rows[1].to_pylist())
        for table, more in staged.routed:
            assert table.arrow_schema == more.schema
            rows.setdefault(table.url, []).extend(more.to_pylist())
    return slices, rows


def covered(slices: list[list[tuple[MessageBatch, StagedRows]]]) -> tuple[dict[int, int], Counter[str]]:
    """By partition, the end of the covered span; and the counts of all messages."""
    ends: dict[int, int] = {}
    counts: Counter[str] = Counter()
    for batch, staged in (each for part in slices for each in part):
        assert staged.end >= ends.get(batch.partition.partition, 0), "in the order of offsets"
        ends[batch.partition.partition] = int(staged.end)
        counts.update(
            records=staged.records,
            tombstones=staged.tombstones,
            dead=sum(staged.dead_letters.values()),
            filtered=staged.filtered,
            exploded=staged.exploded,
            rules=sum(staged.violations.values()),
        )
    return ends, counts


def batches() -> list[MessageBatch]:
    first = [record(1, 3), b"no record", None, record(2, 40, 30), record(3, 0, 0), record(4, 9), record(5, 2)]
    second = [record(6, 50), record(7, 1, 60, city=7), record(8, 1)]
    return [batch_of(first, partition=1), batch_of(second, partition=2)]


def test_slices_have_the_rows_of_one_conversion() -> None:
    settings: dict[str, Any] = {"where": "id <> 8", "expect": {"few": {"rule": "id < 6", "on_fail": "count"}}}
    (whole, rows), (slices, same) = (converted(batches(), limits, **settings) for limits in (LARGE, SMALL))
    assert (len(whole), same, covered(slices)) == (1, rows, covered(whole))
    assert covered(whole)[1] == Counter(records=10, tombstones=1, dead=2, filtered=1, exploded=146 - 6, rules=2)
    assert {url: len(each) for url, each in rows.items()} == {
        "/tables/orders": 6,
        "/tables/lines": 3 + 40 + 1 + 9 + 2 + 50,
        "/tables/tags": 1 + 30 + 1 + 1 + 1 + 1,
        "dead": 2,
    }
    parts = [staged for part in slices for _, staged in part]
    sizes = [sum(map(len, (*staged.rows, *(rows for _, rows in staged.routed)))) for staged in parts]
    assert max(sizes) <= 20, "of 146 rows"


def test_message_refused_by_one_table_has_no_row_in_others() -> None:
    """Its rows are sliced only after all tables have accepted it."""
    _, rows = converted([batch_of([record(1, 50, city=7)])], SMALL)
    assert {url: len(each) for url, each in rows.items()} == {"/tables/orders": 0, "dead": 1}
    assert str(rows["dead"][0]["error"]).startswith("city: ")


@pytest.mark.parametrize("slice_bytes", [300, 10**6])
def test_explode_limit_covers_the_rows_of_all_tables(slice_bytes: int) -> None:
    limits = ExplodeLimits(slice_bytes=min(slice_bytes, 900), record_bytes=900)
    slices, rows = converted([batch_of([record(1, 20, 40), record(2, 20, 0), record(3, 1)])], limits)
    assert [row["error_class"] for row in rows["dead"]] == ["explodes_too_far"]
    assert {row["id"] for row in rows["/tables/lines"]} == {2, 3}
    assert covered(slices)[1]["records"] == 3


def test_first_segment_of_a_record_offers_the_fields_of_all_tables() -> None:
    settings: dict[str, Any] = {"unknown_fields": "evolve"}
    values = [record(1, 30, 30, x=1)]
    slices, _ = converted([batch_of(values)], SMALL, **settings)
    offers = [to_ddl(staged.offered) for part in slices for _, staged in part if staged.offered.fields]
    lines = "STRUCT<city: STRING, tags: ARRAY<STRING>, x: BIGINT>"
    items = "items: ARRAY<STRUCT<n: BIGINT, sku: STRING>>"
    main, tags = f"STRUCT<{items}, tags: ARRAY<STRING>, x: BIGINT>", f"STRUCT<city: STRING, {items}, x: BIGINT>"
    assert len(slices) > 10
    assert slices[0][0][1].offered != NO_COLUMNS
    assert offers == [f"`/tables/lines` {lines}, `/tables/orders` {main}, `/tables/tags` {tags}"]
    gained = "`/tables/lines` STRUCT<x: BIGINT>, `/tables/tags` STRUCT<x: BIGINT>"
    _, rows = converted([batch_of(values)], SMALL, gained, **settings)
    assert {row["x"] for row in rows["/tables/lines"] if row["id"] == 1} == {1}
    assert {row["x"] for row in rows["/tables/tags"] if row["id"] == 1} == {1}


def test_record_without_elements_has_its_row_in_other_tables() -> None:
    """With element keys alone it changes no row in their table, but it does not count as filtered."""
    keys = [b'{"id":1}', b'{"id":2}']
    values = [record(1, 0), record(2, 3)]
    for limits in (LARGE, SMALL):
        slices, rows = converted([batch_of(values, keys=keys)], limits, **MERGED, tables=[])
        assert len(rows["/tables/orders"]) == 2
        assert [row["items"]["sku"] for row in rows["/tables/lines"]] == ["2-0", "2-1", "2-2"]  # type: ignore[index]
        assert covered(slices)[1]["filtered"] == 0


def test_element_without_a_key_refuses_the_record_in_all_tables() -> None:
    value = record(1, 60).replace(b'"sku": "1-59"', b'"sku": null')
    _, rows = converted([batch_of([value], keys=[b"1"])], SMALL, **MERGED, tables=[])
    assert [row["error_class"] for row in rows["dead"]] == ["null_key"]
    assert not rows.get("/tables/lines")
    assert not rows["/tables/orders"]


def test_tables_with_route_columns_own_explode(tmp_path: Path) -> None:
    stream = stream_of(
        route="kind",
        route_table="/tables/{route}",
        route_columns="own",
        columns=f"kind STRING, {LINE}",
        explode="items",
        unknown_fields="evolve",
        unrouted="dead_letters",
    )
    values = [record(1, 3, kind="a"), record(2, 40, kind="b"), record(3, 2)]
    for limits in (LARGE, SMALL):
        routes = route_registry(stream, lambda: FsspecStore(f"{tmp_path}/stage"))
        converter = converter_of(stream, RecordInputs(), limits, appearing=routes)
        assert converter.waits(batch_of(values)) is None
        staged = [each for part in converter.slices([batch_of(values)]) for _, each in part]
        counts: Counter[str] = Counter()
        for each in staged:
            counts.update({table.url: len(rows) for table, rows in each.routed})
        assert counts == {"/tables/a": 3, "/tables/b": 40}
        assert sum(sum(each.dead_letters.values()) for each in staged) == 1
