"""What a flush job asks right before it claims: whose topic the records are of, and whose partition."""

from collections.abc import Callable, Collection, Mapping

from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.chain_end import Lineage
from stage_writer.parquet.buffer import Buffer
from stage_writer.partitions.claim_guards import ClaimGuards, TopicMonitor
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import ClaimVerdict, OtherTopic
from stage_writer.record_converter import converter_of
from tests.fakes.group import HandClock
from tests.fakes.streams import stream_of

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
    for read_until_s in (NOW_S, NOW_S - 1):
        assert look.guard(SOURCE, Lineage(0, "own"), read_until_s, lambda: True)() == OtherTopic("other")
    assert broker.asked == 1, "the answer that serves several flushes is the same for each"


def test_an_answer_that_comes_late_replaces_no_later_one() -> None:
    clock = HandClock(NOW_S)
    answers = iter(["own", "own again", "unused"])

    def slow_once(topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        answer = next(answers)
        if answer == "own":
            clock.now_s += 5
            assert look.since(SOURCE.topic, NOW_S + 4) == "own again"
        return dict.fromkeys(topics, answer)

    look = TopicMonitor(slow_once, clock)
    assert look.since(SOURCE.topic, NOW_S) == "own"
    assert look.since(SOURCE.topic, NOW_S + 4) == "own again"


class Writer:
    """The guards of a writer that has one Kafka partition."""

    def __init__(self) -> None:
        self.clock = HandClock(NOW_S)
        self.assigned = self.assign()
        self.by_partition = {SOURCE: self.assigned}
        topics = TopicMonitor(Broker().topic_ids, self.clock)
        self.guards = ClaimGuards(self.by_partition, topics, self.clock, session_s=30)
        self.guards.polled(NOW_S)
        self.guard = self.guards.of(self.assigned)

    def assign(self) -> AssignedPartition:
        converter = converter_of(stream_of())
        return AssignedPartition(
            SOURCE, converter, None, Lineage(0, "own"), Buffer(Position(0), Position(0), ()), NOW_S
        )

    def after(self, seconds: float) -> ClaimVerdict | OtherTopic:
        self.clock.now_s += seconds
        return self.guard()


def test_a_partition_that_was_revoked_is_not_claimed_and_neither_is_one_that_came_back() -> None:
    writer = Writer()
    assert writer.guard() is ClaimVerdict.CLAIM
    del writer.by_partition[SOURCE]
    assert writer.guard() is ClaimVerdict.WAIT
    writer.by_partition[SOURCE] = writer.assign()
    assert writer.guard() is ClaimVerdict.WAIT, "its records were read by the assignment before"


def test_a_process_that_was_silent_for_a_session_claims_after_a_later_poll() -> None:
    writer = Writer()
    assert writer.after(20) is ClaimVerdict.CLAIM
    writer.guards.sign()
    assert writer.after(20) is ClaimVerdict.CLAIM, "40 s after its poll, 20 s after its sign"
    assert writer.after(20) is ClaimVerdict.WAIT
    writer.guards.sign()
    assert writer.guard() is ClaimVerdict.WAIT
    writer.guards.polled(writer.clock.now_s)
    assert writer.after(10) is ClaimVerdict.WAIT
    writer.guards.polled(writer.clock.now_s)
    assert writer.guard() is ClaimVerdict.CLAIM
