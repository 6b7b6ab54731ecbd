"""The state of one pass over a stream: the steps before a commit fill it, and each step reads it.

Rules:

1. The loader has no state of its own: each pass starts with the stage's listing and the tables' txn actions. Within a
   pass it remembers only what its own commits were acknowledged to have done.
2. Time, names and parallel work come from ports. Nothing here starts a thread or reads a clock.
3. Of the markers, only a window after each position is kept: one that left it is forgotten, and one that enters it is
   read, so a backlog of any length needs only the memory of the window. The marker after an empty one may show that the
   empty one had content (common/stage/chain.py, rule 5), so an empty marker at the window's end waits for the next one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from common.errors import KafkaDeltaExpressError, TableError
from common.settings import LoaderSettings, Stream
from common.spans import Position, TopicPartition
from common.stage.chain_origins import ChainOrigin
from common.stage.idle import IdleFact, StreamFact
from common.tables.transactions import TxnIds
from delta_loader.load.report import LoadReporter, StreamReport
from delta_loader.load.rollback import ExaminedTables, RollbackDetector
from delta_loader.load.secondary_tables import SecondaryTables
from delta_loader.load.settle import newest_fact, unknown_partitions
from delta_loader.load.stream_tables import StreamTables
from delta_loader.load.table_preparation import TablePreparation
from delta_loader.load.vacuum_guard import VacuumGuard
from delta_loader.plan.chain_positions import ChainPositions, is_foreign
from delta_loader.plan.plan import AnyMarker, is_by_hand
from delta_loader.stage.identity import StreamIdentity
from delta_loader.stage.listed import Listing, without

if TYPE_CHECKING:
    from delta_loader.load.ports import Ports

from common.stage.markers import MarkerName
from delta_loader.stage.reading import Stage


class LoadContext:
    def __init__(
        self, stream: Stream, settings: LoaderSettings, ports: Ports, report: StreamReport, examined: ExaminedTables
    ) -> None:
        """``examined`` is how far the tables' histories were read, kept from pass to pass."""
        self.stream = stream
        self.settings = settings
        self.ports = ports
        self.report = report
        self.log = ports.log.bind(app_id=stream.app_id)
        self.reporter = LoadReporter(report, self.log, ports.metrics, ports.clock)
        self.stop: Callable[[], bool] = lambda: False
        self.guard = VacuumGuard(ports, self.log)
        ids = TxnIds(stream.app_id, stream.several_topics)
        self.rollbacks = RollbackDetector(stream, ids, ports.tables, ports.stage, examined)
        self.tables = StreamTables(stream, ports, self.guard, self.rollbacks, self.log)
        self.secondary = SecondaryTables(stream, self.tables)
        self.preparation = TablePreparation(stream, ports, self.guard, self.tables, self.log)
        self.listing: Listing = {}
        self.generations: Mapping[TopicPartition, int] = {}
        """By Kafka partition, the generation of the chain that the stage has now."""
        self.origins: Mapping[TopicPartition, ChainOrigin] = {}
        """The newest origin of each chain that has one."""
        self.idle: tuple[IdleFact, ...] = ()
        self.partitions: StreamFact | None = None
        """The partitions that the stream's topics have; None where neither Kafka nor a writer says."""
        self.one_at_a_time = False
        """Whether rows of several Kafka partitions go into commits of their own, because Spark failed to write them."""
        self._window = MarkerWindow(ports.stage, self.tables.urls, settings.max_files)

    @property
    def ids(self) -> TxnIds:
        return self.tables.ids

    def observe(self) -> bool:
        """Read the listing, the tables, and what writers reported. Raises KafkaDeltaExpressError.

        False where more tables have appeared by `route_table`, which markers of the listing may name: nothing of the
        context can be used then.
        """
        stage, stream = self.ports.stage, self.stream
        self.report.refreshed_s = self.ports.clock.monotonic_s()
        self.listing = stage.listing(stream)
        if stage.appeared(stream) != stream:
            return False
        self.idle, streams = stage.facts()
        self.partitions = self.ports.partitions(stream) or newest_fact(stream.app_id, streams)
        self._read_tables()
        return True

    def _read_tables(self) -> None:
        """After the listing."""
        self.tables.refresh()
        self._read_origins()
        main, partitions = self.tables.main, {*self.listing, *self.generations}
        self.rollbacks.ids = self.ids.at(self.generations, {} if main is None else main.transactions, partitions)

    def inspect(self) -> None:
        """Report how far the stream is without changing anything. Raises KafkaDeltaExpressError."""
        self.report.refreshed_s = self.ports.clock.monotonic_s()
        self.listing = self.ports.stage.listing(self.stream)
        self._read_origins()
        main, *_ = self.ports.parallel(self.ports.tables.state, self.stream.tables)
        transactions = {} if main is None else main.transactions
        self.rollbacks.ids = self.ids.at(self.generations, transactions, {*self.listing, *self.generations})
        positions = {partition: self.ids.position(transactions, partition) for partition in self.listing}
        self._window.read(self.listing, positions.__getitem__)
        for partition, listed in self.listing.items():
            self.reporter.partition(partition, positions[partition], listed, self.markers(partition))
        self.reporter.stream(self.staged, 0)

    def _read_origins(self) -> None:
        """After the listing: a marker that was claimed behind a repair is then listed with the repair's origin."""
        self.origins = self.ports.stage.origins(self.stream)
        self.generations = {partition: origin.generation for partition, origin in self.origins.items()}

    def origin(self, partition: TopicPartition) -> Position | None:
        """Where a table without a position begins to load a Kafka partition, where that is recorded."""
        chain_origin = self.origins.get(partition)
        return None if chain_origin is None else chain_origin.first_position

    def position(self, partition: TopicPartition) -> Position | None:
        return self.tables.position(self.stream.table, partition)

    def finished(self, partition: TopicPartition) -> Position | None:
        """The position up to which all tables have a Kafka partition's rows."""
        return self.secondary.floor(partition, self.position(partition))

    def read_markers(self) -> None:
        """Read the markers around the positions of all chains. Raises KafkaDeltaExpressError.

        If one is gone, another loader loaded and settled it, so the tables are read again: it would look like a gap.
        """
        while gone := self._window.read(self.listing, self.position):
            self.listing = without(self.listing, gone)
            self._read_tables()
            for target, _ in self.tables.rolled_back:  # after the step that holds such a stream
                raise TableError(f"{target.url} was rolled back during the load", "the next run tries again")

    def all_markers(self, partition: TopicPartition) -> list[AnyMarker]:
        """The markers of a Kafka partition near its position, of any generation."""
        return self._window.of(partition)

    def markers(self, partition: TopicPartition) -> list[AnyMarker]:
        """The markers that are not from before their chain's newest origin."""
        return self.identity.younger(partition, self._window.of(partition))

    def chains(self) -> ChainPositions:
        """What is staged of each chain, next to what the tables have."""
        identity = self.identity
        markers = {partition: identity.younger(partition, self._window.of(partition)) for partition in self.listing}
        return ChainPositions(self.stream, markers, self.origins, self.tables.targets.keys(), self.tables.position)

    def is_foreign(self, partition: TopicPartition) -> bool:
        """Whether the staged markers of a Kafka partition belong to something other than the table's position."""
        return is_foreign(self.markers(partition))

    @property
    def identity(self) -> StreamIdentity:
        """The identity that markers are checked against, as the tables were last read."""
        targets, main = self.tables.targets, self.tables.main
        identities = {url: target.identity for url, target in targets.items()}
        return StreamIdentity(
            self.stream, self.ids, self.origins, identities, {} if main is None else main.transactions
        )

    @property
    def staged(self) -> int:
        return sum(len(listed.names) for listed in self.listing.values())

    @property
    def unknown_partitions(self) -> frozenset[TopicPartition]:
        """Kafka partitions that have markers and that the stream's topics do not have."""
        return unknown_partitions(self.chains().markers, self.partitions)

    def report_partitions(self) -> None:
        for partition, listed in self.listing.items():
            markers = self.markers(partition)
            position = None if is_foreign(markers) else self.position(partition)
            self.reporter.partition(partition, position, listed, markers)
        left_out = {*self.tables.failed, *(missing.url for missing in self.secondary.deferred(self.listing))}
        self.reporter.stream(self.staged, len(left_out))

    def report_failed(self) -> None:
        """How far the stream is although its pass failed; nothing where that is not known."""
        if self.tables.main is not None:
            with suppress(KafkaDeltaExpressError):
                self.read_markers()
                self.report_partitions()


