"""Where the chain of a Kafka partition starts before it has a marker, and which topic it belongs to.

Rules:

1. A chain origin is the object ``begin/<topic>/<partition>/<number, 20 digits>.begin``. It says where a chain starts
   that has no marker. (A marker can say so too, for every position but 0.) An empty object means position 0. Of several
   origins, the one with the highest number counts. An origin is not overwritten while it counts, and it is never
   deleted. A request that arrives late or twice therefore changes nothing.
   a. Number 0 is made by exclusive create, for any position. Two writers that start at the same time therefore agree.
   b. Only a repair makes a higher number: the number of its repair lock or, if the chain has an origin with a higher
      one, the next number after that. When another repair takes over the lock, a request of the first one may still be
      in flight. It counts for less than any request of its successor.
   c. Older releases read and overwrite number 0 only. Once a higher number exists, number 0 has version 3 and no
      position, and older releases refuse it. This content is always the same, so the overwrite may arrive at any time.
2. A topic that was deleted and recreated has other records at the same offsets. Its chain is therefore a new chain,
   with the next *generation*. The chain's origin, each of its markers and its txn actions name the generation. Only an
   origin starts a generation (``bootstrap restart``). A partition's generation is thus that of its origin, or 0 without
   an origin.
3. A marker with a lower generation than the partition's is a stray, at any position (`is_superseded`).
4. Kafka gives each topic an id when it is created, and never gives the same id twice. If both the broker's id and the
   chain's id are known, they must be equal.
5. The origin of a chain of several topics (common/stage/merged.py) has the position of each input, and their sum.
6. The marker after an origin needs what its predecessor would have named: the undelivered outboxes, and the state of
   the partition's task. After a rewind, every marker below the origin may be settled before a writer reads the chain.
   The origin that a rewind writes therefore has both. An origin with either of them has version 2, because a writer
   that does not know them would continue without them.
7. Each marker with content names the number of the origin that counted when its chain was read (0 without an origin).
   A rewind puts aside all markers that reach beyond the rewind's own origin. A marker that reaches beyond the newest
   origin and names a lower number is therefore not part of the chain: the rewind has yet to put it aside, a late
   request has created it, or its writer does not know of the rewind yet. It is a stray. The rewind thus takes effect
   for all readers at once, when its origin is created. A marker that names no number, as flushes of older releases,
   belongs to the chain.
8. While the table has no position, the records below a rewind's origin are in markers only. The origin therefore says
   where these markers start. If a late request of another repair deletes one of them, the loader sees a gap.
9. The origin of a new generation has the position that the main table had in the Kafka partition at that time, or the
   sum of those of the chains in its place. If the table is past that position in an earlier generation of the same
   topic, that generation was loaded further since, by another stage or by the chain in its place. The new chain has the
   records that were loaded then, too (common/tables/identity.py, rules 6 and 8).
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import TypeAdapter

from common.errors import MarkerError
from common.ports import ObjectStore
from common.spans import Position, TopicPartition
from common.stage.markers import Marker
from common.stage.merged import ChainPaths, StoredInput, inputs_to_stored, position_from_stored
from common.stage.stored import Count, StoredOffset, reading, require_known_version
from common.stage.task_files import EMPTY_STATE, StateFiles, require_own_outboxes, require_own_state
from common.stored_types import omit_defaults

BEGIN = "begin"
_SUPERSEDED = 3
VERSION = _SUPERSEDED
"""The highest version that can be read; an origin is written in the lowest version that expresses it (rule 6)."""
SUPERSEDED = b'{"version":3}'
"""The content of number 0 where a higher number counts (rule 1c)."""
_PATHS = ChainPaths(BEGIN, r"(?P<number>\d{20})\.begin")
origins_of_topic = _PATHS.folder_of_topic


@dataclass(frozen=True, slots=True)
class ChainOrigin:
    position: Position
    """The chain's first position while it has no marker."""
    generation: int = 0
    topic_id: str | None = None
    """The broker's id of the topic; None if unknown."""
    outboxes: tuple[str, ...] = ()
    """The chain's outboxes that are not known to be delivered there (common/stage/task_files.py), oldest first."""
    state: StateFiles | None = None
    """The state of the partition's task there; None without a task, and where it is unknown."""
    number: int = 0
    """Which of the chain's origins it is (rule 1); only its name says so."""
    staged_from: Position | None = None
    """Where the markers start that a rewind left below it, while the table had no position (rule 8); None without."""
    loaded_before: Position | None = None
    """How far the main table had the Kafka partition when its generation started (rule 9); None if unknown."""

    @property
    def first_position(self) -> Position:
        """Where a table without a position begins to load."""
        return self.position if self.staged_from is None else min(self.position, self.staged_from)

    @property
    def version(self) -> int:
        """The lowest version of the format that expresses it."""
        return 2 if self.outboxes or self.state not in (None, EMPTY_STATE) else 1


