"""Chains whose topic is not Kafka's: of several topics together, and of a topic that another stream reads too.

Partition 3 of ``orders`` and of ``payments`` become partition 3 of ``orders+payments``. Partition 3 of ``orders``, for
the stream ``audit``, which is not the first that reads it, is partition 3 of ``orders@audit``.

Rules:

1. The name of such a chain is its topics' names, sorted, with ``+`` between them, a character that no topic's name
   contains. A chain of one topic has the topic's own name, and nothing here concerns it.
2. Its position is the sum of its inputs' positions, so it rises with each record of any of them. A sum does not say
   the positions that it is the sum of; a `MergedPosition` does. It is compared and counted with like any position.
3. The stored form of such a chain's position (a marker's end, a chain origin) has the inputs' positions in addition to
   the sum. Reading can only continue from such a position. Markers of older releases do not have them for their start.
4. If streams share a topic, one stream has the chain with the topic's own name, and each other stream has a chain with
   ``@`` and its app_id after it (common/stage/topic_owners.py), a character that no topic's name contains either. Its
   positions are those of the Kafka partition. Only what asks Kafka, and what a row says of its record, has the topic's
   own name: `topics_of`, `inputs_of`.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from common.errors import MarkerError
from common.remedies import repair
from common.spans import MAX_POSITION, Partition, Position, Topic, TopicPartition
from common.stage.stored import Count, NotEmpty, StoredOffset
from common.stored_types import omit_defaults

AND = "+"
OF = "@"
CHAIN_TOPIC = r"[A-Za-z0-9._-]{1,249}(?:(?:\+[A-Za-z0-9._-]{1,249})*|@[A-Za-z0-9._-]{1,247})"
"""A chain's name in the path of an object, as a regular expression."""
LONGEST = 249
"""The maximum length of such a chain's name: that of a topic's, so it can be a folder's name everywhere."""
_NAME = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)


@dataclass(frozen=True, slots=True, order=True)
class InputEnd:
    """A chain's position in one of its input topics."""

    partition: TopicPartition
    position: Position


class MergedPosition(int):
    """The position of a chain of several topics (rule 2)."""

    inputs: tuple[InputEnd, ...]

    def __new__(cls, inputs: Iterable[InputEnd]) -> Self:
        """The sum of the inputs' positions."""
        ends = tuple(sorted(inputs))
        made = super().__new__(cls, sum(end.position for end in ends))
        made.inputs = ends
        return made


def merged_position(inputs: Iterable[InputEnd]) -> Position:
    return Position(MergedPosition(inputs))


def inputs_at(position: int | None) -> tuple[InputEnd, ...]:
    """The inputs' positions at a position of a merged chain; empty for a position without them."""
    return position.inputs if isinstance(position, MergedPosition) else ()


def ends_at(chain: TopicPartition, position: Position) -> tuple[InputEnd, ...]:
    """The position of each Kafka partition of a chain; empty if a merged chain's position does not have them."""
    return inputs_at(position) if is_merged(chain.topic) else (InputEnd(inputs_of(chain)[0], position),)


def chain_topic(topics: Collection[str]) -> Topic:
    return Topic(AND.join(sorted(topics)))


def topics_of(chain: str) -> tuple[Topic, ...]:
    """The Kafka topics of a chain's name, sorted; mostly one."""
    return tuple(map(Topic, chain.partition(OF)[0].split(AND)))


def known_as(chain: str) -> Topic:
    """A chain's topic in messages: Kafka's name, or the names of several topics."""
    return chain_topic(topics_of(chain))


def shared_chain(topic: str, app_id: str) -> Topic:
    """The name of a stream's chain of a topic whose plain chain is another stream's (rule 4)."""
    return Topic(f"{topic}{OF}{app_id}")


def stream_of(chain: str) -> str | None:
    """The app_id in a chain's name; None for a name without one."""
    return chain.partition(OF)[2] or None


def may_name_chain(topic: str, app_id: str) -> bool:
    """Whether a stream's chain of a shared topic can have its app_id in its name."""
    return _NAME.fullmatch(app_id) is not None and len(shared_chain(topic, app_id)) <= LONGEST


def is_merged(chain: str) -> bool:
    """Whether a chain's name is that of several topics."""
    return AND in chain


def inputs_of(chain: TopicPartition) -> tuple[TopicPartition, ...]:
    """The Kafka partitions that a chain consists of."""
    if AND not in chain.topic and OF not in chain.topic:
        return (chain,)
    return tuple(TopicPartition(topic, chain.partition) for topic in topics_of(chain.topic))


def kafka_topic(chain: str) -> Topic:
    return topics_of(chain)[0]


def kafka_partition(chain: TopicPartition) -> TopicPartition:
    """The Kafka partition of a chain of one topic: what its positions are positions of."""
    return chain if OF not in chain.topic else inputs_of(chain)[0]


def has_reached(position: Position, goal: Position) -> bool:
    """Whether a position is at or past ``goal``, input by input if both have theirs."""
    ends = {end.partition: end.position for end in inputs_at(position)}
    goals = inputs_at(goal)
    if not ends or not goals:
        return position >= goal
    return all(ends.get(input_end.partition, Position(0)) >= input_end.position for input_end in goals)


