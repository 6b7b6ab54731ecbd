"""``python -m tests.integration.dying_writer FLUSHES run CONFIG``: a stage writer that is killed before a marker.

Right before it claims after so many markers, when all that the flush has for Kafka and the stage is there.
"""

import os
import signal
import sys
from itertools import count

from common.stage.markers import MarkerName
from stage_writer.__main__ import main
from stage_writer.chains import StagedChains

_claim = StagedChains.claim
_claims = count(1)
FLUSHES = int(sys.argv.pop(1))


def claim(self: StagedChains, name: MarkerName, data: bytes) -> bool:
    """The real one, up to the last."""
    if next(_claims) > FLUSHES:
        os.kill(os.getpid(), signal.SIGKILL)
    return _claim(self, name, data)


if __name__ == "__main__":
    StagedChains.claim = claim  # type: ignore[method-assign]
    main()
