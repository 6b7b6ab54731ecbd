"""Whether a run's history is right: the verdict, from Kafka's and the tables' contents and nothing else.

It uses no service log, no marker, no producer's ledger and no code of the services (an architecture test enforces
that). Other problems of a run are reported next to it (`__main__.py`).
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
    """Faults in the rows and dead letters of a table, for the records that Kafka has; copies go to ``folder``.

    ``has_state``: each row has the number of earlier ones. ``has_events``: records are events (tests/chaos/events.py).
    """
    if has_events:
        return event_faults(sent, table, server=server, folder=folder)
    return judge(sent, numbered(sent) if has_state else expected, table, server=server, folder=folder)
