"""Everything that a load reaches the world through, in one place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

from structlog.typing import FilteringBoundLogger

from common.metrics import Metrics
from common.ports import Clock
from common.settings import Stream
from common.spans import Offset, Position, TopicPartition
from common.stage.idle import StreamFact
from common.tables.transactions import TxnIds
from delta_loader.load.merged_keys import MergedKeys
from delta_loader.ports import (
    DeltaTables,
    NewId,
    OpenStore,
    ParallelMap,
    StreamRunner,
    run_in_order,
)
from delta_loader.stage.reading import Stage
from delta_loader.tables.commits import Target
from delta_loader.tables.file_split import SparkWrite
from delta_loader.tables.load_modes.refused import RefusedRecord

if TYPE_CHECKING:
    from delta_loader.catalog.registering import Registering
    from delta_loader.load.replace_ranges import Replacements
    from delta_loader.load.valid_through import ValidThrough


class RefusalReader(Protocol):
    """Checks rows before they are written. Raises TableError."""

    def refused(self, target: Target, writes: Sequence[SparkWrite], most: int) -> list[RefusedRecord]:
        """At most ``most`` records of which the table refuses a row; none where the rows cannot be checked."""

    def dead(self, url: str, partition: TopicPartition, start: Position) -> list[RefusedRecord]:
        """The records of a chain from ``start`` on that are in a dead-letter table because they were refused.

        For a chain of several topics, where nothing records how far each topic is at ``start``, all that were ever
        refused.
        """


FetchRawRecords: TypeAlias = "Callable[[TopicPartition, Collection[Offset], str | None], Mapping[Offset, RawRecord]]"
"""Fetches records of a topic with this id as they were sent: those that Kafka still has, none under another id.

Raises KafkaDeltaExpressError when Kafka does not answer.
"""


@dataclass(frozen=True, slots=True)
class RawRecord:
    timestamp_ms: int | None
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class RefusalPorts:
    refusal_reader: RefusalReader
    raw_records: FetchRawRecords
    known_checks: dict[tuple[str, TopicPartition], str] = field(default_factory=dict)
    """By table and chain, the checks that this process last loaded it with (load_modes/refused.py, rule 4)."""


class SendRefused(Protocol):
    """Sends dead letters of refused records to a stream's topic (`delta_loader.load.refused_to_topic`)."""

    def __call__(
        self, stream: Stream, dead_letters: Target, ids: TxnIds, finished: Mapping[TopicPartition, Position]
    ) -> int:
        """Send those below each chain's position that all tables have passed; returns how many.

        Raises BrokerError and TableError; then it is tried again.
        """


@dataclass(frozen=True, slots=True)
class Ports:
    stage: Stage
    tables: DeltaTables
    open_store: OpenStore
    parallel: ParallelMap
    clock: Clock
    new_id: NewId
    log: FilteringBoundLogger
    metrics: Metrics
    replacements: Replacements | None = None
    """None where requests to replace ranges are not possible."""
    valid_through: ValidThrough | None = None
    """None if no table has the property."""
    refusing: RefusalPorts | None = None
    """None if no table refuses rows."""
    sends_refused: SendRefused | None = None
    """None if no stream has a topic for dead letters."""
    registering: Registering | None = None
    """None if no table has a name in a catalog."""
    merged_keys: MergedKeys | None = None
    """None if no table is merged into."""
    may_load: Callable[[str], bool] = lambda _app_id: True
    """Whether no other loader loads a stream; checked between its commits."""
    run_streams: StreamRunner = run_in_order
    partitions: Callable[[Stream], StreamFact | None] = lambda _: None
    """The partitions that a stream's topics have now, from Kafka; None where it does not answer."""
