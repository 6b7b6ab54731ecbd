"""What ends a topology's work."""

from __future__ import annotations

from common.errors import KafkaDeltaExpressError


class TopologyError(KafkaDeltaExpressError):
    """The user's code failed where no record can be put aside for it, or where the topology says that it may not."""
