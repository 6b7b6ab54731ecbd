"""The time through which a table is complete, from its history, and its format in the table's property.

Rules:

1. The newest commit of the stream on the table's lineage (common/tables/rollback.py) that loaded positions decides,
   even when it says that the time is unknown. A RESTORE continues at the version that it restored.
2. The property is a time in ISO 8601, UTC, which sorts as text does.
"""

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from itertools import islice

from common.tables.history import LoggedCommit, with_lineage
from common.tables.rollback import MOST_COMMITS

PROPERTY = "kafka_delta_express.valid_through"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def valid_through_of(history: Iterable[LoggedCommit], app_id: str) -> int | None:
    """Milliseconds; None when unknown. The history is ordered from the newest commit down."""
    for commit, is_on_lineage in with_lineage(islice(history, MOST_COMMITS)):
        metadata = commit.metadata if is_on_lineage and not commit.is_turning_point else None
        if metadata is not None and metadata.app_id == app_id and metadata.spans:
            return metadata.valid_through_ms
    return None


def moment_text(time_ms: int) -> str:
    """The time in the property's format (rule 2)."""
    return (_EPOCH + timedelta(milliseconds=time_ms)).isoformat(timespec="milliseconds").replace("+00:00", "Z")
