"""The parts of a load for a stream's secondary tables (routes, dead letters), and the ranges that these still lack.

Rules:

1. If a secondary table is left out, the commit that moves the stream on notes the range that it lacks
   (load/deferred.py). The table gets that range before anything later (delta_loader/load/catch_up.py). No marker that
   the table may need is settled before that.
"""

from collections.abc import Iterable

from common.settings import Stream
from common.spans import Position, TopicPartition
from common.tables.deferred_ranges import DeferredRange, DeferredRanges
from delta_loader.load.deferred import excluded_spans, with_deferred, without_sources
from delta_loader.load.stream_tables import StreamTables
from delta_loader.plan.plan import Load
from delta_loader.tables.commits import CommitNaming, TableCommit, Target, secondary_commit


class SecondaryTables:
    def __init__(self, stream: Stream, tables: StreamTables) -> None:
        self._stream = stream
        self._tables = tables
        self._read_of: Target | None = None
        self._read = DeferredRanges({})

    def deferred(
        self, partitions: Iterable[TopicPartition], urls: Iterable[str] | None = None
    ) -> tuple[DeferredRange, ...]:
        """The ranges that tables may lack below the main table's position."""
        return self._deferred().of(self._tables.ids, urls or self._stream.secondary_tables, partitions)

    def floor(self, partition: TopicPartition, position: Position | None) -> Position | None:
        """The position up to which all tables have a Kafka partition's rows; ``position`` is the main table's."""
        if position is None:
            return None
        return self._deferred().floor(self._tables.ids, self._stream.secondary_tables, partition, position)

    def _deferred(self) -> DeferredRanges:
        """The deferred ranges in the main table's txn actions; read once for each state of the table."""
        main = self._tables.main
        if main is not self._read_of:
            self._read_of, self._read = main, DeferredRanges.read({} if main is None else main.transactions)
        return self._read

    def secondary_commit(self, url: str, naming: CommitNaming, load: Load) -> TableCommit | None:
        """The commit of a load to a table, without what comes after a range that it lacks; None if it adds nothing."""
        target = self._tables.targets.get(url)
        if target is None:
            return None
        return secondary_commit(target, naming, without_sources(load, self._lacking(url, load.runs)))

    def with_deferred(self, commit: TableCommit, load: Load) -> TableCommit:
        """The commit to the main table, noting the ranges of the load that other tables do not get."""
        for url in self._stream.secondary_tables:
            without = self._lacking(url, load.runs) if url in self._tables.targets else tuple(load.runs)
            spans = excluded_spans(load, url, without)
            if spans:
                commit = with_deferred(commit, url, spans, self.deferred(spans, [url]), self._tables.ids)
        return commit

    def _lacking(self, url: str, partitions: Iterable[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(missing.partition for missing in self.deferred(partitions, [url]))
