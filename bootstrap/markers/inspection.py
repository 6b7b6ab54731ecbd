"""Reads the stage and, for a verification, the footers of the data files. Concurrently, in bounded memory.

Rules:

1. The stage is listed once for all partitions, and only the requested markers are read.
2. Only the footer of a data file is read, and no rows.
3. A table that cannot be read does not hide the chains: its positions are then unknown, and the reason is reported.
4. Objects among a stream's markers whose names are not marker names are reported: the services pass over them, so a
   marker that a person meant to make by hand is not there.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq

from bootstrap.apply.stage import read_marker
from bootstrap.markers.chains import (
    Broken,
    ChainFinding,
    Footer,
    InspectedFile,
    MissingFile,
    PartitionChain,
    file_findings,
    link_findings,
)
from bootstrap.plans.state import StagedMarker, without_emptied
from common.errors import KafkaDeltaExpressError, UsageError
from common.ports import ObjectStore, StoredObject
from common.settings import Settings, Stream
from common.settings.stores import stage_store, table_stores
from common.spans import TopicPartition
from common.stage.chain_origins import is_superseded, newest_origin
from common.stage.data_files import STAGED
from common.stage.markers import DONE, Marker, MarkerName, StagedFile, markers_of_topic
from common.stage.topic_owners import StageTopicOwners
from common.storage.store import FsspecStore
from common.tables.delta_log import read_table_state
from common.tables.stream_history import read_identity
from common.tables.transactions import TxnIds

_THREADS = 32
_OFFSET = "_kafka_offset"


@dataclass(frozen=True, slots=True)
class PartitionFilter:
    topic: str | None = None
    partition: int | None = None

    def takes(self, partition: TopicPartition) -> bool:
        return self.topic in (None, partition.topic) and self.partition in (None, partition.partition)


@dataclass(slots=True)
class ChainInspector:
    settings: Settings
    problems: list[str] = field(default_factory=list)
    """Parts of the stage that could not be read (rule 3)."""
    misnamed: list[str] = field(default_factory=list)
    """Objects whose names are not marker names (rule 4)."""
    _store: FsspecStore = field(init=False)
    _open: Callable[[str], FsspecStore] = field(init=False)

    def __post_init__(self) -> None:
        self._store = stage_store(self.settings)
        self._open = table_stores(self.settings)
        StageTopicOwners(self.settings, self._store, make=False).read_all()

    def chains(self, wanted: PartitionFilter) -> list[PartitionChain]:
        """The existing chains. Raises StoreError, and UsageError for a topic that no stream takes."""
        if wanted.topic is not None and self.settings.stream_of(wanted.topic) is None:
            msg = f"no stream of the config reads the topic {wanted.topic!r}"
            raise UsageError(msg, "use a topic of streams[].topics")
        objects: dict[TopicPartition, list[tuple[MarkerName, StoredObject]]] = {}
        for item in self._store.list(f"{DONE}/" if wanted.topic is None else markers_of_topic(wanted.topic)):
            name = MarkerName.parse(item.path)
            if name is None:
                self._report_misnamed(item.path)
            elif wanted.takes(name.topic_partition):
                objects.setdefault(name.topic_partition, []).append((name, item))
        tables: dict[str, tuple[dict[str, int], TxnIds]] = {}
        with ThreadPoolExecutor(_THREADS) as pool:
            chains = []
            for partition, own_objects in sorted(objects.items()):
                stream = self.settings.stream_of(partition.topic)
                if stream is None:
                    continue
                if stream.app_id not in tables:
                    tables[stream.app_id] = self._positions(stream)
                listed = [(name, item.path) for name, item in sorted(own_objects)]
                read = pool.map(lambda marker: read_marker(self._store, *marker), listed)
                staged = [marker for marker in read if marker is not None]
                transactions, ids = tables[stream.app_id]
                chains.append(self._chain(partition, staged, dict(own_objects), transactions, ids))
        return chains

    def _report_misnamed(self, path: str) -> None:
        _, topic, *rest = path.split("/")
        if rest and rest[-1] and self.settings.stream_of(topic) is not None:
            self.misnamed.append(
                f"{path} is not a marker, and the services ignore it: markers are named "
                f"done/{topic}/PARTITION/OFFSET.done, with digits, and those of the partition without zeros in front"
            )

    def _chain(
        self,
        partition: TopicPartition,
        staged: Sequence[StagedMarker],
        objects: dict[MarkerName, StoredObject],
        transactions: dict[str, int],
        ids: TxnIds,
    ) -> PartitionChain:
        chain_origin = newest_origin(self._store, partition)
        begun = {} if chain_origin is None else {partition: chain_origin.generation}
        ids = ids.at(begun, transactions, [partition])
        generation = ids.generations[partition]
        own_markers = tuple(
            marker
            for marker in staged
            if marker.marker is None
            or not (marker.marker.is_older_than(generation) or is_superseded(marker.marker, chain_origin))
        )
        position = ids.position(transactions, partition)
        return PartitionChain(
            partition,
            ids.app_id,
            without_emptied(own_markers, position, chain_origin),
            position,
            generation,
            chain_origin,
            len(staged) - len(own_markers),
            {item.path: item.modified_ms for item in objects.values()},
        )

    def _positions(self, stream: Stream) -> tuple[dict[str, int], TxnIds]:
        """The txn actions of a stream's main table, and its ids for the topics."""
        ids, store = TxnIds(stream.app_id, stream.several_topics), self._open(stream.table)
        try:
            state = read_table_state(store)
            if state is None:
                return {}, ids
            return dict(state.transactions), ids.in_table(read_identity(stream, state, store).plain_topic)
        except KafkaDeltaExpressError as error:
            self.problems.append(f"{stream.table}: {error.problem}")
            return {}, ids

    def findings(
        self, chains: Sequence[PartitionChain], *, files: bool, advance: Callable[[int], None]
    ) -> Iterator[ChainFinding]:
        """The findings on the chains and, if requested, on their data files; ``advance`` is called for each file."""
        for chain in chains:
            yield from link_findings(chain)
        if not files:
            return
        jobs = [
            (chain, staged.marker, table.url, file)
            for chain in chains
            for staged in chain.staged
            if staged.marker is not None
            for table in staged.marker.tables
            for file in table.files
        ]
        with ThreadPoolExecutor(_THREADS) as pool:
            inspections = pool.map(lambda job: self._inspect(job[2], job[3]), jobs)
            for (chain, marker, url, file), inspected in zip(jobs, inspections, strict=True):
                advance(1)
                yield from file_findings(chain, marker, self._root(url, file), file, inspected)

    def _root(self, url: str, file: StagedFile) -> str:
        """The root of a file's path; files that wait for Spark are in the stage."""
        return self._store.url if file.path.startswith(f"{STAGED}/") else url

    def _inspect(self, url: str, file: StagedFile) -> InspectedFile:
        root = self._root(url, file)
        store: ObjectStore = self._store if root == self._store.url else self._open(root)
        item = store.stat(file.path)
        if item is None:
            return MissingFile()
        try:
            with store.open(file.path) as opened:
                parquet = pq.ParquetFile(opened)
                return Footer(item.size_bytes, parquet.metadata.num_rows, _offsets(parquet.metadata))
        except (pa.ArrowException, OSError) as error:
            return Broken(str(error).partition("\n")[0])


def _offsets(metadata: pq.FileMetaData) -> tuple[int, int] | None:
    """The lowest and highest offset in the footer's statistics."""
    names = metadata.schema.to_arrow_schema().names
    if _OFFSET not in names or not metadata.num_row_groups:
        return None
    # A struct column is several columns in Parquet, so the index is searched by path.
    group = metadata.row_group(0)
    index = next(
        (number for number in range(metadata.num_columns) if group.column(number).path_in_schema == _OFFSET), None
    )
    if index is None:
        return None
    groups_statistics = [
        metadata.row_group(group_number).column(index).statistics for group_number in range(metadata.num_row_groups)
    ]
    if not all(statistics is not None and statistics.has_min_max for statistics in groups_statistics):
        return None
    return min(int(statistics.min) for statistics in groups_statistics), max(
        int(statistics.max) for statistics in groups_statistics
    )


def files_of(chains: Sequence[PartitionChain]) -> int:
    markers: list[Marker] = [staged.marker for chain in chains for staged in chain.staged if staged.marker is not None]
    return sum(len(table.files) for marker in markers for table in marker.tables)
