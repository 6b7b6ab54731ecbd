"""Streams that start at the end of their topics, and operators who backfill earlier records later.

Records that Kafka had when a chain's origin was recorded are not required. Once a rewind to before that origin has
reported success, the records that it names are required, also where no marker shows a running writer that the chain was
rewound.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.simulation.invariants import StageInvariants, first_origin
from tests.simulation.kinds import STAGE, Around, Kind, settings_of
from tests.simulation.operators import Operator

if TYPE_CHECKING:
    from common.spans import TopicPartition
    from tests.simulation.invariants import Objects

_BEFORE = 12
"""The most records that a log has when its stream starts."""


@dataclass(slots=True, kw_only=True)
class OriginInvariants(StageInvariants):
    """The invariants of every stage; records before the first origin of a chain are given up."""

    around: Around

    def put(self, objects: Objects, path: str, data: bytes) -> None:
        super(OriginInvariants, self).put(objects, path, data)
        begun = first_origin(objects, STAGE, path, data)
        if begun is not None and begun[0] in self.around.broker.logs:
            self.around.given_up.give(begun[0], 0, begun[1])


class Early(Operator):
    """An operator who also rewinds chains that have no marker yet, or of which nothing is loaded, to before them."""

    def repair(self, partition: TopicPartition) -> None:
        """To 0 every other time."""
        if self._world.rng.random() < 0.5:
            self.mend(partition, give_up=False)
        else:
            super().repair(partition)


class Backfilled(Kind):
    """The plain kind, with ``start: latest``."""

    settings = settings_of(start="latest")
    operator = Early
    is_mended = True

    def __init__(self, around: Around) -> None:
        super().__init__(around)
        self._is_begun = False

    def invariants(self) -> OriginInvariants:
        return OriginInvariants(STAGE, self.stream, lambda: self.log.tables, around=self.around)

    def happens(self) -> None:
        """Logs are not empty when the stream starts."""
        if self._is_begun:
            return
        self._is_begun, broker = True, self.around.broker
        for partition in sorted(broker.logs):
            for _ in range(self.around.world.rng.randrange(_BEFORE)):
                broker.append(partition, *self.record(partition))

    def ends_war(self) -> None:
        """Each log ends with a required record."""
        self.around.spawn("producer", self.end_logs)
