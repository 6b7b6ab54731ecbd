"""The relative locations of the stage and the tables.

Rule: nothing else is below a table. VACUUM deletes everything there that the table's log does not name: done markers,
data files that wait in the stage, another table's files and log. A table may be in the stage's folder, but not in one
that the stage reserves for itself.
"""

from collections.abc import Iterable
from itertools import permutations

from common.tables.urls import comparable

STAGE_FOLDERS = frozenset(
    {
        "accept",
        "begin",
        "columns",
        "data",
        "done",
        "failures",
        "idle",
        "lease",
        "loading",
        "news",
        "outbox",
        "paused",
        "probe",
        "repair",
        "replace",
        "routes",
        "schema",
        "sent",
        "shared",
        "state",
        "stray",
    }
)
"""The folders of the stage's own objects, each starting with one of these names."""


def nested(stage: str, tables: Iterable[tuple[str, str]]) -> str | None:
    """A forbidden location, as a sentence; None if there is none. ``tables`` are keys and URLs."""
    locations = [("stage.url", stage), *tables]
    for (inner_key, inner), (outer_key, outer) in permutations(locations, 2):
        if outer_key != "stage.url" and comparable(inner).startswith(f"{comparable(outer)}/"):
            return (
                f"{inner_key}, {inner}, lies below {outer_key}, {outer}, where a VACUUM of that table deletes what it "
                "holds; give it a folder outside the table"
            )
        if outer_key == "stage.url" and comparable(inner) == comparable(outer):
            return f"stage.url is {inner_key}, {inner}; give the stage a place of its own"
        below = comparable(inner).removeprefix(f"{comparable(outer)}/").partition("/")[0]
        if outer_key == "stage.url" and below in STAGE_FOLDERS:
            return f"{inner_key}, {inner}, lies in the folder {below} of the stage; give it a folder outside the stage"
    return None
