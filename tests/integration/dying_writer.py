"""A stage writer is killed before a marker, when all that the flush has for Kafka and the stage is there.

A forked writer with `FLUSHES` in its environment imports this, and dies right before it claims after so many markers.
"""

import os
import signal
from itertools import count

from common.stage.markers import MarkerName
from stage_writer.chains import StagedChains
from tests.integration.forked import FLUSHES

_claim = StagedChains.claim
_claims = count(1)
_flushes = int(os.environ[FLUSHES])


def claim(self: StagedChains, name: MarkerName, data: bytes) -> bool:
    """The real one, up to the last."""
    if next(_claims) > _flushes:
        os.kill(os.getpid(), signal.SIGKILL)
    return _claim(self, name, data)


StagedChains.claim = claim  # type: ignore[method-assign]
