"""The encodings of columns, as found in the written Parquet file."""

import json

import pyarrow as pa
import pyarrow.parquet as pq

from common.stage.markers import TableKind
from stage_writer.parquet.buffer import TableFormat, TableRows
from stage_writer.parquet.encodings import choose_encodings

ROWS = 5000


def _encodings(rows: pa.Table) -> dict[str, set[str]]:
    """By column, the encodings of its values in the file that a buffer makes."""
    buffer = TableRows(TableFormat("file:///t", TableKind.ROWS, "", rows.schema, ()))
    buffer.add(rows)
    (file,) = buffer.finish()
    assert pq.read_table(pa.BufferReader(file.data.to_bytes())).cast(rows.schema).equals(rows)
    group = pq.read_metadata(pa.BufferReader(file.data.to_bytes())).row_group(0)
    columns = [group.column(number) for number in range(group.num_columns)]
    return {column.path_in_schema: set(column.encodings) - {"RLE"} for column in columns}


def test_repeated_values_get_a_dictionary() -> None:
    rows = pa.table(
        {
            "country": [("DE", "FR")[number % 2] for number in range(ROWS)],
            "id": [f"id-{number}" for number in range(ROWS)],
            "flag": [number % 2 == 0 for number in range(ROWS)],
        }
    )
    encodings = _encodings(rows)
    assert "RLE_DICTIONARY" in encodings["country"]
    assert encodings["id"] == {"PLAIN"}
    assert not encodings["flag"] & {"RLE_DICTIONARY", "PLAIN_DICTIONARY"}


def test_encodings_of_nested_leaves_are_chosen_separately() -> None:
    rows = pa.table(
        {
            "place": [{"id": f"id-{number}", "kind": "home"} for number in range(ROWS)],
            "tags": [["new", f"tag-{number}"] if number % 2 else ["new"] for number in range(ROWS)],
            "marks": pa.array([[("color", f"{number}")] for number in range(ROWS)], pa.map_(pa.string(), pa.string())),
            "ids": [[f"a-{number}", f"b-{number}"] for number in range(ROWS)],
        }
    )
    encodings = _encodings(rows)
    assert encodings["place.id"] == encodings["marks.key_value.value"] == encodings["ids.list.element"] == {"PLAIN"}
    for path in ("place.kind", "marks.key_value.key"):
        assert "RLE_DICTIONARY" in encodings[path], path


def test_kafka_offsets_and_timestamps_are_delta_encoded() -> None:
    stamps = pa.array(range(ROWS), pa.int64()).cast(pa.timestamp("ms")).cast(pa.timestamp("us", "UTC"))
    rows = pa.table({"_kafka_offset": pa.array(range(ROWS), pa.int64()), "_kafka_timestamp": stamps})
    assert _encodings(rows) == {name: {"DELTA_BINARY_PACKED"} for name in rows.column_names}


def test_empty_and_null_columns_have_encodings() -> None:
    schema = pa.schema({"a": pa.string(), "b": pa.list_(pa.struct({"c": pa.int64()}))})
    assert choose_encodings(schema.empty_table()).by_difference == ()
    rows = pa.table([[None] * 9, [None] * 9], schema=schema)
    assert "a" in choose_encodings(rows).with_dictionary


def test_values_of_a_megabyte_have_no_statistics_and_no_dictionary() -> None:
    long = "x" * 2**20
    places = [{"text": long, "kind": "a"}, {"text": "", "kind": "a"}]
    rows = pa.table({"id": [1, 2], "text": [long, long], "place": places})
    buffer = TableRows(TableFormat("file:///t", TableKind.ROWS, "", rows.schema, ()))
    buffer.add(rows)
    (file,) = buffer.finish()
    statistics = json.loads(file.statistics)
    assert statistics["minValues"] == {"id": 1, "place": {"kind": "a"}}
    assert statistics["maxValues"] == {"id": 2, "place": {"kind": "a"}}
    assert _encodings(rows)["text"] == _encodings(rows)["place.text"] == {"PLAIN"}
    assert "RLE_DICTIONARY" in _encodings(rows)["place.kind"]
