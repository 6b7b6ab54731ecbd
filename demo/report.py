"""The contents of the table by independent readers: delta-rs for the log, DuckDB for the rows."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import deltalake
import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.table import Table

from common.settings import Settings
from common.tables.commit_metadata import CommitMetadata

COMMITS_SHOWN = 8
_SAMPLE = """
    SELECT departure_date, carrier, flight, origin, dest, dep_time, dep_delay, _kafka_partition, _kafka_offset
    FROM flights WHERE hash(tailnum, time_hour, flight) % 50000 = 0 ORDER BY time_hour LIMIT 7
"""
_BY_PARTITION = """
    SELECT _kafka_partition, count(*), count(DISTINCT _kafka_offset), min(_kafka_offset), max(_kafka_offset)
    FROM flights GROUP BY ALL ORDER BY ALL
"""


@dataclass(frozen=True, slots=True)
class Produced:
    flights: pa.Table
    by_partition: Mapping[int, int]
    """Records that the broker acknowledged, by Kafka partition."""
    seconds: float
    """Seconds from the first record produced to the last one loaded."""


def report(console: Console, settings: Settings, produced: Produced) -> bool:
    """Print the table and the comparison; True when the table holds exactly what was produced."""
    [stream] = settings.streams
    table = deltalake.DeltaTable(stream.table, storage_options=_delta_rs_options(settings.stage.storage_options))
    flights = _times_as_sent(table.to_pyarrow_table())
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
    """Whether both hold the same flights, each equally often, in every column that was sent."""
    columns = ", ".join(sent.column_names)
    both = ("sent", "found"), ("found", "sent")
    query = "((SELECT {columns} FROM {one}) EXCEPT ALL (SELECT {columns} FROM {other}))"
    different = " UNION ALL ".join(query.format(columns=columns, one=one, other=other) for one, other in both)
    with duckdb.connect() as connection:
        connection.register("sent", sent)
        connection.register("found", found)
        return connection.execute(f"SELECT count(*) FROM ({different})").fetchall() == [(0,)]  # noqa: S608


def _times_as_sent(flights: pa.Table) -> pa.Table:
    """The table with its times formatted as in the JSON."""
    seconds = pc.cast(flights["time_hour"], pa.timestamp("s", "UTC"))
    index = flights.schema.get_field_index("time_hour")
    return flights.set_column(index, "time_hour", pc.strftime(seconds, "%Y-%m-%dT%H:%M:%SZ"))


def _print_partitions(console: Console, partitions: Iterable[tuple[int, ...]], produced: Produced) -> None:
    rows = [(row[0], produced.by_partition.get(row[0], 0), *row[1:]) for row in partitions]
    names = ["Kafka partition", "produced", "rows", "different offsets", "first offset", "last offset"]
    _print(console, "The table by Kafka partition", names, rows)


def _print_history(console: Console, table: deltalake.DeltaTable, app_id: str) -> None:
    history = table.history()
    rows = [_commit(entry) for entry in history[:COMMITS_SHOWN]]
    shown = f"The newest {len(rows)} of {len(history)} commits" if len(history) > len(rows) else "The history"
    _print(console, shown, ["version", "operation", "records", "spans: partition start-end"], rows)
    offsets = [(f"{app_id}-{number}", table.transaction_version(f"{app_id}-{number}")) for number in range(4)]
    _print(console, "The log's txn actions", ["app id", "version (the last offset loaded)"], offsets)


def _commit(entry: Mapping[str, Any]) -> tuple[Any, ...]:
    """A line of the history, with the spans that the loader wrote into the commit's user metadata."""
    metadata = CommitMetadata.from_json(entry.get("userMetadata") or "")
    if metadata is None:
        return entry["version"], entry["operation"], "", ""
    spans = sorted(metadata.spans.items())
    shown = ", ".join(f"{partition.partition}: {span.start}-{span.end}" for partition, span in spans)
    return entry["version"], entry["operation"], sum(span.end - span.start for _, span in spans), shown


def _print(console: Console, title: str, names: Iterable[str], rows: Iterable[tuple[Any, ...]]) -> None:
    table = Table(title=title, title_justify="left", title_style="bold")
    for name in names:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(f"{cell:,}" if type(cell) is int and cell > 9999 else str(cell) for cell in row))  # noqa: PLR2004
    console.print(table)


def _delta_rs_options(options: Mapping[str, Any]) -> dict[str, str]:
    if not options:
        return {}
    return {
        "AWS_ACCESS_KEY_ID": options["key"],
        "AWS_SECRET_ACCESS_KEY": options["secret"],
        "AWS_ENDPOINT_URL": options["endpoint_url"],
        "AWS_REGION": options["client_kwargs"]["region_name"],
        "AWS_ALLOW_HTTP": "true",
    }
