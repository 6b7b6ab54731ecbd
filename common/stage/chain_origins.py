"""Where the chain of a Kafka partition starts before it has a marker, and which topic it belongs to.

Rules:

1. ``begin/<topic>/<partition>/<20 zeros>.begin`` says where a chain without any marker starts. A marker can do so for
   every position but 0. It is made by exclusive create and has one name for all positions, so two writers that start at
   the same time agree. An empty object means position 0.
2. A topic that was deleted and recreated has other records at the same offsets. Its chain is a new one: it has the next
   *generation*, which its origin, each of its markers and its txn actions name. Only an origin starts a generation
   (``bootstrap restart``), so a partition's generation is its origin's, and 0 where there is none.
3. A marker of a generation lower than the partition's is a stray, at any position.
4. Kafka gives each topic an id when it is created, and never the same one twice. Where both the broker's and the
   chain's are known, they have to be the same.
5. The origin of a chain of several topics (common/stage/merged.py) has the positions of its inputs in addition to their
   sum.
6. An origin that a rewind writes has what the next marker needs from the one before it: the undelivered outboxes, and
   the state of the partition's task. Every marker below it may be settled before a writer reads the chain. With either,
   an origin has version 2: a writer that does not know them would continue without them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from common.spans import Position, TopicPartition
from common.stage.merged import StoredInput, inputs_to_stored, position_from_stored
from common.stage.outboxes import checked_outboxes
from common.stage.paths import ChainPaths
from common.stage.state_files import EMPTY_STATE, StateFiles, StoredFiles, files_from_stored, files_to_stored
from common.stage.stored import Count, Lean, StoredOffset, reading, require_known_version

BEGIN = "begin"
VERSION = 2
"""The highest version that can be read; an origin is written in the lowest version that expresses it (rule 6)."""
_PATHS = ChainPaths(BEGIN, r"0{20}\.begin")


@dataclass(frozen=True, slots=True)
class ChainOrigin:
    """What is recorded about a chain before its first marker."""

    position: Position
    """The chain's first position while it has no marker."""
    generation: int = 0
    topic_id: str | None = None
    """The broker's id of the topic; None if unknown."""
    outboxes: tuple[str, ...] = ()
    """The chain's outboxes that are not known to be delivered there (common/stage/outboxes.py), oldest first."""
    state: StateFiles | None = None
    """The state of the partition's task there; None without a task, and where it is unknown."""

    @property
    def version(self) -> int:
        """The lowest version of the format that expresses it."""
        return 2 if self.outboxes or self.state not in (None, EMPTY_STATE) else 1


def origin_path(partition: TopicPartition) -> str:
    """The path of an origin below the stage's root."""
    return f"{_PATHS.folder(partition)}{0:020d}.begin"


def source_of(path: str) -> TopicPartition | None:
    """The Kafka partition of an origin's path; None for any other path."""
    parsed = _PATHS.parse(path)
    return None if parsed is None else parsed[0]


class _StoredBeginning(Lean):
    OMITTED = ("inputs", "outboxes", "state")

    version: Literal[1, 2]
    position: StoredOffset = 0
    generation: Count = 0
    topic_id: str | None = None
    inputs: list[StoredInput] | None = None
    outboxes: list[str] | None = None
    state: StoredFiles | None = None


def origin_to_bytes(beginning: ChainOrigin) -> bytes:
    """The stored form: UTF-8 JSON, one object."""
    stored = _StoredBeginning.model_validate(
        {
            "version": beginning.version,
            "position": int(beginning.position),
            "generation": beginning.generation,
            "topic_id": beginning.topic_id,
            "inputs": inputs_to_stored(beginning.position),
            "outboxes": list(beginning.outboxes) or None,
            "state": None if beginning.state is None else files_to_stored(beginning.state),
        }
    )
    return stored.model_dump_json().encode()


def origin_from_bytes(path: str, data: bytes) -> ChainOrigin:
    """The inverse of `origin_to_bytes`; an empty object means position 0. Raises MarkerError, which names it."""
    partition = source_of(path)
    if not data:
        return ChainOrigin(Position(0) if partition is None else position_from_stored(partition, 0, None))
    what = f"the object {path}"
    with reading(what, "upgrade this service, or put the object back from a version or backup of the bucket"):
        require_known_version(what, data, VERSION)
        stored = _StoredBeginning.model_validate_json(data)
        if partition is None:
            return ChainOrigin(Position(stored.position), stored.generation, stored.topic_id)
        position = position_from_stored(partition, stored.position, stored.inputs)
        outboxes = checked_outboxes(partition, stored.outboxes or ())
        state = None if stored.state is None else files_from_stored(partition, stored.state)
    return ChainOrigin(position, stored.generation, stored.topic_id, outboxes, state)