def require_inputs(chain: TopicPartition, position: Position) -> None:
    """Raises MarkerError if the end of a chain of several topics does not have the inputs' positions (rule 3)."""
    if is_merged(chain.topic) and not inputs_at(position):
        msg = f"the chain of {chain} ends at {position}, and the position of each of its topics there is unknown"
        remedy = repair("rewind", chain, position - 1, "--yes")
        raise MarkerError(msg, f"put the marker that was made by hand aside: {remedy}")


def with_chains(
    ends: Mapping[TopicPartition, Position], chains: Iterable[TopicPartition]
) -> dict[TopicPartition, Position]:
    """Positions of Kafka partitions, as those of ``chains`` where these have names of their own.

    A Kafka partition whose chain is not one of them stays, except for the inputs of merged chains.
    """
    wanted = set(chains)
    merged = [chain for chain in wanted if is_merged(chain.topic)]
    inside = {topic for chain in merged for topic in topics_of(chain.topic)}
    positions = {
        topic_partition: position for topic_partition, position in ends.items() if topic_partition.topic not in inside
    }
    for chain in merged:
        if all(partition in ends for partition in inputs_of(chain)):
            positions[chain] = merged_position(InputEnd(partition, ends[partition]) for partition in inputs_of(chain))
    shared = [chain for chain in wanted if stream_of(chain.topic) is not None]
    for partition in {partition for chain in shared for partition in inputs_of(chain)} - wanted:
        positions.pop(partition, None)
    return positions | {chain: ends[inputs_of(chain)[0]] for chain in shared if inputs_of(chain)[0] in ends}


def ids_together(topic: Topic, ids: Mapping[Topic, str | None]) -> str | None:
    """The ids of a chain's topics combined; None if one of them has none, or is unknown."""
    known = [topic_id for input_topic in topics_of(topic) if (topic_id := ids.get(input_topic)) is not None]
    return ",".join(known) if len(known) == len(topics_of(topic)) else None


def id_of_input(chain: Topic, topic: Topic, ids: str | None) -> str | None:
    """The id of one of a chain's topics; the inverse of `ids_together`."""
    return None if ids is None else dict(zip(topics_of(chain), ids.split(","), strict=False)).get(topic)


@dataclass(frozen=True, slots=True)
class StoredInput:
    """How a marker, or a chain origin, stores an `InputEnd`; a marker also stores where its span starts."""

    topic: NotEmpty
    partition: Count
    end: StoredOffset
    start: StoredOffset | None = None

    _without_empty = omit_defaults("start")


def inputs_to_stored(position: Position, start: Position | None = None) -> tuple[StoredInput, ...]:
    """The stored fields next to a span's start and end position; none for a chain of one topic."""
    starts = {input_end.partition: input_end.position for input_end in inputs_at(start)}
    return tuple(
        StoredInput(end.partition.topic, end.partition.partition, end.position, starts.get(end.partition))
        for end in inputs_at(position)
    )


def position_from_stored(topic_partition: TopicPartition, position: int, stored: Sequence[StoredInput]) -> Position:
    """The inverse of `inputs_to_stored`. Raises ValueError for inputs that are not the chain's, or not its sum.

    Position 0 needs no inputs.
    """
    if not stored and position == 0 and is_merged(topic_partition.topic):
        return merged_position(InputEnd(partition, Position(0)) for partition in inputs_of(topic_partition))
    if not stored:
        return Position(position)
    ends = [InputEnd(TopicPartition(Topic(end.topic), Partition(end.partition)), Position(end.end)) for end in stored]
    if tuple(sorted(end.partition for end in ends)) != inputs_of(topic_partition):
        raise ValueError(f"its inputs are not those of {topic_partition}")
    merged = merged_position(ends)
    if merged != position:
        raise ValueError(f"its inputs add up to {merged}, but it ends at {position}")
    return merged


def start_from_stored(start: int, stored: Sequence[StoredInput]) -> Position:
    """The start of a marker's span, with its inputs' positions if these are known. Raises ValueError."""
    known = [end for end in stored if end.start is not None]
    if not known or len(known) < len(stored):
        return Position(start)
    position = merged_position(
        InputEnd(TopicPartition(Topic(end.topic), Partition(end.partition)), Position(end.start or 0)) for end in known
    )
    if position != start:
        raise ValueError(f"its inputs' starts add up to {position}, but it starts at {start}")
    return position


class ChainPaths:
    """The objects that the stage has for each chain: ``<folder>/<topic>/<partition>/<name>``."""

    def __init__(self, folder: str, name: str) -> None:
        """``name`` is a regular expression for what follows a chain's folder; its group ``start`` is a position."""
        self._folder = folder
        self._path = re.compile(rf"{folder}/(?P<topic>{CHAIN_TOPIC})/(?P<partition>0|[1-9]\d{{0,9}})/{name}", re.ASCII)

    def folder(self, partition: TopicPartition) -> str:
        return f"{self.folder_of_topic(partition.topic)}{partition.partition}/"

    def folder_of_topic(self, topic: str) -> str:
        """The folder of all chains of a topic, or of a chain of several."""
        return f"{self._folder}/{topic}/"

    def parse(self, path: str) -> tuple[TopicPartition, re.Match[str]] | None:
        """The chain of a path, and the parts of its name; None for any other path."""
        match = self._path.fullmatch(path)
        if match is None or ("start" in self._path.groupindex and int(match["start"]) >= MAX_POSITION):
            return None
        return TopicPartition(Topic(match["topic"]), Partition(int(match["partition"]))), match
