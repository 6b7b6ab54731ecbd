"""DuckDB as a library of vectorized functions: in memory, single-threaded, and without access to anything outside.

Rules:

1. No file, no network, no extension is loaded, and no setting can be changed afterwards: expressions come from
   configuration, but are still arbitrary text.
2. Times are in UTC, independent of the machine's zone.
3. A connection belongs to one decoder or deriver, and with it to one thread at a time.
"""

from __future__ import annotations

import duckdb

_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "threads": "1",
    "enable_external_access": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "python_enable_replacements": "false",
    "preserve_insertion_order": "true",
}


def connect() -> duckdb.DuckDBPyConnection:
    """A connection with these rules applied."""
    connection = duckdb.connect(":memory:", config=_SETTINGS)
    connection.execute("SET TimeZone = 'UTC'")
    connection.execute("SET lock_configuration = true")
    return connection
