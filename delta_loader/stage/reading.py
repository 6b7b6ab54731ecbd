"""A stream's part of the stage: one listing for each topic, and the markers that matter.

Rules:

1. A listing has names and ages; a marker's content is read only when its positions are not loaded yet, or when it is
   the one just before them (it may overlap the table's position, and has the time through which the table is complete).
2. At most ``window`` unloaded markers of a partition are read at a time, so 100,000 waiting markers cost time and no
   memory. They are the next ones by position, and a plan over a prefix of a chain is a prefix of the plan.
3. A marker that disappeared since the listing is treated as not listed, and the tables are read again: another loader
   may have loaded and settled it.

How long staged markers have waited is decided by the listing and the tables' positions (`oldest_waiting_ms`).
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress

from common.errors import MarkerError, NewerFormatError
from common.ports import ObjectStore, StoredObject
from common.settings import Stream
from common.settings.overlap import TopicReaders
from common.spans import Offset, TopicPartition, position_after
from common.stage.appeared_routes import appeared, with_appeared_of
from common.stage.chain_origins import BEGIN, ChainOrigin, listed_origin, newest_paths
from common.stage.idle import (
    IDLE,
    HeldFact,
    IdleFact,
    StreamFact,
    WriterFacts,
    facts_from_bytes,
    holds_of_running_writers,
)
from common.stage.marker_contents import manifest_of
from common.stage.markers import (
    DONE,
    STRAY,
    Manifest,
    Marker,
    MarkerName,
    StagedFile,
    is_late_path,
    late_path,
    marker_from_bytes,
)
from common.stage.merged import is_merged, kafka_topic
from common.stage.topic_owners import StageTopicOwners
from common.tables.deferred_ranges import DeferredRanges
from common.tables.identity import NO_IDENTITY, TableIdentity
from common.tables.state import TableState
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.plan.plan import AnyMarker, UnreadableMarker, for_tables
from delta_loader.ports import ParallelMap
from delta_loader.stage.listed import Listed, Listing, listing_of, without

_IDLE_MS = 86_400_000


class Stage:
    """The completed markers, as the loader sees them."""

    def __init__(self, store: ObjectStore, parallel: ParallelMap, owners: StageTopicOwners | None = None) -> None:
        """Over the stage's root; ``parallel`` reads markers, ``owners`` says which chains are whose."""
        self.store = store
        """It also contains mixed files."""
        self._parallel = parallel
        self._owners = owners

    def listing(self, stream: Stream) -> Listing:
        """All markers of a stream's topics. Raises StoreError, and MarkerError for an unreadable topic owner."""
        self._learn()
        listing = listing_of(self._found(stream))
        if self._owners is None or stream.pattern is None or not listing:
            return listing
        self._owners.agree({kafka_topic(source.topic) for source in listing if not is_merged(source.topic)})
        return {source: listed for source, listed in listing.items() if stream.takes(source.topic)}

    def _learn(self) -> None:
        if self._owners is not None:
            self._owners.read_all()

    def _found(self, stream: Stream) -> Iterator[tuple[MarkerName, StoredObject]]:
        folders = _folders(DONE, stream)
        for marker_item in (item for folder in folders for item in self.store.list(folder)):
            name = MarkerName.parse(marker_item.path)
            if name is not None and stream.takes(name.topic_partition.topic):
                yield name, marker_item

    def of_no_stream(self, streams: Collection[Stream]) -> Iterator[tuple[Listed, Manifest]]:
        """The chains of topics that none of these streams takes, with the manifest of each one's newest marker.

        Chains whose newest marker has no content, or cannot be read, are left out. Raises StoreError.
        """
        self._learn()
        read_by = TopicReaders(streams)
        items = ((MarkerName.parse(item.path), item) for item in self.store.list(f"{DONE}/"))
        others = [
            (name, item) for name, item in items if name is not None and not read_by.taking(name.topic_partition.topic)
        ]
        chains = list(listing_of(others).values())
        newest = [(listed.names[-1], listed.paths(listed.names[-1])[0]) for listed in chains]
        contents = self._parallel(lambda item: self.store.read(item[1]), newest)
        for listed, (name, _), data in zip(chains, newest, contents, strict=True):
            manifest = manifest_of(name, data)
            if manifest is not None:
                yield listed, manifest

    def facts(self) -> tuple[tuple[IdleFact, ...], tuple[StreamFact, ...]]:
        """Writers' facts about their topics. Raises StoreError.

        Objects that are a day older than the newest one are deleted, so ages are the store's. Each fact describes its
        own time, and stays true.
        """
        items = list(self.store.list(f"{IDLE}/"))
        newest_ms = max((item.modified_ms for item in items), default=0)
        recent = [item for item in items if item.modified_ms > newest_ms - _IDLE_MS]
        if len(recent) < len(items):
            self.store.delete([item.path for item in items if item not in recent])
        facts = [facts for _, facts in self._written(recent)]
        idle = tuple(fact for each in facts for fact in each.partitions)
        return idle, tuple(fact for each in facts for fact in each.streams)

    def held_by_writers(self) -> tuple[dict[TopicPartition, HeldFact], tuple[IdleFact, ...]]:
        """The newest report that a writer holds a partition, by Kafka partition. Raises StoreError.

        Also the partitions that had nothing new.
        """
        reports = self._written(list(self.store.list(f"{IDLE}/")))
        return holds_of_running_writers(reports), tuple(fact for _, each in reports for fact in each.partitions)

    def _written(self, items: Sequence[StoredObject]) -> list[tuple[int, WriterFacts]]:
        """The record of each of these writers, with its time by the store's clock."""
        contents = self._parallel(lambda item: self.store.read(item.path), items)
        facts: list[tuple[int, WriterFacts]] = []
        for item, data in zip(items, contents, strict=True):
            with suppress(MarkerError):  # it is not needed, and was written by another release
                facts.append((item.modified_ms, facts_from_bytes(item.path, data or b"")))
        return facts

    def origins(self, stream: Stream) -> dict[TopicPartition, ChainOrigin]:
        """The origin of each chain that has one (chain_origins.py). Raises StoreError, MarkerError."""
        self._learn()
        folders = _folders(BEGIN, stream)
        newest = newest_paths(item.path for folder in folders for item in self.store.list(folder))
        paths = {partition: path for partition, path in newest.items() if stream.takes(partition.topic)}
        origins = self._parallel(lambda item: listed_origin(self.store, *item), list(paths.items()))
        return {partition: origin for partition, origin in zip(paths, origins, strict=True) if origin is not None}

    def generations(self, stream: Stream) -> dict[TopicPartition, int]:
        """The generation of each chain that has an origin. Raises StoreError, MarkerError."""
        return {partition: origin.generation for partition, origin in self.origins(stream).items()}

    def read(
        self, listing: Listing, names: Iterable[MarkerName], tables: Mapping[str, str]
    ) -> dict[MarkerName, tuple[AnyMarker, ...]]:
        """The content of some markers, with tables spelled as in ``tables``; nothing for one that disappeared.

        Raises StoreError.
        """
        objects = [(name, path) for name in names for path in listing[name.topic_partition].paths(name)]
        contents = self._parallel(lambda item: self.store.read(item[1]), objects)
        markers: dict[MarkerName, tuple[AnyMarker, ...]] = {}
        for (name, path), data in zip(objects, contents, strict=True):
            if data is not None:
                markers[name] = (*markers.get(name, ()), _parse(name, data, tables, path))
        return markers

    def lacking(
        self, files: Mapping[TopicPartition, Sequence[tuple[ObjectStore, StagedFile]]]
    ) -> dict[TopicPartition, tuple[str, str]]:
        """For the partitions of which a file, each with its store, is damaged: path and damage of the first.

        Raises StoreError.
        """
        wanted = [(partition, *item) for partition, of_source in files.items() for item in of_source]
        there = self._parallel(lambda item: item[1].stat(item[2].path), wanted)
        gone: dict[TopicPartition, tuple[str, str]] = {}
        for (partition, _, file), stored in zip(wanted, there, strict=True):
            damage = file.damage(stored)
            if damage is not None:
                gone.setdefault(partition, (file.path, damage))
        return gone

    def appeared(self, stream: Stream) -> Stream:
        """The stream with the tables that have appeared by its `route_table`. Raises StoreError, MarkerError."""
        return with_appeared_of(stream, self.store)

    def routes(self, stream: Stream) -> tuple[str, ...]:
        """The routes that have appeared by its `route_table`, in that order. Raises StoreError, MarkerError."""
        return () if stream.routing.route_table is None else appeared(self.store, stream.app_id).routes

    def delete(
        self,
        listing: Listing,
        finished: Mapping[TopicPartition, Sequence[MarkerName]],
        judged: Mapping[MarkerName, Collection[AnyMarker]],
        tables: Mapping[str, str],
    ) -> frozenset[MarkerName]:
        """Delete markers under all their names; returns those that are gone now. Raises StoreError.

        In each partition from the lowest on, one after the other, so a crash leaves no lower one behind
        (load/settle.py, rule 3); partitions in parallel. Each is read again right before: a marker that differs from
        ``judged`` (as `read` returned it, with ``tables``) was replaced in the meantime, and stays with all above it.
        If one is gone by then, all above it stay, too (load/settling.py, rule 3).
        """

        def delete_in_order(partition: TopicPartition) -> list[MarkerName]:
            gone: list[MarkerName] = []
            for name in sorted(finished[partition]):
                stored = {path: self.store.read(path) for path in listing[partition].paths(name)}
                markers = [_parse(name, data, tables, path) for path, data in stored.items() if data is not None]
                if not markers or any(marker not in judged[name] for marker in markers):
                    return gone
                self.store.delete(stored)
                gone.append(name)
            return gone

        return frozenset(name for names in self._parallel(delete_in_order, list(finished)) for name in names)

    def delete_waiting(self, markers: Iterable[AnyMarker]) -> None:
        """Delete the mixed files of markers that are gone; `delta-loader clean` finds those that a crash leaves.

        Raises StoreError.
        """
        staged = (
            file for marker in markers if isinstance(marker, Marker) for table in marker.tables for file in table.files
        )
        self._parallel(lambda path: self.store.delete([path]), [file.path for file in staged if file.is_mixed])

    def put_aside(self, listing: Listing, names: Sequence[MarkerName]) -> Listing:
        """Copy late claims below ``stray/``, then delete them, in the order given; returns the listing without them.

        Raises StoreError. A copy's name is derived from its bytes, so this can be repeated after any crash.
        """
        for name in names:
            for path in listing[name.topic_partition].paths(name):
                data = self.store.read(path)
                if data is not None:
                    self.store.create(late_path(path, data), data)
                    self.store.delete([path])
        return without(listing, names)

    def aside(self, stream: Stream) -> tuple[int, int]:
        """How many markers of a stream's topics were moved aside: late claims, and by rewinds. Raises StoreError."""
        folders = _folders(f"{STRAY}/{DONE}", stream)
        late = rewound = 0
        for aside_item in (item for prefix in folders for item in self.store.list(prefix)):
            if stream.takes(aside_item.path.split("/")[2]):
                late += is_late_path(aside_item.path)
                rewound += not is_late_path(aside_item.path)
        return late, rewound


