"""Collects the facts for `delta_loader.inspect.explain` from the tables' logs and files, the stage, and Kafka.

Rules:

1. For a version, its own commit file is read, and the later ones to find what happened to its files.
2. For an offset, the files of the newest version that may contain it, by their statistics, are read: only the offset
   columns, and only the row groups that may contain it. At most `_MOST_FILES` files; the others are named.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from common.errors import StoreError, UsageError
from common.ports import ObjectStore
from common.settings import Stream
from common.spans import Offset, Position, Span, TopicPartition
from common.stage.markers import Marker
from common.stage.merged import kafka_topic
from common.tables.delta_log import read_table_state
from common.tables.history import CommitLines, read_history
from common.tables.log_files import commit_path
from common.tables.state import TableState
from common.tables.stream_history import read_identity
from common.tables.transactions import TxnIds
from common.tables.urls import comparable
from delta_loader.inspect.explain.offsets import Holder, OffsetReport, RecordQuery, find_loading_commit
from delta_loader.inspect.explain.versions import VersionReport, markers_of, since
from delta_loader.inspect.history import listed_versions, read_version, read_versions
from delta_loader.maintenance.live_files import live_files
from delta_loader.ports import EndsOf, OpenStore, ParallelMap
from delta_loader.stage.listed import Listed
from delta_loader.stage.reading import Stage
from delta_loader.status.collecting import stream_status
from delta_loader.tables.history import LiveFile, reach_of

_MOST_FILES = 20
_AT_A_TIME = 64
_COLUMNS = ("_kafka_topic", "_kafka_partition", "_kafka_offset")
_ERRORS = ("error_class", "error")


@dataclass(frozen=True, slots=True)
class Explainer:
    stage: Stage
    open_store: OpenStore
    parallel: ParallelMap
    kafka_ends: EndsOf

    def version(self, url: str, number: int) -> VersionReport:
        """One version. Raises UsageError for a version that does not exist yet; TableError, StoreError."""
        store = self.open_store(url)
        listed = listed_versions(store)
        if not listed:
            msg = f"there is no Delta table at {url}"
            raise UsageError(msg, "check which tables the config names, and select one with --table")
        newest, oldest = max(listed), min(listed)
        if number > newest:
            raise UsageError(f"{url} has no version {number}; its newest is {newest}", f"use a version up to {newest}")
        if number not in listed:
            return VersionReport(url, number, newest, oldest)
        version = read_version(store, number)
        later = read_versions(store, self.parallel, number + 1) if version.added else ()
        gone, live = since(version.added, later)
        names = markers_of(version)
        there = self.parallel(lambda name: self.stage.store.stat(name.path) is not None, names)
        return VersionReport(url, number, newest, oldest, version, dict(zip(names, there, strict=True)), gone, live)

    def offset(self, stream: Stream, topic_partition: TopicPartition, offset: Offset) -> OffsetReport:
        """One offset of a stream. Raises TableError, StoreError, MarkerError."""
        store = self.open_store(stream.table)
        state = read_table_state(store)
        transactions = {} if state is None else state.transactions
        identity = read_identity(stream, state, store)
        ids = TxnIds(stream.app_id, stream.several_topics, plain_topic=identity.plain_topic)
        ids = ids.at(self.stage.generations(stream), transactions, [topic_partition])
        query = RecordQuery(stream.app_id, topic_partition, offset, ids.generations.get(topic_partition, 0))
        history = () if state is None else read_history(state.version, fetched_lines(store, self.parallel))
        loaded = find_loading_commit(history, query)
        position = ids.position(transactions, topic_partition)
        listing = self.stage.listing(stream)
        seen = stream_status(stream, self.stage, self.open_store, self.kafka_ends)
        partition = next((status for status in seen.partitions if status.partition == topic_partition), None)
        is_done = position is not None and offset < position
        covering = None if is_done else self._covering(stream, listing.get(topic_partition), offset)
        return OffsetReport(
            query=query,
            table=stream.table,
            position=position,
            loaded=loaded,
            holders=tuple(self._holders(stream, query)) if stream.kafka_columns or is_done else (),
            kafka_columns=stream.kafka_columns,
            staged=covering,
            staged_to=None if partition is None else partition.staged_to,
            held=None if partition is None else partition.held,
            kafka_end=None if partition is None else partition.kafka_end,
            lacked_by=tuple(
                missing.url
                for missing in seen.deferred
                if missing.partition == topic_partition and missing.span.covers(Position(offset))
            ),
        )

    def _covering(self, stream: Stream, listed: Listed | None, offset: Offset) -> Marker | None:
        if listed is None:
            return None
        before = [name for name in listed.names if name.start <= offset][-2:]  # a stray may be in between
        tables = {comparable(url): url for url in reversed(stream.tables)}
        read = self.stage.read({name.topic_partition: listed for name in before}, before, tables)
        markers = [marker for name in reversed(before) for marker in read.get(name, ()) if isinstance(marker, Marker)]
        return next((marker for marker in markers if marker.span.covers(Position(offset))), None)

    def _holders(self, stream: Stream, query: RecordQuery) -> Iterator[Holder]:
        left = _MOST_FILES
        for url in stream.tables:
            store, is_dead_letters = self.open_store(url), url == stream.dead_letters
            state = read_table_state(store)
            if state is None or not (stream.kafka_columns or is_dead_letters):
                continue
            for file in self._candidates(store, state, query):
                if left == 0:
                    yield Holder(url, file.path, is_dead_letters, problem="not searched, there are too many")
                else:
                    left -= 1
                    yield _holder(store, url, file, query, _physical(state), is_dead_letters=is_dead_letters)

    def _candidates(self, store: ObjectStore, state: TableState, query: RecordQuery) -> Iterator[LiveFile]:
        names, span = _physical(state), Span(Position(query.offset), Position(query.offset + 1))
        logical = {physical: name for name, physical in names.items()}
        for file in live_files(store, self.parallel, with_statistics=True):
            content = cast("dict[str, object]", json.loads(file.statistics)) if file.statistics else {}
            known = {
                key: _renamed(cast("Mapping[str, object] | None", content.get(key)), logical)
                for key in ("minValues", "maxValues")
            }
            if reach_of(known, _renamed(file.partition_values, logical)).may_hold(query.partition, span):
                yield file


def fetched_lines(store: ObjectStore, parallel: ParallelMap) -> CommitLines:
    """The lines of commits, read from the newest down; several are fetched at a time."""
    fetched: dict[int, bytes | None] = {}

    def lines(version: int) -> Iterable[str] | None:
        if version not in fetched:
            versions = range(version, max(-1, version - _AT_A_TIME), -1)
            read = parallel(lambda number: store.read(commit_path(number)), versions)
            fetched.clear()
            fetched.update(zip(versions, read, strict=True))
        data = fetched[version]
        return None if data is None else data.decode("utf-8").splitlines()

    return lines


def _physical(state: TableState) -> dict[str, str]:
    """The names of the offset columns, and those of dead letters, in files and statistics."""
    return {name: physical for name, physical in state.names_in_log.items() if name in (*_COLUMNS, *_ERRORS)}


def _renamed(values: Mapping[str, object] | None, logical: Mapping[str, str]) -> dict[str, object]:
    return {logical[name]: value for name, value in (values or {}).items() if name in logical}


def _holder(
    store: ObjectStore, url: str, file: LiveFile, query: RecordQuery, names: Mapping[str, str], *, is_dead_letters: bool
) -> Holder:
    """How one file contains the offset (rule 2)."""
    try:
        with store.open(file.path) as opened:
            parquet = pq.ParquetFile(opened)
            if names.get("_kafka_offset", "_kafka_offset") not in parquet.schema_arrow.names:
                return Holder(url, file.path, is_dead_letters, problem="its rows do not name their records")
            rows = _rows(parquet, query, names)
    except (StoreError, OSError, pa.ArrowException) as error:
        problem = error.problem if isinstance(error, StoreError) else str(error).partition("\n")[0]
        return Holder(url, file.path, is_dead_letters, problem=f"it cannot be read: {problem}")
    words = ""
    if rows.num_rows and is_dead_letters:
        row = rows.slice(0, 1).to_pylist()[0]
        words = ": ".join(str(row[names[name]]) for name in _ERRORS if names.get(name) in row)
    return Holder(url, file.path, is_dead_letters, rows.num_rows, "", file.deleted_rows, words)


def _rows(parquet: pq.ParquetFile, query: RecordQuery, names: Mapping[str, str]) -> pa.Table:
    wanted = {
        "_kafka_topic": str(kafka_topic(query.partition.topic)),
        "_kafka_partition": int(query.partition.partition),
    }
    physical, present = names.get("_kafka_offset", "_kafka_offset"), set(parquet.schema_arrow.names)
    columns = [name for name in names.values() if name in present]
    groups = [index for index in range(parquet.num_row_groups) if _may_hold(parquet, index, physical, query.offset)]
    rows = parquet.read_row_groups(groups, columns=columns)
    condition = pc.field(physical) == int(query.offset)
    for name, value in wanted.items():
        if names.get(name) in present:
            condition &= pc.field(names[name]) == value
    return rows.filter(condition)


def _may_hold(parquet: pq.ParquetFile, group: int, column: str, offset: Offset) -> bool:
    """Whether a row group may contain the offset, by its statistics."""
    metadata = parquet.metadata.row_group(group)
    for index in range(metadata.num_columns):
        chunk = metadata.column(index)
        if chunk.path_in_schema == column and chunk.statistics is not None and chunk.statistics.has_min_max:
            return bool(chunk.statistics.min <= offset <= chunk.statistics.max)
    return True
