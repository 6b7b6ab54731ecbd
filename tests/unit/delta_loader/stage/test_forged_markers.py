"""A marker that names what belongs to another flush is held: nothing of it is loaded, and nothing is deleted."""

import uuid
from dataclasses import replace

import pytest

from common.settings import Settings
from common.spans import Partition, Position, Topic, TopicPartition
from common.stage.data_files import DataFileName, waiting_path
from common.stage.markers import Marker, StagedFile, manifest_to_bytes
from tests.fakes.delta_tables import MemoryDeltaTables
from tests.fakes.loading import loader_for, settings_for
from tests.fakes.staging import Staging

PAYMENTS = TopicPartition(Topic("payments"), Partition(0))
ORDERS_1 = TopicPartition(Topic("orders"), Partition(1))
UNIQUE = str(uuid.UUID(int=7))


def both_streams(orders: Staging) -> Settings:
    """Two streams over one stage, which keeps no marker that every table has."""
    payments = {"app_id": "payments", "topics": ["payments"], "table": payments_table(orders)}
    return settings_for(orders, {}, payments, marker_retention=0)


def payments_table(orders: Staging) -> str:
    return f"{orders.table}_payments"


def forge(orders: Staging, marker: Marker, file: StagedFile) -> None:
    assert marker.manifest is not None
    (table,) = marker.manifest.tables
    manifest = replace(marker.manifest, tables=(replace(table, files=(file,)),))
    stage = orders.store(orders.stage_url)
    stage.write(marker.name.path, manifest_to_bytes(marker.name.topic_partition, manifest))


@pytest.mark.parametrize("owner", [PAYMENTS, ORDERS_1], ids=str)
def test_staged_file_of_another_flush_is_neither_loaded_nor_deleted(owner: TopicPartition) -> None:
    orders = Staging(f"memory://{uuid.uuid4().hex}", "orders")
    stage = orders.store(orders.stage_url)
    table = payments_table(orders) if owner == PAYMENTS else orders.table
    theirs = waiting_path(table, DataFileName(owner, Position(0), UNIQUE))
    stage.write(theirs, b"rows of another flush")
    forge(orders, orders.flush(0, 0, 10), StagedFile(theirs, None, 3, 1, "{}"))
    orders.flush(0, 10, 20)

    tables = MemoryDeltaTables()
    first, _ = loader_for(orders, tables, both_streams(orders)).run_pass()

    held = first.held[orders.source(0)]
    assert held.reason == "unreadable_marker"
    assert theirs.rpartition("/")[2] in held.problem
    assert "bootstrap" in held.remedy
    assert stage.read(theirs) == b"rows of another flush"
    assert not any(table.commits for table in tables.tables.values())
    assert len(orders.markers()) == 2


def test_marker_that_names_a_file_of_an_earlier_load_is_held() -> None:
    orders = Staging(f"memory://{uuid.uuid4().hex}", "orders")
    loaded = orders.flush(0, 0, 10)
    tables = MemoryDeltaTables()
    loader_for(orders, tables).run_pass()
    before = len(tables.tables[orders.table].commits)
    forge(orders, orders.flush(0, 10, 20), loaded.tables[0].files[0])

    (result,) = loader_for(orders, tables).run_pass()

    assert result.held[orders.source(0)].reason == "unreadable_marker"
    assert len(tables.tables[orders.table].commits) == before
