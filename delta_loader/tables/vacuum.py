"""Protects files that are staged and not committed yet from VACUUM.

VACUUM deletes files that a table's log does not refer to and that are older than the table's retention. It lists first
and deletes later, so a check right before a commit does not help: the file that still exists, and is committed, may be
on VACUUM's list.

Rules:

1. A file that is younger than the retention when it is checked is on no list that was made before. A file that is older
   than a guarded share of the retention is therefore not committed as it is: a copy of it is, which has a new name and
   is younger than any list. The share is half of the retention, and at least a day less than it: a commit takes time.
2. A crash between copy and commit leaves an unreferenced file, and nothing else.
3. There is no guard for a retention of zero: then VACUUM deletes even a file that was copied a moment ago.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import replace

from common.errors import MarkerError
from common.settings.values import duration_text
from common.stage.data_files import DataFileName
from common.tables.state import retention_ms

RETENTION = "delta.deletedFileRetentionDuration"
DEFAULT_RETENTION_S = 7 * 86_400.0
_DAY_S = 86_400.0


def retention_s(properties: Mapping[str, str]) -> float | None:
    """The age at which VACUUM deletes unreferenced files of a table; None when its property cannot be read."""
    text = properties.get(RETENTION)
    if text is None:
        return DEFAULT_RETENTION_S
    kept_ms = retention_ms(text)
    return None if kept_ms is None else kept_ms / 1000


def guarded_age_s(properties: Mapping[str, str]) -> float:
    """The age from which a file is committed as a copy (rule 1). Zero means always, where nothing else is safe."""
    retention = retention_s(properties)
    return 0.0 if retention is None else max(0.0, min(retention / 2, retention - _DAY_S))


def vacuum_problem(properties: Mapping[str, str], waits_s: float) -> str | None:
    """Why a table's retention is too short for files that wait ``waits_s`` for their commit; None if it is not."""
    retention, text = retention_s(properties), properties.get(RETENTION)
    if retention is None:
        return f"{RETENTION} is {text!r}, which cannot be read, so that every staged file is copied before it is added"
    if retention == 0:
        return f"{RETENTION} is 0: a VACUUM deletes staged files at any time, and they cannot be protected"
    if retention < waits_s:
        return (
            f"{RETENTION} is {duration_text(retention)}, but files may be staged for {duration_text(waits_s)} before "
            "they are added: a VACUUM may delete them, and they then have to be staged again"
        )
    return None


def fresh_path(path: str, unique: str) -> str:
    """A new name in the same folder for a copy of a data file; ``unique`` is a globally unique string."""
    folder, slash, name = path.rpartition("/")
    digits = hashlib.sha256(f"{unique}/{path}".encode()).hexdigest()[:32]
    try:
        fresh = replace(DataFileName.parse(name), unique=digits).path
    except MarkerError:
        fresh = f"{digits}-{name}"
    return f"{folder}{slash}{fresh}"
