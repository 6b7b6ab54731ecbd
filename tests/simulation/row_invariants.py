"""Invariants of a stage after every step, by the rows that tables have had, and not by their positions."""

from dataclasses import dataclass, field

from common.spans import TopicPartition
from common.stage.markers import Marker
from tests.simulation.invariants import Objects, StageInvariants
from tests.simulation.shared_log import SharedLog


@dataclass(slots=True, kw_only=True)
class RowInvariants(StageInvariants):
    """The invariants of one stage, by the rows that tables have had, and not by positions."""

    log: SharedLog
    first_ms: dict[TopicPartition, int] = field(default_factory=dict)
    """When each Kafka partition's first marker was made."""

    def put(self, objects: Objects, path: str, data: bytes) -> None:
        name = self._name(path)
        if name is not None:
            self.first_ms.setdefault(name.topic_partition, self.log.world.now_ms)
        super(RowInvariants, self).put(objects, path, data)

    def has_staged(self, path: str) -> bool:
        """Whether a marker of the stage named a data file."""
        return path in self._named

    def _lacking(self, marker: Marker) -> list[str]:
        """The tables that have not had all rows of the marker's files, and have not forgotten all of the stream."""
        partition = marker.name.topic_partition
        if marker.manifest is not None and any(
            self.log.forgot(table.url, marker.manifest.app_id, partition, self.first_ms[partition])
            for table in marker.tables
        ):
            return []
        return [
            table.url
            for table in marker.tables
            for file in table.files
            for place in self.log.places_in(f"{table.url}/{file.path}")
            if place not in self.log.ever.get(table.url, ()) and not self.is_given_up(partition, place.offset)
        ]
