"""What a flush job asks right before it claims: whose topic the records are of, and whose partition."""

from collections.abc import Callable, Collection, Mapping

from common.spans import Partition, Topic, TopicPartition
from stage_writer.chain_end import Lineage
from stage_writer.partitions.claim_guards import TopicMonitor
from stage_writer.ports import ClaimVerdict, OtherTopic
from tests.fakes.group import HandClock

SOURCE = TopicPartition(Topic("orders"), Partition(0))
NOW_S = 1_000.0


class Broker:
    def __init__(self, topic_id: str = "own", meanwhile: Callable[[], None] = lambda: None) -> None:
        self.asked = 0
        self._topic_id = topic_id
        self._meanwhile = meanwhile

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        self.asked += 1
        self._meanwhile()
        return dict.fromkeys(topics, self._topic_id)


def test_one_answer_serves_all_flushes_whose_records_were_read_before_it_was_asked_for() -> None:
    broker = Broker()
    look = TopicMonitor(broker.topic_ids, HandClock(NOW_S))
    for read_until_s in (NOW_S - 1, NOW_S - 2, NOW_S - 0.001):
        assert look.guard(SOURCE, Lineage(0, "own"), read_until_s, lambda: True)() is ClaimVerdict.CLAIM
    assert broker.asked == 1
    assert look.guard(SOURCE, Lineage(0, "own"), NOW_S, lambda: True)() is ClaimVerdict.CLAIM
    assert broker.asked == 2


def test_a_partition_that_is_lost_while_the_broker_is_asked_is_not_claimed() -> None:
    owned = {SOURCE}
    look = TopicMonitor(Broker(meanwhile=owned.clear).topic_ids, HandClock(NOW_S))
    assert look.guard(SOURCE, Lineage(0, "own"), NOW_S, lambda: SOURCE in owned)() is ClaimVerdict.WAIT


def test_another_topics_records_are_told_apart_where_the_chain_knows_its_topic() -> None:
    broker = Broker("other")
    look = TopicMonitor(broker.topic_ids, HandClock(NOW_S))
    assert look.guard(SOURCE, Lineage(), NOW_S, lambda: True)() is ClaimVerdict.CLAIM
    assert broker.asked == 0
    assert look.guard(SOURCE, Lineage(0, "own"), NOW_S, lambda: True)() == OtherTopic("other")
