"""Deletes the markers that all of a stream's tables are past, once they are old enough (load/settle.py).

Rules:

1. The tables are read again before anything is deleted: a table that was rolled back since it was last read may need
   markers again, and another loader may have carried out its resolution. Each marker is compared right before the
   delete, so only the marker that was judged is deleted. A rewind, and the writer that stages again after it, may have
   put another marker under the same name.
2. An age is the difference of two times of the store. This machine's clock only decides when to ask for the store's
   time. A clock that is ahead deletes nothing early; a clock that is behind deletes later.
3. A candidate that is gone was deleted after the listing, by a rewind or by another loader. The markers above it may be
   new ones under the listed names, and a new one may be below them. They wait for the next pass, which lists again.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import takewhile

from common.spans import Position, TopicPartition
from common.stage.markers import MarkerName
from common.storage.store import store_time_ms
from delta_loader.load.settle import settle_candidates, settled
from delta_loader.plan.plan import AnyMarker
from delta_loader.stage.identity import StreamIdentity
from delta_loader.stage.listed import Listing
from delta_loader.stage.reading import Stage


@dataclass(frozen=True, slots=True)
class Settling:
    stage: Stage
    tables: Mapping[str, str]
    """As `Stage.read` expects them."""
    finished: Callable[[TopicPartition], Position | None]
    """The position up to which all tables have a Kafka partition's rows."""
    check_again: Callable[[], bool]
    """Read the tables again; False when nothing may be deleted now."""

    def run(self, listing: Listing, identity: StreamIdentity, now_ms: int, keep_ms: int) -> int:
        """Delete markers staged at least ``keep_ms`` ago; returns how many. Raises KafkaDeltaExpressError.

        ``now_ms`` is this machine's time.
        """

        def candidates(partition: TopicPartition) -> tuple[MarkerName, ...]:
            listed = listing[partition]
            return settle_candidates(listed.names, listed.modified_ms, self.finished(partition), now_ms - keep_ms)

        if not any(map(candidates, listing)):
            return 0
        if keep_ms:
            now_ms = store_time_ms(self.stage.store)
        if not any(map(candidates, listing)) or not self.check_again():
            return 0
        ended: dict[TopicPartition, tuple[MarkerName, ...]] = {}
        judged: dict[MarkerName, tuple[AnyMarker, ...]] = {}
        chains: list[AnyMarker] = []
        positions = {partition: position for partition in listing if (position := self.finished(partition)) is not None}
        for partition, position in positions.items():
            names = candidates(partition)
            markers_read = self.stage.read(listing, names, self.tables)
            there = takewhile(markers_read.__contains__, names)  # rule 3
            chain = identity.judged(partition, (marker for name in there for marker in markers_read[name]))
            ended[partition] = settled(chain, position)
            judged |= markers_read
            chains += chain
        gone = self.stage.delete(listing, ended, judged, self.tables)
        self.stage.delete_waiting(marker for marker in chains if marker.name in gone)
        return len(gone)
