"""The markers near a stream's positions, which the next plan is based on; each is read once as the positions advance.

Rule: only a window after each position is kept. A marker that left the window is forgotten, and one that enters it is
read, so a backlog of any length needs only the memory of the window.

The marker after an empty one may show that the empty one had content (common/stage/chain.py, rule 5). An empty marker
at the window's end therefore waits for the next window.
"""

from collections.abc import Callable, Mapping

from common.spans import Position, TopicPartition
from common.stage.markers import Marker, MarkerName
from delta_loader.plan.plan import AnyMarker
from delta_loader.stage.listed import Listing
from delta_loader.stage.reading import Stage

_SMALLEST_WINDOW = 16


class MarkerWindow:
    def __init__(self, stage: Stage, tables: Mapping[str, str], max_files: int) -> None:
        """``tables`` spells the tables' URLs, as `Stage.read` expects them; a commit loads at most ``max_files``."""
        self._stage = stage
        self._tables = tables
        self._max_files = max_files
        self._known: dict[TopicPartition, dict[MarkerName, tuple[AnyMarker, ...]]] = {}
        self._cut: frozenset[MarkerName] = frozenset()
        """The last marker of each window that more markers follow."""

    def read(self, listing: Listing, position_of: Callable[[TopicPartition], Position | None]) -> set[MarkerName]:
        """Read the markers around each position that are not known yet; returns those gone since. Raises StoreError."""
        window = max(_SMALLEST_WINDOW, self._max_files // max(1, len(listing)))
        wanted = {partition: listed.window_at(position_of(partition), window) for partition, listed in listing.items()}
        self._cut = frozenset(
            names[-1] for partition, names in wanted.items() if names and names[-1] != listing[partition].names[-1]
        )
        known = {partition: self._known.get(partition, {}) for partition in listing}
        unknown = [name for partition, names in wanted.items() for name in names if name not in known[partition]]
        fresh = self._stage.read(listing, unknown, self._tables)
        self._known = {
            partition: {name: fresh.get(name) or known[partition].get(name, ()) for name in names}
            for partition, names in wanted.items()
        }
        return set(unknown) - fresh.keys()

    def of(self, partition: TopicPartition) -> list[AnyMarker]:
        return [
            marker
            for name, markers in self._known.get(partition, {}).items()
            for marker in markers
            if name not in self._cut or not (isinstance(marker, Marker) and marker.manifest is None)
        ]
