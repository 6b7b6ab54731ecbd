"""The tables of a config's streams, and how far they have a Kafka partition."""

from bootstrap.apply.partition_state import lacking_in_others, table_position
from common.ports import ObjectStore
from common.settings import Settings, Stream
from common.settings.stores import table_stores
from common.spans import Position, Span, TopicPartition
from common.tables.delta_log import read_table_state
from common.tables.identity import NO_IDENTITY, TableIdentity
from common.tables.state import TableState
from common.tables.stream_history import read_identity


class TableStates:
    """Reads the tables again with each call; only what their positions belong to is kept."""

    def __init__(self, settings: Settings, stage: ObjectStore) -> None:
        self.open = table_stores(settings)
        self._stage = stage
        self._identities: dict[tuple[str, str], TableIdentity] = {}
        """By app_id and the table's id."""

    def main(self, stream: Stream) -> TableState | None:
        return self._read(stream, stream.table)

    def all_of(self, stream: Stream) -> dict[str, TableState]:
        return {url: state for url in stream.tables if (state := self._read(stream, url)) is not None}

    def _read(self, stream: Stream, url: str) -> TableState | None:
        store = self.open(url)
        state = read_table_state(store)
        if state is not None:
            self._identities[stream.app_id, state.table_id] = read_identity(stream, state, store)
        return state

    def identity(
        self, stream: Stream, table: TableState | None, app_id: str | None = None, url: str | None = None
    ) -> TableIdentity:
        """The topic and stream that a table's positions belong to; the main table's without a ``url``."""
        if table is None:
            return NO_IDENTITY
        key = (app_id or stream.app_id, table.table_id)
        if key not in self._identities:
            other = stream.model_copy(update={"app_id": app_id})
            self._identities[key] = read_identity(other, table, self.open(url or stream.table))
        return self._identities[key]

    def position(self, stream: Stream, partition: TopicPartition) -> Position | None:
        return self._position(stream, partition, self.main(stream))

    def highest_position(self, stream: Stream, partition: TopicPartition) -> Position | None:
        positions = (self._position(stream, partition, table) for table in self.all_of(stream).values())
        return max((position for position in positions if position is not None), default=None)

    def _position(self, stream: Stream, partition: TopicPartition, table: TableState | None) -> Position | None:
        return table_position(self._stage, stream, partition, table, self.identity(stream, table))

    def lacking_in_others(self, stream: Stream, partition: TopicPartition) -> Span | None:
        table = self.main(stream)
        return lacking_in_others(self._stage, stream, partition, table, self.identity(stream, table))
