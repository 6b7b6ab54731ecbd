"""Through what time a table is complete, by its history; and how the table's property says it.

Rules:

1. The newest commit of the stream's own on the table's line (common/tables/rollback.py) that brought positions tells,
   also when it says that nothing can be told. A RESTORE continues at the version that it put back.
2. As a property it is a moment in ISO 8601, UTC, which sorts as text does.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING

from common.tables.rollback import MOST_COMMITS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from common.tables.history import LoggedCommit

PROPERTY = "kafka_delta_express.valid_through"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def valid_through_of(history: Iterable[LoggedCommit], app_id: str) -> int | None:
    """Milliseconds; None when it cannot be said. The history comes from the newest commit down."""
    wanted: int | None = None
    for commit in islice(history, MOST_COMMITS):
        if wanted is not None and commit.version > wanted:
            continue
        if commit.is_replace:
            return None
        if commit.is_restore:
            if commit.restored_version is None:
                return None
            wanted = commit.restored_version
        elif commit.metadata is not None and commit.metadata.app_id == app_id and commit.metadata.spans:
            return commit.metadata.valid_through_ms
    return None


def moment_text(time_ms: int) -> str:
    """The moment as the property has it (rule 2)."""
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
