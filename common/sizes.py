"""Readable counts, sizes and times."""

from datetime import UTC, datetime, timedelta


def counted(number: int, noun: str) -> str:
    """`1 marker`, `1,200 markers`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def agreeing(number: int, singular: str, plural: str) -> str:
    """The form of a verb for a number of things: `is`, `are`."""
    return singular if number == 1 else plural


def size_text(size_bytes: int) -> str:
    """Bytes in the unit that gives the shortest number: `1.5 MiB`."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 2**power:
            return f"{size_bytes / 2**power:,.1f} {unit}"
    return f"{size_bytes:,} B"


def time_text(time_ms: int) -> str:
    """A time in UTC, with milliseconds if it has any: `2026-03-01T00:00:00+00:00`."""
    seconds, milliseconds = divmod(time_ms, 1000)
    try:
        moment = datetime.fromtimestamp(seconds, UTC) + timedelta(milliseconds=milliseconds)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return moment.isoformat(timespec="milliseconds" if milliseconds else "seconds")
