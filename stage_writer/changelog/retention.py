"""How long changes of states may live in Kafka topics only, and how long the topics must keep them.

Rule: a state depends on messages for at most half of ``writer.state_keep``: then a snapshot of it is written to the
stage (stage_writer/tasks/kept.py, stage_writer/partitions/state_renewal.py). The topic has to keep them for twice
``writer.state_keep``, so that writers may be stopped, and markers that were put aside may be put back, in the meantime.
"""

from __future__ import annotations

_LEAST_KEEP_S = 60.0


def snapshot_after_s(keep_s: float) -> float:
    """The age at which a state that is partly in a topic is written to the stage."""
    return max(keep_s, _LEAST_KEEP_S) / 2


def retention_s(keep_s: float) -> float:
    """The minimum retention of a topic, in seconds."""
    return 2 * max(keep_s, _LEAST_KEEP_S)
