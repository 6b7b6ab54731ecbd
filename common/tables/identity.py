"""Which stream, topic and generation a table's positions belong to, by its own commits.

Rules:

1. A position belongs to an app_id, a chain (a Kafka partition, or several joined ones), the broker's topic id, and a
   generation. Positions that differ in any of them are never compared: the same offsets of another topic are other
   records.
2. Every own commit that moves positions names all of the table's chains (common/tables/commit_metadata.py, rule 4), so
   the newest one is enough. If an older release wrote the newest one, older own commits are read too: they name the
   chains that they moved. Chains that no commit names are read from the txn actions. Their topic ids are not known, and
   nothing is compared with an unknown id.
3. A table without own commits is new, or kafka-delta-ingest's: its txn actions are the stream's.
4. The txn actions of one topic, the *plain* one, do not name it (common/tables/transactions.py, rule 3). It is the
   topic of the stream that had one topic when it first committed.
5. A chain may have lost its start, while no own commit names it and commits of other streams do. It was then loaded
   under the app_id of the newest of these commits: the stream's app_id was edited, and the table was not recreated.
6. No record is in two chains. Once a chain of joined topics is loaded, the chains of its single topics are not
   continued, and the other way round, except from a new generation that starts after what the table has: if the chain
   in its place has been loaded further since, nothing of that generation is loaded either. A chain that the table has
   something of is not judged by this: its origin says what the table had of the chain itself.
7. A table may have a Kafka partition of another stream, under another chain's name. The table then counts as that
   stream's up to its position: both streams share the topic (common/stage/merged.py, rule 4), and their records are the
   same.
8. A new generation of the same topic starts after what the table has of the topic. If another stage has loaded more of
   the earlier generation since, nothing of the new one is loaded: its first records would be in the table twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from common.settings import Stream
from common.spans import Offset, Position, TopicPartition, position_after
from common.stage.chain_origins import ChainOrigin
from common.stage.merged import stream_of, topics_of
from common.tables.changes import MergedBy
from common.tables.commit_metadata import CommitMetadata
from common.tables.history import LoggedCommit, with_lineage
from common.tables.rollback import FARTHEST
from common.tables.transactions import TxnIds

MOST_OLDER = 2_000
"""How many commits are read, from the newest own one down, if there are commits of older releases."""


@dataclass(frozen=True, slots=True)
class TableChain:
    generation: int
    position: Position
    topic_id: str | None = None
    """None if unknown."""

    def grew_since(self, origin: ChainOrigin | None) -> bool:
        """Whether the table has got more of this generation since ``origin`` started a later one (rule 8)."""
        if origin is None or origin.loaded_before is None or self.generation >= origin.generation:
            return False
        return self.topic_id is not None and self.topic_id == origin.topic_id and self.position > origin.loaded_before


@dataclass(frozen=True, slots=True)
class TableIdentity:
    plain_topic: str | None = None
    """The topic that txn actions do not name; empty for none, None while no commit has it."""
    chains: Mapping[TopicPartition, TableChain] = field(default_factory=dict)
    unproved: frozenset[tuple[TopicPartition, int]] = frozenset()
    """Chains, with their generations, that the table may or may not have something of (rollback.py, rule 7)."""
    is_whole: bool = True
    """Whether ``chains`` are all that the table has; false if the newest own commits are of an older release."""
    merged_by: MergedBy | None = None
    """How all of the table's rows were merged; None if some were added, or if it is unknown."""
    loaded_under: Mapping[tuple[TopicPartition, int], str] = field(default_factory=dict)
    """By chain and generation, the app_id of the other stream that loaded it last."""
    newest_own: int | None = None
    """The version of the newest own commit that was read."""
    secondary_versions: Mapping[str, int] = field(default_factory=dict)
    """For a main table: the newest own commits of the secondary ones (common/tables/commit_metadata.py, rule 8)."""

    def other_stream(self, partition: TopicPartition, generation: int) -> str | None:
        """The app_id that loaded a chain whose start is gone and that has no position (rule 5)."""
        known = self.chains.get(partition)
        is_own = known is not None and known.generation == generation
        return None if is_own else self.loaded_under.get((partition, generation))

    def sharing_stream(self, partition: TopicPartition) -> tuple[str, TopicPartition, int] | None:
        """The app_id, chain and generation that loaded a Kafka partition under another name; None where the stream did.

        See rule 7.
        """
        if partition in self.chains:
            return None
        for (chain, generation), app_id in self.loaded_under.items():
            is_shared = stream_of(chain.topic) != stream_of(partition.topic)
            if is_shared and overlap(chain, partition):
                return app_id, chain, generation
        return None

    def after(self, metadata: CommitMetadata, version: int) -> TableIdentity:
        if not metadata.positions:
            return self
        return TableIdentity(
            metadata.plain_topic,
            _named_by(metadata),
            metadata.unproved,
            merged_by=metadata.merged_by,
            loaded_under=self.loaded_under,
            newest_own=version,
            secondary_versions=metadata.secondary_versions,
        )

    def with_chains(self, moved: Mapping[TopicPartition, TableChain]) -> dict[TopicPartition, TableChain]:
        """All chains once some have moved; those that they replace are left out (rule 6)."""
        kept = {
            partition: known
            for partition, known in self.chains.items()
            if partition not in moved and not any(overlap(partition, other) for other in moved)
        }
        for partition, known in moved.items():
            before = self.chains.get(partition)
            same = before is not None and before.generation == known.generation
            topic_id = before.topic_id if same and before is not None and known.topic_id is None else known.topic_id
            kept[partition] = replace(known, topic_id=topic_id)
        return kept

    def loaded_in_its_place(self, partition: TopicPartition) -> Position:
        """How far the table has the chains that share a Kafka partition with this one, as a sum."""
        return Position(sum(self.chains[other].position for other in self._overlapping(partition)))

    def _overlapping(self, partition: TopicPartition) -> list[TopicPartition]:
        return [other for other in self.chains if other != partition and overlap(other, partition)]

    def in_its_place(
        self,
        partition: TopicPartition,
        generation: int,
        *,
        several_topics: bool,
        origin: ChainOrigin | None = None,
    ) -> TopicPartition | None:
        """The chain that the table has instead of a staged one, which may not also be loaded; None for none.

        ``generation`` is the staged chain's, ``origin`` the one that started it, where the table is the main one;
        ``several_topics`` says whether the stream has more than one topic.
        """
        is_new = origin is not None and origin.generation == generation and partition not in self.chains
        before = None if origin is None or not is_new else origin.loaded_before
        has_grown = before is not None and self.loaded_in_its_place(partition) > before
        for other in self._overlapping(partition):
            if has_grown or generation <= self.chains[other].generation:
                return other
        if several_topics or generation or not self.plain_topic or self.plain_topic == partition.topic:
            return None
        if any(known.topic == partition.topic for known in self.chains):
            return None
        return min((other for other in self.chains if other.topic == self.plain_topic), default=None)


