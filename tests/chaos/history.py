"""Whether a run's history is right: the verdict, from Kafka's and the tables' contents and nothing else.

No log of a service, no marker, no ledger of the producer and no code of the services has a part in it (an architecture
test sees to that). What else may be wrong with a run is reported next to it (`__main__.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.chaos.events import event_faults
from tests.chaos.records import expected, numbered
from tests.verifier import judge

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from devservices.s3 import S3Server
    from tests.verifier import Sent


def history_faults(
    sent: Sequence[Sent], table: str, *, has_state: bool, has_events: bool, server: S3Server, folder: Path
) -> list[str]:
    """What is wrong with the rows and dead letters of a table, for the records that Kafka has; copies go to ``folder``.

    ``has_state``: each row says how many came before it. ``has_events``: records are events (tests/chaos/events.py).
    """
    if has_events:
        return event_faults(sent, table, server=server, folder=folder)
    return judge(sent, numbered(sent) if has_state else expected, table, server=server, folder=folder)
