"""One Kafka partition with several chains: where it is read, and which chains get what is read.

Rules:

1. There is one read position, and nothing is buffered. A chain is *joined* while the next record read is the next one
   that it wants. A batch goes to the joined chains; so each chain gets every record from its position on, in order,
   once. A chain that is paused while others are read is left behind, and is read from its own position later.
2. Where chains that are to be read are not all joined, they are read in time slices, the chain that was read least
   recently first: `SLICE_S` for the last one, and `AHEAD_SLICE_S` for others, from the first record on, which a broker
   may have to bring from afar (`FIRST_WITHIN_S`). A slice ends early at the partition's end, or when none of its chains
   is to be read. So a chain that is behind by hours delays the others by seconds, has most of the time, and they meet
   when it has caught up.
3. A chain joins when the read position moves to it, which compares the last record that it knows with Kafka's
   (stage_writer/fetch/truncation.py), or when the read position passes that record and it is the same. A different
   record, or none, leaves it to a move of its own.
4. A fault concerns the joined chains; while the record of rule 3 is compared, only those that know the same one. They
   are read again after a seek. The others are read from their own positions, and fail for themselves if they must.
   librdkafka may report a fault of the previous position after a move, so one that follows a move must repeat itself.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from common.spans import Position, TopicPartition
from common.stage.markers import LastRecord
from stage_writer.decode.batch import MessageBatch
from stage_writer.fetch.truncation import OVERDUE_S

SLICE_S = 2.0
AHEAD_SLICE_S = 0.5
FIRST_WITHIN_S = 3 * OVERDUE_S
"""Longer than it takes to find that a record does not arrive: a move begins a new check of the last one."""


@dataclass(slots=True)
class ChainReader:
    partition: TopicPartition
    position: Position | None = None
    """The next record that it wants; None before its first position, and after a fault."""
    last: LastRecord | None = None
    """The last record before its position, if known."""
    paused: bool = True
    joined: bool = False
    """Whether it gets what is read next (rule 1)."""
    doubted: bool = False
    """Whether a fault followed a move to it (rule 4)."""
    slice: int = 0
    """The last time slice in which it was read."""
    reported_end: Position | None = None
    """The end that was last reported."""
    staged: Position | None = None
    """The position for monitoring tools."""

    @property
    def is_needed(self) -> bool:
        return self.position is not None and not self.paused

    def begin(self, position: Position | None, last: LastRecord | None) -> None:
        self.position, self.last = position, last
        self.joined, self.doubted, self.reported_end = False, False, None
        self.staged = position if self.staged is None else self.staged

    def meets(self, start: Position, batch: MessageBatch) -> bool:
        """Whether this batch, read from ``start``, leads up to its position over the last record it knows (rule 3)."""
        if self.position is None or not start <= self.position <= batch.end:
            return False
        if self.last is None:
            return True
        index = int(np.searchsorted(batch.offsets, self.last.offset))
        return index < len(batch) and batch.record_at(index) == self.last


@dataclass(slots=True)
class SharedPartition:
    partition: TopicPartition
    chains: Sequence[ChainReader]
    position: Position | None = None
    """The next record that is read; None when reading must begin with a move."""
    end: Position | None = None
    """The end in Kafka, while the read position is there."""
    is_read: bool = False
    """Whether the source behind reads it."""
    _compared: ChainReader | None = field(default=None)
    """The chain that the read position was moved to, until something is read there."""
    _slice: int = 0
    _slice_s: float = 0.0
    _slice_ends_s: float = 0.0
    _first_by_s: float = 0.0

    @property
    def wanted(self) -> list[ChainReader]:
        return [chain for chain in self.chains if chain.is_needed]

    @property
    def is_apart(self) -> bool:
        """Whether a chain that is to be read is not joined."""
        return any(not chain.joined for chain in self.wanted)

    def next_chain(self, now_s: float) -> ChainReader | None:
        """The chain to move the read position to; None to stay, or when there is none (rule 2)."""
        if self._compared is not None and now_s < self._first_by_s:
            self._slice_ends_s = now_s + self._slice_s  # it has not begun
        wanted = self.wanted
        joined = [chain for chain in wanted if chain.joined]
        for chain in joined:
            chain.slice = self._slice
        if joined and (len(joined) == len(wanted) or (self.end is None and now_s < self._slice_ends_s)):
            return None
        apart = [chain for chain in wanted if not chain.joined]
        return min(apart, key=lambda chain: (chain.slice, chain.position), default=None)

    def move_to(self, chain: ChainReader, now_s: float) -> None:
        """Read from a chain's position on; a chain stays joined if that changes nothing for it."""
        stays = chain.position == self.position
        self.position, self.end, self._compared = chain.position, None, chain
        is_last = chain.position == min(other.position or 0 for other in self.wanted)
        self._slice += 1
        self._slice_s = SLICE_S if is_last else AHEAD_SLICE_S
        self._slice_ends_s, self._first_by_s = now_s + self._slice_s, now_s + FIRST_WITHIN_S
        for other in self.chains:
            is_here = other.position == chain.position
            other.joined = is_here and ((stays and other.joined) or other.last in (None, chain.last))

    def take(self, batch: MessageBatch) -> list[MessageBatch]:
        """The batch for each chain that gets it; their columns are the batch's own."""
        if self.position is None or len(new := batch.after(self.position)) == 0:
            return []
        self._confirm()
        taken = []
        for chain in self.chains:
            if not chain.is_needed:
                chain.joined = False
            elif not chain.joined:
                chain.joined = chain.meets(self.position, new)
            if not chain.joined or chain.position is None:
                continue
            part = new if chain.position <= self.position else new.after(chain.position)
            if len(part):
                taken.append(replace(part, partition=chain.partition))
                chain.position, chain.last = part.end, part.record_at(-1)
        self.position, self.end = new.end, None
        return taken

    def reach_end(self, end: Position) -> None:
        """Kafka reports that it ends there, for now."""
        if self.position is None or end < self.position:
            return  # the records after it were read meanwhile
        self.position = self.end = end
        self._confirm()
        for chain in self.chains:
            if chain.joined:
                chain.position = end

    def new_ends(self) -> dict[TopicPartition, Position]:
        """The chains that are read to the end and were not told so."""
        ends: dict[TopicPartition, Position] = {}
        for chain in self.chains:
            if self.end is not None and chain.is_needed and chain.joined and chain.reported_end != self.end:
                chain.reported_end = ends[chain.partition] = self.end
        return ends

    def fail(self) -> list[ChainReader]:
        """Kafka cannot serve the read position: the chains that this concerns, which now wait for a seek (rule 4)."""
        compared = self._compared
        concerned = [
            chain for chain in self.wanted if chain.joined and (compared is None or chain.last == compared.last)
        ]
        if compared is not None and not compared.doubted:
            compared.doubted, concerned = True, []
        for chain in concerned:
            chain.begin(None, None)
        for chain in self.chains:
            chain.joined = False
        self.position = self.end = self._compared = None
        return concerned

    def _confirm(self) -> None:
        """Something was read after the last move."""
        if self._compared is not None:
            self._compared.doubted, self._compared = False, None

    def stop(self) -> None:
        """Nothing is to be read for now; the end may move in the meantime."""
        self.is_read, self.end = False, None
