"""The pipeline's progress from its two sources of truth: the chains of done markers, and the table's txn actions."""

from common.settings import Settings
from common.settings.stores import stage_store
from common.spans import TopicPartition
from common.stage.chain import by_partition, read_chain
from common.stage.markers import MarkerName, marker_from_bytes
from common.storage.store import FsspecStore
from common.tables.delta_log import read_table_state
from common.tables.transactions import TxnIds


class Watch:
    """Counts the staged and the loaded records of the demo's stream, whose partitions begin at offset 0."""

    def __init__(self, settings: Settings) -> None:
        """Opens the stage and the table as the services do."""
        [self._stream] = settings.streams
        self._stage = stage_store(settings)
        self._table = FsspecStore(self._stream.table, settings.stage.storage_options)

    def staged(self) -> dict[TopicPartition, int]:
        """Records that the chain of each Kafka partition covers."""
        names = [MarkerName.parse(found.path) for found in self._stage.list("done")]
        found: dict[TopicPartition, int] = {}
        for partition, markers in by_partition(name for name in names if name is not None).items():
            chain = read_chain(marker_from_bytes(name, self._stage.read(name.path) or b"") for name in markers[-1:])
            found[partition] = chain.end or 0
        return found

    def loaded(self) -> dict[str, int]:
        """Loaded records of each txn action, by the action's app id."""
        state = read_table_state(self._table)
        return {} if state is None else {app_id: last + 1 for app_id, last in state.transactions.items()}

    def app_id(self, partition: TopicPartition) -> str:
        """The txn action's app id of a Kafka partition."""
        return TxnIds(self._stream.app_id, self._stream.several_topics).of(partition)
