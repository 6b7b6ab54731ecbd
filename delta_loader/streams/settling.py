"""Deletes the markers that all of a stream's tables are past, once they are old enough (core/settle.py).

Rule: a table that went back since the last look may want markers again, and other loaders obey answers too; so the
tables are looked at again before anything is deleted. And a marker may be replaced under its name, by a rewind and the
writer that stages it again: what is deleted is what was judged, by a comparison right before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from delta_loader.core.settle import settle_candidates, settled

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from common.spans import Position, TopicPartition
    from common.stage.markers import MarkerName
    from delta_loader.core.identity import StreamIdentity
    from delta_loader.core.listed import Listing
    from delta_loader.core.plan import Found
    from delta_loader.stage.reading import Stage


@dataclass(frozen=True, slots=True)
class Settling:
    """One stream's settling in one pass."""

    stage: Stage
    tables: Mapping[str, str]
    """As `Stage.read` wants them."""
    finished: Callable[[TopicPartition], Position | None]
    """Up to where all tables have what a Kafka partition brought."""
    look_again: Callable[[], bool]
    """Look at the tables; False when nothing may be deleted now."""

    def run(self, listing: Listing, identity: StreamIdentity, keep_after_ms: int) -> int:
        """Settle what was staged before a time; how many markers went. Raises KafkaDeltaExpressError."""

        def candidates(source: TopicPartition) -> tuple[MarkerName, ...]:
            listed = listing[source]
            return settle_candidates(listed.names, listed.modified_ms, self.finished(source), keep_after_ms)

        if not any(map(candidates, listing)) or not self.look_again():
            return 0
        ended: dict[TopicPartition, tuple[MarkerName, ...]] = {}
        judged: dict[MarkerName, tuple[Found, ...]] = {}
        ready: list[Found] = []
        for source in listing:
            position, names = self.finished(source), candidates(source)
            if position is None or not names:
                continue
            found = self.stage.read(listing, names, self.tables)
            chain = identity.judged(source, (marker for markers in found.values() for marker in markers))
            ended[source] = settled(chain, position)
            judged |= {name: found[name] for name in ended[source]}
            ready += [marker for marker in chain if marker.name in ended[source]]
        gone = self.stage.delete(listing, ended, judged, self.tables)
        self.stage.delete_waiting(marker for marker in ready if marker.name in gone)
        return len(gone)
