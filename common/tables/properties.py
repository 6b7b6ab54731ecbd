"""A Delta table's properties with retention periods, parsed as Delta does.

Rule: an interval is numbers with units, such as ``interval 30 days`` or ``1 week 2 hours``. An interval that cannot be
parsed is ignored; Delta itself would have refused it.
"""

TXN_RETENTION = "delta.setTransactionRetentionDuration"
_UNITS_MS = {
    "week": 604_800_000.0,
    "day": 86_400_000.0,
    "hour": 3_600_000.0,
    "minute": 60_000.0,
    "second": 1_000.0,
    "millisecond": 1.0,
    "microsecond": 0.001,
}


def retention_ms(text: str) -> int | None:
    """A table property's interval, such as ``interval 30 days``; None if it cannot be parsed."""
    words = text.strip().lower().removeprefix("interval").split()
    if not words or len(words) % 2:
        return None
    total = 0.0
    for number, unit in zip(words[::2], words[1::2], strict=True):
        unit_ms = _UNITS_MS.get(unit.removesuffix("s"))
        try:
            total += float(number) * (unit_ms or 0)
        except ValueError:
            return None
        if unit_ms is None:
            return None
    return int(total)
