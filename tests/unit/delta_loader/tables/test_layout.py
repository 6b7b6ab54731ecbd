"""What a table created from a template takes from it."""

import json

import pytest

from common.errors import TableError
from common.schema import parse_ddl
from common.schema.spark_json import schema_to_json
from common.settings import Stream
from common.tables.state import TableState
from delta_loader.load.table_preparation import Creator
from delta_loader.plan.plan import TableShape
from delta_loader.tables.load_modes.layout import Layout, Template, layout_of, like, with_statistics
from tests.fakes.delta_tables import MemoryDeltaTables


def stream(**options: object) -> Stream:
    return Stream.model_validate(
        {"app_id": "o", "topics": ["o"], "table": "/t", "columns": "id INT, day STRING", **options}
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


def test_columns_keep_constraints_and_lose_the_template_tables_state() -> None:
    shape, _ = like(model({}), stream())
    first, second = json.loads(shape.schema)["fields"]
    assert (first["nullable"], first["metadata"]) == (False, {"delta.identity.start": 1})
    assert second["metadata"] == {}
    assert second["type"]["fields"][0]["metadata"] == {"comment": "c"}


def test_stream_properties_override_the_templates() -> None:
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


def test_table_is_either_partitioned_or_clustered() -> None:
    shape, layout = like(model({}, "id"), stream())
    assert (shape.partition_by, layout.cluster_by) == ((), ("id",))
    shape, layout = like(model({}, partition_by=("id",)), stream(cluster_by=["day"]))
    assert (shape.partition_by, layout.cluster_by) == ((), ("day",))
    shape, layout = like(model({}, partition_by=("id",)), stream())
    assert (shape.partition_by, layout.cluster_by) == (("id",), ())
    assert layout_of(stream()) == Layout()


def test_route_table_is_created_with_its_own_layout() -> None:
    alerts = {"columns": "id INT", "cluster_by": ["id"], "table_properties": {"owner": "us"}}
    routes = {"alerts": "/alerts", "plain": "/plain", "own": "/own"}
    tables = {"alerts": alerts, "plain": {"columns": "id INT"}}
    given = stream(topology="a:b", routes=routes, route_tables=tables, table_properties={"owner": "them"})
    made: dict[str, Layout] = {}

    class Tables(MemoryDeltaTables):
        def make(self, url: str, shape: TableShape, layout: Layout, *, nullable: bool) -> None:
            del shape
            assert nullable
            made[url] = layout

    plain = Tables()
    creator = Creator(given, plain)
    for url in given.tables:
        creator.create(url, TableShape(schema_to_json(given.record.schema_of_columns), ()))
    assert set(plain.tables) == {"/plain", "/t_dead_letters"}
    theirs = Layout({"owner": "them"})
    assert made == {"/t": theirs, "/own": theirs, "/alerts": Layout({"owner": "us"}, ("id",))}


def test_missing_template_is_reported_with_its_setting() -> None:
    tables = {"alerts": {"columns": "id INT", "template": "/model"}}
    given = stream(topology="a:b", routes={"alerts": "/alerts"}, route_tables=tables, template="/model")

    class Tables(MemoryDeltaTables):
        def template(self, url: str) -> None:
            assert url == "/model"

    creator = Creator(given, Tables())
    for url, key in (("/t", r"streams\[\]\.template"), ("/alerts", r"streams\[\]\.route_tables\.alerts\.template")):
        with pytest.raises(TableError, match=f"name another table in {key}"):
            creator.create(url, TableShape(schema_to_json(given.record.schema_of_columns), ()))


@pytest.mark.parametrize(
    ("cluster_by", "properties", "indexed"),
    [
        (("c31",), {}, None),
        (("c32",), {}, "33"),
        (("c0", "s.x"), {}, "41"),
        (("s.x", "later"), {"owner": "us"}, "43"),
        (("later",), {"delta.dataSkippingNumIndexedCols": "50"}, "50"),
        (("later",), {"delta.dataSkippingStatsColumns": "later"}, None),
        ((), {}, None),
    ],
)
def test_new_table_has_statistics_of_its_clustering_columns(
    cluster_by: tuple[str, ...], properties: dict[str, str], indexed: str | None
) -> None:
    columns = parse_ddl(", ".join([*(f"c{number} INT" for number in range(40)), "s STRUCT<x: INT, y: INT>, later INT"]))
    made = with_statistics(Layout(properties, cluster_by), columns)
    assert made.properties.get("delta.dataSkippingNumIndexedCols") == indexed
    assert (properties.items() <= made.properties.items(), made.cluster_by) == (True, cluster_by)
