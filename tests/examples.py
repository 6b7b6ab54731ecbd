"""Messages for the examples' topologies, and what a batch over all of them gives, without any of their code."""

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

from common.settings import Stream
from stage_writer.topologies.testing import Message

Row = dict[str, Any]
BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
MINUTE_MS = 60_000


def columns(stream: Stream) -> str:
    return str(stream.record.columns)


def shown(rows: Iterable[Row]) -> list[Row]:
    """Rows in an order of their own."""
    return sorted(rows, key=lambda row: [str(row[name]) for name in sorted(row)])


def _at(minute: float) -> datetime:
    return BEGAN + timedelta(milliseconds=round(minute * MINUTE_MS))


def _message(topic: str, key: str, minute: float, value: Row | None) -> Message:
    return Message(topic, key, value, round(_at(minute).timestamp() * 1000))


def request(user: str, minute: float, url: str = "/", status: int = 200) -> Message:
    value = {"sent": _at(minute).isoformat(), "url": url, "status": status}
    return _message("web_requests", user, minute, value)


def requests(count: int = 400) -> list[Message]:
    """Requests of some users over some days, most of them in visits, up to nine minutes late."""
    dice = random.Random(8)  # noqa: S311 - a test's dice
    made = []
    for _ in range(count // 8):
        user, minute = f"user-{dice.randrange(6)}", dice.uniform(0, 4_000)
        for _ in range(8):
            minute += dice.choice([0.1, 1, 5, 20, 29.9, 31])
            url = dice.choice(["/", "/cart", "/help", "/health", "/pay"])
            made.append((minute + dice.uniform(0, 9), request(user, minute, url, dice.choice([200, 200, 404, 503]))))
    return [message for _, message in sorted(made, key=lambda message: message[0])]


def visits(sent: Sequence[Message]) -> list[Row]:
    """The visits that are over, by sorting all requests: those of one partition."""
    by_user = defaultdict(list)
    for message in sent:
        if not message.value["url"].startswith("/health"):
            by_user[message.key].append((message.timestamp_ms, message.value))
    latest_ms = max(at_ms for asked in by_user.values() for at_ms, _ in asked)
    rows = []
    for user, asked in by_user.items():
        asked.sort(key=lambda message: message[0])
        breaks = [place + 1 for place, (first, two) in enumerate(pairwise(asked)) if two[0] - first[0] > 30 * MINUTE_MS]
        for start, end in pairwise([0, *breaks, len(asked)]):
            visit = asked[start:end]
            if visit[-1][0] + 40 * MINUTE_MS < latest_ms:
                rows.append(
                    {
                        "user": user,
                        "began": datetime.fromtimestamp(visit[0][0] / 1000, UTC),
                        "ended": datetime.fromtimestamp(visit[-1][0] / 1000, UTC),
                        "requests": len(visit),
                        "errors": sum(value["status"] >= 500 for _, value in visit),
                        "pages": sorted({value["url"] for _, value in visit}),
                    }
                )
    return shown(rows)


def orders_and_customers(count: int = 300) -> list[Message]:
    """Orders, between them customers who come, change and go."""
    dice = random.Random(9)  # noqa: S311 - a test's dice
    made = []
    for number in range(count):
        customer = f"c{dice.randrange(12)}"
        if dice.random() < 0.3:
            known = {"name": f"{customer} {number}", "country": dice.choice(["DE", "FR", None])}
            made.append(_message("customers", customer, number, None if dice.random() < 0.2 else known))
        else:
            order = {"id": number, "amount": f"{dice.randrange(10_000) / 100:.2f}"}
            made.append(_message("orders", customer, number, order))
    return made


def enriched(sent: Sequence[Message]) -> list[Row]:
    """Each order with the last row of its customer before it."""
    rows = []
    for place, order in enumerate(sent):
        if order.topic != "orders":
            continue
        before = [
            message.value for message in sent[:place] if message.topic == "customers" and message.key == order.key
        ]
        known = before[-1] if before and before[-1] else {"name": None, "country": None}
        row = {"id": order.value["id"], "amount": Decimal(order.value["amount"])}
        rows.append({**row, "customer": known["name"], "country": known["country"]})
    return shown(rows)


def readings(count: int = 600) -> list[Message]:
    """Readings of some devices, one of which fails for a while; up to 25 seconds late."""
    dice = random.Random(10)  # noqa: S311 - a test's dice
    made = []
    for number in range(count):
        device, minute = f"device-{dice.randrange(4)}", number / 15
        is_failing = device == "device-1" and 10 <= minute < 20
        value: Row = {"at": _at(minute).isoformat(), "celsius": round(dice.uniform(-80, 80), 1), "error": None}
        if dice.random() < (0.8 if is_failing else 0.02):
            value["error"] = "no contact"
        made.append((minute + dice.uniform(0, 0.4), _message("readings", device, minute, value)))
    return [message for _, message in sorted(made, key=lambda message: message[0])]


def tallies(sent: Sequence[Message], size_minutes: int) -> list[Row]:
    """Windows of that many minutes, one for each minute, that are over."""
    latest_ms = max(message.timestamp_ms for message in sent)
    outcomes: dict[tuple[str, int], list[bool]] = defaultdict(list)
    for message in sent:
        failed = message.value["error"] is not None or not -60 <= message.value["celsius"] <= 90
        minute = message.timestamp_ms // MINUTE_MS
        for start in range(minute - size_minutes + 1, minute + 1):
            outcomes[message.key, start].append(failed)
    return shown(
        {
            "device": device,
            "began": datetime.fromtimestamp(start * 60, UTC),
            "readings": len(failed),
            "failed": sum(failed),
        }
        for (device, start), failed in outcomes.items()
        if (start + size_minutes) * MINUTE_MS <= latest_ms - MINUTE_MS // 2
    )


def alarming(rows: Iterable[Row]) -> list[Row]:
    """The alerts for those of which more than half have failed, of four or more."""
    return shown(
        {
            "day": row["began"].date(),
            "device": row["device"],
            "began": row["began"],
            "failing": row["failed"] / row["readings"],
        }
        for row in rows
        if row["readings"] >= 4 and row["failed"] * 2 > row["readings"]
    )
