"""Chains that share a Kafka partition: each gets Kafka's records from its position on, in order, once."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.shared_topics import ALONE, CHAINS, CLICKS, Writer

VERBS = (
    "append",
    "poll",
    "poll",
    "poll",
    "pause",
    "pause",
    "resume",
    "seek",
    "start",
    "wait",
    "rebalance",
    "retain",
    "truncate",
)
Step = tuple[str, int, int]


def step(writer: Writer, verb: str, number: int, amount: int) -> None:
    chain = CHAINS[number % (len(writer.chains) - 1)]
    match verb:
        case "append":
            writer.log.append(amount, hole=number % 3)
        case "poll":
            writer.broker.at_once = 1 + number
            writer.poll()
        case "pause":
            writer.pause(chain)
        case "resume":
            writer.resume(chain)
        case "seek" if not writer.chains[chain].spoiled:  # an operator's skip, or what was not sealed
            writer.start(chain, max(writer.log.low, min(amount, writer.log.end)))
        case "start":
            writer.start(chain)
        case "wait":
            writer.clock.sleep_s(amount)
        case "rebalance" if CLICKS in writer.owned:
            writer.starting = {chain} if amount % 2 else set()
            writer.broker.revoke(CLICKS, lost=number % 2 == 0)
            if amount % 3:
                writer.poll()
            writer.broker.assign(CLICKS)
        case "retain":
            writer.log.retain(amount)
        case "truncate":
            writer.truncate(max(writer.log.low, writer.log.end - amount))
        case _:
            pass


@given(
    st.integers(2, 3),
    st.lists(st.integers(0, 30), min_size=3, max_size=3),
    st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 5), st.integers(0, 30)), min_size=12, max_size=40),
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
    for verb, number, amount in steps:
        step(writer, verb, number, amount)
    writer.drain()
    assert writer.chains[ALONE].read == list(range(1, 21)), "a topic of its own is read as ever"
    for chain in CHAINS[:chains]:
        state = writer.chains[chain]
        assert state.starting or state.position <= writer.log.end
        assert state.starting or len(writer.log.batch(chain, state.position, 1)) == 0
