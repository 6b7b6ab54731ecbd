"""The world's records, and the converter that makes rows of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache, partial
from operator import eq

import pyarrow as pa

from common.errors import RegistryError
from common.schema import StructType, parse_ddl, schema_to_json, to_arrow_schema
from common.settings import Stream
from common.settings.columns import KAFKA_FIELDS
from common.spans import TopicPartition
from common.stage.markers import TableKind
from common.stage.task_files import StateFiles
from common.tables.dead_letters import DEAD_LETTER_SCHEMA
from stage_writer.decode.batch import MessageBatch
from stage_writer.decode.dependency import Dependency
from stage_writer.parquet.buffer import StagedRows, TableFormat
from stage_writer.ports import StateStore
from tests.simulation.world import Fault, World

LEFT, RIGHT = "memory://orders_left", "memory://orders_right"
GOOD, BAD = b'{"n": 1}', b'{"n": 1.5}'
ROUTES = {b'{"n": 2}': LEFT, b'{"n": 3}': RIGHT}
_SLICED = 0.3
_TIME = pa.timestamp("us", "UTC")


@dataclass(slots=True)
class Registry:
    world: World
    away_until_ms: int = 0

    def is_away(self, *, may_begin: bool = False) -> bool:
        """Whether it does not answer; ``may_begin``: a new outage may begin now."""
        world = self.world
        if world.faults_ended:
            return False
        if may_begin and world.now_ms >= self.away_until_ms and world.rng.random() < world.chances.registry:
            world.faults[Fault.REGISTRY] += 1
            self.away_until_ms = world.now_ms + world.rng.choice([300, 5_000, 60_000])
            world.note(f"the registry is away for {self.away_until_ms - world.now_ms} ms")
        return world.now_ms < self.away_until_ms


@dataclass(frozen=True, slots=True)
class Away(Dependency):
    registry: Registry

    @property
    def error(self) -> RegistryError:
        return RegistryError("the registry is away", "")

    def is_over(self) -> bool:
        return not self.registry.is_away()


@lru_cache(maxsize=10_000)
def _topics(topic: str, count: int) -> pa.Array:
    return pa.array([topic] * count, pa.string())


@lru_cache(maxsize=10_000)
def _partitions(partition: int, count: int) -> pa.Array:
    return pa.array([partition] * count, pa.int32())


@cache
def _formats(columns: str, table: str, dead_letters: str) -> tuple[TableFormat, TableFormat]:
    schema = StructType((*parse_ddl(columns).fields, *KAFKA_FIELDS))
    return (
        TableFormat(table, TableKind.ROWS, schema_to_json(schema), to_arrow_schema(schema), ()),
        TableFormat(
            dead_letters,
            TableKind.DEAD_LETTERS,
            schema_to_json(DEAD_LETTER_SCHEMA),
            to_arrow_schema(DEAD_LETTER_SCHEMA),
            (),
        ),
    )


class PlainConverter:
    """What `StreamConverter` does for the world's three kinds of value, made cheap for batches of five."""

    def __init__(self, stream: Stream, registry: Registry) -> None:
        self.stream = stream
        self._registry = registry
        self.formats = _formats(stream.record.columns, stream.table, stream.dead_letters)
        self.routed = {value: replace(self.formats[0], url=url) for value, url in ROUTES.items()}

    def at(self, gained: StructType) -> PlainConverter:  # noqa: ARG002 - the port's
        """The world's streams gain no fields."""
        return self

    def restores(self, partition: TopicPartition, state: StateFiles, store: StateStore) -> None: ...

    def waits(self, batch: MessageBatch) -> Dependency | None:
        """Every message needs the registry: any of them may have an unknown schema."""
        return Away(self._registry) if len(batch) and self._registry.is_away(may_begin=True) else None

    def slices(self, batches: Sequence[MessageBatch]) -> Iterator[list[tuple[MessageBatch, StagedRows]]]:
        """Rows, dead letters and tombstones by value; sometimes in slices, as if they exploded."""
        rng = self._registry.world.rng
        for batch in batches:
            cut = rng.randrange(len(batch)) if rng.random() < _SLICED else 0
            for part in (batch.part(0, cut), batch.part(cut, len(batch))):
                if len(part):
                    yield [(part, self._convert(part))]

    def is_row(self, value: bytes | None) -> bool:
        return value == GOOD

    def is_dead(self, value: bytes | None) -> bool:
        return value == BAD

    def others(self, values: Sequence[bytes | None]) -> Iterator[tuple[TableFormat, Callable[[bytes | None], bool]]]:
        """The secondary tables of some of these rows, and which rows those are."""
        for value, table in self.routed.items():
            if value in values:
                yield table, partial(eq, value)

    def fields(self, value: bytes) -> dict[str, object]:  # noqa: ARG002 - for worlds with more
        return {}

    def row(self, batch: MessageBatch, index: int, value: bytes | None) -> dict[str, object]:  # noqa: ARG002 - the same
        """The columns of a row that Kafka does not give."""
        return self.fields(value) if value is not None and self.is_row(value) else {}

    def table(
        self, batch: MessageBatch, indexes: Sequence[int], rows: Sequence[dict[str, object]], schema: pa.Schema
    ) -> pa.Table:
        """Rows, each with the index of its message: as `pa.Table.from_pylist`, in a fraction of its time for a few."""
        if not rows:
            return pa.Table.from_batches([], schema)
        offsets, times_ms, partition = batch.offsets.tolist(), batch.timestamps_ms.tolist(), batch.partition
        kafka = {
            "_kafka_topic": _topics(partition.topic, len(rows)),
            "_kafka_partition": _partitions(partition.partition, len(rows)),
            "_kafka_offset": pa.array([offsets[index] for index in indexes], pa.int64()),
            "_kafka_timestamp": pa.array([times_ms[index] * 1000 for index in indexes], _TIME),
        }
        given = set().union(*rows)
        columns = [
            kafka[name]
            if name in kafka
            else pa.array([row.get(name) for row in rows], kind)
            if name in given
            else pa.nulls(len(rows), kind)
            for name, kind in zip(schema.names, schema.types, strict=True)
        ]
        return pa.Table.from_arrays(columns, schema=schema)

    def tombstones(self, values: list[bytes | None]) -> int:
        """How many tombstones there are."""
        return values.count(None)

    def _convert(self, batch: MessageBatch) -> StagedRows:
        values = batch.values.to_pylist()

        def rows(wanted: Callable[[bytes | None], bool], table: TableFormat) -> pa.Table:
            indexes = [index for index, value in enumerate(values) if wanted(value)]
            made = [self.row(batch, index, values[index]) for index in indexes]
            return self.table(batch, indexes, made, table.arrow_schema)

        own, dead_letters = self.formats
        routed = tuple((table, rows(wanted, table)) for table, wanted in self.others(values))
        tables = (rows(self.is_row, own), rows(self.is_dead, dead_letters))
        dead = {"not_exact": len(tables[1])}
        return StagedRows(
            batch.end, len(batch), self.tombstones(values), dead, batch.timestamp_bounds_ms(), tables, routed=routed
        )
