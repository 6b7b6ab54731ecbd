"""How long changes of states are left to Kafka topics, and how long these have to keep them.

Rule: a state is not left to messages for longer than half of ``writer.state_keep``: then there is a snapshot of it in
the stage (stage_writer/tasks/kept.py, stage_writer/partitions/state_renewal.py). The topic has to keep them for twice
``writer.state_keep``, so that writers may be away, and markers that were put aside may be put back, in the meantime.
"""

from __future__ import annotations

_LEAST_KEEP_S = 60.0


def snapshot_after_s(keep_s: float) -> float:
    """When a state that is in part in a topic is written to the stage."""
    return max(keep_s, _LEAST_KEEP_S) / 2


def retention_s(keep_s: float) -> float:
    """How long a topic has to keep what it is given, at least."""
    return 2 * max(keep_s, _LEAST_KEEP_S)
