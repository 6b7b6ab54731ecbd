"""Proof that a writer may write its data files: reports a missing bucket or permission before staging."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from common.errors import StoreError
from common.storage.store import prove_writable
from common.tables.urls import comparable

if TYPE_CHECKING:
    from collections.abc import Callable

    from common.ports import ObjectStore
    from common.settings import Settings

_AT_ONCE = 16


def prove_tables(settings: Settings, open_store: Callable[[str], ObjectStore]) -> int:
    """Write to each table whose data files writers write. Returns the number of tables.

    Raises the ConfigError or StoreError of the first one that is not writable. Rows for a table that only Spark can
    write wait in the stage, and writers need no access to such a table.
    """
    tables = {
        comparable(url): (f"streams[{index}].{key.partition('.')[2]}", url)
        for index, stream in enumerate(settings.streams)
        for key, url in stream.places
        if not stream.load_of(url).waits_for_spark
    }

    def prove(table: tuple[str, str]) -> None:
        key, url = table
        try:
            prove_writable(open_store(url))
        except StoreError as error:
            msg = f"{key}: a writer cannot put data files below {url}: {error.problem}"
            raise type(error)(msg, error.remedy) from error

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="probe") as pool:
        return len(list(pool.map(prove, tables.values())))
