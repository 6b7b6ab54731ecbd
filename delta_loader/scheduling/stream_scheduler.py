"""Schedules the turns of streams, several at a time, so that one slow or broken table does not hold up the others.

Rules:

1. As many turns run at a time as there are slots; the others wait in line, first come, first served.
2. A stream with a backlog yields once it has had its slice and another stream waits: between two commits, to the end of
   the line. A backlog of one stream therefore costs the others one slice, and no more loads run than there are slots.
3. A turn that makes no progress for `patience_s` (a commit that hangs) frees its slot for the next in line, and
   continues in its thread. At most `_MOST_FREED` slots are freed this way, so that turns that are merely slow do not
   exhaust the memory.
4. A pass ends once each of its streams has ended its turn or has been running for longer than `patience_s`, or once
   another pass is due (``another_is_due``). Turns still running continue, and when another pass wants one of their
   streams, it runs another turn after that one, which sees what was staged in the meantime.
5. Threads stay for the next pass: each Python thread has a JVM thread, with a connection of its own.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Condition, Thread

from delta_loader.ports import AnotherIsDue, StreamWork, never

PATIENCE_S = 30.0
SLICE_S = 30.0
_MOST_FREED = 16
_LAST_WAIT_S = 60.0
_POLL_S = 0.1


@dataclass(slots=True)
class _Running:
    progress: object
    progressed_s: float
    is_freed: bool = False


def _new_thread(work: Callable[[], None]) -> Thread:
    return Thread(target=work, name="stream-turn")


class StreamScheduler:
    """The turns of one loader's streams: `delta_loader.ports.StreamRunner` with threads."""

    def __init__(
        self,
        slots: int,
        *,
        new_thread: Callable[[Callable[[], None]], Thread] = _new_thread,
        on_begin: Callable[[str], None] = lambda _app_id: None,
        patience_s: float = PATIENCE_S,
        slice_s: float = SLICE_S,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``on_begin`` is called in the turn's thread with the stream whose turn starts there."""
        self._now_s = monotonic_s
        self._slots = slots
        self._new_thread = new_thread
        self._begins = on_begin
        self._backoff_s = patience_s
        self._slice_s = slice_s
        self._changed = Condition()
        self._line: deque[str] = deque()
        self._stream_work: dict[str, StreamWork] = {}
        self._again: dict[str, StreamWork] = {}
        self._since_s: dict[str, float] = {}
        self._running: dict[str, _Running] = {}
        self._threads = 0
        self._idle = 0
        self._closed = False

    def __call__(
        self,
        work: StreamWork,
        app_ids: Sequence[str],
        *,
        to_the_end: bool = False,
        another_is_due: AnotherIsDue = never,
    ) -> frozenset[str]:
        """Run one pass (rule 4); returns the streams, of any pass, whose turns are still running."""
        self._want(work, app_ids)
        while True:
            with self._changed:
                unfinished = frozenset(self._stream_work)
                if self._is_over(app_ids, to_the_end=to_the_end):
                    return unfinished
                self._free_hung_slots()
                self._start_threads()
                self._changed.notify_all()
                self._changed.wait(min(_POLL_S, self._backoff_s))
                unfinished = frozenset(self._stream_work)
            if another_is_due(unfinished):  # may ask a store, so without the lock
                return unfinished

    def _want(self, work: StreamWork, app_ids: Sequence[str]) -> None:
        with self._changed:
            for app_id in app_ids:
                if app_id in self._running:
                    self._again[app_id] = work
                elif app_id not in self._stream_work:
                    self._stream_work[app_id] = work
                    self._line.append(app_id)

    def is_running(self) -> bool:
        """Whether a stream's turn is running or waiting for its slot, including after the pass that it started in."""
        with self._changed:
            return bool(self._stream_work)

    def close(self, last_wait_s: float = _LAST_WAIT_S) -> tuple[str, ...]:
        """Wait for the commits in progress, but not forever; returns the streams still running then."""
        end_s = time.monotonic() + last_wait_s
        with self._changed:
            self._closed = True
            self._changed.notify_all()
            while self._running and time.monotonic() < end_s:
                self._changed.wait(_POLL_S)
            return tuple(sorted(self._running))

    def _is_over(self, app_ids: Sequence[str], *, to_the_end: bool) -> bool:
        late_s = self._now_s() - self._backoff_s
        unfinished = [app_id for app_id in app_ids if app_id in self._stream_work]
        if to_the_end:
            return not unfinished
        return all(self._since_s.get(app_id, late_s + 1) <= late_s for app_id in unfinished)

    def _free_hung_slots(self) -> None:
        """Free the slots of turns that hang (rule 3)."""
        now_s = self._now_s()
        for app_id, running in self._running.items():
            progress = self._stream_work[app_id].progress(app_id)
            if progress != running.progress:
                running.progress, running.progressed_s = progress, now_s
                running.is_freed = False
            elif now_s - running.progressed_s > self._backoff_s and self._freed() < _MOST_FREED:
                running.is_freed = True

    def _freed(self) -> int:
        return sum(running.is_freed for running in self._running.values())

    def _free(self) -> int:
        return self._slots + self._freed() - len(self._running)

    def _start_threads(self) -> None:
        """Start threads up to the number of turns that could run now."""
        wanted = min(len(self._line), self._free()) - self._idle
        for _ in range(wanted):
            self._threads += 1
            thread = self._new_thread(self._work)
            thread.daemon = True  # a thread that hangs does not keep the process from ending
            thread.start()

    def _work(self) -> None:
        with self._changed:
            while not self._closed:
                if not self._line or self._free() <= 0:
                    if self._threads > self._slots + self._freed():
                        break
                    self._idle += 1
                    self._changed.wait()
                    self._idle -= 1
                    continue
                self._take(self._line.popleft())
            self._threads -= 1

    def _take(self, app_id: str) -> None:
        """Run one turn, without the lock."""
        work, now_s = self._stream_work[app_id], self._now_s()
        self._since_s.setdefault(app_id, now_s)
        self._running[app_id] = _Running(work.progress(app_id), now_s)
        yielded = False
        self._changed.release()
        try:
            self._begins(app_id)
            yielded = work.run(app_id, lambda: self._should_yield(now_s))
        finally:
            self._changed.acquire()
            del self._running[app_id]
            again = self._again.pop(app_id, None)
            if (again is not None or yielded) and not self._closed:
                self._stream_work[app_id] = again or work
                self._line.append(app_id)
            else:
                del self._stream_work[app_id], self._since_s[app_id]
            self._changed.notify_all()

    def _should_yield(self, began_s: float) -> bool:
        """Whether to yield (rule 2). Reads without the lock: yielding when no stream waits costs nothing."""
        return bool(self._line) and self._now_s() - began_s >= self._slice_s
