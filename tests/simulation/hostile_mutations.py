"""Rules for hostile surroundings, each broken on purpose, with the surroundings that show it."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from unittest.mock import patch

from common.ports import ObjectStore
from common.settings import StartAt
from common.storage.store import store_time_ms
from common.tables import rollback
from delta_loader.load import settling
from delta_loader.load import vacuum_guard as guard
from delta_loader.maintenance.cleaning import clean
from delta_loader.maintenance.cleaning.candidates import Candidates
from delta_loader.maintenance.cleaning.clean import CleanUp
from delta_loader.maintenance.cleaning.rules import file_names_in
from delta_loader.stage import identity
from stage_writer import assignment
from stage_writer.partitions.resume_points import ResumePoints
from stage_writer.ports import PartitionFault
from stage_writer.stage import staging

_HOURS_MS = 5 * 3_600_000
_NEVER_S = 1e9


def _ahead_ms(store: ObjectStore) -> int:
    """The time of a machine whose clock is ahead of the store's."""
    return store_time_ms(store) + _HOURS_MS


def _old_files_are_claimed() -> AbstractContextManager[object]:
    return patch.object(staging, "LONGEST_FLUSH_S", _NEVER_S)


def _young_files_are_cleaned_up() -> AbstractContextManager[object]:
    return patch.object(clean, "store_time_ms", _ahead_ms)


def _a_torn_marker_keeps_no_files() -> AbstractContextManager[object]:
    def keep(self: CleanUp, candidates: Candidates, path: str, data: bytes | None) -> None:
        del self, path
        with suppress(ValueError):
            candidates.keep(file_names_in(data or b""))

    return patch.object(CleanUp, "_keep_named", keep)


def _markers_age_by_the_loaders_clock() -> AbstractContextManager[object]:
    return patch.object(settling, "store_time_ms", _ahead_ms)


def _old_files_are_added_as_they_are() -> AbstractContextManager[object]:
    def never(_properties: Mapping[str, str]) -> float:
        return _NEVER_S

    return patch.object(guard, "guarded_age_s", never)


def _rows_removed_by_a_rollback_are_not_reported() -> AbstractContextManager[object]:
    return patch.object(rollback._Lineage, "_lose", lambda _self, _commit: None)


def _reading_goes_on_where_kafka_begins() -> AbstractContextManager[object]:
    """As ``auto.offset.reset: earliest`` does."""

    def reset(self: assignment.AssignedPartitions, fault: PartitionFault) -> None:
        if fault.partition in self.by_partition:
            self._source.seek(fault.partition, self._source.metadata.resolve(fault.partition, StartAt.EARLIEST))

    return patch.object(assignment.AssignedPartitions, "fault", reset)


def _an_added_partition_begins_at_its_end() -> AbstractContextManager[object]:
    return patch.object(ResumePoints, "_has_chain", lambda _self, _source: False)


def _an_id_that_a_release_did_not_write_differs() -> AbstractContextManager[object]:
    return patch.object(identity, "_differ", lambda first, other: first != other)


RULES: tuple[tuple[str, Callable[[], AbstractContextManager[object]], tuple[str, ...]], ...] = (
    ("files that a clean-up may be removing are not claimed", _old_files_are_claimed, ("clean-up",)),
    ("a clean-up keeps young files by the store's clock", _young_files_are_cleaned_up, ("clean-up",)),
    ("a clean-up keeps files that an unreadable marker may name", _a_torn_marker_keeps_no_files, ("clean-up", "torn")),
    ("markers age by the store's clock", _markers_age_by_the_loaders_clock, ("transactions",)),
    ("files that a VACUUM may have listed are copied", _old_files_are_added_as_they_are, ("vacuum",)),
    ("rows removed by a rollback are reported", _rows_removed_by_a_rollback_are_not_reported, ("rollback",)),
    ("a position that Kafka lost is not replaced", _reading_goes_on_where_kafka_begins, ("retention",)),
    ("an added partition is read from its start", _an_added_partition_begins_at_its_end, ("partitions",)),
    ("an unknown topic id is not compared", _an_id_that_a_release_did_not_write_differs, ("releases",)),
)
