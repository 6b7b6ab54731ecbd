"""Which staged events a table with one CHECK forbids: the loader's own SQL statement in DuckDB, which also stands in
for Spark's evaluation of the constraint."""

# ruff: noqa: S608 - names of ours

from collections.abc import Sequence

import duckdb

from common.tables.changes import DELETE_COLUMN, MergeBy
from delta_loader.tables.merging.unmatched_deletes import JUDGED_PLACE, UnmatchedDeletes, judged_order


def judged(
    connection: duckdb.DuckDBPyConnection, columns: Sequence[str], by: MergeBy, check: str, bounds: Sequence[str] = ()
) -> set[tuple[str, int, int]]:
    """The places of the events in ``staged`` whose rows ``target`` refuses; ``columns`` are the staged ones."""
    order = judged_order(by)
    place = ", ".join(f'"{column}" AS "{made}"' for column, made in zip(by.order, order, strict=True))
    given = {*by.keys, by.sequence, by.soft_delete}
    alone = [f'"{name}"' if name in given else f'NULL AS "{name}"' for name in columns]
    own = [f'"{name}"' for name in columns]
    upserts = f'SELECT {", ".join(own)}, {place} FROM staged WHERE NOT "{DELETE_COLUMN}"'
    deletes = f'SELECT {", ".join(alone)}, {place} FROM staged WHERE "{DELETE_COLUMN}"'
    names = ", ".join((*(f'"{key}"' for key in by.keys), *order))
    passes = f"coalesce({check}, false)"
    views = {
        "bad": f"SELECT {names} FROM ({upserts}) WHERE NOT {passes}",
        "doubtful": f"SELECT {names} FROM ({deletes}) WHERE NOT {passes}",
        "fine": f"SELECT {names} FROM ({upserts}) WHERE {passes} UNION ALL "
        f"SELECT {names} FROM ({deletes}) WHERE {passes}",
    }
    for name, text in views.items():
        connection.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS {text}")
    places = ", ".join(JUDGED_PLACE)
    refused = connection.execute(f"SELECT {places} FROM bad").fetchall()
    if by.soft_delete is not None:
        unmatched = UnmatchedDeletes("doubtful", "fine", "target", by, bounds, lambda name: f'"{name}"').text
        refused += connection.execute(f"SELECT {places} FROM ({unmatched})").fetchall()
    return {(topic, partition, offset) for topic, partition, offset in refused}
