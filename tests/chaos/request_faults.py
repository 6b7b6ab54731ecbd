"""The HTTP proxy's policy: for a while answers are lost, or creates are late."""

import random
import threading
import time
from collections import Counter
from dataclasses import dataclass, field

from devservices.proxy import LoseAnswer, Pass, Request, Verdict

_LOST_SHARE = 0.4
_LONGEST_DELAY_S = 2.0
_CHANGES = frozenset({"PUT", "POST", "DELETE"})


@dataclass(slots=True)
class RequestFaults:
    """May be changed at any time; called from many threads."""

    rng: random.Random
    losing_until_s: float = 0.0
    slow_until_s: float = 0.0
    done: Counter[str] = field(default_factory=Counter)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Request) -> Verdict:
        """Only requests that change something are affected."""
        if request.method not in _CHANGES:
            return Pass()
        now_s = time.monotonic()
        is_create = "if-none-match" in request.headers
        if is_create and now_s < self.slow_until_s:
            self._count("creates delayed")
            time.sleep(self.rng.uniform(0, _LONGEST_DELAY_S))
        if now_s < self.losing_until_s and self.rng.random() < _LOST_SHARE:
            self._count("answers lost to creates" if is_create else "answers lost to other changes")
            return LoseAnswer()
        return Pass()

    def _count(self, what: str) -> None:
        with self._lock:
            self.done[what] += 1
