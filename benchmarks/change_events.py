"""Change events: the same table rows in the events of each envelope, like the records of `benchmarks.messages`."""

from collections.abc import Callable

from benchmarks.messages import Kind, json_bytes, words_of

_ROW = (
    "id BIGINT, created STRING, customer STRING, city STRING, status STRING, amount DOUBLE, quantity INT, note STRING"
)
_MADE_S = 1_767_225_600


def _row(number: int) -> dict[str, object]:
    return {
        "id": number,
        "created": f"2021-03-{number % 3 + 1:02}T14:38:48.000Z",
        "customer": f"customer-{number * 7919 % 50_000}",
        "city": words_of(number, 2),
        "status": ("new", "paid", "sent")[number % 3],
        "amount": number % 100_000 / 100,
        "quantity": number % 10,
        "note": words_of(number + 7, 8),
    }


def _before(number: int) -> dict[str, object]:
    return {"status": "open", "quantity": number % 10 + 1}


def _change(number: int) -> int:
    """Two of five events are inserts (0), two are updates (1), and one is a delete (2)."""
    return (0, 1, 0, 1, 2)[number % 5]


def _debezium(number: int) -> dict[str, object]:
    row, change = _row(number), _change(number)
    source = {
        "version": "3.3.1.Final",
        "connector": "postgresql",
        "name": "shop",
        "ts_ms": _MADE_S * 1000 + number,
        "snapshot": "false",
        "db": "shop",
        "sequence": f'["{number}","{number + 8}"]',
        "schema": "public",
        "table": "orders",
        "txId": number,
        "lsn": 24_023_128 + number,
        "xmin": None,
    }
    return {
        "before": (None, {**row, **_before(number)}, row)[change],
        "after": None if change == 2 else row,  # noqa: PLR2004 - a delete
        "source": source,
        "op": "cud"[change],
        "ts_ms": _MADE_S * 1000 + number + 5,
        "transaction": None,
    }


def _debezium_schema() -> dict[str, object]:
    """The schema that Connect's JsonConverter sends with each event by default."""
    types = ("int64", "string", "string", "string", "string", "double", "int32", "string")
    row = [{"type": kind, "optional": name != "id", "field": name} for name, kind in zip(_row(0), types, strict=True)]
    parts = [
        {"type": "struct", "fields": row, "optional": True, "name": "shop.public.orders.Value", "field": image}
        for image in ("before", "after")
    ]
    source = [
        {"type": "int64" if name in ("ts_ms", "txId", "lsn", "xmin") else "string", "optional": True, "field": name}
        for name in ("version", "connector", "name", "ts_ms", "snapshot", "db", "sequence", "schema", "table", "txId")
    ]
    about = {"type": "struct", "fields": source, "optional": False, "name": "io.debezium.Source", "field": "source"}
    rest = [{"type": "string", "optional": False, "field": "op"}, {"type": "int64", "optional": True, "field": "ts_ms"}]
    fields = [*parts, about, *rest]
    return {"type": "struct", "fields": fields, "optional": False, "name": "shop.public.orders.Envelope"}


_SCHEMA = _debezium_schema()


def _maxwell(number: int) -> dict[str, object]:
    change = _change(number)
    event: dict[str, object] = {
        "database": "shop",
        "table": "orders",
        "type": ("insert", "update", "delete")[change],
        "ts": _MADE_S + number // 1000,
        "xid": number,
        "commit": True,
        "data": _row(number),
    }
    return event | {"old": _before(number)} if change == 1 else event


def _canal(number: int) -> dict[str, object]:
    change, row = _change(number), {name: str(value) for name, value in _row(number).items()}
    old = {name: str(value) for name, value in _before(number).items()}
    return {
        "data": [row],
        "database": "shop",
        "es": _MADE_S * 1000 + number,
        "id": number,
        "isDdl": False,
        "mysqlType": dict.fromkeys(row, "varchar(255)"),
        "old": [old] if change == 1 else None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": dict.fromkeys(row, 12),
        "table": "orders",
        "ts": _MADE_S * 1000 + number + 5,
        "type": ("INSERT", "UPDATE", "DELETE")[change],
    }


def _dms(number: int) -> dict[str, object]:
    change = _change(number)
    metadata = {
        "timestamp": "2026-01-01T00:00:01.000000Z",
        "record-type": "data",
        "operation": ("insert", "update", "delete")[change],
        "partition-key-type": "primary-key",
        "schema-name": "public",
        "table-name": "orders",
        "transaction-id": number,
        "commit-timestamp": "2026-01-01T00:00:00.000000Z",
    }
    before = {"before-image": _before(number)} if change == 1 else {}
    return {"data": _row(number), **before, "metadata": metadata}


def _events(name: str, envelope: str, make: Callable[[int], object]) -> Kind:
    return Kind(
        name, _ROW, "substr(created, 1, 10)", 500_000, lambda number: json_bytes(make(number)), envelope=envelope
    )


EVENTS = (
    _events("rows, plain", "plain", _row),
    _events("rows, debezium", "debezium", _debezium),
    _events("rows, debezium with schema", "debezium", lambda number: {"schema": _SCHEMA, "payload": _debezium(number)}),
    _events("rows, maxwell", "maxwell", _maxwell),
    _events("rows, canal", "canal", _canal),
    _events("rows, dms", "dms", _dms),
)
"""The same rows, plain and as events of each envelope."""
