"""Which chains a table's txn actions are of, where no commit says it."""

from common.spans import Offset, Partition, Position, Topic, TopicPartition
from common.tables.identity import NO_IDENTITY, TableChain, with_transactions
from common.tables.transactions import TxnIds
from tests.builders import settings_of


def test_a_txn_action_without_a_topic_is_of_the_streams_own_chain_of_a_shared_topic() -> None:
    settings = settings_of(
        *({"app_id": one, "topics": ["t"], "table": f"/{one}", "columns": "id INT"} for one in ("a", "b"))
    )
    settings.owners.add({"t": "a"})
    for stream, chain in zip(settings.streams, ("t", "t@b"), strict=True):
        ids = TxnIds(stream.app_id, several_topics=False)
        found = with_transactions(NO_IDENTITY, stream, ids, {f"{stream.app_id}-0": Offset(9)})
        assert found.chains == {TopicPartition(Topic(chain), Partition(0)): TableChain(0, Position(10))}