_SMALLEST_WINDOW = 16


class MarkerWindow:
    """The markers near a stream's positions, which the next plan is based on; each is read once (rule 3)."""

    def __init__(self, stage: Stage, tables: Mapping[str, str], max_files: int) -> None:
        """``tables`` spells the tables' URLs, as `Stage.read` expects them; a commit loads at most ``max_files``."""
        self._stage = stage
        self._tables = tables
        self._max_files = max_files
        self._known: dict[TopicPartition, dict[MarkerName, tuple[AnyMarker, ...]]] = {}
        self._cut: frozenset[MarkerName] = frozenset()
        """The last marker of each window that more markers follow."""

    def read(self, listing: Listing, position_of: Callable[[TopicPartition], Position | None]) -> set[MarkerName]:
        """Read the markers around each position that are not known yet; returns those gone since. Raises StoreError."""
        window = max(_SMALLEST_WINDOW, self._max_files // max(1, len(listing)))
        wanted = {partition: listed.window_at(position_of(partition), window) for partition, listed in listing.items()}
        self._cut = frozenset(
            names[-1] for partition, names in wanted.items() if names and names[-1] != listing[partition].names[-1]
        )
        known = {partition: self._known.get(partition, {}) for partition in listing}
        unknown = [name for partition, names in wanted.items() for name in names if name not in known[partition]]
        fresh = self._stage.read(listing, unknown, self._tables)
        self._known = {
            partition: {name: fresh.get(name) or known[partition].get(name, ()) for name in names}
            for partition, names in wanted.items()
        }
        return set(unknown) - fresh.keys()

    def of(self, partition: TopicPartition) -> list[AnyMarker]:
        return [
            marker
            for name, markers in self._known.get(partition, {}).items()
            for marker in markers
            if name not in self._cut or not is_by_hand(marker)
        ]
