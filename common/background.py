"""Background work in daemon threads. A thread that hangs does not keep the process from ending."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from structlog.typing import FilteringBoundLogger

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


def in_background(
    name: str, work: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
) -> Future[Result]:
    """Run a function in its own thread; the future has its result or its exception."""
    future: Future[Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args, **kwargs))
        except BaseException as error:  # noqa: BLE001 - it is the caller's
            future.set_exception(error)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


class BackgroundLoop:
    """Calls a function again and again in its own thread until closed.

    An exception from it is a bug, which is logged; the loop continues.
    """

    def __init__(
        self,
        name: str,
        step: Callable[[], float],
        log: FilteringBoundLogger,
        *,
        retry_after_bug_s: float,
        finish: Callable[[], None] = lambda: None,
    ) -> None:
        """Starts at once. ``step`` returns the seconds until its next call; ``finish`` is called after the last one."""
        self._name = name
        self._step = step
        self._log = log
        self._retry_after_bug_s = retry_after_bug_s
        self._finish = finish
        self._wake = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, within_s: float) -> None:
        """Stop the calls; waits at most ``within_s`` seconds for the one in progress."""
        self._closing = True
        self._wake.set()
        self._thread.join(within_s)

    def _run(self) -> None:
        while not self._closing:
            try:
                seconds = self._step()
            except Exception:  # noqa: BLE001 - a bug there must not end the loop in silence
                self._log.exception("unexpected exception", part=self._name)
                seconds = self._retry_after_bug_s
            self._wake.wait(seconds)
            self._wake.clear()
        self._finish()
