"""The user metadata of the loader's commits: the stream, its positions, and how complete the table is.

Rules:

1. It is JSON; `CommitMetadata.to_json` and `CommitMetadata.from_json` are exact inverses, and keys are only ever added.
2. A commit that has it is the stream's *own* commit. A reader of a table's history (common/tables/rollback.py) uses it
   to determine which of the stream's records the table has, without Spark and without a running loader.
3. ``answers`` is there in a commit that carries out an operator's resolution of a rollback, and only there. The log
   itself thus proves that the RESTORE was resolved.
4. Every commit that moves positions names *all* chains that the table has something of: the position of each, which
   topic (by the broker's id, where it is known) it belongs to, and which topic the txn actions do not name. The newest
   own commit alone therefore says what the table's positions belong to (common/tables/identity.py). Commits of older
   releases only have the spans that they loaded.
5. Every commit that moves positions also says how *all* rows of the table were merged, itself or the commits before it;
   one that adds rows without merging them says nothing. Rows of other programs are not considered.
6. Positions are those of one *generation* of a Kafka partition (common/tables/transactions.py). A missing generation is
   0, so metadata of a topic that was never recreated is unchanged.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.tables.changes import MergedBy
from common.tables.counts import (
    ByPartition,
    Counts,
    Replaced,
    ReplacedByPartition,
    counts_from_stored,
    counts_to_stored,
    replaced_from_stored,
    replaced_to_stored,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class Decision(StrEnum):
    """An operator's decision about a rollback."""

    REPLAY = "replay"
    """Load again what the table has lost."""
    GO_ON = "go_on"
    """The table is correct as it is."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The resolution that a commit carries out."""

    version: int
    """The version of the commit that rolled the table back."""
    decision: Decision
    positions: Mapping[TopicPartition, Position]
    """Where loading continues."""


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """A commit's user metadata, which says where its rows came from."""

    commit_id: str
    app_id: str
    spans: Mapping[TopicPartition, Span]
    valid_through_ms: int | None
    """All records with a timestamp up to this one are in the table; None while unknown."""
    counts: Mapping[TopicPartition, Counts] = field(default_factory=dict)
    """The counts of the spans' records; empty for a commit of a release that did not count."""
    replaced: Mapping[TopicPartition, Replaced] = field(default_factory=dict)
    """Ranges whose rows it deleted and wrote again."""
    answers: Resolved | None = None
    generations: Mapping[TopicPartition, int] = field(default_factory=dict)
    """The generations of the chains that it names; a missing one is 0."""
    positions: Mapping[TopicPartition, Position] = field(default_factory=dict)
    """The table's position in each chain that it has something of (rule 4)."""
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict)
    """The broker's ids of the topics that these positions belong to, where known."""
    plain_topic: str | None = None
    """The topic that txn actions do not name; empty for none. None in a commit without this field (rule 4)."""
    unproved: frozenset[tuple[TopicPartition, int]] = frozenset()
    """Chains, with their generations, of which it was unknown whether the table has something (rollback.py, rule 7)."""
    merged_by: MergedBy | None = None
    """How all of the table's rows were merged; None if some were added, or if it is unknown (rule 5)."""

    def generation(self, partition: TopicPartition) -> int:
        """The generation of a Kafka partition's chain in this commit (rule 6)."""
        return self.generations.get(partition, 0)

    def to_json(self) -> str:
        spans: dict[str, dict[str, tuple[int, int]]] = {}
        for partition, span in sorted(self.spans.items()):
            spans.setdefault(partition.topic, {})[str(partition.partition)] = (span.start, span.end)
        content = _Content(
            commit_id=self.commit_id,
            app_id=self.app_id,
            spans=spans,
            valid_through_ms=self.valid_through_ms,
            counts=counts_to_stored(self.counts),
            replaced=replaced_to_stored(self.replaced),
            answers=None if self.answers is None else _stored_answer(self.answers),
            generations=generations_to_stored(self.generations),
            positions=nested(self.positions) or None,
            topic_ids=_topic_ids_to_stored(self.positions, self.topic_ids),
            plain_topic=self.plain_topic,
            unproved=[(partition.topic, partition.partition, number) for partition, number in sorted(self.unproved)]
            or None,
            merged_by=None if self.merged_by is None else _MergedBy(**asdict(self.merged_by)),
        )
        absent = {name for name in _OPTIONAL if getattr(content, name) is None}
        return _Stored(kafka_delta_express=content).model_dump_json(exclude={"kafka_delta_express": absent})

    @classmethod
    def from_json(cls, text: str) -> CommitMetadata | None:
        """The inverse of `to_json`; None for metadata of another program."""
        try:
            content = _Stored.model_validate_json(text).kafka_delta_express
            spans = {
                TopicPartition(Topic(topic), Partition(int(partition))): Span(Position(start), Position(end))
                for topic, partitions in content.spans.items()
                for partition, (start, end) in partitions.items()
            }
            counts, replaced = counts_from_stored(content.counts), replaced_from_stored(content.replaced)
            answers = None if content.answers is None else _answer(content.answers)
            generations = generations_from_stored(content.generations)
            positions = flat(content.positions or {})
            topic_ids = _topic_ids_from_stored(positions, content.topic_ids or {})
            unproved = frozenset(
                (TopicPartition(Topic(topic), Partition(partition)), generation)
                for topic, partition, generation in content.unproved or ()
            )
            merged = content.merged_by
            merged_by = None if merged is None else MergedBy(merged.keys, merged.sequence, merged.history)
        except (ValidationError, ValueError):
            return None
        return cls(
            content.commit_id,
            content.app_id,
            spans,
            content.valid_through_ms,
            counts,
            replaced,
            answers,
            generations,
            positions,
            topic_ids,
            content.plain_topic,
            unproved,
            merged_by,
        )


