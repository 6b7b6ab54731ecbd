"""The plan of tests/chaos: the faults that the real processes get."""

import json
from collections import Counter
from decimal import Decimal

import pytest

from stage_writer.topologies.testing import Message, TopologyTestDriver
from tests.builders import required
from tests.chaos.plan import LEASE_S, SESSION_S, Kind, plan
from tests.chaos.records import COLUMNS, expected, number_of, numbered, record
from tests.chaos.stateful import SEEN, TOPIC, build
from tests.verifier import GOOD, Sent


@pytest.mark.parametrize("seconds", [60, 75, 600])
def test_each_seed_plans_every_kind_of_fault_within_the_time(seconds: int) -> None:
    for seed in range(50):
        faults = plan(seed, seconds)
        assert faults == plan(seed, seconds)
        assert {fault.kind for fault in faults} == set(Kind)
        times = [fault.at_s for fault in faults]
        assert times == sorted(times)
        assert times[0] > 0
        assert times[-1] < seconds * 1.1


def test_pauses_outlast_sessions_and_leases() -> None:
    faults = [fault for seed in range(20) for fault in plan(seed, 600)]
    least = {Kind.WRITER_PAUSED: SESSION_S, Kind.LOADER_PAUSED: LEASE_S}
    for kind, seconds in least.items():
        assert min(fault.lasts_s for fault in faults if fault.kind is kind) > seconds + 1
    assert min(Counter(fault.kind for fault in faults).values()) > 20 * 3


def test_record_is_deterministic_and_carries_its_number() -> None:
    kinds: Counter[bytes] = Counter()
    for number in range(2000):
        generated = record(7, number)
        assert generated == record(7, number)
        sent = Sent(("orders", generated.partition, number), 0, generated.key, generated.value)
        assert number_of(sent) == number
        kinds[generated.key if generated.value is not None else b"gone"] += 1
        if generated.key == GOOD:
            content = json.loads(required(generated.value))
            row = expected(sent)
            assert (row["n"], row["amount"]) == (number, Decimal(content["amount"]))
    assert len(kinds) == 9
    assert kinds[b"gone"] == 65


def test_numbered_rows_match_the_topology_s_state() -> None:
    driver = TopologyTestDriver(build(), columns=f"{COLUMNS}, {SEEN}")
    records = [record(7, number) for number in range(400)]
    messages = [
        Message(TOPIC, generated.key, generated.value, 0, partition=generated.partition) for generated in records
    ]
    driver.pipe_inputs(messages[:150])
    driver.restart()
    driver.pipe_inputs(messages[150:])
    rows, last = driver.rows(), Counter[int]()
    sent: list[Sent] = []
    for generated in records:
        sent.append(Sent((TOPIC, generated.partition, last[generated.partition]), 0, generated.key, generated.value))
        last[generated.partition] += 1
    wanted = numbered(reversed(sent))
    assert [row["seen"] for row in rows] == [wanted(sent[row["n"]])["seen"] for row in rows]
    assert len(rows) == 400 - len(driver.dead_letters()) - sum(generated.value is None for generated in records)
