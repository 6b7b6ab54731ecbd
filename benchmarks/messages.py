"""The benchmarks' records: four kinds of JSON, and Avro. Every run gets the same bytes."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from io import BytesIO

import fastavro

_WORDS = (
    *("lorem", "ipsum", "dolor", "sit", "amet", "consectetur", "adipiscing", "elit"),
    *("sed", "do", "eiusmod", "tempor", "incididunt", "ut", "labore"),
)


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    columns: str
    """The stream's columns, as in its config."""
    date: str
    """SQL expression of the partition date, valid in DuckDB and Spark."""
    messages: int
    """Number of messages at ``--scale 1``."""
    make: Callable[[int], bytes]
    """Makes the record with a number."""
    avro: str | None = None
    """Avro schema of the records; None for JSON."""
    envelope: str = "plain"


def _small_record(number: int) -> dict[str, object]:
    return {
        "meta": {"producer": {"timestamp": f"2021-03-{number % 3 + 1:02}T14:38:48.000Z"}},
        "method": ("GET", "POST", "DELETE")[number % 3],
        "session_id": f"7c28bcf9-be26-4d0b-931a-{number * 7919 % 2**40:012x}",
        "status": (200, 404, 204)[number % 3],
        "url": f"http://www.example.com/{number % 1000}",
        "uuid": f"831c6afa-375c-4988-b248-{number:012x}",
    }


def _small(number: int) -> bytes:
    return json_bytes(_small_record(number))


def _record_schema(name: str, **fields: object) -> dict[str, object]:
    return {"type": "record", "name": name, "fields": [{"name": key, "type": kind} for key, kind in fields.items()]}


_SMALL_AVRO = _record_schema(
    "Request",
    meta=_record_schema("Meta", producer=_record_schema("Producer", timestamp="string")),
    method="string",
    session_id="string",
    status="int",
    url="string",
    uuid="string",
)


def _small_avro(number: int) -> bytes:
    file = BytesIO()
    fastavro.schemaless_writer(file, _PARSED, _small_record(number))
    return file.getvalue()


_PARSED = fastavro.parse_schema(_SMALL_AVRO)


def words_of(number: int, words: int) -> str:
    return " ".join(_WORDS[(number * 31 + place * place) % len(_WORDS)] for place in range(words))


def _large(number: int) -> bytes:
    return json_bytes(
        {
            "created": f"2021-03-{number % 3 + 1:02}T14:38:48.000Z",
            "id": number,
            "customer": f"customer-{number * 7919 % 50_000}",
            "amount": number % 100_000 / 100,
            "title": words_of(number, 12),
            "description": words_of(number + 7, 140),
            "country": ("DE", "FR", "US", "CN")[number % 4],
        }
    )


def _nested(number: int) -> bytes:
    lines = [
        {"sku": f"sku-{(number + line) % 5000}", "quantity": line + 1, "price": (number + line) % 999 / 8}
        for line in range(5)
    ]
    address = {"city": words_of(number, 1), "zip": str(number % 99_999)}
    order = {
        "id": number,
        "customer": {"name": words_of(number, 3), "address": address},
        "lines": lines,
        "tags": [words_of(number + place, 1) for place in range(4)],
    }
    return json_bytes({"created": f"2021-03-{number % 3 + 1:02}T14:38:48.000Z", "order": order})


_WIDE_COLUMNS = 50


def _wide(number: int) -> bytes:
    record: dict[str, object] = {"created": f"2021-03-{number % 3 + 1:02}T14:38:48.000Z"}
    for place in range(1, _WIDE_COLUMNS):
        match place % 4:
            case 0:
                record[f"c{place}"] = number * place
            case 1:
                record[f"c{place}"] = number % 1000 / place
            case 2:
                record[f"c{place}"] = number % place == 0
            case _:
                record[f"c{place}"] = words_of(number + place, 52)
    return json_bytes(record)


_WIDE_TYPES = ("BIGINT", "DOUBLE", "BOOLEAN", "STRING")
KINDS = {
    kind.name: kind
    for kind in (
        Kind(
            "small",
            "meta STRUCT<producer: STRUCT<timestamp: STRING>>, method STRING, session_id STRING, status INT, "
            "url STRING, uuid STRING",
            "substr(meta.producer.timestamp, 1, 10)",
            2_000_000,
            _small,
        ),
        Kind(
            "1.2 KB",
            "created STRING, id BIGINT, customer STRING, amount DOUBLE, title STRING, description STRING, "
            "country STRING",
            "substr(created, 1, 10)",
            500_000,
            _large,
        ),
        Kind(
            "nested",
            "created STRING, order STRUCT<id: BIGINT, "
            "customer: STRUCT<name: STRING, address: STRUCT<city: STRING, zip: STRING>>, "
            "lines: ARRAY<STRUCT<sku: STRING, quantity: INT, price: DOUBLE>>, tags: ARRAY<STRING>>",
            "substr(created, 1, 10)",
            300_000,
            _nested,
        ),
        Kind(
            "wide",
            "created STRING, " + ", ".join(f"c{place} {_WIDE_TYPES[place % 4]}" for place in range(1, _WIDE_COLUMNS)),
            "substr(created, 1, 10)",
            100_000,
            _wide,
        ),
    )
}


def json_bytes(record: object) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode()


AVRO = replace(KINDS["small"], name="small, Avro", make=_small_avro, avro=json.dumps(_SMALL_AVRO))
