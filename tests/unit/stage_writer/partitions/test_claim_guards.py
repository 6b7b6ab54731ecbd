"""Checks of a flush job right before it claims: is the topic the same, and is the partition still owned?"""

from collections.abc import Callable, Collection, Mapping

from common.spans import Partition, Position, Topic, TopicPartition
from stage_writer.chain_end import Lineage
from stage_writer.convert_by_table import converter_of
from stage_writer.parquet.buffer import Buffer
from stage_writer.partitions.claim_guards import ClaimGuards, TopicMonitor
from stage_writer.partitions.partition import AssignedPartition
from stage_writer.ports import ClaimVerdict, OtherTopic
from tests.fakes.group import HandClock
from tests.fakes.streams import stream_of

SOURCE = TopicPartition(Topic("orders"), Partition(0))
NOW_S = 1_000.0


class Broker:
    def __init__(self, topic_id: str = "own", meanwhile: Callable[[], None] = lambda: None) -> None:
        self.asked = 0
        self.topic_id = topic_id
        self._meanwhile = meanwhile

    def topic_ids(self, topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        self.asked += 1
        self._meanwhile()
        return dict.fromkeys(topics, self.topic_id)


def test_one_broker_response_serves_all_flushes_read_before_the_request() -> None:
    broker = Broker()
    monitor = TopicMonitor(broker.topic_ids, HandClock(NOW_S))
    for read_until_s in (NOW_S - 1, NOW_S - 2, NOW_S - 0.001):
        assert monitor.guard(SOURCE, Lineage(0, "own"), read_until_s, lambda: True)() is ClaimVerdict.CLAIM
    assert broker.asked == 1
    assert monitor.guard(SOURCE, Lineage(0, "own"), NOW_S, lambda: True)() is ClaimVerdict.CLAIM
    assert broker.asked == 2


def test_partition_lost_during_the_broker_request_is_not_claimed() -> None:
    owned = {SOURCE}
    monitor = TopicMonitor(Broker(meanwhile=owned.clear).topic_ids, HandClock(NOW_S))
    assert monitor.guard(SOURCE, Lineage(0, "own"), NOW_S, lambda: SOURCE in owned)() is ClaimVerdict.WAIT


def test_records_of_another_topic_are_detected_if_the_chain_has_a_topic_id() -> None:
    broker = Broker("other")
    monitor = TopicMonitor(broker.topic_ids, HandClock(NOW_S))
    assert monitor.guard(SOURCE, Lineage(), NOW_S, lambda: True)() is ClaimVerdict.CLAIM
    assert broker.asked == 0
    for read_until_s in (NOW_S, NOW_S - 1):
        assert monitor.guard(SOURCE, Lineage(0, "own"), read_until_s, lambda: True)() == OtherTopic("other")
    assert broker.asked == 1, "one response serves several flushes with the same result"


def test_late_response_does_not_replace_a_newer_one() -> None:
    clock = HandClock(NOW_S)
    answers = iter(["own", "own again", "unused"])

    def slow_once(topics: Collection[Topic]) -> Mapping[Topic, str | None]:
        answer = next(answers)
        if answer == "own":
            clock.now_s += 5
            assert monitor.since(SOURCE.topic, NOW_S + 4) == "own again"
        return dict.fromkeys(topics, answer)

    monitor = TopicMonitor(slow_once, clock)
    assert monitor.since(SOURCE.topic, NOW_S) == "own"
    assert monitor.since(SOURCE.topic, NOW_S + 4) == "own again"


class Writer:
    """The guards of a writer that has one Kafka partition."""

    def __init__(self) -> None:
        self.clock = HandClock(NOW_S)
        self.assigned = self.assign()
        self.by_partition = {SOURCE: self.assigned}
        self.broker = Broker()
        topics = TopicMonitor(self.broker.topic_ids, self.clock)
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


def test_revoked_partition_is_not_claimed_even_after_it_returns() -> None:
    writer = Writer()
    assert writer.guard() is ClaimVerdict.CLAIM
    del writer.by_partition[SOURCE]
    assert writer.guard() is ClaimVerdict.WAIT
    writer.by_partition[SOURCE] = writer.assign()
    assert writer.guard() is ClaimVerdict.WAIT, "its records were read under the previous assignment"


def test_process_silent_for_a_session_claims_only_after_a_later_poll() -> None:
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


def test_topic_recreated_between_two_flushes_is_detected_by_the_second() -> None:
    writer = Writer()
    assert writer.guard() is ClaimVerdict.CLAIM
    writer.clock.now_s += 1
    writer.broker.topic_id = "other"
    assert writer.guards.of(writer.assigned)() == OtherTopic("other")
