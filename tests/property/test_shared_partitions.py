"""Chains that share a Kafka partition: each gets Kafka's records from its position on, in order, once."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from common.spans import TopicPartition
from tests.fakes.shared_topics import ALONE, CHAINS, CLICKS, Writer

Step = tuple[str, int, int]


def append(writer: Writer, number: int, amount: int) -> None:
    writer.log.append(amount, hole=number % 3)


def poll(writer: Writer, number: int, _amount: int) -> None:
    writer.broker.at_once = 1 + number
    writer.poll()


def pause(writer: Writer, number: int, _amount: int) -> None:
    writer.pause(chain_of(writer, number))


def resume(writer: Writer, number: int, _amount: int) -> None:
    writer.resume(chain_of(writer, number))


def start(writer: Writer, number: int, _amount: int) -> None:
    writer.start(chain_of(writer, number))


def seek(writer: Writer, number: int, amount: int) -> None:
    chain = chain_of(writer, number)
    if not writer.chains[chain].spoiled:
        writer.start(chain, max(writer.log.low, min(amount, writer.log.end)))


def wait(writer: Writer, _number: int, amount: int) -> None:
    writer.clock.sleep_s(amount)


def rebalance(writer: Writer, number: int, amount: int) -> None:
    writer.starting = {chain_of(writer, number)} if amount % 2 else set()
    writer.broker.revoke(CLICKS, lost=number % 2 == 0)
    if amount % 3:
        writer.poll()
    writer.broker.assign(CLICKS)


def retain(writer: Writer, _number: int, amount: int) -> None:
    writer.log.retain(amount)


def truncate(writer: Writer, _number: int, amount: int) -> None:
    writer.truncate(max(writer.log.low, writer.log.end - amount))


STEPS = {made.__name__: made for made in (append, poll, pause, resume, start, seek, wait, rebalance, retain, truncate)}
NAMES = (*STEPS, "poll", "poll", "pause")


def chain_of(writer: Writer, number: int) -> TopicPartition:
    return CHAINS[number % (len(writer.chains) - 1)]


@given(
    st.integers(2, 3),
    st.lists(st.integers(0, 30), min_size=3, max_size=3),
    st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5), st.integers(0, 30)), min_size=12, max_size=40),
)
def test_each_chain_gets_every_record_from_its_position_once(
    chains: int, positions: Sequence[int], steps: Sequence[Step]
) -> None:
    writer = Writer(chains)
    writer.log.append(20)
    writer.broker.logs[ALONE].append(20)
    for chain, position in zip(CHAINS[:chains], positions, strict=False):
        writer.chains[chain].position = min(position, writer.log.end)
    writer.broker.assign(CLICKS, ALONE)
    for name, number, amount in steps:
        STEPS[name](writer, number, amount)
    writer.drain()
    assert writer.chains[ALONE].read == list(range(1, 21)), "an unshared topic is read as usual"
    for chain in CHAINS[:chains]:
        state = writer.chains[chain]
        assert state.starting or state.position <= writer.log.end
        assert state.starting or len(writer.log.batch(chain, state.position, 1)) == 0
