"""The markers of a stage as listed, stored in few bytes: a day's retention may be a million of them.

Rules:

1. A marker is its start and the time at which it was written, sixteen bytes; names are created on demand. A path is
   stored only if it is not the one that the name has (typed by hand without padding, or next to the padded one).
2. Everything is ordered by position.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence, ValuesView
from dataclasses import dataclass
from typing import overload

from common.ports import StoredObject
from common.spans import Position, TopicPartition
from common.stage.markers import MarkerName


@dataclass(frozen=True, slots=True, eq=False)
class Listed:
    partition: TopicPartition
    starts: array[int]
    """The starts of all markers, ascending."""
    written_ms: array[int]
    """When each was written, by the store's clock."""
    spelled: Mapping[Position, tuple[str, ...]]
    """The objects of a name that has paths other than its own (rule 1)."""

    @property
    def names(self) -> Sequence[MarkerName]:
        return _MarkerNames(self)

    @property
    def modified_ms(self) -> Mapping[MarkerName, int]:
        """When each was written, in the order of positions."""
        return _Times(self)

    def paths(self, name: MarkerName) -> tuple[str, ...]:
        """The objects that have this name: more than one when it was typed by hand without padding."""
        return self.spelled.get(name.start) or (name.path,)

    def window_at(self, position: Position | None, window: int) -> Sequence[MarkerName]:
        """The last marker before a position, which a plan may need, and ``window`` markers from there on."""
        if position is None:
            return self.names[:window]
        first = self._first(position)
        return self.names[max(0, first - 1) : first + window]

    def waiting(self, position: Position | None) -> int:
        """How many markers start at or after a position."""
        return len(self.starts) - (0 if position is None else self._first(position))

    def without(self, gone: frozenset[MarkerName]) -> Listed:
        kept = [index for index, name in enumerate(self.names) if name not in gone]
        starts, written_ms = self.starts, self.written_ms
        return Listed(
            self.partition,
            array("q", [starts[index] for index in kept]),
            array("q", [written_ms[index] for index in kept]),
            self.spelled,
        )

    def _first(self, position: Position) -> int:
        return bisect_left(self.starts, position)


Listing = Mapping["TopicPartition", Listed]


def without(listing: Listing, names: Iterable[MarkerName]) -> Listing:
    """The listing without these markers; a partition left without markers is removed."""
    gone: dict[TopicPartition, set[MarkerName]] = {}
    for name in names:
        gone.setdefault(name.topic_partition, set()).add(name)
    left = dict(listing)
    for partition in gone.keys() & left.keys():
        left[partition] = left[partition].without(frozenset(gone[partition]))
    return {partition: listed for partition, listed in left.items() if listed.starts}


def listing_of(items: Iterable[tuple[MarkerName, StoredObject]]) -> Listing:
    """The listing of some objects and the names that they have."""
    gathered: dict[TopicPartition, _Gathered] = {}
    for name, item in items:
        gathered.setdefault(name.topic_partition, _Gathered()).add(name, item)
    return {partition: gathered[partition].listed(partition) for partition in sorted(gathered)}


class _Gathered:
    """The objects found for one Kafka partition, in any order."""

    def __init__(self) -> None:
        self._starts = array("q")
        self._written_ms = array("q")
        self._spelled: dict[int, list[str]] = {}

    def add(self, name: MarkerName, item: StoredObject) -> None:
        if item.path != name.path:
            self._spelled.setdefault(name.start, []).append(item.path)
        self._starts.append(name.start)
        self._written_ms.append(item.modified_ms)

    def listed(self, partition: TopicPartition) -> Listed:
        starts, written_ms = self._starts, self._written_ms
        if any(starts[index] >= starts[index + 1] for index in range(len(starts) - 1)):
            in_order = dict(sorted(zip(starts, written_ms, strict=True)))
            starts, written_ms = array("q", in_order), array("q", in_order.values())
        return Listed(
            partition, starts, written_ms, {Position(start): self._paths(partition, start) for start in self._spelled}
        )

    def _paths(self, partition: TopicPartition, start: int) -> tuple[str, ...]:
        """All objects of a name, if at least one of them has another spelling."""
        others = self._spelled[start]
        own = MarkerName(partition, Position(start)).path
        return tuple(sorted([own, *others] if self._starts.count(start) > len(others) else others))


class _MarkerNames(Sequence[MarkerName]):
    """A listing's names, each created on demand."""

    def __init__(self, listed: Listed) -> None:
        self._listed = listed

    def __len__(self) -> int:
        return len(self._listed.starts)

    @overload
    def __getitem__(self, index: int) -> MarkerName: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[MarkerName]: ...

    def __getitem__(self, index: int | slice) -> MarkerName | Sequence[MarkerName]:
        partition, starts = self._listed.partition, self._listed.starts
        if isinstance(index, slice):
            return [MarkerName(partition, Position(start)) for start in starts[index]]
        return MarkerName(partition, Position(starts[index]))

    def __iter__(self) -> Iterator[MarkerName]:
        partition = self._listed.partition
        return (MarkerName(partition, Position(start)) for start in self._listed.starts)


class _Times(Mapping[MarkerName, int]):
    def __init__(self, listed: Listed) -> None:
        self._listed = listed

    def __len__(self) -> int:
        return len(self._listed.starts)

    def __iter__(self) -> Iterator[MarkerName]:
        return iter(self._listed.names)

    def __getitem__(self, name: MarkerName) -> int:
        starts = self._listed.starts
        index = bisect_left(starts, name.start)
        if name.topic_partition != self._listed.partition or index == len(starts) or starts[index] != name.start:
            raise KeyError(name)
        return self._listed.written_ms[index]

    def values(self) -> ValuesView[int]:
        return _Values(self._listed.written_ms)


class _Values(ValuesView[int]):
    def __init__(self, times: array[int]) -> None:
        self._times = times

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, value: object) -> bool:
        return value in self._times

    def __iter__(self) -> Iterator[int]:
        return iter(self._times)
