"""Streams that an operator has paused: objects in the stage, which every process of the stream obeys.

Rules:

1. ``paused/<part>/<app_id>.json`` pauses one part of one stream, ``loading`` or ``staging``, until it is deleted. So a
   pause outlives restarts, applies to all processes, and is shown by each of them. The first pause counts: another one
   changes neither its time nor its reason.
2. An object that cannot be read still pauses: its presence is the pause.
"""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote

from common.ports import AlreadyExists, ObjectStore
from common.remedies import CONFIG, quoted
from common.sizes import time_text
from common.stage.stored import read_if_readable
from common.stored_types import StoredForm

FOLDER = "paused"


class StreamPart(StrEnum):
    LOADING = "loading"
    STAGING = "staging"

    @property
    def program(self) -> str:
        return "delta-loader" if self is StreamPart.LOADING else "stage-writer"


@dataclass(frozen=True, slots=True)
class Pause:
    app_id: str
    part: StreamPart
    since_ms: int | None
    """By the clock of the process that wrote it; None where the object cannot be read (rule 2)."""
    by: str = ""
    reason: str = ""

    @property
    def path(self) -> str:
        return pause_path(self.part, self.app_id)

    @property
    def text(self) -> str:
        """``loading is paused since … by …``."""
        since = "" if self.since_ms is None else f" since {time_text(self.since_ms)}"
        by = f" by {self.by}" if self.by else ""
        return f"{self.part} is paused{since}{by}{f': {self.reason}' if self.reason else ''}"

    @property
    def remedy(self) -> str:
        return f"`{self.part.program} resume {CONFIG} --stream {quoted(self.app_id)}` ends it"

    def to_bytes(self) -> bytes:
        return _FORM.to_bytes(_PauseObject(self.since_ms or 0, self.by, self.reason), indent=2)


@dataclass(frozen=True, slots=True)
class _PauseObject:
    since_ms: int
    by: str = ""
    reason: str = ""


_FORM = StoredForm(_PauseObject)


def pause_path(part: StreamPart, app_id: str) -> str:
    return f"{FOLDER}/{part}/{quote(app_id, safe='')}.json"


def pause_of(store: ObjectStore, part: StreamPart, app_id: str) -> Pause | None:
    path = pause_path(part, app_id)
    data = store.read(path)
    if data is None:
        return None
    stored = read_if_readable(_FORM, path, data)
    return (
        Pause(app_id, part, None) if stored is None else Pause(app_id, part, stored.since_ms, stored.by, stored.reason)
    )


def pause(store: ObjectStore, wanted: Pause) -> Pause:
    """Pause a stream; returns the pause that counts, which may be an earlier one. Raises StoreError."""
    while isinstance(store.create(wanted.path, wanted.to_bytes()), AlreadyExists):
        earlier = pause_of(store, wanted.part, wanted.app_id)
        if earlier is not None:  # else it was ended meanwhile
            return earlier
    return wanted


def resume(store: ObjectStore, part: StreamPart, app_id: str) -> bool:
    """End a pause; returns whether there was one. Raises StoreError."""
    path = pause_path(part, app_id)
    was_paused = store.stat(path) is not None
    store.delete([path])
    return was_paused