def _folders(root: str, stream: Stream) -> list[str]:
    """The folders of the stream's chains; the whole root if their names are not known in advance."""
    by_name = stream.pattern is None and not stream.may_merge
    return [f"{root}/{stream.chain_of(topic)}/" for topic in stream.topics] if by_name else [f"{root}/"]


def _parse(name: MarkerName, data: bytes, tables: Mapping[str, str], path: str) -> AnyMarker:
    try:
        return for_tables(marker_from_bytes(name, data, path), tables)
    except MarkerError as error:
        return UnreadableMarker(name, error.problem, isinstance(error, NewerFormatError))


def oldest_waiting_ms(
    stage: Stage, stream: Stream, state: TableState | None, identity: TableIdentity = NO_IDENTITY
) -> int | None:
    """When the oldest marker was written that not all of the stream's tables have, or None.

    ``state`` is that of the stream's main table, ``identity`` that of its positions. Raises StoreError.
    """
    listing, transactions = stage.listing(stream), {} if state is None else state.transactions
    ids = TxnIds(stream.app_id, stream.several_topics, plain_topic=identity.plain_topic)
    ids = ids.at(stage.generations(stream), transactions, listing)
    deferred = DeferredRanges.read(transactions)
    written: list[int] = []
    for partition, listed in listing.items():
        position = ids.position(transactions, partition)
        position = None if position is None else deferred.floor(ids, stream.secondary_tables, partition, position)
        written += [listed.modified_ms[name] for name in listed.names if position is None or name.start >= position]
    return min(written, default=None)


def oldest_of_no_stream_ms(
    stage: Stage, streams: Collection[Stream], url: str, transactions: Mapping[str, int]
) -> int | None:
    """When the oldest marker with files for the table was written, in chains that none of the streams takes.

    These are chains of removed streams, or of another config. Only chains whose newest marker has files for the table
    count. Raises StoreError.
    """
    written: list[int] = []
    for listed, newest in stage.of_no_stream(streams):
        if comparable(url) in {comparable(table.url) for table in newest.tables}:
            ids = TxnIds(newest.app_id, several_topics=False, generations={listed.partition: newest.generation})
            last = max((transactions[name] for name in ids.names(listed.partition) if name in transactions), default=-1)
            position = position_after(Offset(last))
            written += [ms for name, ms in listed.modified_ms.items() if name.start >= position]
    return min(written, default=None)
