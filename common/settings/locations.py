"""The relative locations of the stage and the tables.

Rule: nothing else is below a table. VACUUM deletes everything there that the table's log does not name: done markers,
data files that wait in the stage, another table's files and log. A table may be in the stage's folder, but not in one
that the stage reserves for itself.
"""

from collections.abc import Sequence

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


def nested(stage: str, tables: Sequence[tuple[str, str]]) -> str | None:
    """A forbidden location, as a sentence, or None. ``tables`` are keys and URLs."""
    top, outer = comparable(stage), {comparable(url): (key, url) for key, url in reversed(list(tables))}
    for key, url in (("stage.url", stage), *tables):
        place = comparable(url)
        if key != "stage.url" and place == top:
            return f"stage.url is {key}, {url}; give the stage a place of its own"
        below = place.removeprefix(f"{top}/").partition("/")[0]
        if key != "stage.url" and below in STAGE_FOLDERS:
            return f"{key}, {url}, lies in the folder {below} of the stage; give it a folder outside the stage"
        above = (place[:at] for at, character in enumerate(place) if character == "/")
        outer_key, outer_url = next((outer[parent] for parent in above if parent in outer), ("", ""))
        if outer_key:
            return (
                f"{key}, {url}, lies below {outer_key}, {outer_url}, where a VACUUM of that table deletes what it "
                "holds; give it a folder outside the table"
            )
    return None
