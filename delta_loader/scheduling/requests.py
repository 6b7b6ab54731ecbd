"""Requested loads (``POST /load``): a request, and its response when the load has ended."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from delta_loader.load.report import StreamReport


@dataclass(eq=False, slots=True)
class LoadRequest:
    _ended: threading.Event = field(default_factory=threading.Event)
    _reports: Sequence[StreamReport] | None = None

    def wait(self, timeout_s: float) -> Sequence[StreamReport] | None:
        """The results of the load; None when it has not ended in time, or was canceled."""
        self._ended.wait(timeout_s)
        return self._reports

    def complete(self, reports: Sequence[StreamReport] | None) -> None:
        """The load has ended; None when it was canceled."""
        self._reports = reports
        self._ended.set()


class RequestQueue:
    """Requests from any thread, taken by the loader's."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[LoadRequest] = []

    def ask(self) -> LoadRequest:
        """Request a load of everything that starts after this call."""
        with self._lock:
            self._waiting.append(LoadRequest())
            return self._waiting[-1]

    @property
    def is_requested(self) -> bool:
        return bool(self._waiting)

    def take(self) -> tuple[LoadRequest, ...]:
        with self._lock:
            taken, self._waiting = tuple(self._waiting), []
            return taken
