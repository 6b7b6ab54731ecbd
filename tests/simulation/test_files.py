"""Markers name the same statistics of a simulated data file as of one in Parquet."""

from datetime import UTC, date, datetime

import pyarrow as pa
import pytest

from stage_writer.parquet.buffer import EncodedFile, _OpenFile
from tests.simulation.files import SimulatedFile, rows_in

_TIMES = [datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC), datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)]
_ITEM = pa.struct([("sku", pa.string()), ("v", pa.int32())])
_COLUMNS: dict[str, tuple[pa.DataType, list[object]]] = {
    "numbers": (pa.int64(), [3, None, -7, 2**60]),
    "floats": (pa.float64(), [2.5, 0.5, None, 5.0]),
    "flags": (pa.bool_(), [True, None, False, True]),
    "texts": (pa.string(), ["z" * 40, "", None, "\u00e9"]),
    "bytes": (pa.binary(), [b"a", None, b"", b"\xff"]),
    "days": (pa.date32(), [date(2026, 1, 2), None, date(1969, 1, 1), None]),
    "times": (pa.timestamp("us", "UTC"), [*_TIMES, None, _TIMES[0]]),
    "nothing": (pa.string(), [None] * 4),
    "parts": (pa.struct([("id", pa.int32()), ("item", _ITEM)]), [{"id": 1, "item": {"sku": "a", "v": None}}, None] * 2),
    "items": (pa.list_(_ITEM), [[{"sku": "a", "v": 1}], [], None, [{"sku": "b", "v": 2}] * 2]),
    "pairs": (pa.map_(pa.string(), pa.int32()), [[("a", 1)], [], None, []]),
    "last": (pa.int32(), [1, 2, 3, 4]),
}


@pytest.mark.parametrize("parts", [1, 2])
def test_simulated_file_has_the_rows_and_statistics_of_parquet(parts: int) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in _COLUMNS.items()])
    rows = pa.table([pa.array(values, kind) for kind, values in _COLUMNS.values()], schema=schema)
    made: list[EncodedFile] = []
    for kind in (SimulatedFile, _OpenFile):
        file = kind(schema, rows, "snappy")
        for number in range(parts):
            file.write(rows.slice(number * 4 // parts, 4 // parts))
        made.append(file.close(("1",)))
    simulated, real = made
    assert simulated.statistics == real.statistics
    assert (simulated.rows, simulated.values, simulated.codec) == (real.rows, real.values, real.codec)
    assert (
        rows_in(simulated.data.to_bytes()).to_pylist() == rows_in(real.data.to_bytes()).to_pylist() == rows.to_pylist()
    )
