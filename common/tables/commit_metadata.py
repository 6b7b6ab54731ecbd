"""The user metadata of the loader's commits: the stream, its positions, and how complete the table is.

Rules:

1. The metadata is JSON. `CommitMetadata.to_json` and `CommitMetadata.from_json` are exact inverses, and keys are only
   ever added.
2. A commit with this metadata is the stream's *own* commit. A reader of a table's history (common/tables/rollback.py)
   uses it to determine which of the stream's records the table has, without Spark and without a running loader.
3. A commit has ``answers`` if it carries out an operator's resolution of a rollback, and only then. The log itself thus
   proves that the RESTORE was resolved.
4. Every commit that moves positions names *all* chains that the table has something of: the position of each, which
   topic (by the broker's id, where it is known) it belongs to, and which topic the txn actions do not name. The newest
   own commit alone therefore says what the table's positions belong to (common/tables/identity.py). Commits of older
   releases only have the spans that they loaded.
5. Every commit that moves positions also says how *all* rows of the table were merged, by this commit or by those
   before it. A commit that adds rows without merging them says nothing. After a RESTORE, the commits on the table's
   lineage say it (identity.py), and the commit that carries out a resolution repeats it. Rows of other programs are not
   considered.
6. A commit to the main table names the other tables that its spans have rows or dead letters in (``other_tables``): the
   settings may no longer name them when the table is verified. Commits of older releases do not have this.
7. Positions are those of one *generation* of a Kafka partition (common/tables/transactions.py). A missing generation is
   0, so metadata of a topic that was never recreated is unchanged.
8. Every commit that moves the main table's positions names the version of each secondary table's newest own commit, by
   the table's id. Only this shows that such a table is an older copy (rollback.py, rule 8). Commits of older releases
   do not have this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BaseModel, Field, TypeAdapter
from pydantic_core import to_json

from common.spans import Partition, Position, Span, Topic, TopicPartition
from common.stage.markers import TableKind
from common.stored_types import StoredAs, StoredForm, StoredPositions, StoredSpan, omit_defaults, stored_by_topic
from common.tables.changes import MergedBy
from common.tables.counts import Counts, Replaced


class Decision(StrEnum):
    REPLAY = "replay"
    """Load the lost rows again."""
    GO_ON = "go_on"
    """The table is correct as it is."""


@dataclass(frozen=True, slots=True)
class Resolved:
    version: int
    """The version of the commit that rolled the table back."""
    decision: Decision
    positions: StoredPositions
    """Where loading continues."""


StoredGenerations = Annotated[Mapping[TopicPartition, int], stored_by_topic(Annotated[int, Field(ge=1)])]
"""Without those of 0: see `not_first`."""
_Unproved = StoredAs(
    list[tuple[str, int, int]],
    lambda stored: frozenset((TopicPartition(Topic(topic), Partition(number)), gen) for topic, number, gen in stored),
    lambda unproved: [(chain.topic, chain.partition, generation) for chain, generation in sorted(unproved)],
)


@dataclass(frozen=True, slots=True)
class CommitMetadata:
    """A commit's user metadata, which says where its rows came from."""

    commit_id: str
    app_id: str
    spans: Annotated[Mapping[TopicPartition, Span], stored_by_topic(StoredSpan)]
    valid_through_ms: int | None
    """All records with a timestamp up to this one are in the table; None while unknown."""
    counts: Annotated[Mapping[TopicPartition, Counts], stored_by_topic(Counts)] = field(default_factory=dict)
    """The counts of the spans' records; empty for a commit of a release that did not count."""
    replaced: Annotated[Mapping[TopicPartition, Replaced], stored_by_topic(Replaced)] = field(default_factory=dict)
    """Ranges whose rows it deleted and wrote again."""
    answers: Resolved | None = None
    generations: StoredGenerations = field(default_factory=dict)
    """The generations of the chains that it names; 0 if missing."""
    positions: StoredPositions = field(default_factory=dict)
    """The table's position in each chain that it has something of (rule 4)."""
    topic_ids: Mapping[TopicPartition, str] = field(default_factory=dict)
    """The broker's ids of the topics that these positions belong to, where known."""
    plain_topic: str | None = None
    """The topic that txn actions do not name; empty for none. None in a commit without this field (rule 4)."""
    unproved: Annotated[frozenset[tuple[TopicPartition, int]], _Unproved] = frozenset()
    """Chains, with their generations, of which it was unknown whether the table has something (rollback.py, rule 7)."""
    merged_by: MergedBy | None = None
    """How all of the table's rows were merged; None if some were added, or if it is unknown (rule 5)."""

    other_tables: Mapping[str, TableKind] = field(default_factory=dict)
    """The other tables that have rows or dead letters of its spans, by URL (rule 6)."""
    secondary_versions: Mapping[str, int] = field(default_factory=dict)
    """By id of each secondary table, the version of its newest own commit (rule 8)."""

    _without_defaults = omit_defaults()

    @property
    def moves_positions(self) -> bool:
        """Whether it belongs to a load or a resolution, and not to a replacement or a completed deferred range."""
        return bool(self.spans) or self.answers is not None

    def generation(self, partition: TopicPartition) -> int:
        """The generation of a Kafka partition's chain in this commit (rule 7)."""
        return self.generations.get(partition, 0)

    def to_json(self) -> str:
        known = replace(self, generations=not_first(self.generations))
        content = _FORM.write(known) | {"topic_ids": _topic_ids_to_stored(self.positions, self.topic_ids)}
        if not content["topic_ids"]:
            del content["topic_ids"]
        return to_json({_KEY: content}).decode()

    @classmethod
    def from_json(cls, text: str) -> CommitMetadata | None:
        """The inverse of `to_json`; None for metadata of another program."""
        try:
            content = _Stored.model_validate_json(text).kafka_delta_express
            topic_ids = _TOPIC_IDS.validate_python(content.pop("topic_ids", None) or {})
            metadata = _FORM.read(content)
        except ValueError:
            return None
        return replace(metadata, topic_ids=_topic_ids_from_stored(metadata.positions, topic_ids))


