"""DuckDB as the table of properties and simulations."""

from functools import cache

import duckdb


def connection() -> duckdb.DuckDBPyConnection:
    """To the one database of a process; what is registered, and temporary tables, are the connection's own."""
    return _database().cursor()


@cache
def _database() -> duckdb.DuckDBPyConnection:
    return duckdb.connect(config={"threads": 1})
