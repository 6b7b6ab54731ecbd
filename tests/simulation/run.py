"""Runs one history in any kind of world."""

import gc
from functools import lru_cache
from unittest.mock import patch

from common.stage import idle, markers
from delta_loader.stage import reading
from stage_writer.parquet import buffer
from tests.simulation.editing import EditedHistory
from tests.simulation.files import SimulatedFile
from tests.simulation.history import History, Verdict
from tests.simulation.regrouped import RegroupedHistory
from tests.simulation.world import Chances
from tests.simulation.worlds import Worlds


def run(seed: int, worlds: Worlds = Worlds.PLAIN, chances: Chances | None = None) -> Verdict:
    """The history of a seed, to its end; without ``chances``, those of the seed's profile."""
    gc.disable()  # nearly all objects of a history live to its end
    # All of a world's processes, and its checker, parse the same few objects again and again.
    parsed = lru_cache(maxsize=None)(markers.manifest_from_bytes)
    facts = lru_cache(maxsize=None)(idle.facts_from_bytes)
    try:
        with (
            patch.object(markers, "manifest_from_bytes", parsed),
            patch.object(reading, "facts_from_bytes", facts),
            patch.object(buffer, "_OpenFile", SimulatedFile),
        ):
            if worlds is Worlds.EDITED:
                return EditedHistory(seed, chances).run()
            if worlds is Worlds.REGROUPED:
                return RegroupedHistory(seed, chances).run()
            return History(seed, chances, worlds).run()
    finally:
        gc.enable()
