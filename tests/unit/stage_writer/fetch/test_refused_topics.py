"""Topics that this user may not read: seen through a scripted consumer, their streams wait and the others continue."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

import pytest
import structlog
from confluent_kafka import KafkaError, Message

from common.errors import BrokerError, BrokerRefusedError, ExitCode
from common.spans import Topic
from common.stage.merged import chain_topic, shared_chain
from stage_writer.fetch import connection
from stage_writer.fetch.chain_metadata import ChainMetadata
from stage_writer.fetch.checked_reading import CHECK_EVERY_S
from stage_writer.fetch.kafka import KafkaSource
from stage_writer.ports import NOT_ALLOWED, PartitionFault
from tests.builders import settings_of
from tests.fakes.group import HandClock, LonelyMember

DENIED = KafkaError.TOPIC_AUTHORIZATION_FAILED


@dataclass
class Consumer:
    answers: list[Message] = field(default_factory=list)

    def consume(self, _most: int, _timeout: float) -> list[Message]:
        answers, self.answers = self.answers, []
        return answers

    def subscribe(self, topics: list[str], **callbacks: object) -> None: ...


class Member:
    """A source of two topics, and what its broker says of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.consumer, self.clock, self.denied, self.asked = Consumer(), HandClock(), set[str](), 0
        self.is_away = False
        monkeypatch.setattr(connection, "Consumer", lambda *_args, **_more: self.consumer)
        streams = [
            {"app_id": name, "topics": [name], "table": f"file:///{name}", "columns": "id BIGINT"}
            for name in ("orders", "payments")
        ]
        settings = settings_of(*streams, folder="file://")
        self.source = KafkaSource(settings, self.clock, structlog.get_logger())
        monkeypatch.setattr(self.source.metadata, "refused", self.refused)
        self.source._reading._refused._refused = self.refused
        self.source._subscription.begin(settings.streams, lambda _: None)

    def refused(self, topics: Collection[str]) -> Collection[str]:
        self.asked += 1
        if self.is_away:
            raise BrokerError("no answer in time", "see that it is up")
        return self.denied.intersection(topics)

    def poll(self, *partitions: int, topic: str = "orders") -> Sequence[PartitionFault]:
        self.consumer.answers = [
            Message(topic=topic, partition=partition, offset=-1, error=KafkaError(DENIED)) for partition in partitions
        ]
        return self.source.poll(0.0).faults


@pytest.fixture
def member(monkeypatch: pytest.MonkeyPatch) -> Member:
    return Member(monkeypatch)


def test_refused_partition_is_a_fault_of_its_own(member: Member) -> None:
    member.denied = {"orders"}
    faults = member.poll(0, 1)
    assert [(fault.partition.partition, fault.reason, fault.remedy) for fault in faults] == [
        (number, NOT_ALLOWED, "allow this user to READ the topic orders") for number in (0, 1)
    ]
    assert member.asked == 1
    member.clock.now_s += CHECK_EVERY_S
    member.poll(2)
    assert member.asked == 2


def test_writer_that_may_read_nothing_ends(member: Member) -> None:
    member.denied = {"orders", "payments"}
    with pytest.raises(BrokerRefusedError, match="refuses this member") as refused:
        member.poll(0)
    assert refused.value.exit_code is ExitCode.USAGE
    assert refused.value.remedy == "allow this user to READ the topic orders"


def test_refusal_of_one_topic_does_not_end_the_writer_while_the_others_are_unknown(member: Member) -> None:
    member.denied, member.is_away = {"orders", "payments"}, True
    assert [fault.reason for fault in member.poll(0)] == [NOT_ALLOWED]


@pytest.mark.parametrize("chain", [shared_chain("orders", "second"), chain_topic(["orders", "payments"])])
def test_chain_is_refused_with_its_topic(chain: Topic) -> None:
    group = LonelyMember(HandClock(), {}, denied={"orders"})
    assert set(ChainMetadata(group, lambda _: {}).refused([chain, "other"])) == {chain}
