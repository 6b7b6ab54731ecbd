"""A buffer's files hold every row once, in order, in the right partition; their statistics bound the data."""

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from common.schema import parse_ddl, schema_to_json, to_arrow_schema
from common.spans import Position
from common.stage.markers import TableKind
from stage_writer.parquet.buffer import Buffer, EncodedFile, StagedRows, TableFormat, TableRows, leaves

COLUMNS = (
    "place STRING, day DATE, n BIGINT, x DOUBLE, d DECIMAL(12, 3), s STRING, t TIMESTAMP, ntz TIMESTAMP_NTZ, "
    "b BOOLEAN, st STRUCT<a: STRUCT<i: INT>>, l ARRAY<INT>"
)
SCHEMA = parse_ddl(COLUMNS)
ARROW = to_arrow_schema(SCHEMA)
TABLE = TableFormat("memory://t", TableKind.ROWS, schema_to_json(SCHEMA), ARROW, ("place", "day"))

_moments = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001 - hypothesis wants them naive
_text = st.text(st.characters(codec="utf-8"), max_size=40)
_rows = st.fixed_dictionaries(
    {
        "place": st.sampled_from([None, "", "a/b", "x=y%", "ü ñ", "北京"]),
        "day": st.sampled_from([None, date(2026, 3, 1), date(1, 1, 1)]),
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "x": st.none() | st.floats(width=64),
        "d": st.none() | st.decimals(-(10**8), 10**8, places=3),
        "s": st.none() | _text,
        "t": st.none() | _moments.map(lambda moment: moment.replace(tzinfo=UTC)),
        "ntz": st.none() | _moments,
        "b": st.none() | st.booleans(),
        "st": st.none()
        | st.fixed_dictionaries(
            {"a": st.none() | st.fixed_dictionaries({"i": st.none() | st.integers(-(2**31), 2**31 - 1)})}
        ),
        "l": st.none() | st.lists(st.none() | st.integers(0, 5), max_size=3),
    }
)

LEAVES = leaves(ARROW)


def encode(batches: list[list[dict[str, object]]]) -> tuple[EncodedFile, ...]:
    buffer = Buffer.begin(Position(0), [TABLE])
    for number, rows in enumerate(batches):
        table = pa.Table.from_pylist(rows, schema=ARROW)
        buffer.add(StagedRows(Position(number + 1), len(rows), 0, {}, None, (table,)), now_s=0.0)
        if number % 2:
            buffer.tables[0].encode()
    return buffer.tables[0].finish()


def read(file: EncodedFile) -> list[dict[str, object]]:
    return list(pq.read_table(io.BytesIO(file.data.to_bytes())).to_pylist())


def without_partitions(row: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in row.items() if name not in TABLE.partition_by}


def texts(row: dict[str, object]) -> tuple[str | None, ...]:
    return (str(row["place"]) if row["place"] else None, str(row["day"].isoformat()) if row["day"] else None)  # type: ignore[attr-defined]


@given(st.lists(st.lists(_rows, max_size=2), min_size=8, max_size=30))
def test_small_pieces_are_joined_in_order(batches: list[list[dict[str, object]]]) -> None:
    rows = TableRows(TABLE)
    given_rows = [pa.Table.from_pylist(batch, schema=ARROW) for batch in batches]
    for piece in given_rows:
        rows.add(piece)
    most = 7 * 3 * LEAVES * 1024 + sum(piece.nbytes for piece in given_rows) * 2 + 1024
    assert rows.memory_bytes <= most, "thirty pieces are joined into a few"
    read_rows = {file.values: [repr(row) for row in read(file)] for file in rows.finish()}
    assert read_rows == {
        values: [repr(row) for row in _canonical(rows)] for values, rows in _by_values(batches).items()
    }


@given(st.lists(st.lists(_rows, max_size=6), max_size=4))
def test_each_row_is_in_the_file_of_its_values_in_order(batches: list[list[dict[str, object]]]) -> None:
    read_rows = {file.values: [repr(row) for row in read(file)] for file in encode(batches)}
    assert read_rows == {
        values: [repr(row) for row in _canonical(rows)] for values, rows in _by_values(batches).items()
    }


def _by_values(batches: list[list[dict[str, object]]]) -> dict[tuple[str | None, ...], list[dict[str, object]]]:
    groups: dict[tuple[str | None, ...], list[dict[str, object]]] = {}
    for row in (row for rows in batches for row in rows):
        groups.setdefault(texts(row), []).append(row)
    return groups


def _canonical(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return [without_partitions(row) for row in pa.Table.from_pylist(rows, schema=ARROW).to_pylist()]


@given(st.lists(_rows, min_size=1, max_size=12))
def test_statistics_bound_the_data_and_count_the_nulls(rows: list[dict[str, object]]) -> None:
    for file in encode([rows[:6], rows[6:]]):
        statistics = json.loads(file.statistics, parse_float=Decimal)
        data = read(file)
        assert statistics["numRecords"] == len(data)
        for name in ("n", "x", "d", "s", "t", "ntz", "b"):
            values = [row[name] for row in data]
            assert statistics["nullCount"][name] == values.count(None)
            low, high = statistics["minValues"].get(name), statistics["maxValues"].get(name)
            if low is not None:
                for value in values:
                    assert value is None or _within(low, value, high), (name, low, value, high)
        inner = [row["st"]["a"]["i"] if row["st"] and row["st"]["a"] else None for row in data]  # type: ignore[index]
        assert statistics["nullCount"]["st"]["a"]["i"] == inner.count(None)


def _within(low: object, value: object, high: object) -> bool:
    if isinstance(value, datetime):
        zone = value.tzinfo
        bounds = [datetime.fromisoformat(str(bound)).replace(tzinfo=zone) for bound in (low, high)]
        return bounds[0] <= value <= bounds[1]
    if isinstance(value, str):
        return str(low).encode() <= value.encode() <= str(high).encode()
    if isinstance(value, float):
        return value == value and float(str(low)) <= value <= float(str(high))  # noqa: PLR0124 - NaN is within nothing
    return bool(low <= value <= high)  # type: ignore[operator]


@given(st.lists(_rows, min_size=1, max_size=8))
def test_plain_values_have_bounds(rows: list[dict[str, object]]) -> None:
    """Otherwise empty statistics would pass."""
    for file in encode([rows]):
        statistics = json.loads(file.statistics)
        for name in ("n", "d", "s", "t", "ntz"):
            assert (name in statistics["minValues"]) == any(row[name] is not None for row in read(file))