_KEY = "kafka_delta_express"
_FORM = StoredForm(CommitMetadata)
_TOPIC_IDS = TypeAdapter(dict[str, dict[str, str | None]])
_ALL = "*"
"""Stands for all partitions of a topic that are not listed."""


class _Stored(BaseModel):
    kafka_delta_express: dict[str, Any]


def not_first(generations: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """The generations that are not 0; 0 if missing."""
    return {partition: generation for partition, generation in generations.items() if generation}


def _topic_ids_to_stored(
    positions: Mapping[TopicPartition, Position], topic_ids: Mapping[TopicPartition, str]
) -> dict[str, dict[str, str | None]] | None:
    """The id that most partitions of a topic have, by topic, and the exceptions; None for nothing."""
    by_topic: dict[str, dict[str, str | None]] = {}
    for topic_partition in sorted(positions):
        by_topic.setdefault(topic_partition.topic, {})[str(topic_partition.partition)] = topic_ids.get(topic_partition)
    stored: dict[str, dict[str, str | None]] = {}
    for topic, ids in by_topic.items():
        most = Counter(ids.values()).most_common(1)[0][0]
        differing = {partition: topic_id for partition, topic_id in ids.items() if topic_id != most}
        if most is not None or differing:
            stored[topic] = {_ALL: most, **differing}
    return stored or None


def _topic_ids_from_stored(
    positions: Mapping[TopicPartition, Position], stored: Mapping[str, Mapping[str, str | None]]
) -> dict[TopicPartition, str]:
    topic_ids: dict[TopicPartition, str] = {}
    for partition in positions:
        ids = stored.get(partition.topic, {})
        topic_id = ids.get(str(partition.partition), ids.get(_ALL))
        if topic_id is not None:
            topic_ids[partition] = topic_id
    return topic_ids