NO_IDENTITY = TableIdentity()
"""The identity of a table without any information in its commits."""


def overlap(first: TopicPartition, other: TopicPartition) -> bool:
    """Whether two chains have a Kafka partition in common."""
    return first.partition == other.partition and not set(topics_of(first.topic)).isdisjoint(topics_of(other.topic))


def identity_of(
    history: Iterable[LoggedCommit], stream: Stream, ids: TxnIds, transactions: Mapping[str, int]
) -> TableIdentity:
    """The identity in a table's own commits, from the newest down (rule 2); ``transactions`` are the newest ones."""
    chains: dict[TopicPartition, TableChain] = {}
    unproved: frozenset[tuple[TopicPartition, int]] = frozenset()
    is_whole, merged_by = False, None
    plain = None if any(_is_plain(name, ids.app_id) for name in transactions) else _no_plain(ids, transactions)
    loaded_under: dict[tuple[TopicPartition, int], str] = {}
    own, newest_own = 0, None
    secondary_versions: Mapping[str, int] = {}
    for number, (commit, on_lineage) in enumerate(with_lineage(history), 1):
        metadata = commit.metadata
        if metadata is not None and metadata.app_id == ids.app_id:
            own, newest_own = own or number, commit.version if newest_own is None else newest_own
            if not is_whole:
                _add_chains(chains, metadata)
                is_whole, unproved = bool(metadata.positions), metadata.unproved
                secondary_versions = metadata.secondary_versions
                named = metadata.plain_topic if is_whole else plain_of(metadata, ids, transactions)
                plain = named if plain is None else plain
            if metadata.positions and on_lineage:
                merged_by = metadata.merged_by
                break
        elif metadata is not None:
            for partition, known in _named_by(metadata).items():
                loaded_under.setdefault((partition, known.generation), metadata.app_id)
        if number >= FARTHEST or (own and number - own >= MOST_OLDER):
            break
    table_identity = TableIdentity(
        plain,
        chains,
        unproved,
        is_whole=is_whole or not own,
        merged_by=merged_by,
        loaded_under=loaded_under,
        newest_own=newest_own,
        secondary_versions=secondary_versions,
    )
    return with_transactions(table_identity, stream, ids, transactions)


