"""What a table that is made like another one takes from it."""

from __future__ import annotations

import json

from common.settings import Stream
from common.tables.delta_log import TableState
from delta_loader.core.ways.layout import Layout, Template, layout_of, like


def stream(**says: object) -> Stream:
    return Stream.model_validate(
        {"app_id": "o", "topics": ["o"], "table": "/t", "columns": "id INT, day STRING", **says}
    )


def model(properties: dict[str, str], *cluster_by: str, partition_by: tuple[str, ...] = ()) -> Template:
    inner = {"name": "x", "type": "long", "nullable": False, "metadata": {"delta.columnMapping.id": 3, "comment": "c"}}
    fields = [
        {
            "name": "id",
            "type": "long",
            "nullable": False,
            "metadata": {"delta.identity.start": 1, "delta.identity.highWaterMark": 700, "delta.typeChanges": []},
        },
        {
            "name": "s",
            "type": {"type": "struct", "fields": [inner]},
            "nullable": True,
            "metadata": {"delta.columnMapping.physicalName": "col-7"},
        },
    ]
    schema = json.dumps({"type": "struct", "fields": fields})
    features = frozenset({"allowColumnDefaults", "rowTracking"})
    return Template(TableState(5, "id", schema, partition_by, properties, 3, 7, features), cluster_by)


def test_columns_keep_what_they_ask_of_rows_and_lose_what_is_of_the_other_table() -> None:
    shape, _ = like(model({}), stream())
    first, second = json.loads(shape.schema)["fields"]
    assert (first["nullable"], first["metadata"]) == (False, {"delta.identity.start": 1})
    assert second["metadata"] == {}
    assert second["type"]["fields"][0]["metadata"] == {"comment": "c"}


def test_properties_are_taken_and_the_streams_win() -> None:
    theirs = {
        "delta.columnMapping.mode": "name",
        "delta.columnMapping.maxColumnId": "9",
        "delta.rowTracking.materializedRowIdColumnName": "_row-id",
        "delta.constraints.c": "id > 0",
        "owner": "them",
    }
    _, layout = like(model(theirs), stream(table_properties={"owner": "us"}))
    assert layout.properties == {
        "delta.columnMapping.mode": "name",
        "delta.constraints.c": "id > 0",
        "delta.feature.allowColumnDefaults": "supported",
        "owner": "us",
    }


def test_a_table_is_partitioned_or_clustered() -> None:
    shape, layout = like(model({}, "id"), stream())
    assert (shape.partition_by, layout.cluster_by) == ((), ("id",))
    shape, layout = like(model({}, partition_by=("id",)), stream(cluster_by=["day"]))
    assert (shape.partition_by, layout.cluster_by) == ((), ("day",))
    shape, layout = like(model({}, partition_by=("id",)), stream())
    assert (shape.partition_by, layout.cluster_by) == (("id",), ())
    assert layout_of(stream()) == Layout()
