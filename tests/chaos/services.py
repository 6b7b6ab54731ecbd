"""Processes that are killed, paused and restarted, as by a supervisor.

Rules:

1. A process leads a group of its own. A fault affects the whole group (a loader has a JVM), unless noted, and uses the
   group's id, never a name.
2. A process that ends is restarted after a second, until the service is ended. An unrequested end is kept with its exit
   code: a service may end when its store is away, and that must be visible.
3. `Services.end` leaves no process behind, in any case.
"""

import json
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from devservices import processes

_START_AGAIN_AFTER_S = 1.0
_GROUP_GONE_WITHIN_S = 20


@dataclass(slots=True)
class Service:
    name: str
    command: Sequence[str]
    folder: Path
    wanted: bool = True
    child: processes.Child | None = None
    logs: list[Path] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    paused: bool = False
    ending_since_s: float | None = None
    killed: bool = False
    ends: list[str] = field(default_factory=list)
    """Unrequested ends."""
    _start_at_s: float = 0.0

    @property
    def is_running(self) -> bool:
        return self.child is not None and self.child.is_running

    @property
    def is_free(self) -> bool:
        """Whether it runs and no fault affects it now."""
        return self.is_running and not self.paused and self.ending_since_s is None

    def start(self) -> None:
        self.logs.append(self.folder / f"{self.name}-{len(self.logs) + 1}.log")
        self.child = processes.start(self.command, self.logs[-1])
        self.groups.append(self.child.process.pid)
        self.paused = self.killed = False
        self.ending_since_s = None

    def kill(self, *, whole_group: bool = True) -> None:
        if self.child is not None:
            self.killed = True
            if whole_group:
                _signal_group(self.groups[-1], signal.SIGKILL)
            self.child.kill()

    def pause(self) -> None:
        """SIGSTOP for the whole group."""
        self.paused = True
        _signal_group(self.groups[-1], signal.SIGSTOP)

    def resume(self) -> None:
        """SIGCONT for the whole group."""
        if self.paused and self.is_running:
            _signal_group(self.groups[-1], signal.SIGCONT)
        self.paused = False

    def terminate(self) -> None:
        """SIGTERM, as by a supervisor: to the process itself."""
        if self.child is not None and self.is_running:
            self.ending_since_s = time.monotonic()
            self.child.signal(signal.SIGTERM)

    @property
    def _has_said_anything(self) -> bool:
        return self.logs[-1].stat().st_size > 0

    def supervise(self) -> None:
        if self.is_running:
            return
        now_s = time.monotonic()
        if self.child is not None:
            code = self.child.process.returncode
            if code == -signal.SIGTERM and self.ending_since_s is not None and not self._has_said_anything:
                code = 0  # the interpreter was still starting
            if not self.killed and (code != 0 or (self.wanted and self.ending_since_s is None)):
                asked = "" if self.ending_since_s is None else " on SIGTERM"
                self.ends.append(f"{self.name} ended with {code}{asked}, see {self.logs[-1].name}")
            self.child, self.paused, self.ending_since_s = None, False, None
            self._start_at_s = now_s + _START_AGAIN_AFTER_S
        if self.wanted and now_s >= self._start_at_s:
            self.start()


@dataclass(slots=True)
class Services:
    folder: Path
    all: list[Service] = field(default_factory=list)

    def add(self, name: str, module: str, *arguments: str | Path) -> Service:
        """Start a service: ``python -m module arguments``."""
        service = Service(name, [sys.executable, "-m", module, *map(str, arguments)], self.folder)
        self.all.append(service)
        service.start()
        return service

    def named(self, name: str) -> list[Service]:
        return [service for service in self.all if service.name.startswith(name)]

    def supervise(self) -> None:
        for service in self.all:
            service.supervise()

    def end(self) -> list[int]:
        """End everything now; returns the groups that still have a process afterward, which should be none."""
        groups = [group for service in self.all for group in service.groups]
        for service in self.all:
            service.wanted = False
            service.kill()
        for group in groups:
            _signal_group(group, signal.SIGKILL)
        deadline_s = time.monotonic() + _GROUP_GONE_WITHIN_S
        while (left := [group for group in groups if _is_there(group)]) and time.monotonic() < deadline_s:
            time.sleep(0.1)
        return left


@dataclass(frozen=True, slots=True)
class Event:
    service: str
    name: str
    content: dict[str, object]


def events(services: Sequence[Service]) -> Iterator[Event]:
    """All log events, except lines that were cut off by a kill."""
    for service in services:
        for log in service.logs:
            for line in log.read_text("utf-8", "replace").splitlines():
                if line.startswith("{"):
                    with suppress(ValueError):
                        content = json.loads(line)
                        yield Event(service.name, str(content.get("event")), content)


def counted(services: Sequence[Service]) -> Counter[str]:
    """How often each event was logged."""
    return Counter(event.name for event in events(services))


def bugs(services: Sequence[Service]) -> list[str]:
    """Logs with errors that no fault may cause."""
    signs = ("Traceback (most recent call last)", '"unexpected exception"')
    return [
        f"{log.name} has {sign}"
        for service in services
        for log in service.logs
        for sign in signs
        if sign in log.read_text("utf-8", "replace")
    ]


def _signal_group(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def _is_there(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