def _add_chains(chains: dict[TopicPartition, TableChain], metadata: CommitMetadata) -> None:
    """The chains that an older commit names, where no newer one does."""
    for partition, known in _named_by(metadata).items():
        newer = chains.get(partition)
        if newer is None and not any(overlap(partition, other) for other in chains):
            chains[partition] = known
        elif newer is not None and newer.generation == known.generation and newer.topic_id is None:
            chains[partition] = replace(newer, topic_id=known.topic_id)


def with_transactions(
    identity: TableIdentity, stream: Stream, ids: TxnIds, transactions: Mapping[str, int]
) -> TableIdentity:
    """The identity with the current positions of txn actions, and with the chains that only they name."""
    chains, topics = dict(identity.chains), {partition.topic for partition in identity.chains}
    in_table = ids.in_table(identity.plain_topic)
    plain = identity.plain_topic or stream.chain_of(stream.topics[0])
    for txn_id, last in transactions.items():
        chain = in_table.chain_of(txn_id, plain)
        if chain is None:
            continue
        partition, generation = chain
        known, position = chains.get(partition), position_after(Offset(last))
        if known is not None and known.generation >= generation:
            if known.generation == generation and known.position != position:
                chains[partition] = replace(known, position=position)
        elif known is not None or partition.topic in topics or _takes_alone(stream, partition, identity.chains):
            chains[partition] = TableChain(generation, position)
    return replace(identity, chains=chains)


def _takes_alone(stream: Stream, partition: TopicPartition, named: Iterable[TopicPartition]) -> bool:
    """Whether a chain that only a txn action names is the stream's, and no commit names one in its place."""
    return stream.takes(partition.topic) and not any(overlap(partition, other) for other in named)


def _named_by(metadata: CommitMetadata) -> dict[TopicPartition, TableChain]:
    """The chains that a commit names: all of the table's, or those that a commit of an older release moved."""
    positions: Mapping[TopicPartition, Position] = metadata.positions
    if not positions:
        answered = {} if metadata.answers is None else metadata.answers.positions
        positions = {partition: span.end for partition, span in metadata.spans.items()} | dict(answered)
    return {
        partition: TableChain(metadata.generation(partition), position, metadata.topic_ids.get(partition))
        for partition, position in positions.items()
    }


def _is_plain(txn_id: str, app_id: str) -> bool:
    """Whether a txn action is a Kafka partition's of this stream and names no topic."""
    partition, _, generation = txn_id.removeprefix(f"{app_id}-").partition("@")
    return txn_id.startswith(f"{app_id}-") and partition.isdecimal() and (not generation or generation.isdecimal())


def _no_plain(ids: TxnIds, transactions: Mapping[str, int]) -> str | None:
    """The plain topic of a table whose txn actions all name theirs; None without any txn actions."""
    named = ids.in_table("")
    return "" if any(named.chain_of(name, "") is not None for name in transactions) else None


def plain_of(metadata: CommitMetadata, ids: TxnIds, transactions: Mapping[str, int]) -> str | None:
    """The plain topic, by a commit of an older release: the end of its span is the txn action that names no topic."""
    for partition, span in metadata.spans.items():
        generation = metadata.generation(partition)
        plain = transactions.get(ids.in_table(partition.topic).of(partition, generation)) == span.last_offset
        named = transactions.get(ids.in_table("").of(partition, generation)) == span.last_offset
        if plain and not (named and ids.several_topics):
            return partition.topic
    return None
