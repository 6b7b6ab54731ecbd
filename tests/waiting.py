"""Waiting for what comes when it comes: tests know conditions, and no durations."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def until(condition: Callable[[], object], what: str = "it", within_s: float = 180.0) -> None:
    """Wait for a condition. `Child.wait_until` is for one that a process has to live for."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, f"{what} did not happen"
        time.sleep(0.02)
