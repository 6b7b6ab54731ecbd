"""Rules for hostile surroundings, each broken on purpose, with the surroundings that show it."""

from contextlib import suppress

from common.settings import StartAt
from common.storage.store import store_time_ms
from common.tables import rollback
from delta_loader.load import settling
from delta_loader.load import vacuum_guard as guard
from delta_loader.maintenance.cleaning import clean
from delta_loader.maintenance.cleaning.clean import Candidates, CleanUp
from delta_loader.maintenance.cleaning.rules import file_names_in
from delta_loader.stage import identity
from stage_writer import assignment
from stage_writer.partitions.resume_points import ResumePoints
from stage_writer.ports import PartitionFault
from stage_writer.stage import staging
from tests.simulation.mutation import changed, hostile

_HOURS_MS = 5 * 3_600_000
_NEVER_S = 1e9


def _keep_if_readable(_self: CleanUp, candidates: Candidates, _path: str, data: bytes | None) -> None:
    with suppress(ValueError):
        candidates.keep(file_names_in(data or b""))


def _reset(self: assignment.AssignedPartitions, fault: PartitionFault) -> None:
    """As ``auto.offset.reset: earliest`` does."""
    if fault.partition in self.by_partition:
        self._source.seek(fault.partition, self._source.metadata.resolve(fault.partition, StartAt.EARLIEST))


# The time of a machine whose clock is ahead of the store's.
_cleaned_early = changed(clean, "store_time_ms", lambda store: store_time_ms(store) + _HOURS_MS)
_aged_early = changed(settling, "store_time_ms", lambda store: store_time_ms(store) + _HOURS_MS)
_claimed_late = changed(staging, "LONGEST_FLUSH_S", _NEVER_S)
_torn = changed(CleanUp, "_keep_named", _keep_if_readable)
_as_they_are = changed(guard, "guarded_age_s", lambda _properties: _NEVER_S)
_not_lost = changed(rollback._Lineage, "_note_lost", lambda *_: None)
_goes_on = changed(assignment.AssignedPartitions, "fault", _reset)
_at_its_end = changed(ResumePoints, "_has_chain", lambda *_: False)
_unknown_differs = changed(identity, "_differ", lambda first, other: first != other)
RULES = (
    hostile("files that a clean-up may be removing are not claimed", _claimed_late, "clean-up"),
    hostile("a clean-up keeps young files by the store's clock", _cleaned_early, "clean-up"),
    hostile("a clean-up keeps files that an unreadable marker may name", _torn, "clean-up", "torn"),
    hostile("markers age by the store's clock", _aged_early, "transactions"),
    hostile("files that a VACUUM may have listed are copied", _as_they_are, "vacuum"),
    hostile("rows removed by a rollback are reported", _not_lost, "rollback"),
    hostile("a position that Kafka lost is not replaced", _goes_on, "retention"),
    hostile("an added partition is read from its start", _at_its_end, "partitions"),
    hostile("an unknown topic id is not compared", _unknown_differs, "releases"),
)
