"""What is in the table, as readers other than ours see it: delta-rs for the log, DuckDB for the rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import deltalake
import duckdb
from rich.table import Table

from delta_loader.core.commits import CommitMetadata

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    import pyarrow as pa
    from rich.console import Console

    from common.settings import Settings

COMMITS_SHOWN = 8
_SAMPLE = """
    SELECT departure_date, time_hour, carrier, flight, origin, dest, dep_delay, _kafka_partition, _kafka_offset
    FROM flights USING SAMPLE reservoir(6 ROWS) REPEATABLE (7) ORDER BY time_hour
"""
_BY_PARTITION = """
    SELECT _kafka_partition, count(*), count(DISTINCT _kafka_offset), min(_kafka_offset), max(_kafka_offset)
    FROM flights GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class Produced:
    """What went into Kafka."""

    flights: pa.Table
    by_partition: Mapping[int, int]
    """Records that the broker acknowledged, by Kafka partition."""
    seconds: float
    """From the first record produced to the last one loaded."""


def report(console: Console, settings: Settings, produced: Produced) -> bool:
    """Print the table and the comparison; True when the table holds exactly what was produced."""
    [stream] = settings.streams
    table = deltalake.DeltaTable(stream.table, storage_options=_delta_rs_options(settings.stage.storage_options))
    flights = table.to_pyarrow_table()  # DuckDB finds it by this name
    total = produced.flights.num_rows
    console.print(f"\n[bold]{total:,} flights[/] from Kafka to Delta in {produced.seconds:.0f} s, start-up included\n")
    with duckdb.connect() as connection:
        connection.register("flights", flights)
        partitions = connection.execute(_BY_PARTITION).fetchall()
        _print_partitions(console, partitions, produced)
        sample = connection.execute(_SAMPLE)
        names = [column[0] for column in sample.description or ()]
        _print(console, "A sample", names, sample.fetchall())
    _print_history(console, table, stream.app_id)
    counted = {partition: rows for partition, rows, *_ in partitions}
    once = all(rows == distinct for _, rows, distinct, *_ in partitions)
    same = _same_rows(produced.flights, flights)
    is_right = counted == dict(produced.by_partition) and once and same
    verdict = "[bold green]Every flight is in the table exactly once[/]" if is_right else "[bold red]They differ[/]"
    console.print(f"\n{verdict}: {sum(counted.values()):,} rows of {total:,} records, values compared: ", end="")
    console.print("equal" if same else "[red]different[/]")
    return is_right


def _same_rows(sent: pa.Table, found: pa.Table) -> bool:
    """Whether both hold the same flights, however often each: every column, as text."""
    columns = ", ".join(f"CAST({name} AS VARCHAR) AS {name}" for name in sent.column_names if name != "time_hour")
    query = "SELECT {columns}, {time} AS time_hour FROM {table}"
    sent_rows = query.format(columns=columns, time="time_hour", table="sent")
    spelled = "strftime(time_hour AT TIME ZONE 'UTC', '%Y-%m-%dT%H:%M:%SZ')"
    found_rows = query.format(columns=columns, time=spelled, table="found")
    with duckdb.connect() as connection:
        connection.register("sent", sent)
        connection.register("found", found)
        both_ways = f"(({sent_rows}) EXCEPT ALL ({found_rows})) UNION ALL (({found_rows}) EXCEPT ALL ({sent_rows}))"
        [(different,)] = connection.execute(f"SELECT count(*) FROM ({both_ways})").fetchall()  # noqa: S608
    return bool(different == 0)


def _print_partitions(console: Console, partitions: Iterable[tuple[int, ...]], produced: Produced) -> None:
    rows = [(row[0], produced.by_partition.get(row[0], 0), *row[1:]) for row in partitions]
    names = ["Kafka partition", "produced", "rows", "different offsets", "first offset", "last offset"]
    _print(console, "The table by Kafka partition", names, rows)


def _print_history(console: Console, table: deltalake.DeltaTable, app_id: str) -> None:
    history = table.history()
    rows = []
    for entry in history[:COMMITS_SHOWN]:
        metrics = entry.get("operationMetrics") or {}
        rows.append(
            (entry["version"], entry["operation"], metrics.get("numOutputRows", ""), _spans(entry.get("userMetadata")))
        )
    shown = f"The newest {len(rows)} of {len(history)} commits" if len(history) > len(rows) else "The history"
    _print(console, shown, ["version", "operation", "rows", "spans: partition start-end"], rows)
    offsets = [(f"{app_id}-{number}", table.transaction_version(f"{app_id}-{number}")) for number in range(4)]
    _print(console, "The log's txn actions", ["app id", "version (the last offset loaded)"], offsets)


def _spans(metadata: str | None) -> str:
    """The commit's spans, as the loader wrote them into its user metadata."""
    found = CommitMetadata.from_json(metadata) if metadata else None
    spans = sorted(found.spans.items()) if found else ()
    return ", ".join(f"{source.partition}: {span.start}-{span.end}" for source, span in spans)


def _print(console: Console, title: str, names: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,}" if type(cell) is int and cell > 9999 else str(cell) for cell in row))  # noqa: PLR2004
    console.print(table)


def _delta_rs_options(options: Mapping[str, Any]) -> dict[str, str]:
    """The options of fsspec, as delta-rs spells them."""
    if not options:
        return {}
    return {
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_REGION": options["client_kwargs"]["region_name"],
        "AWS_ALLOW_HTTP": "true",
    }
