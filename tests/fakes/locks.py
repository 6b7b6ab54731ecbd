"""A lock that reports that another thread waits for it."""

from threading import Event, Lock


class WatchedLock:
    def __init__(self) -> None:
        self.waited_for = Event()
        self._lock = Lock()

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self.waited_for.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
