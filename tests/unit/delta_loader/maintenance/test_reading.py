"""How table maintenance learns of files that are staged and not loaded."""

import json
import uuid

import pytest

from common.clock import SystemClock
from common.settings import Settings
from delta_loader.maintenance.services.reading import FactsReader, rules_of
from delta_loader.ports import in_turn
from delta_loader.stage.reading import Stage
from tests.fakes.loading import settings_for
from tests.fakes.staging import Staging


@pytest.fixture
def root() -> str:
    return f"memory://{uuid.uuid4().hex}"


def waiting_ms(root: str, table: str | None = None, **last: int) -> int | None:
    """``waiting_ms`` of a table fed by `orders` alone, with its txn actions given as txn id → last offset."""
    orders = Staging(root)
    url = table or orders.table
    schema = {"type": "struct", "fields": []}
    actions: list[object] = [
        {"protocol": {"minReaderVersion": 1, "minWriterVersion": 2}},
        {"metaData": {
            "id": "t", "format": {"provider": "parquet", "options": {}}, "schemaString": json.dumps(schema),
            "partitionColumns": [], "configuration": {},
        }},
        *({"txn": {"appId": name.replace("_", "-"), "version": offset}} for name, offset in last.items()),
    ]  # fmt: skip
    orders.store(url).write(f"_delta_log/{0:020d}.json", "\n".join(map(json.dumps, actions)).encode())
    settings: Settings = settings_for(orders)
    stage = Stage(orders.store(orders.stage_url), in_turn)
    facts = FactsReader(settings, stage, orders.store, in_turn, SystemClock()).read(url, rules_of(settings, url))
    assert facts is not None
    return facts.waiting_ms


def written_ms(staging: Staging, start: int) -> int:
    item = staging.store(staging.stage_url).stat(f"done/{staging.topic}/0/{start:020d}.done")
    assert item is not None
    return item.modified_ms


def test_files_of_a_removed_stream_count_as_waiting_until_loaded(root: str) -> None:
    removed = Staging(root, "refunds", app_id="returns")
    removed.flush(0, 0, 10)
    removed.flush(0, 10, 20)

    assert waiting_ms(root) == written_ms(removed, 0)
    assert waiting_ms(root, returns_0=9) == written_ms(removed, 10)
    assert waiting_ms(root, returns_refunds_0=9) == written_ms(removed, 10)
    assert waiting_ms(root, returns_0=19) is None
    assert waiting_ms(root, table=f"{root}/tables/other") is None


def test_files_of_a_configured_stream_count_as_waiting_until_loaded(root: str) -> None:
    Staging(root).flush(0, 0, 10)
    assert waiting_ms(root) == written_ms(Staging(root), 0)
    assert waiting_ms(root, orders_0=9) is None
