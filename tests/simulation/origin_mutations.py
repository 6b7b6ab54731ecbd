"""Rules of chains whose origin is moved, each broken on purpose (tests/simulation/backfilled.py)."""

from bootstrap.apply import stage
from common.stage.chain_origins import origin_path, origin_to_bytes
from delta_loader.load.context import LoadContext
from stage_writer.chains import StagedChains
from tests.simulation import operators
from tests.simulation.mutation import Mutation, changed
from tests.simulation.world import FIRST_LOADS, LATE_ORIGINS, OPERATED_EARLY
from tests.simulation.worlds import Worlds

_not_loaded = changed(LoadContext, "origin", lambda *_: None)
_not_seen = changed(StagedChains, "has_origin_at", lambda *_where, **_own: True), _not_loaded
_in_progress = changed(operators, "require_not_loading", lambda *_: None)
_during_a_rewind = changed(operators, "require_not_loaded", lambda *_: None)
# As in releases that knew one number only: an earlier request may arrive again.
_overwritten = changed(
    stage, "begin", lambda store, partition, origin: store.write(origin_path(partition), origin_to_bytes(origin))
)
RARE = (
    # What is claimed by an earlier origin is a stray, so little depends on it.
    Mutation("a moved origin is noticed", _not_seen, OPERATED_EARLY, Worlds.BACKFILLED),
    Mutation("a rewind detects a first load in progress", _in_progress, FIRST_LOADS, Worlds.BACKFILLED),
    Mutation("an origin is never overwritten", _overwritten, LATE_ORIGINS, Worlds.BACKFILLED),
    Mutation("a rewind detects a first load", _during_a_rewind, OPERATED_EARLY, Worlds.BACKFILLED),
    Mutation("a chain begins at its origin", _not_loaded, OPERATED_EARLY, Worlds.BACKFILLED),
)
