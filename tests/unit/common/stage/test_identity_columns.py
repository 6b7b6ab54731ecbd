"""The record identity of a row that a table refuses: how it is staged and read, and the message without it."""

import json
from dataclasses import replace

import pytest
from pydantic import ValidationError

from common.schema import parse_ddl, schema_from_json, schema_to_json
from common.spans import Position
from common.stage.data_files import DataFileName, waiting_path
from common.stage.markers import StagedFile, StagedTable, TableKind, manifest_from_bytes, manifest_to_bytes
from common.tables.changes import STAGED_IDENTITY, MergeBy
from delta_loader.plan.held import not_written
from delta_loader.tables.file_split import place_of, split_files_at
from delta_loader.tables.merging.unmatched_deletes import kept_columns_needed
from stage_writer.convert import StreamConverter
from tests.builders import required
from tests.fakes.markers import ORDERS, flush
from tests.fakes.streams import batch_of, staged_batches, stream_of

KAFKAS = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
FILE = StagedFile(waiting_path("/t", DataFileName(ORDERS, Position(0), "0")), None, 1, 1, "")
TABLE = StagedTable("/t", TableKind.ROWS, schema_to_json(parse_ddl("id INT")), (), (FILE,), place=STAGED_IDENTITY)


def test_rows_for_spark_without_kafka_columns_get_identity_columns() -> None:
    stream = stream_of(columns="id INT, many ARRAY<INT>", load="append", kafka_columns=False, explode="many")
    converter = StreamConverter(stream)
    own = converter.formats[0]
    assert (schema_from_json(own.schema).names, own.place, own.waits) == (("id", "many"), STAGED_IDENTITY, True)
    (staged,) = staged_batches(
        converter, [batch_of([b'{"id": 1, "many": [1, 2]}', b"not JSON", b'{"id": 2, "many": [3]}'])]
    )
    places = staged.rows[0].select(STAGED_IDENTITY).to_pylist()
    assert [tuple(place.values()) for place in places] == [("orders", 3, offset) for offset in (100, 100, 102)]


@pytest.mark.parametrize(
    "settings", [{"load": "auto", "kafka_columns": False}, {"load": "append"}, {"load": "add", "kafka_columns": False}]
)
def test_other_streams_have_no_identity_columns(settings: dict[str, object]) -> None:
    own = StreamConverter(stream_of(columns="id INT", **settings)).formats[0]
    assert own.place is None
    assert schema_from_json(own.schema).names == tuple(own.arrow_schema.names)


def test_column_with_a_reserved_identity_name_is_refused() -> None:
    with pytest.raises(ValidationError, match="load makes the column '_staged_offset', which columns has too"):
        stream_of(columns="id INT, _STAGED_offset INT", load="append", kafka_columns=False)


def test_marker_names_identity_columns_only_where_they_exist() -> None:
    marker = flush(0, 3)
    manifest = replace(required(marker.manifest), tables=(TABLE,))
    stored = manifest_to_bytes(ORDERS, manifest)
    assert manifest_from_bytes(marker.name, stored) == manifest
    assert manifest.version == 4, "an older loader reads the marker and ignores the columns"
    without = manifest_to_bytes(ORDERS, replace(manifest, tables=(replace(TABLE, place=None),)))
    assert b"place" not in without
    content = json.loads(stored)
    assert content["tables"][0]["place"] == list(STAGED_IDENTITY)


def test_identity_columns_of_a_staged_table() -> None:
    assert place_of(TABLE) == STAGED_IDENTITY
    kafkas = schema_to_json(parse_ddl("id INT, _kafka_topic STRING, _kafka_partition INT, _kafka_offset BIGINT"))
    assert place_of(replace(TABLE, place=None, schema=kafkas)) == KAFKAS
    assert place_of(replace(TABLE, place=None)) is None
    own = ("_merge_topic", "_merge_partition", "_merge_offset")
    assert place_of(replace(TABLE, place=None, merge=MergeBy(("id",), own, None, None))) == own
    marker = flush(0, 3)
    marker = replace(marker, manifest=replace(required(marker.manifest), tables=(TABLE,)))
    assert [write.identity for write in split_files_at("/t", marker, Position(0), by_spark=True).written] == [
        STAGED_IDENTITY
    ]


def test_remedy_for_a_row_without_identity_is_to_set_append_and_rewind() -> None:
    held = not_written(ORDERS, Position(7), "id is null", "/t", has_identity=False)
    assert "set load: append and stage its records again with `bootstrap rewind" in held.remedy
    assert "--to 7" in held.remedy
    assert "load: append" not in not_written(ORDERS, Position(7), "id is null", "/t").remedy


def test_check_needs_the_unstaged_columns_that_it_names() -> None:
    schema = schema_to_json(parse_ddl("id INT, value STRING, mine STRING, `my own` INT, other INT"))
    texts = ["(value <> MINE)", "`my own` > 3"]
    assert kept_columns_needed(texts, schema, ("id", "value")) == ("mine", "my own")
    assert kept_columns_needed(["value > 'a'"], schema, ("id", "value")) == ()
