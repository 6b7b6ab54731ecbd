"""How much of an object in the stage is read into memory.

Rules:

1. Markers and other objects exchanged by the services are read as a whole, so they have a bound: gigabytes under such a
   name must not exhaust a service's memory. A marker of 10,000 files with statistics of 32 columns each is within it;
   where long names would exceed it, the writer leaves out the statistics.
2. Of a larger object one byte more than the bound is read, so that its parser detects that, and reports it by name.
3. Logs of tables and files of state have no bound.
"""

MOST_BYTES = 64 * 2**20
_BOUNDED = (
    "done/", "begin/", "stray/", "accept/", "schema/", "columns/", "idle/", "news/", "lease/", "repair/", "loading/",
    "replace/",
)  # fmt: skip


def most_bytes(path: str) -> int | None:
    """The maximum number of bytes to read of an object (rule 2); None without a bound."""
    return MOST_BYTES + 1 if path.startswith(_BOUNDED) else None
