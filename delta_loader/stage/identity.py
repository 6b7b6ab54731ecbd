"""Which staged markers belong to the stream and to the topic of its tables' positions, as pure functions.

Rules (common/tables/identity.py has the others):

1. A marker names the stream and, where the broker has ids, the topic that it was staged from. A marker of another
   stream is held as ``other_stream``; a marker of a topic other than the one that a table's positions belong to, as
   ``other_topic``. Neither is loaded or covered, so neither is settled, and its files stay. So is each marker for a
   main table that another stream of the topic has loaded.
2. A marker from before its chain's newest origin is a stray (delta_loader/stage/generations.py). A
   marker of a generation lower than the *table's*, in a stage that has not started that one, belongs to another stage:
   `other_topic`. So does the lower generation of the same topic that a table has got more of since this stage started
   the marker's: the new chain's first records would be in the table twice.
3. Nothing is compared with an unknown value: a marker made by hand, or one without a topic id, is judged by its topic's
   name alone.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from common.remedies import CONFIG, repair
from common.settings import Stream
from common.spans import Position, TopicPartition
from common.stage.chain import emptied
from common.stage.chain_origins import ChainOrigin, is_superseded
from common.stage.markers import Manifest, Marker, MarkerName
from common.stage.merged import id_of_input, known_as, topics_of
from common.tables.identity import NO_IDENTITY, TableIdentity, overlap
from common.tables.transactions import TxnIds
from delta_loader.plan.plan import AnyMarker, ForeignMarker, UnreadableMarker, is_by_hand

OTHER_STREAM = "other_stream"
OTHER_TOPIC = "other_topic"


@dataclass(frozen=True, slots=True)
class StreamIdentity:
    stream: Stream
    ids: TxnIds
    """With the newest generations, of the stage or of the main table."""
    origins: Mapping[TopicPartition, ChainOrigin] = field(default_factory=dict)
    """The newest origin of each chain that has one."""
    tables: Mapping[str, TableIdentity] = field(default_factory=dict)
    """By URL, the identity of the positions in each of the stream's tables."""
    transactions: Mapping[str, int] = field(default_factory=dict)
    """The main table's txn actions."""

    def younger(self, partition: TopicPartition, markers: Iterable[AnyMarker]) -> list[AnyMarker]:
        """The markers of one Kafka partition that are checked, without those from before its chain's origin.

        One that was emptied (common/stage/chain.py, rule 5) is not readable.
        """
        origin = self.origins.get(partition)
        own = [marker for marker in markers if not (isinstance(marker, Marker) and is_superseded(marker, origin))]
        start = None if origin is None else origin.position
        why = emptied((marker for marker in own if isinstance(marker, Marker)), start)
        return [
            UnreadableMarker(marker.name, why[marker.name]) if is_by_hand(marker) and marker.name in why else marker
            for marker in self.judged(partition, own)
        ]

    def judged(self, partition: TopicPartition, markers: Iterable[AnyMarker]) -> list[AnyMarker]:
        """The markers of one Kafka partition; those that are not the stream's as `ForeignMarker`."""
        ordered = sorted(markers, key=lambda each: each.name)
        instead, loaded_under = self._with_chain(partition), self._loaded_under(partition, ordered)
        sharing = self._sharing(partition)
        topic_id: str | None = None
        judged: list[AnyMarker] = []
        for marker in ordered:
            foreign = self._other_stream(marker, loaded_under)
            if foreign is None and sharing is not None:
                foreign = self._table_of_another(marker, *sharing)
            if foreign is None and instead is not None and not self._was_loaded(marker, instead):
                foreign = self._other_chain(marker.name, *instead)
            if foreign is None and isinstance(marker, Marker) and marker.manifest is not None:
                foreign = self._other_topic(marker.name, marker.manifest, topic_id)
                topic_id = topic_id or marker.manifest.topic_id
            judged.append(foreign or self._readable(marker))
        return judged

    def _with_chain(self, partition: TopicPartition) -> tuple[str, TopicPartition] | None:
        """The chain that a table has instead of this one, with the table's URL.

        Only the main table says whether the stream's topic was renamed: others may have begun with another topic.
        """
        generation, several = self.ids.generation_of(partition), self.stream.several_topics
        for url, identity in self.tables.items():
            is_main = url == self.stream.table
            origin = self.origins.get(partition) if is_main else None
            other = identity.in_its_place(partition, generation, several_topics=several or not is_main, origin=origin)
            if other is not None:
                return url, other
        return None

    def _was_loaded(self, marker: AnyMarker, instead: tuple[str, TopicPartition]) -> bool:
        """Whether the main table has a marker's records by its own chain, from before another came in its place."""
        partition, (url, other) = marker.name.topic_partition, instead
        if not isinstance(marker, Marker) or marker.manifest is None or not overlap(other, partition):
            return False
        position = self.ids.position(self.transactions, partition)
        is_covered = position is not None and marker.span.end <= position
        return (
            is_covered
            and marker.manifest.generation == self.ids.generation_of(partition)
            and not any(
                _differ(
                    id_of_input(partition.topic, topic, marker.manifest.topic_id),
                    id_of_input(other.topic, topic, self.tables[url].chains[other].topic_id),
                )
                for topic in topics_of(partition.topic)
            )
        )

    def _loaded_under(self, partition: TopicPartition, ordered: Sequence[AnyMarker]) -> str | None:
        """The app_id of the other stream that loaded a chain's settled start; None where this stream loaded it.

        A late claim may have taken the name of a settled marker: it is not the one that the next marker continues.
        """
        if self.ids.position(self.transactions, partition) is not None:
            return None
        known = self.tables.get(self.stream.table, NO_IDENTITY)
        other = known.other_stream(partition, self.ids.generation_of(partition))
        if other is None:
            return None
        by_start = {marker.name.start: marker for marker in ordered}
        is_cut_off = any(
            marker.previous is not None and not _continues(marker, by_start.get(marker.previous))
            for marker in ordered
            if isinstance(marker, Marker)
        )
        return other if is_cut_off else None

    def _other_stream(self, marker: AnyMarker, loaded_under: str | None) -> ForeignMarker | None:
        staged_for = _staged_for(marker)
        app_id = loaded_under if staged_for in (None, self.stream.app_id) else staged_for
        if app_id is None:
            return None
        partition, table = marker.name.topic_partition, self.stream.table
        theirs = replace(self.ids, app_id=app_id).position(self.transactions, partition)
        loaded = "" if theirs is None else f"; {table} has {partition} up to {theirs} under that app_id"
        reason = f"was staged for the app_id {app_id}"
        if app_id != staged_for:
            reason = f"continues a chain that was loaded under the app_id {app_id}"
        return ForeignMarker(
            marker.name,
            OTHER_STREAM,
            f"the marker {marker.name.path} {reason}, but this stream's app_id is {self.stream.app_id}{loaded}",
            f"set app_id: {app_id} again; or start a new chain for {self.stream.app_id} after what its table has: "
            f"`{_restart(partition)} --yes`",
        )

    def _sharing(self, partition: TopicPartition) -> tuple[str, Position | None] | None:
        """The other stream that has loaded the main table from this Kafka partition, and up to where."""
        sharing = self.tables.get(self.stream.table, NO_IDENTITY).sharing_stream(partition)
        if sharing is None:
            return None
        app_id, chain, generation = sharing
        ids = replace(self.ids, app_id=app_id, generations={chain: generation})
        return app_id, ids.position(self.transactions, chain)

    def _table_of_another(self, marker: AnyMarker, app_id: str, position: Position | None) -> ForeignMarker | None:
        """Why a marker's records may be in the table already, by another stream.

        Nothing for a marker whose records come after what the other stream has loaded, or that has none.
        """
        own, table, name = self.stream.app_id, self.stream.table, marker.name
        if is_by_hand(marker) or (position is not None and name.start >= position):
            return None
        restart = f"`{_restart(name.topic_partition)} --at {position} --yes`"
        after = "" if position is None else f"; or begin its chain after what {app_id!r} has loaded: {restart}"
        return ForeignMarker(
            name,
            OTHER_STREAM,
            f"the stream {app_id!r}, which reads the same topic, has loaded {table}: records of the marker {name.path} "
            "would be in it twice",
            f"put the table of {own!r} back, or give it one of its own; markers for the wrong table are then reported "
            f"with the command that stages their records again{after}",
        )

    def _other_chain(self, name: MarkerName, url: str, other: TopicPartition) -> ForeignMarker:
        partition, known = name.topic_partition, self.tables[url].chains[other]
        where = "starts it at Kafka's first record, --at OFFSET at another one"
        if overlap(other, partition):
            where = "starts it after what the table has of it"
        restart = f"`{_restart(partition)} --yes` {where}"
        remedy = (
            f"use another app_id for the stream; or load this topic into the table too, with a new chain: {restart}"
        )
        if url != self.stream.table:  # a restart looks at the main one, which has no such chain
            topics = ", ".join(topics_of(other.topic))
            remedy = (
                f"set topics: [{topics}] again and run `delta-loader run {CONFIG} --once`, which completes a load that "
                f"was cut off between this table and {self.stream.table}; then set the new topics again, and {restart}"
            )
        return ForeignMarker(
            name,
            OTHER_TOPIC,
            f"the table {url} has the positions of the topic {known_as(other.topic)} under the app_id "
            f"{self.stream.app_id} ({other} up to {known.position}), but the marker {name.path} was staged from the "
            f"topic {known_as(partition.topic)}",
            remedy,
        )

    def _other_topic(self, name: MarkerName, manifest: Manifest, topic_id: str | None) -> ForeignMarker | None:
        """Check the topic; ``topic_id`` is from the markers before it."""
        partition = name.topic_partition
        for url, identity in self.tables.items():
            known = identity.chains.get(partition)
            if known is None:
                continue
            if url == self.stream.table and known.grew_since(self.origins.get(partition)):
                return ForeignMarker(
                    name,
                    OTHER_TOPIC,
                    f"since the chain of the marker {name.path} was started, as generation {manifest.generation} of "
                    f"{partition}, the table {url} has got records of it up to {known.position} by generation "
                    f"{known.generation}, from another stage: records of the chain would be in it twice",
                    f"let one config alone load {known_as(partition.topic)} into this table, and start the chain "
                    f"after what it has: `{_restart(partition)} --yes`",
                )
            if manifest.generation > known.generation:
                continue
            if manifest.generation < known.generation:
                return self._of_another(
                    name,
                    f"the marker {name.path} is of generation {manifest.generation} of {partition}, but the table "
                    f"{url} has it up to {known.position} of generation {known.generation}, "
                    "which this stage has not started",
                )
            if _differ(known.topic_id, manifest.topic_id):
                return self._of_another(
                    name,
                    f"the marker {name.path} was staged from a topic {known_as(partition.topic)} with the id "
                    f"{manifest.topic_id}, but the table {url} has {partition} up to {known.position} "
                    f"of one with the id {known.topic_id}",
                )
        if _differ(topic_id, manifest.topic_id):
            return self._of_another(
                name,
                f"the marker {name.path} was staged from a topic {known_as(partition.topic)} with the id "
                f"{manifest.topic_id}, but the markers before it from one with the id {topic_id}",
            )
        return None

    def _of_another(self, name: MarkerName, problem: str) -> ForeignMarker:
        restart = f"`{_restart(name.topic_partition)} --yes`"
        return ForeignMarker(
            name,
            OTHER_TOPIC,
            problem,
            f"use another app_id for the stream; or load this topic's records into the table too, with a new chain: "
            f"{restart} starts it at Kafka's first record, --at OFFSET at another one",
        )

    def _readable(self, marker: AnyMarker) -> AnyMarker:
        """The marker itself; unreadable if its generation is above its partition's (stage/generations.py, rule 3)."""
        if not isinstance(marker, Marker) or marker.manifest is None:
            return marker
        generation, known = marker.manifest.generation, self.ids.generation_of(marker.name.topic_partition)
        if generation <= known:
            return marker
        problem = f"it is of generation {generation} of its topic, but the new chain is of {known}"
        return UnreadableMarker(marker.name, f"{problem}; the next run checks again")


def _continues(marker: Marker, before: AnyMarker | None) -> bool:
    if isinstance(before, Marker) and before.span.end != marker.span.start:
        return False
    return before is not None and not _differ(_staged_for(before), _staged_for(marker))


def _staged_for(marker: AnyMarker) -> str | None:
    match marker:
        case Marker():
            return None if marker.manifest is None else marker.manifest.app_id
        case UnreadableMarker():
            return marker.app_id
        case ForeignMarker():
            return None


def _differ(first: str | None, other: str | None) -> bool:
    return first is not None and other is not None and first != other


def _restart(partition: TopicPartition) -> str:
    return repair("restart", partition)
