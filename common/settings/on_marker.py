"""``schedule: on-marker``: its effect on the loader's other settings, and the topic for notifications from writers.

Rules:

1. A control topic is for a loader that waits for markers: where no stream has that schedule, no loader would read it.
2. It holds no records. A stream that included it in its topics would stage the writers' notifications.
"""

from collections.abc import Iterable

from common.settings.refusing import refuse
from common.settings.stream import Stream
from common.settings.values import ON_MARKER

RETENTION_ON_MARKER = "10m"


def fill_loading(value: object) -> object:
    """The loader's section with the default that depends on its schedule."""
    if not isinstance(value, dict) or value.get("schedule") != ON_MARKER:
        return value
    if value.keys() & {"marker_retention", "marker_retention_s"}:
        return value
    return {**value, "marker_retention": RETENTION_ON_MARKER}


def streams_on_marker(schedule: str, streams: Iterable[Stream]) -> tuple[Stream, ...]:
    """The streams that are loaded when writers report new markers; ``schedule`` is the loader's."""
    return tuple(stream for stream in streams if (stream.pace.schedule or schedule) == ON_MARKER)


def require_waiting(control_topic: str | None, schedule: str, streams: Iterable[Stream]) -> None:
    """Raise ValueError for rule 1."""
    if control_topic is not None and not streams_on_marker(schedule, streams):
        refuse(
            f"loader.control_topic is {control_topic!r}, and schedule is {schedule!r}: only a loader with schedule: "
            f"{ON_MARKER} reads it; set that schedule, or remove control_topic"
        )


def require_no_source(control_topic: str | None, streams: Iterable[Stream]) -> None:
    """Raise ValueError for rule 2."""
    if control_topic is None:
        return
    taking = next((stream for stream in streams if stream.reads(control_topic)), None)
    if taking is not None:
        refuse(
            f"loader.control_topic is {control_topic!r}, which the stream {taking.app_id!r} reads; "
            "use a topic that no stream reads"
        )
