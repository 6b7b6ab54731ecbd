"""Readable sizes."""

from __future__ import annotations


def size_text(size_bytes: int) -> str:
    """Bytes in the unit that gives the shortest number: `1.5 MiB`."""
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size_bytes >= 2**power:
            return f"{size_bytes / 2**power:,.1f} {unit}"
    return f"{size_bytes:,} B"
