"""The last failure of a stream's load, for `delta-loader status` and for the page of the next loader.

Rules:

1. ``failures/<app_id>.json`` is overwritten by each failure, and deleted by the next load that succeeds. It is never
   used for a decision: it may be missing, late, or from a loader that is gone.
2. Its remedy has the placeholder of common/remedies.py, so it names the config of the program that shows it.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from common.errors import ExitCode
from common.ports import ObjectStore
from common.stage.stored import read_if_readable
from common.stored_types import StoredForm

FAILURES = "failures"


@dataclass(frozen=True, slots=True)
class LastFailure:
    failed_ms: int
    """By the loader's clock."""
    problem: str
    remedy: str = ""
    code: ExitCode = ExitCode.FAILED
    """The exit code of a command that loads only this stream."""

    def to_bytes(self) -> bytes:
        return _FORM.to_bytes(self, indent=2)


_FORM = StoredForm(LastFailure)


def failure_path(app_id: str) -> str:
    return f"{FAILURES}/{quote(app_id, safe='')}.json"


def last_failure(store: ObjectStore, app_id: str) -> LastFailure | None:
    """Why the last load failed; None if it did not, or if the note cannot be read (rule 1). Raises StoreError."""
    path = failure_path(app_id)
    return read_if_readable(_FORM, path, store.read(path))
