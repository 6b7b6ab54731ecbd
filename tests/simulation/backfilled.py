"""Streams that start at the end of their topics, and operators who backfill earlier records later.

Records that Kafka had when a chain's origin was recorded are not required. Once a rewind to before that origin has
reported success, the records that it names are required, also where no marker shows a running writer that the chain was
rewound.
"""

from dataclasses import dataclass

from common.spans import TopicPartition
from tests.simulation.invariants import Objects, StageInvariants, first_origin
from tests.simulation.kinds import STAGE, Context, Kind, settings_of
from tests.simulation.operators import Operator

_BEFORE = 12
"""The most records that a log has when its stream starts."""


@dataclass(slots=True, kw_only=True)
class OriginInvariants(StageInvariants):
    """The invariants of every stage; records before the first origin of a chain are given up."""

    context: Context

    def put(self, objects: Objects, path: str, data: bytes) -> None:
        super(OriginInvariants, self).put(objects, path, data)
        begun = first_origin(objects, STAGE, path, data)
        if begun is not None and begun[0] in self.context.broker.logs:
            self.context.given_up.give(begun[0], 0, begun[1])


class BackfillOperator(Operator):
    """An operator who also rewinds chains that have no marker yet, or of which nothing is loaded, to before them."""

    def repair(self, partition: TopicPartition) -> None:
        """To 0 every other time."""
        if self._world.rng.random() < 0.5:
            self.follow_remedy(partition, give_up=False)
        else:
            super().repair(partition)


class Backfilled(Kind):
    """The plain kind, with ``start: latest``."""

    settings = settings_of(start="latest")
    operator = BackfillOperator
    follows_remedies = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self._is_begun = False

    def invariants(self) -> OriginInvariants:
        return OriginInvariants(STAGE, self.stream, lambda: self.log.tables, context=self.context)

    def inject_faults(self) -> None:
        """Logs are not empty when the stream starts."""
        if self._is_begun:
            return
        self._is_begun, broker = True, self.context.broker
        for partition in sorted(broker.logs):
            for _ in range(self.context.world.rng.randrange(_BEFORE)):
                broker.append(partition, *self.record(partition))

    def on_faults_ended(self) -> None:
        """Each log ends with a required record."""
        self.context.spawn("producer", self.end_logs)