_ALL = "*"
"""Stands for all partitions of a topic that are not listed."""

GenerationsByPartition = dict[str, dict[str, Annotated[int, Field(ge=1)]]]


class _Answer(BaseModel):
    model_config = ConfigDict(frozen=True)

    version: int
    decision: Decision
    positions: dict[str, dict[str, int]]


class _MergedBy(BaseModel):
    model_config = ConfigDict(frozen=True)

    keys: tuple[str, ...]
    sequence: str | None = None
    history: bool = False


class _Content(BaseModel):
    model_config = ConfigDict(frozen=True)

    version: int = Field(default=1, le=1)
    commit_id: str
    app_id: str
    spans: dict[str, dict[str, tuple[int, int]]]
    valid_through_ms: int | None
    counts: ByPartition | None = None
    replaced: ReplacedByPartition | None = None
    answers: _Answer | None = None
    generations: GenerationsByPartition | None = None
    positions: dict[str, dict[str, int]] | None = None
    topic_ids: dict[str, dict[str, str | None]] | None = None
    plain_topic: str | None = None
    unproved: list[tuple[str, int, int]] | None = None
    merged_by: _MergedBy | None = None


_OPTIONAL = [name for name, field in _Content.model_fields.items() if not field.is_required() and field.default is None]


class _Stored(BaseModel):
    kafka_delta_express: _Content


def _stored_answer(answer: Resolved) -> _Answer:
    return _Answer(version=answer.version, decision=answer.decision, positions=nested(answer.positions))


def _answer(stored: _Answer) -> Resolved:
    return Resolved(stored.version, stored.decision, flat(stored.positions))


def nested(positions: Mapping[TopicPartition, Position]) -> dict[str, dict[str, int]]:
    """Positions by topic and partition, as JSON has them."""
    found: dict[str, dict[str, int]] = {}
    for partition, position in sorted(positions.items()):
        found.setdefault(partition.topic, {})[str(partition.partition)] = position
    return found


def flat(stored: Mapping[str, Mapping[str, int]]) -> dict[TopicPartition, Position]:
    """The inverse of `nested`. Raises ValueError."""
    return {
        TopicPartition(Topic(topic), Partition(int(partition))): Position(position)
        for topic, partitions in stored.items()
        for partition, position in partitions.items()
    }


def generations_to_stored(generations: Mapping[TopicPartition, int]) -> GenerationsByPartition | None:
    """By topic and partition, those that are not 0; None if there are none, so they cost no bytes."""
    found: GenerationsByPartition = {}
    for partition, generation in sorted(generations.items()):
        if generation:
            found.setdefault(partition.topic, {})[str(partition.partition)] = generation
    return found or None


def generations_from_stored(stored: GenerationsByPartition | None) -> dict[TopicPartition, int]:
    """The inverse of `generations_to_stored`. Raises ValueError."""
    return {
        TopicPartition(Topic(topic), Partition(int(partition))): generation
        for topic, partitions in (stored or {}).items()
        for partition, generation in partitions.items()
    }


def _topic_ids_to_stored(
    positions: Mapping[TopicPartition, Position], topic_ids: Mapping[TopicPartition, str]
) -> dict[str, dict[str, str | None]] | None:
    """By topic the id that most of its partitions have, and the exceptions; None for nothing."""
    by_topic: dict[str, dict[str, str | None]] = {}
    for topic_partition in sorted(positions):
        by_topic.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = topic_ids.get(topic_partition)
    stored: dict[str, dict[str, str | None]] = {}
    for topic, ids in by_topic.items():
        most = Counter(ids.values()).most_common(1)[0][0]
        differing = {partition: found for partition, found in ids.items() if found != most}
        if most is not None or differing:
            stored[topic] = {_ALL: most, **differing}
    return stored or None


def _topic_ids_from_stored(
    positions: Mapping[TopicPartition, Position], stored: Mapping[str, Mapping[str, str | None]]
) -> dict[TopicPartition, str]:
    found: dict[TopicPartition, str] = {}
    for partition in positions:
        ids = stored.get(partition.topic, {})
        topic_id = ids.get(str(partition.partition), ids.get(_ALL))
        if topic_id is not None:
            found[partition] = topic_id
    return found