def is_superseded(marker: Marker, origin: ChainOrigin | None) -> bool:
    """Whether a marker is from before the newest origin of its chain, and not part of the chain (rules 3 and 7)."""
    manifest = marker.manifest
    if origin is None or manifest is None or manifest.generation > origin.generation:
        return False
    was_put_aside = marker.was_before(origin.number) and manifest.span.end > origin.position
    return was_put_aside or marker.is_older_than(origin.generation)


def origin_path(partition: TopicPartition, number: int = 0) -> str:
    return f"{_PATHS.folder(partition)}{number:020d}.begin"


def newest_numbers(paths: Iterable[str]) -> dict[TopicPartition, int]:
    """The number of the origin that counts, for each chain that has origins in a listing."""
    newest: dict[TopicPartition, int] = {}
    for path in paths:
        parsed = _PATHS.parse(path)
        if parsed is not None:
            partition, match = parsed
            newest[partition] = max(int(match["number"]), newest.get(partition, 0))
    return newest


def newest_paths(paths: Iterable[str]) -> dict[TopicPartition, str]:
    """The path of the origin that counts, for each chain that has origins in a listing."""
    return {partition: origin_path(partition, number) for partition, number in newest_numbers(paths).items()}


def newest_origin(store: ObjectStore, partition: TopicPartition) -> ChainOrigin | None:
    """The origin of a chain that counts; None if it has none. Raises StoreError, MarkerError."""
    path = _newest_path(store, partition)
    return None if path is None else listed_origin(store, partition, path)


def listed_origin(store: ObjectStore, partition: TopicPartition, path: str) -> ChainOrigin | None:
    """The origin of a chain that counts; ``path`` was the newest in a listing. Raises StoreError, MarkerError."""
    data = store.read(path)
    if data == SUPERSEDED:  # by a repair, since the listing
        path = _newest_path(store, partition) or path
        data = store.read(path)
    return None if data is None else origin_from_bytes(path, data)


def _newest_path(store: ObjectStore, partition: TopicPartition) -> str | None:
    return newest_paths(item.path for item in store.list(_PATHS.folder(partition))).get(partition)


@dataclass(frozen=True, slots=True)
class _StoredOrigin:
    version: int
    position: StoredOffset = 0
    generation: Count = 0
    topic_id: str | None = None
    inputs: tuple[StoredInput, ...] = ()
    outboxes: tuple[str, ...] = ()
    state: StateFiles | None = None
    staged_from: StoredOffset | None = None
    loaded_before: StoredOffset | None = None

    _without_empty = omit_defaults("inputs", "outboxes", "state", "staged_from", "loaded_before")


_FORM = TypeAdapter(_StoredOrigin)


def origin_to_bytes(origin: ChainOrigin) -> bytes:
    position, inputs = origin.position, inputs_to_stored(origin.position)
    about = (origin.generation, origin.topic_id, inputs, origin.outboxes, origin.state)
    known = (origin.staged_from, origin.loaded_before)
    return _FORM.dump_json(_StoredOrigin(origin.version, position, *about, *known), by_alias=True)


def origin_from_bytes(path: str, data: bytes) -> ChainOrigin:
    """The inverse of `origin_to_bytes`; an empty object means position 0. Raises MarkerError, which names it."""
    parsed = _PATHS.parse(path)
    what = f"the object {path}"
    with reading(what, "upgrade this service, or put the object back from a version or backup of the bucket"):
        if parsed is None:
            raise ValueError("it is not named like a chain origin")
        partition, number = parsed[0], int(parsed[1]["number"])
        if not data:
            return ChainOrigin(position_from_stored(partition, 0, ()), number=number)
        require_known_version(what, data, VERSION)
        stored = _FORM.validate_json(data, strict=True)
        if stored.version == _SUPERSEDED:
            msg = f"{what} was replaced by an origin with a higher number, which is missing"
            raise MarkerError(msg, f"put {_PATHS.folder(partition)} back from versions or a backup of the bucket")
        position = position_from_stored(partition, stored.position, stored.inputs)
        require_own_outboxes(partition, stored.outboxes)
        require_own_state(partition, stored.state or EMPTY_STATE)
    about = (stored.generation, stored.topic_id, stored.outboxes, stored.state)
    return ChainOrigin(position, *about, number, _position(stored.staged_from), _position(stored.loaded_before))


def _position(stored: int | None) -> Position | None:
    return None if stored is None else Position(stored)
