"""The mutants that are the same program, or one that is as good: no test can see them, or should."""

from __future__ import annotations

EQUIVALENT: dict[str, dict[str, str]] = {
    "common.stage.chain": {
        "read_chain: if marker.previous is not None: → if True:": "no segment ends at no marker",
    },
    "delta_loader.core.lease": {
        "LeaseState.held: mine is None or mine.streams is None or self.held_until_s is None or "
        "(now_s >= self.held_until_s) → mine is None or False or self.held_until_s is None or "
        "(now_s >= self.held_until_s)": "a grant without streams is of an older release, and so of another process",
    },
    "delta_loader.core.plan": {
        "_foreign: _start(found) < position → _start(found) <= position": "what begins at the position is held anyway",
        "_age_ms: 0 → 1": "no marker was written in 1970",
    },
    "delta_loader.streams.settling": {
        "Settling.run: not any(map(candidates, listing)) or not self.look_again() → False or not self.look_again()": (
            "the tables are looked at once more, and nothing goes"
        ),
    },
}
"""By module and mutant: why."""
