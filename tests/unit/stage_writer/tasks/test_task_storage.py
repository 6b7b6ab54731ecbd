"""Task state is kept in memory, or in a separate folder on disk."""

from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from common.errors import ConfigError, StoreError
from common.metrics import Metrics
from common.spans import Partition, Topic, TopicPartition
from stage_writer.tasks.kept import _Readers
from stage_writer.tasks.task_storage import TaskStorage
from stage_writer.topologies.stores import MemoryBackend, Stores, TaskStores
from tests.fakes.metrics import numbers

SOURCE = TopicPartition(Topic("orders"), Partition(3))
OTHER = TopicPartition(Topic("orders"), Partition(4))
COUNTS, KEPT = Stores.key_value("counts"), Stores.key_value("counts", persistent=True)


def test_persistent_store_without_a_state_folder_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"counts is persistent, but writer\.state_folder is not set"):
        TaskStorage("app", Metrics(), None).require_place([KEPT])
    TaskStorage("app", Metrics(), None).require_place([COUNTS])


def test_too_many_persistent_stores_are_refused() -> None:
    storage = TaskStorage("app", Metrics(), "/nowhere")
    stores = [Stores.session(f"s{number}", timedelta(seconds=1)) for number in range(499)]
    storage.require_place([KEPT, *stores])
    with pytest.raises(ConfigError, match="counts is persistent, but its task has too many stores: 1001"):
        storage.require_place([KEPT, *stores, *[COUNTS] * 501])
    storage.require_place([COUNTS] * 2000)


def test_disk_holds_the_maximum_number_of_stores(tmp_path: Path) -> None:
    builders = [Stores.key_value(f"s{number}", persistent=True) for number in range(1_000)]
    storage, partition = (
        TaskStorage("app", Metrics(), str(tmp_path)),
        TopicPartition(Topic("+".join("abcde" * 50)), Partition(0)),
    )
    storage.require_place(builders)
    for mark, value in ((None, None), ("marker", 1)):
        stores = TaskStores(builders, storage.backend(partition, builders))
        assert stores.mark == mark
        if mark is None:
            stores.restore((), (), "")
        assert stores.store("s999").get("a") == value
        for builder in builders:
            stores.store(builder.name).put("a", 1)
        stores.seal()
        stores.sealed("marker")
        stores.close()


def test_only_tasks_with_a_persistent_store_are_on_disk(tmp_path: Path) -> None:
    storage = TaskStorage("app", Metrics(), str(tmp_path))
    assert isinstance(storage.backend(SOURCE, [COUNTS]), MemoryBackend)
    assert not list(tmp_path.iterdir())
    backend = storage.backend(SOURCE, [COUNTS, Stores.key_value("b", persistent=True)])
    assert (tmp_path / "app" / "orders-3").is_dir()
    backend.close()


def test_task_on_disk_resumes_at_its_mark_unless_the_stores_changed(tmp_path: Path) -> None:
    storage = TaskStorage("app", Metrics(), str(tmp_path))
    stores = TaskStores([KEPT], storage.backend(SOURCE, [KEPT]))
    stores.restore((), (), "")
    stores.store("counts").put("a", 1)
    stores.seal()
    stores.store("counts").put("a", 2)
    stores.sealed("marker")
    stores.close()
    again = TaskStores([KEPT], storage.backend(SOURCE, [KEPT]))
    assert again.mark == "marker"
    assert again.store("counts").get("a") == 1
    again.close()
    for builders in ([KEPT, Stores.key_value("more")], [Stores.key_value("other", persistent=True)]):
        other = TaskStores(builders, storage.backend(SOURCE, [KEPT]))
        assert other.mark is None
        other.close()


def test_state_metrics_exist_only_while_the_task_does() -> None:
    metrics = Metrics()
    storage = TaskStorage("app", metrics, None)
    stores = TaskStores([COUNTS], MemoryBackend())
    stores.store("counts").put("a", 1)
    stores.seal()
    stores.sealed("marker")
    assert stores.size_bytes > stores.entries
    storage.report(SOURCE, stores)
    storage.report(OTHER, stores)
    storage.report_restored(7, 0.5)
    assert sum("partition=4" in name for name in numbers(metrics)) == 2
    storage.forget(OTHER)
    storage.forget(OTHER)
    text = metrics.exposition().decode()
    assert f'stage_writer_state_bytes{{app_id="app",partition="3",topic="orders"}} {stores.size_bytes}.0' in text
    assert 'stage_writer_state_entries{app_id="app",partition="3",topic="orders"} 1.0' in text
    assert 'partition="4"' not in text
    assert 'stage_writer_state_restored_bytes_total{app_id="app"} 7.0' in text


def test_stores_are_closed_by_their_last_reader() -> None:
    closed: list[str] = []
    stores = cast("TaskStores", SimpleNamespace(close=lambda: closed.append("closed")))
    readers = _Readers(stores)
    with readers:
        with readers:
            readers.close()
        assert closed == [], "a reader of a memory-mapped file that is closed ends the process"
    assert closed == ["closed"]
    with pytest.raises(StoreError, match="the task is gone"), readers:
        pass
