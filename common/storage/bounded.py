"""How much of an object in the stage is read at a time.

Rules:

1. Markers and what else the services tell one another by are read whole, so they have a bound: somebody who puts
   gigabytes there under such a name must not take a service's memory. A marker of 10,000 files with statistics of 32
   columns each keeps it; where names are so long that it would be more, the writer leaves out the statistics.
2. Of a larger object one byte more than the bound is read, so that whoever parses it knows, and says so by its name.
3. Logs of tables and files of state have no bound.
"""

from __future__ import annotations

MOST_BYTES = 64 * 2**20
_BOUNDED = (
    "done/", "begin/", "stray/", "accept/", "schema/", "idle/", "news/", "lease/", "repair/", "loading/", "replace/",
)  # fmt: skip


def most_bytes(path: str) -> int | None:
    """How many bytes of an object are read at most (rule 2); None without a bound."""
    return MOST_BYTES + 1 if path.startswith(_BOUNDED) else None
